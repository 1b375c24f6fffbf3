# Memory for CUDA graphs.

"""
    Capture

The memory of one or more CUDA graphs, from [`capture`](@ref). Nothing else gets an address in it
until the last [`release!`](@ref). The garbage collector does not release it, because it cannot see
the graphs that use it.
"""
mutable struct Capture
    handle::Ptr{Cvoid}
    references::Int
end

"""
    capture(f; stream) -> (result, Capture)

Calls `f()`. What any task allocates on `stream` meanwhile comes from separate memory, for the CUDA
graph that is captured in the block. An exception frees that memory and propagates. Release the
`Capture` when the graph will not be launched again.
"""
function capture(f; stream::Stream)
    out = Ref{Ptr{Cvoid}}(C_NULL)
    on(stream) do s
        ok(GC.@preserve out C.capture_begin(s.handle, C_NULL, Base.unsafe_convert(Ptr{Ptr{Cvoid}}, out)))
    end
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

Drops one reference to a capture's memory, which becomes ordinary after the last; or ends a
reservation.
"""
function release!(c::Capture)
    ok(C.capture_release(c.handle))
    c.references -= 1
    return
end

"""
    retain!(capture)

Takes one more reference, for one more graph. Each needs a [`release!`](@ref).
"""
function retain!(c::Capture)
    ok(C.capture_retain(c.handle))
    c.references += 1
    return c
end

Base.show(io::IO, c::Capture) = print(io, "Capture(", c.references, c.references == 1 ? " reference)" : " references)")
