# Streams.

"""
    Stream()            # a new stream of the current device
    Stream(handle)      # a CUDA stream that somebody else owns

A queue of work on a device, done in order. A new one belongs to the caller until
[`destroy!`](@ref); the handle must be a live stream wherever it is passed. `Gpumem.default_stream`
is the device's legacy default stream, and what functions take when no stream is given. With CUDA.jl
loaded, `Stream(CUDA.stream())` is the task's stream there.
"""
struct Stream
    handle::Ptr{Cvoid}
end

const default_stream = Stream(C_NULL)

function Stream()
    out = Ref{Ptr{Cvoid}}(C_NULL)
    ok(GC.@preserve out C.stream_create(Base.unsafe_convert(Ptr{Ptr{Cvoid}}, out)))
    return Stream(out[])
end

"""
    destroy!(stream)

Destroys a stream that `Stream()` made. Its work still runs; memory allocated on it stays valid. A
buffer of another stream that `copyto!`, `fill!` or [`record_stream!`](@ref) used on it must be gone
by then, as gpumem names the stream once more when that is freed.
"""
destroy!(s::Stream) = ok(C.stream_destroy(s.handle))

"""
    synchronize(stream = Gpumem.default_stream)

Waits until everything submitted to a stream is done. The collector can run meanwhile, other tasks
of this thread cannot.
"""
function synchronize(s::Stream = default_stream)
    h = s.handle
    C.address_of_stream_sync[] == C_NULL && resolve!(C.address_of_stream_sync, :gpumem_stream_sync)
    ok(waiting(() -> C.stream_sync(h)))
end

"""
    with_stream(f)

Calls `f` with a stream of the current device that nobody else has meanwhile, and waits for its
work; after an exception too. The stream is not destroyed but lent again, so that buffers which were
used on it may go later.
"""
function with_stream(f)
    device = current_device()
    s = lock(() -> isempty(get!(Vector{Stream}, idle_streams, device)) ? nothing : pop!(idle_streams[device]), idle_lock)
    s === nothing && (s = Stream())
    result = try
        f(s)
    catch
        # A stream that cannot be waited for is not lent again; what `f` threw matters more.
        try
            give_back(s, device)
        catch
        end
        rethrow()
    end
    give_back(s, device)
    return result
end

# The streams of `with_stream` that nobody has, by device.
const idle_streams = Dict{Int,Vector{Stream}}()
const idle_lock = ReentrantLock()

function give_back(s::Stream, device::Int)
    synchronize(s)
    lock(() -> push!(idle_streams[device], s), idle_lock)
    return
end

Base.show(io::IO, s::Stream) =
    s.handle == C_NULL ? print(io, "Stream(default)") : print(io, "Stream(0x", string(UInt(s.handle); base = 16), ")")
