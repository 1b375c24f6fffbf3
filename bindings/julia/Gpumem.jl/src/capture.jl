# Memory for CUDA graphs.

"""
    Capture

The memory of one or more CUDA graphs, from [`capture`](@ref): nobody else gets an address of it
until the last [`release!`](@ref). It is not released by the collector, which cannot see the graphs
that use it.
"""
mutable struct Capture
    handle::Ptr{Cvoid}
    references::Int
end

"""
    capture(f; stream) -> (result, Capture)

Calls `f()`; what is allocated on `stream` meanwhile, by any task, comes from memory of its own, for
the CUDA graph that is captured in the block. After an exception that memory is freed and the
exception goes on. Release the `Capture` when no launch of the graph will follow.
"""
function capture(f; stream::Stream)
    out = Ref{Ptr{Cvoid}}(C_NULL)
    ok(GC.@preserve out C.capture_begin(stream.handle, C_NULL, Base.unsafe_convert(Ptr{Ptr{Cvoid}}, out)))
    begun = true
    try
        result = f()
        ok(C.capture_end(out[]))
        begun = false
        return result, Capture(out[], 1)
    finally
        begun && C.capture_abort(out[])
    end
end

"""
    release!(capture)
    release!(reservation) -> bytes still drawn

Gives up one reference to a capture's memory, which is ordinary memory after the last; or ends a
reservation.
"""
function release!(c::Capture)
    ok(C.capture_release(c.handle))
    c.references -= 1
    return
end

"""
    retain!(capture)

One more reference, for one more graph: each needs a [`release!`](@ref).
"""
function retain!(c::Capture)
    ok(C.capture_retain(c.handle))
    c.references += 1
    return c
end

Base.show(io::IO, c::Capture) = print(io, "Capture(", c.references, c.references == 1 ? " reference)" : " references)")
