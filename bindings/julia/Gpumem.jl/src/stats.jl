# Counters.

"""
One device's counters, from [`stats`](@ref). Bytes, except these counts: `allocations` (live ones),
`mallocs`, `frees`, `extents`, `moved`, `stitches`, `growths`, `streams`, `double_frees`,
`unknown_pointers`, `late_frees` (by finalizers that ran after the end of the buffer),
`out_of_memory`. `limit` is the most bytes that may be mapped ([`limit!`](@ref)), 0 for all that the
device has.
"""
struct Stats
    size::UInt32
    device::Int32
    reserved::UInt64
    mapped::UInt64
    peak_mapped::UInt64
    requested::UInt64
    live::UInt64
    peak_live::UInt64
    free::UInt64
    waiting::UInt64
    stock::UInt64
    holes::UInt64
    zombies::UInt64
    largest_without_growth::UInt64
    largest_free::UInt64
    allocations::UInt64
    mallocs::UInt64
    frees::UInt64
    extents::UInt64
    moved::UInt64
    stitches::UInt64
    growths::UInt64
    streams::UInt64
    double_frees::UInt64
    unknown_pointers::UInt64
    late_frees::UInt64
    out_of_memory::UInt64
    limit::UInt64
end

function current_device()
    out = Ref{Cint}(0)
    ok(GC.@preserve out C.device_get(Base.unsafe_convert(Ptr{Cint}, out)))
    return Int(out[])
end

"""
    stats(device = the thread's current one) -> Stats

Returns a snapshot of a device's counters. Other threads go on while it is taken.
"""
stats(device::Integer = current_device()) = filled(p -> C.stats_get(device, p), Stats)

"""
    trim(keep_bytes = 0)

Gives free physical memory back to the devices until at most `keep_bytes` stay mapped on each. Live
memory stays.
"""
trim(keep_bytes::Integer = 0) = ok(C.trim(keep_bytes))

"""
    limit!(bytes, device = the thread's current one)

Sets the most bytes that gpumem may map on a device; 0 means all that the device has.
"""
limit!(bytes::Integer, device::Integer = current_device()) = ok(C.device_limit_set(device, bytes))

"""
    validate()

Checks every invariant of the library's own state. Slow; for tests.
"""
validate() = ok(C.validate())

function Base.show(io::IO, s::Stats)
    print(io, "Stats(device ", s.device, ": ", Int(s.allocations), " live of ", human(s.requested), ", ", human(s.mapped), " mapped)")
end

function Base.show(io::IO, ::MIME"text/plain", s::Stats)
    println(io, "Device ", s.device, " (", backend(), ")")
    println(io, "  live      ", Int(s.allocations), " buffers, ", human(s.requested), " asked for, ", human(s.live), " handed out")
    println(io, "  mapped    ", human(s.mapped), ", ", human(s.peak_mapped), " at most")
    println(io, "  free      ", human(s.free), " at once, ", human(s.waiting), " when streams are done")
    print(io, "  so far    ", Int(s.mallocs), " allocations, ", Int(s.frees), " frees, ", Int(s.late_frees), " late finalizers, ",
        Int(s.out_of_memory), " refused for lack of memory")
end
