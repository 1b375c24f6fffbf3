# Streams.

"""
    Stream()            # a new stream of the current device
    Stream(handle)      # a CUDA stream that somebody else owns

A queue of work on a device, done in order. The caller owns a new one until [`destroy!`](@ref). The
handle must be a live stream wherever it is passed. `Gpumem.default_stream` is the legacy default
stream of the device that is current where it is used; functions use it when no stream is given.
With CUDA.jl loaded, `Stream(CUDA.stream())` is the task's CUDA.jl stream.
"""
struct Stream
    handle::Ptr{Cvoid}
    # The device of a default stream, whose handle is the same on all devices. -1 is the device that
    # is current where the stream is used. Always -1 where the handle says which stream it is.
    device::Int32

    Stream(handle, device = -1) = new(handle, device)
end

const default_stream = Stream(C_NULL)

# Calls `f(stream)` where the stream's handle means this very stream: with its device as the current
# one. A default stream that `f` gets has its device. `f` must not yield, as the device is the
# thread's.
function on(f, s::Stream)
    UInt(s.handle) <= 2 || return f(s)
    now = current_device()
    s.device in (-1, now) && return f(Stream(s.handle, now))
    ok(C.device_set(s.device))
    try
        return f(s)
    finally
        ok(C.device_set(now))
    end
end

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
    on(s) do here
        ok(waiting(() -> C.stream_sync(here.handle), C.address_of_stream_sync, :gpumem_stream_sync))
    end
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

function Base.show(io::IO, s::Stream)
    print(io, "Stream(", s.handle == C_NULL ? "default" : "0x" * string(UInt(s.handle); base = 16))
    print(io, s.device < 0 ? ")" : " of device $(s.device))")
end
