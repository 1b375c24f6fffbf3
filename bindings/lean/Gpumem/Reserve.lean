import Gpumem.Buffer

/-!
Reservations: promises of capacity.
-/
namespace Gpumem

/-- A promise of bytes of device memory. -/
structure Reservation where
  handle : UInt64

/-- Facts about a reservation, in bytes. `promised` is its size, `drawn` the part that live
allocations use, `used` that and what a policy took from outside, `peak` the most that was used.
`number` is unique within the process. -/
structure ReservationInfo where
  number : UInt64
  promised : UInt64
  drawn : UInt64
  used : UInt64
  peak : UInt64

namespace Reservation

/-- Reserves `bytes` of the current device, or waits its turn for them for at most `timeoutMs`
milliseconds. Fails with `GPUMEM_ERROR_TIMED_OUT`, or with `GPUMEM_ERROR_OUT_OF_MEMORY` if
`timeoutMs` is 0 or there can never be that much. -/
def reserve (bytes : UInt64) (timeoutMs : UInt64 := 0) : IO Reservation := do
  let handle ← Raw.reserve bytes timeoutMs
  return ⟨handle⟩

/-- Ends a reservation. Memory drawn from it stays; the result is how many bytes that is. -/
def release (r : Reservation) : IO UInt64 := Raw.reservationRelease r.handle

/-- Runs `body` with the reservation attached to this thread, so that its allocations draw from the
reservation. For tasks; `withReservation` does it for its own thread. -/
def run {α : Type} (r : Reservation) (body : IO α) : IO α := do
  Raw.reservationAttach r.handle
  try body finally Raw.reservationDetach r.handle

def info (r : Reservation) : IO ReservationInfo := do
  let v ← Raw.reservationInfo r.handle
  return { number := v.getD 0 0, promised := v.getD 1 0, drawn := v.getD 2 0, used := v.getD 3 0, peak := v.getD 4 0 }

end Reservation

/-- Runs `body` with `bytes` reserved. This thread's allocations draw from them meanwhile, and one
that does not fit is refused. The reservation ends with `body`, even after an exception, or earlier
by a `release` in it. Live allocations stay. -/
def withReservation {α : Type} (bytes : UInt64) (body : Reservation → IO α) (timeoutMs : UInt64 := 0) : IO α := do
  let r ← Reservation.reserve bytes timeoutMs
  try
    r.run (body r)
  finally
    Raw.reservationEnd r.handle

end Gpumem
