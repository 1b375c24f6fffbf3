"""
Device memory that ends when the program says so, from libgpumem.

    using Gpumem
    b = DeviceBuffer(1 << 20)               # freed by `free!(b)`, by its arena, or by the collector
    with_arena() do arena                   # everything that is allocated in the block is free after it ...
        DeviceBuffer(4096)
        b2 = DeviceBuffer(4096)             # ... but for what the block returns
    end

Sizes are bytes. The first call that needs the library loads it: from `ENV["GPUMEM_LIBRARY"]`, else
from the preference `library` of this package, else from where the system's loader looks. If it is
missing, that call says so. Failures throw a [`GpumemError`](@ref) with the library's text. Every
function may be called from any task and any thread.
"""
module Gpumem

using Libdl

export GpumemError, Stream, synchronize, destroy!, with_stream
export DeviceBuffer, free!, islive, address, allocation_id, check, record_stream!
export Arena, with_arena, in_arena, attached, current_arena, enter!, exit!, abort!, escape!, promote!, kept
export ArenaReport, ArenaStats, arena_stats
export Capture, capture, release!, retain!
export Reservation, reserve, in_reservation, reservation_info
export Stats, stats, trim, limit!, validate

include("lib.jl")
include("stream.jl")
include("buffer.jl")
include("arena.jl")
include("capture.jl")
include("reserve.jl")
include("stats.jl")

end
