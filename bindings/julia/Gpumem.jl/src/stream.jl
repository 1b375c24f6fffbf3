# Streams.

"""
    Stream()            # a new stream of the current device
    Stream(handle)      # a CUDA stream that somebody else owns

A queue of work on a device, done in order. The caller owns a new one until [`destroy!`](@ref). The
handle must be a live stream wherever it is passed. `Gpumem.default_stream` is the device's legacy
default stream; functions use it when no stream is given. With CUDA.jl loaded,
`Stream(CUDA.stream())` is the task's CUDA.jl stream.
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

Destroys a stream that `Stream()` made. Its work still runs; memory allocated on it stays valid.
First free every buffer of another stream that `copyto!`, `fill!` or [`record_stream!`](@ref) used
on it: gpumem uses the stream once more when such a buffer is freed.
"""
destroy!(s::Stream) = ok(C.stream_destroy(s.handle))

"""
    synchronize(stream = Gpumem.default_stream)

Waits until everything submitted to a stream is done. The garbage collector can run meanwhile; other
tasks of this thread cannot.
"""
function synchronize(s::Stream = default_stream)
    h = s.handle
    C.address_of_stream_sync[] == C_NULL && resolve!(C.address_of_stream_sync, :gpumem_stream_sync)
    ok(waiting(() -> C.stream_sync(h)))
end

"""
    with_stream(f)

Calls `f` with a stream of the current device for its exclusive use, and waits for its work, even
after an exception. The stream is not destroyed but lent again, so buffers used on it may be freed
later.
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
