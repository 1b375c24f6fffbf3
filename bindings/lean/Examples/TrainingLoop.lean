import Gpumem

/-!
A training loop of eager operations, as TorchLean's: every operation makes a buffer of its result,
the carrier is pure, and nobody calls `release`. All buffers stay reachable (here: in `tape`, which
stands for what a fold keeps alive until the last read).

Without arenas device memory grows by every buffer of every step. With an arena around each step
only the parameters outlive it. The operations are fills and copies, so that it runs without a GPU:
`GPUMEM_BACKEND=host`.
-/
open Gpumem

namespace TrainingLoop

def floats : USize := 4096
def bytes : USize := floats * 4
/-- How many operations a step has. -/
def operations : Nat := 50

/-- What one operation does: a result of its own from an operand. The operand is checked as a
kernel's would be. -/
def op (name : String) (x : Buffer) (byte : UInt8) : IO Buffer := do
  x.check name "x"
  let y ← Buffer.alloc bytes
  y.copyFrom x
  y.fill byte 0 (some 64)
  return y

/-- One step: new parameters from the old ones, `operations` buffers on the way. All of them go to
the tape. -/
def step (tape : IO.Ref (Array Buffer)) (parameters : Buffer) (number : Nat) : IO Buffer := do
  let mut x := parameters
  for i in [0:operations] do
    x ← op "forward" x (UInt8.ofNat (number + i))
    tape.modify (fun all => all.push x)
  let updated ← op "update" x (UInt8.ofNat number)
  tape.modify (fun all => all.push updated)
  return updated

def report (how : String) (number : Nat) : IO Unit := do
  let s ← stats
  IO.println s!"{how}, step {number}: {s.mapped / 1048576} MiB mapped, {s.allocations} live buffers"

def initial : IO Buffer := do
  let b ← Buffer.alloc bytes
  b.fill 0
  return b

/-- With arenas; gives the bytes mapped after `steps` and after twice as many. -/
def withArenas (steps : Nat) : IO (UInt64 × UInt64) := do
  let tape ← IO.mkRef (#[] : Array Buffer)
  let mut parameters ← initial
  let mut first : UInt64 := 0
  for number in [1:2 * steps + 1] do
    let old := parameters
    parameters ← withArena (fun b => #[b]) (step tape old number) "step"
    -- The loop knows that these end here.
    old.release
    if number % 50 == 0 then report "with arenas" number
    if number == steps then first := (← stats).mapped
  let last := (← stats).mapped
  let data ← parameters.download 0 (some 1)
  IO.println s!"the parameters begin with {data.get! 0}; {(← tape.get).size} buffers are still reachable"
  return (first, last)

def withoutArenas (steps : Nat) : IO (UInt64 × UInt64) := do
  let tape ← IO.mkRef (#[] : Array Buffer)
  let mut parameters ← initial
  let mut first : UInt64 := 0
  for number in [1:2 * steps + 1] do
    parameters ← step tape parameters number
    if number % 50 == 0 then report "without arenas" number
    if number == steps then first := (← stats).mapped
  let last := (← stats).mapped
  IO.println s!"{(← tape.get).size} buffers are still reachable"
  return (first, last)

/-- Four rounds of 64 live buffers of 4096 floats: each exit takes exactly these, though all are
still held. -/
def rounds : IO Unit := do
  let mut held : Array Buffer := #[]
  let before ← stats
  for _ in [0:4] do
    let made ← IO.mkRef (#[] : Array Buffer)
    let arena ← Arena.enter "round"
    for _ in [0:64] do
      let b ← Buffer.alloc bytes
      made.modify (fun all => all.push b)
    let report ← arena.exit
    held := held ++ (← made.get)
    IO.println s!"round: {report}"
  let after ← stats
  IO.println s!"reclaimed {after.frees - before.frees} buffers in 4 arenas, {held.size} still held, {after.allocations - before.allocations} more live than before"

/-- What the detector says of a use that comes too late: with `GPUMEM_ARENA_DEBUG=check`. -/
def late : IO Unit := do
  let x ← withArena (fun _ => #[]) initial "step"
  try
    let _ ← op "mul" x 1
    IO.println "a late use was not found"
  catch e =>
    IO.println s!"late use: {e}"

end TrainingLoop

def main : IO UInt32 := do
  TrainingLoop.rounds
  let (first, last) ← TrainingLoop.withArenas 200
  let (first', last') ← TrainingLoop.withoutArenas 200
  TrainingLoop.late
  let flat := first == last
  let grows := last' > first' + first' / 2
  IO.println s!"with arenas: {first / 1048576} MiB after 200 steps, {last / 1048576} after 400; without: {first' / 1048576} and {last' / 1048576}"
  return if flat && grows then 0 else 1
