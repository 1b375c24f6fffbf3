import Gpumem.Buffer

/-!
Arenas: allocations that end together.

An arena is current on a thread, and what that thread allocates is in it. Tasks run on other
threads, so their allocations are not in it unless they attach (`Arena.run`).
-/
namespace Gpumem

/-- A handle to an arena. It becomes stale when the arena ends; a stale handle is refused. -/
structure Arena where
  handle : UInt64

/-- What the end of an arena did: counts of allocations, and bytes as asked for. `unknown`,
`duplicate` and `foreign` count entries of the keep list that changed nothing. `depth` is how many
arenas enclosed it. -/
structure ArenaReport where
  depth : UInt64
  freed : UInt64
  freedBytes : UInt64
  kept : UInt64
  keptBytes : UInt64
  unknown : UInt64
  duplicate : UInt64
  foreign : UInt64
  nanoseconds : UInt64

/-- What has happened in an open arena so far: counts of allocations, and bytes as asked for. -/
structure ArenaStats where
  name : String
  depth : UInt64
  live : UInt64
  liveBytes : UInt64
  peakBytes : UInt64
  joined : UInt64
  left : UInt64
  promoted : UInt64
  freedEarly : UInt64
  threads : UInt64
  nanoseconds : UInt64
  id : UInt64

instance : ToString ArenaReport where
  toString r := s!"freed {r.freed} of {r.freedBytes} bytes, kept {r.kept} of {r.keptBytes} bytes"

instance : ToString ArenaStats where
  toString s := s!"{s.name}: {s.live} live of {s.liveBytes} bytes, {s.peakBytes} at most, {s.joined} joined, {s.left} left"

private def nth (values : Array UInt64) (i : Nat) : UInt64 := values.getD i 0

private def reportOf (v : Array UInt64) : ArenaReport :=
  { depth := nth v 0, freed := nth v 1, freedBytes := nth v 2, kept := nth v 3, keptBytes := nth v 4, unknown := nth v 5,
    duplicate := nth v 6, foreign := nth v 7, nanoseconds := nth v 8 }

namespace Arena

/-- Opens an arena inside the thread's current one, and makes it the current one. The name is for
statistics and texts. End it with `exit` or `abort`; `withArena` does. -/
def enter (name : String := "") : IO Arena := do
  let handle ← Raw.arenaEnter name
  return ⟨handle⟩

/-- Ends an arena: frees everything allocated in it, even if something still refers to it, except
`keep` and the buffers that contain one of `addresses`. These move to the enclosing arena, or become
ordinary where there is none. Fails, and leaves the arena open, when it is not the thread's current
one or another thread is attached. -/
def exit (a : Arena) (keep : Array Buffer := #[]) (addresses : Array UInt64 := #[]) : IO ArenaReport := do
  let values ← Raw.arenaExit a.handle keep addresses
  return reportOf values

/-- Ends an arena and all open arenas inside it, keeping nothing. The report covers all of them. -/
def abort (a : Arena) : IO ArenaReport := do
  let values ← Raw.arenaAbort a.handle
  return reportOf values

/-- Makes an open arena the thread's current one, on top of the present one. Until `detach` no other
thread can end it. -/
def attach (a : Arena) : IO Unit := Raw.arenaAttach a.handle

/-- Detaches the thread from its current arena, which stays open. -/
def detach (a : Arena) : IO Unit := Raw.arenaDetach a.handle

/-- Runs `body` with the arena attached to this thread. This is how a task takes part in the arena
of the task that started it. -/
def run {α : Type} (a : Arena) (body : IO α) : IO α := do
  let before ← Raw.arenaCurrent
  a.attach
  let result ← try
      body
    catch e =>
      -- Also from arenas inside that the body left open.
      Raw.arenaLeave before
      throw e
  a.detach
  return result

/-- The thread's current arena. -/
def current : IO (Option Arena) := do
  let handle ← Raw.arenaCurrent
  return if handle == 0 then none else some ⟨handle⟩

def stats (a : Arena) : IO ArenaStats := do
  let v ← Raw.arenaStats a.handle
  let name ← Raw.arenaName a.handle
  return { name := name, depth := nth v 0, live := nth v 1, liveBytes := nth v 2, peakBytes := nth v 3, joined := nth v 4,
           left := nth v 5, promoted := nth v 6, freedEarly := nth v 7, threads := nth v 8, nanoseconds := nth v 9, id := nth v 10 }

end Arena

/-- The arena that a buffer is in. -/
def Buffer.arena (b : Buffer) : IO (Option Arena) := do
  let handle ← Raw.bufferArena b
  return if handle == 0 then none else some ⟨handle⟩

/-- Runs `body` in a new arena and ends it: everything that this thread allocated meanwhile is
freed, even if something still refers to it, except `keep` of the result.

An exception keeps nothing, ends nested arenas too, and propagates. Only where another thread is
attached the arena stays open, and this thread leaves it: `abort` it later. A buffer that was not
kept remains as an object: `isLive` is false, using it is an error, and its finalizer does
nothing. -/
def withArena {α : Type} (keep : α → Array Buffer) (body : IO α) (name : String := "") : IO α := do
  let before ← Raw.arenaCurrent
  let arena ← Arena.enter name
  try
    let result ← body
    let _ ← arena.exit (keep result)
    return result
  catch e =>
    -- Also where the exit was refused, as by an arena inside that the body left open: this one ends
    -- with its body all the same.
    try
      let _ ← arena.abort
      pure ()
    catch _ =>
      Raw.arenaLeave before
    throw e

end Gpumem
