# Capacity that is promised.

"""
    Reservation

A promise of bytes of device memory, from [`reserve`](@ref).
"""
mutable struct Reservation
    handle::Ptr{Cvoid}
    bytes::UInt64
    open::Bool
end

# gpumem_reserve_options.
struct ReserveOptions
    size::UInt32
    strategy::Int32
    bytes::UInt64
    least_bytes::UInt64
    tier::Int32
    space_id::UInt32
    tiers::NTuple{4,Int32}
    timeout_ms::UInt64
    cancel::Ptr{Cvoid}
    policy::Ptr{Cvoid}
    out_of_memory::Ptr{Cvoid}
    user::Ptr{Cvoid}
    free_user::Ptr{Cvoid}
end

"""
Facts about a reservation, in bytes. `promised` is its size, `drawn` the part that live allocations
use, `peak` the most that was used. `number` is unique within the process.
"""
struct ReservationInfo
    size::UInt32
    tier::Int32
    space_id::UInt32
    reserved::UInt32
    number::UInt64
    promised::UInt64
    drawn::UInt64
    used::UInt64
    peak::UInt64
    arrived::UInt64
    granted::UInt64
end

"""
    reserve(bytes; timeout = 0) -> Reservation
    reserve(f, bytes; timeout = 0)

Reserves `bytes` of the current device, or waits its turn for them for at most `timeout` seconds
(`Inf` is no limit). Throws `GPUMEM_ERROR_TIMED_OUT`, or `GPUMEM_ERROR_OUT_OF_MEMORY` if `timeout`
is 0 or there can never be that much. The garbage collector can run during the wait; other tasks of
this thread cannot.

With a block, calls `f(reservation)`. The task's allocations on the device draw from the reservation
meanwhile, and one that does not fit is refused. The reservation ends with the block, even after an
exception; live allocations stay.
"""
function reserve(bytes::Integer; timeout::Real = 0)
    timeout >= 0 || throw(ArgumentError("a timeout of $timeout seconds"))
    milliseconds = ceil(1000 * float(timeout))
    milliseconds = milliseconds < 2.0^64 ? UInt64(milliseconds) : typemax(UInt64)
    options = Ref(ReserveOptions(sizeof(ReserveOptions), 0, bytes, 0, 0, 0, (0, 0, 0, 0), milliseconds, C_NULL, C_NULL, C_NULL,
        C_NULL, C_NULL))
    out = Ref{Ptr{Cvoid}}(C_NULL)
    GC.@preserve options out begin
        o, at = Base.unsafe_convert(Ptr{ReserveOptions}, options), Base.unsafe_convert(Ptr{Ptr{Cvoid}}, out)
        ok(waiting(() -> C.reserve(Ptr{Cvoid}(o), at), C.address_of_reserve, :gpumem_reserve))
    end
    return Reservation(out[], bytes, true)
end

function reserve(f, bytes::Integer; timeout::Real = 0)
    r = reserve(bytes; timeout = timeout)
    try
        return in_reservation(() -> f(r), r)
    finally
        r.open && release!(r)
    end
end

"""
    in_reservation(f, reservation)

Calls `f`; the task's allocations on the reservation's device draw from it meanwhile. For tasks that
are spawned inside its block.
"""
in_reservation(f, r::Reservation) = with_handle(f, :gpumem_reservations, r.handle)

function release!(r::Reservation)
    drawn = Ref{UInt64}(0)
    ok(GC.@preserve drawn C.reservation_release(r.handle, Base.unsafe_convert(Ptr{UInt64}, drawn)))
    r.open = false
    return Int(drawn[])
end

"""
    reservation_info(reservation) -> Gpumem.ReservationInfo

Size, use and number of a live reservation.
"""
reservation_info(r::Reservation) = filled(p -> C.reservation_info_get(r.handle, p), ReservationInfo)

Base.show(io::IO, r::Reservation) = print(io, "Reservation(", human(r.bytes), r.open ? ")" : ", released)")
