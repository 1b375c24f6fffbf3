import Gpumem.Buffer

/-!
Capacity that is promised.
-/
namespace Gpumem

/-- A promise of bytes of device memory. -/
structure Reservation where
  handle : UInt64

/-- Facts about a reservation. Bytes: `promised` is its size, `drawn` what live allocations use of
it, `peak` the most that was used. `number` is one that no other reservation has had. -/
structure ReservationInfo where
  number : UInt64
  promised : UInt64
  drawn : UInt64
  used : UInt64
  peak : UInt64

namespace Reservation

/-- Promises `bytes` of the current device, or waits for them for `timeoutMs` milliseconds at most,
in turn. Fails with `GPUMEM_ERROR_TIMED_OUT`, or with `GPUMEM_ERROR_OUT_OF_MEMORY` where there can
never be as much or `timeoutMs` is 0. -/
def reserve (bytes : UInt64) (timeoutMs : UInt64 := 0) : IO Reservation := do
  let handle ← Raw.reserve bytes timeoutMs
  return ⟨handle⟩

/-- Ends a reservation. What is drawn of it stays; the result is how many bytes that are. -/
def release (r : Reservation) : IO UInt64 := Raw.reservationRelease r.handle

/-- Runs `body` with the reservation attached to this thread: what it allocates draws from it. For
tasks; `withReservation` does it for its own thread. -/
def run {α : Type} (r : Reservation) (body : IO α) : IO α := do
  Raw.reservationAttach r.handle
  try body finally Raw.reservationDetach r.handle

def info (r : Reservation) : IO ReservationInfo := do
  let v ← Raw.reservationInfo r.handle
  return { number := v.getD 0 0, promised := v.getD 1 0, drawn := v.getD 2 0, used := v.getD 3 0, peak := v.getD 4 0 }

end Reservation

/-- Runs `body` with `bytes` promised: what this thread allocates meanwhile draws from them, and an
allocation that does not fit is refused. The promise ends with `body`, after an exception too, or
earlier by a `release` in it; what is live by then stays. -/
def withReservation {α : Type} (bytes : UInt64) (body : Reservation → IO α) (timeoutMs : UInt64 := 0) : IO α := do
  let r ← Reservation.reserve bytes timeoutMs
  try
    r.run (body r)
  finally
    Raw.reservationEnd r.handle

end Gpumem
