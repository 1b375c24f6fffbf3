import Gpumem

/-!
What a pair of an allocation and a free of 4 KiB costs from Lean: nanoseconds, the least of 7 runs
of 1,000,000 pairs each. `bindings/bench.sh` has the same for C and Julia.
-/
open Gpumem

namespace Pairs

def pairs : Nat := 1000000

def released : IO Unit := do
  for _ in [0:pairs] do
    let b ← Buffer.alloc 4096
    b.release

/-- Freed by the finalizer, which Lean runs at once: the last reference goes with each turn. -/
def finalized : IO Unit := do
  for _ in [0:pairs] do
    let _ ← Buffer.alloc 4096
    pure ()

def least (act : IO Unit) : IO Nat := do
  let mut best := 1000000000
  for _ in [0:7] do
    let start ← IO.monoMsNow
    act
    let stop ← IO.monoMsNow
    if stop - start < best then best := stop - start
  return best * 1000000 / pairs

end Pairs

def main : IO Unit := do
  IO.println s!"Lean   alloc, release                     {← Pairs.least Pairs.released} ns"
  IO.println s!"Lean   alloc, finalizer                   {← Pairs.least Pairs.finalized} ns"
  let arena ← Arena.enter
  IO.println s!"Lean   alloc, release, in an arena        {← Pairs.least Pairs.released} ns"
  let _ ← arena.exit
