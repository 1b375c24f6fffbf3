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

Destroys a stream that `Stream()` made. Its work still runs; memory allocated on it stays valid.
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

Calls `f` with a new stream, waits for its work, and destroys it; after an exception too.
"""
function with_stream(f)
    s = Stream()
    try
        result = f(s)
        synchronize(s)
        return result
    finally
        destroy!(s)
    end
end

Base.show(io::IO, s::Stream) =
    s.handle == C_NULL ? print(io, "Stream(default)") : print(io, "Stream(0x", string(UInt(s.handle); base = 16), ")")
