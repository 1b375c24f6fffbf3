import Gpumem.Buffer

/-!
A device's counters and limit, and giving memory back.
-/
namespace Gpumem

/-- A snapshot of one device's counters. The fields before `allocations` (the live ones) are in
bytes; it and those after it are counts. `lateFrees` counts finalizers that ran after the end of
their buffer. -/
structure Stats where
  reserved : UInt64
  mapped : UInt64
  peakMapped : UInt64
  requested : UInt64
  live : UInt64
  peakLive : UInt64
  free : UInt64
  waiting : UInt64
  largestFree : UInt64
  allocations : UInt64
  mallocs : UInt64
  frees : UInt64
  extents : UInt64
  moved : UInt64
  stitches : UInt64
  growths : UInt64
  doubleFrees : UInt64
  unknownPointers : UInt64
  lateFrees : UInt64
  outOfMemory : UInt64

instance : ToString Stats where
  toString s := s!"{s.allocations} live of {s.requested} bytes, {s.mapped} bytes mapped, {s.lateFrees} late finalizers"

/-- The counters of the current device. -/
def stats : IO Stats := do
  let device ← Raw.device
  let v ← Raw.stats device
  let at_ (i : Nat) : UInt64 := v.getD i 0
  return { reserved := at_ 0, mapped := at_ 1, peakMapped := at_ 2, requested := at_ 3, live := at_ 4, peakLive := at_ 5,
           free := at_ 6, waiting := at_ 7, largestFree := at_ 8, allocations := at_ 9, mallocs := at_ 10, frees := at_ 11,
           extents := at_ 12, moved := at_ 13, stitches := at_ 14, growths := at_ 15, doubleFrees := at_ 16,
           unknownPointers := at_ 17, lateFrees := at_ 18, outOfMemory := at_ 19 }

/-- Gives free physical memory back to the devices until at most `keepBytes` stay mapped on each.
Live memory stays. -/
def trim (keepBytes : USize := 0) : IO Unit := Raw.trim keepBytes

/-- Sets the most bytes that gpumem may map on the current device; 0 means all that it has. -/
def setLimit (bytes : USize) : IO Unit := do
  let device ← Raw.device
  Raw.limit device bytes

/-- Checks every invariant of the library's own state. Slow; for tests. -/
def validate : IO Unit := Raw.validate

/-- The kind of device in use, `cuda` or `host`. -/
def backend : IO String := Raw.backend

end Gpumem
