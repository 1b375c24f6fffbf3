import Gpumem

/-!
The behaviours of `bindings/CONFORMANCE.md`, each a definition of that name. `lake test` runs them;
`make test-lean` sets what they need: `GPUMEM_ARENA_DEBUG=check` and, where there is no GPU,
`GPUMEM_BACKEND=host`.
-/
open Gpumem

namespace Test

def kib : USize := 1024
def mib : USize := 1024 * 1024
def mib64 : UInt64 := 1024 * 1024

def ensure (condition : Bool) (what : String) : IO Unit :=
  unless condition do throw (IO.userError what)

def contains (text part : String) : Bool := (text.splitOn part).length > 1

/-- Runs what must be refused with a text that has `part` in it, and gives the text. -/
def refused {α : Type} (part : String) (act : IO α) : IO String := do
  let text ← try
      let _ ← act
      pure ""
    catch e =>
      pure (toString e)
  ensure (contains text part) s!"not refused with {part}, but: {text}"
  return text

/-- Runs on a thread of its own, to its end. -/
def elsewhere {α : Type} (act : IO α) : IO α := do
  let task ← IO.asTask act Task.Priority.dedicated
  match (← IO.wait task) with
  | Except.ok value => return value
  | Except.error e => throw e

def allocMany (count : Nat) (bytes : USize) : IO (Array Buffer) := do
  let mut all : Array Buffer := #[]
  for _ in [0:count] do
    let b ← Buffer.alloc bytes
    all := all.push b
  return all

def noneLive (all : Array Buffer) : IO Bool := do
  for b in all do
    let live ← b.isLive
    if live == true then return false
  return true

/-- A pattern of `count` bytes. -/
def pattern (count seed : Nat) : ByteArray := Id.run do
  let mut data := ByteArray.mk #[]
  for i in [0:count] do
    data := data.push (UInt8.ofNat ((i * 31 + seed * 101) % 256))
  return data

def sameBytes (a b : ByteArray) : Bool := Id.run do
  if a.size != b.size then return false
  for i in [0:a.size] do
    if a.get! i != b.get! i then return false
  return true

def holds (b : Buffer) (seed : Nat) : IO Bool := do
  let data ← b.download
  return sameBytes data (pattern data.size seed)

def filled (bytes seed : Nat) : IO Buffer := do
  let b ← Buffer.alloc (USize.ofNat bytes)
  b.upload (pattern bytes seed)
  return b

def none_ {α : Type} (_ : α) : Array Buffer := #[]

/-- A buffer that an arena has ended, still referred to. -/
def stale (bytes : USize) (name : String := "") : IO Buffer := do
  withArena (fun _ => #[]) (do
    Buffer.alloc bytes) name

def zero_bytes : IO Unit := do
  let a ← Buffer.alloc 0
  let b ← Buffer.alloc 0
  let live ← a.isLive
  ensure (live && (← a.addr) != (← b.addr) && (← a.id) != 0 && (← a.id) != (← b.id)) "two of no bytes"
  a.release
  b.release
  ensure (!(← a.isLive)) "released"

def allAre (b : Buffer) (byte : UInt8) : IO Bool := do
  let data ← b.download
  let mut same := data.size != 0
  for i in [0:data.size] do
    same := same && data.get! i == byte
  return same

/-- A default stream has the same handle on each device, and a buffer's stays that of its own
device. -/
def twoDevices : IO Unit := do
  for handle in [0, 1, 2] do
    let mine : Gpumem.Stream := ⟨UInt64.ofNat handle⟩
    for _ in [0:10] do
      Raw.deviceSet 0
      let a ← Buffer.alloc mib mine
      a.fill 1
      Raw.deviceSet 1
      ensure (← allAre a 1) "read on its own stream"
      -- Device 1's default stream is another stream, which is announced.
      let b ← Buffer.alloc mib mine
      b.copyFrom a
      a.release
      Raw.deviceSet 0
      let again ← Buffer.alloc mib mine
      again.fill 2
      Raw.deviceSet 1
      b.fill 3 (bytes := some 1)
      Raw.deviceSet 0
      let data ← b.download
      ensure (data.get! 0 == 3 && data.get! 1 == 1) "copied and filled on the destination's stream"
      Raw.deviceSet 1
      again.upload (pattern 1000 3)
      again.fill 4 (stream := some mine)
      again.release
      ensure ((← Raw.device) == 1) "the current device is as before"
      b.release

/-- `act` of `main` in a process of its own, with two host devices and the end at the first race. -/
def simulated (act : String) : IO Unit := do
  let path ← IO.appPath
  let env := #[("GPUMEM_BACKEND", some "host"), ("GPUMEM_HOST_DEVICES", some "2"), ("GPUMEM_HOST_MODE", some "abort")]
  let out ← IO.Process.output { cmd := toString path, args := #[act], env := env }
  ensure (out.exitCode == 0) (out.stdout ++ out.stderr)

def round_trip : IO Unit := do
  let mut numbers := FloatArray.mk #[]
  for i in [0:1000] do
    numbers := numbers.push (Float.ofNat i * 0.5)
  let a ← Buffer.alloc 8000
  a.uploadFloats numbers
  let back ← a.downloadFloats
  let mut same := back.size == 1000
  for i in [0:1000] do
    same := same && back.get! i == numbers.get! i
  ensure same "floats"
  let b ← filled 8000 3
  ensure (← holds b 3) "bytes"
  let c ← Buffer.alloc 8000
  c.fill 7
  c.copyFrom b (bytes := some 4000)
  let half ← c.download 0 (some 4000)
  ensure (sameBytes half (pattern 4000 3)) "copied"
  let rest ← c.download 4000
  let mut sevens := rest.size == 4000
  for i in [0:4000] do
    sevens := sevens && rest.get! i == 7
  ensure sevens "filled"
  -- All on the buffer's own stream, which does not wait for the default one.
  withStream fun s => do
    let d ← Buffer.alloc 8000 s
    d.upload (pattern 8000 5)
    d.fill 9 (bytes := some 4000)
    let nines ← d.download 0 (some 4000)
    ensure (nines.get! 0 == 9 && nines.get! 3999 == 9) "on its own stream"
    d.release
  let _ ← refused "GPUMEM_ERROR_INVALID: fill: 2 bytes from offset 7999 of buffer, which has 8000" (c.fill 1 7999 (some 2))
  let _ ← refused "GPUMEM_ERROR_INVALID: upload" (c.upload (pattern 8001 0))
  let _ ← refused "GPUMEM_ERROR_INVALID: copy" (c.copyFrom b (toOffset := 1))
  simulated "twoDevices"

def free_once : IO Unit := do
  let before ← stats
  (do
    let b ← Buffer.alloc (4 * kib)
    b.release
    b.release
    ensure (!(← b.isLive)) "released")
  let after ← stats
  ensure (after.frees == before.frees + 1 && after.doubleFrees == before.doubleFrees && after.lateFrees == before.lateFrees)
    s!"{after.frees - before.frees} frees, {after.lateFrees - before.lateFrees} late"

def double_free : IO Unit := do
  let b ← Buffer.alloc (4 * kib)
  let address ← b.addr
  let before ← stats
  Raw.freeAddress address
  let text ← refused "GPUMEM_ERROR_" (Raw.freeAddress address)
  ensure (contains text "GPUMEM_ERROR_DOUBLE_FREE: " || contains text "GPUMEM_ERROR_UNKNOWN_POINTER: ") text
  let after ← stats
  ensure (after.doubleFrees + after.unknownPointers == before.doubleFrees + before.unknownPointers + 1) "counted"
  ensure (!(← b.isLive)) "gone"

def unknown_pointer : IO Unit := do
  let text ← refused "GPUMEM_ERROR_UNKNOWN_POINTER: " (Raw.freeAddress 0x1000)
  ensure (contains text "0x1000") text

def interior_free : IO Unit := do
  let b ← Buffer.alloc (4 * kib)
  let address ← b.addr
  let _ ← refused "GPUMEM_ERROR_UNKNOWN_POINTER: " (Raw.freeAddress (address + 256))
  ensure (← b.isLive) "lives on"

def out_of_memory_text : IO Unit := do
  trim
  setLimit (64 * mib)
  let text ← refused "GPUMEM_ERROR_OUT_OF_MEMORY: " (Buffer.alloc (65 * mib))
  ensure (contains text "68157440") text
  setLimit 0
  let b ← Buffer.alloc (65 * mib)
  b.release

def finalizer_frees : IO Unit := do
  (do
    let all ← allocMany 20 (4 * kib)
    ensure (all.size == 20 && (← stats).allocations == 20) "made")
  ensure ((← stats).allocations == 0) "dropped"

def finalizer_after_exit : IO Unit := do
  let held ← IO.mkRef (some (← stale (4 * kib)))
  let before ← stats
  held.set none
  let after ← stats
  ensure (after.lateFrees == before.lateFrees + 1 && after.frees == before.frees && after.doubleFrees == before.doubleFrees)
    "one that came too late"

def finalizer_after_address_reuse : IO Unit := do
  let held ← IO.mkRef (← stale (4 * kib))
  let young ← filled 4096 5
  let old ← held.get
  ensure ((← old.addr) == (← young.addr) && (← old.id) != (← young.id) && !(← old.isLive)) "the address lives again"
  held.set young
  (do
    let gone := old
    ensure (!(← gone.isLive)) "old")
  ensure ((← young.isLive) && (← holds young 5)) "the new owner is untouched"

def dropThem (all : Array Buffer) : IO Nat := do
  let mut bytes := 0
  for b in all do
    bytes := bytes + (← b.bytes).toNat
  return bytes

def finalizer_on_other_thread : IO Unit := do
  let task ← IO.asTask (do
    let all ← allocMany 64 (4 * kib)
    return all) Task.Priority.dedicated
  match (← IO.wait task) with
  | Except.error e => throw e
  | Except.ok all =>
    ensure (all.size == 64) "made elsewhere"
  -- Made here, dropped there: this thread's reference goes with the call.
  let mine ← allocMany 64 (4 * kib)
  let bytes ← elsewhere (dropThem mine)
  ensure (bytes == 64 * 4096) "handed over"

def hundred_thousand_buffers : IO Unit := do
  let before ← stats
  (do
    let all ← allocMany 100000 256
    ensure ((← stats).allocations == 100000 && all.size == 100000) "live at once")
  let after ← stats
  ensure (after.mallocs == before.mallocs + 100000 && after.frees == before.frees + 100000) "all freed, once"

/-- 64 buffers of 4096 floats that are reachable across the exit, four times. -/
def exit_frees_all : IO Unit := do
  let before ← stats
  let mut held : Array Buffer := #[]
  for round in [0:4] do
    let made ← IO.mkRef (#[] : Array Buffer)
    withArena none_ (do
      made.set (← allocMany 64 (4 * 4096))
      let now ← stats
      ensure (now.allocations == before.allocations + 64 && now.frees == before.frees + UInt64.ofNat (64 * round)) "live inside")
    let now ← stats
    ensure (now.allocations == before.allocations && now.requested == before.requested) "reclaimed"
    ensure (now.frees == before.frees + UInt64.ofNat (64 * (round + 1))) "exactly them"
    held := held ++ (← made.get)
  ensure (held.size == 256 && (← noneLive held)) "all are gone"

def exit_keeps : IO Unit := do
  let kept ← withArena (fun b => #[b]) (do
    let _ ← Buffer.alloc (4 * kib)
    filled 4096 1) "step"
  ensure ((← stats).allocations == 1 && (← kept.isLive) && (← holds kept 1)) "the result"

def exit_keeps_interior_pointer : IO Unit := do
  let arena ← Arena.enter
  let b ← Buffer.alloc (4 * kib)
  let report ← arena.exit #[] #[(← b.addr) + 1000]
  ensure (report.kept == 1 && report.freed == 0 && (← b.isLive)) (toString report)

def exit_counts_odd_entries : IO Unit := do
  let outside ← Buffer.alloc 256
  let arena ← Arena.enter
  let b ← Buffer.alloc 256
  let gone ← Buffer.alloc 256
  let goneAt ← gone.addr
  gone.release
  let report ← arena.exit #[b, b, outside, gone] #[goneAt, 0]
  ensure (report.kept == 1 && report.duplicate == 1 && report.foreign == 1 && report.unknown == 1) (toString report)
  ensure (report.depth == 0 && report.keptBytes == 256) "depth and bytes"

def early_free_in_arena : IO Unit := do
  let arena ← Arena.enter
  let a ← Buffer.alloc 256
  let b ← Buffer.alloc 512
  a.release
  ensure ((← arena.stats).freedEarly == 1) "one left early"
  let report ← arena.exit
  ensure (report.freed == 1 && report.freedBytes == 512 && !(← b.isLive)) (toString report)

def exception_keeps_nothing : IO Unit := do
  let held ← IO.mkRef (none : Option Buffer)
  let text ← refused "of the body's own" (withArena (fun (b : Buffer) => #[b]) (do
    let b ← Buffer.alloc (4 * kib)
    held.set (some b)
    throw (IO.userError "of the body's own")))
  ensure (text == "of the body's own") text
  match (← held.get) with
  | some b => ensure (!(← b.isLive)) "kept"
  | none => ensure false "no buffer"
  ensure (Option.isNone (← Arena.current)) "still in the arena"

def exception_ends_inner_arenas : IO Unit := do
  let held ← IO.mkRef (#[] : Array Buffer)
  let inside ← IO.mkRef (none : Option Arena)
  let _ ← refused "out of both" (withArena none_ (do
    let inner ← Arena.enter "forgotten"
    inside.set (some inner)
    held.set #[← Buffer.alloc 256]
    throw (IO.userError "out of both") : IO Unit))
  ensure (← noneLive (← held.get)) "kept"
  match (← inside.get) with
  | some inner => do
    let _ ← refused "GPUMEM_ERROR_INVALID: " inner.exit
    return ()
  | none => ensure false "no arena"

def nested_promote : IO Unit := do
  let b ← withArena none_ (do
    let outer ← Arena.current
    let b ← withArena none_ (do
      let b ← Buffer.alloc 256
      b.promote
      return b)
    ensure (← b.isLive) "promoted"
    match outer with
    | some arena => ensure ((← arena.stats).live == 1) "to the outer one"
    | none => ensure false "no arena"
    return b)
  ensure (!(← b.isLive)) "ends with the outer one"

def inner_keep_ends_with_outer : IO Unit := do
  let all ← withArena (fun (all : Array Buffer) => all.extract 1 2) (do
    let all ← withArena (fun (all : Array Buffer) => all) (do
      let a ← Buffer.alloc 256
      let b ← Buffer.alloc 512
      return #[a, b]) "inner"
    ensure (!(← noneLive all) && (← stats).allocations == 2) "kept inside"
    return all)
  ensure (all.size == 2 && (← stats).allocations == 1 && (← noneLive (all.extract 0 1))) "one of both is kept"

def outermost_keep_is_ordinary : IO Unit := do
  let b ← withArena (fun b => #[b]) (Buffer.alloc 256)
  ensure (Option.isNone (← b.arena)) "in no arena"
  withArena none_ (pure ())
  ensure (← b.isLive) "and lives on"

def exit_in_wrong_order : IO Unit := do
  let outer ← Arena.enter
  let inner ← Arena.enter
  let _ ← refused "GPUMEM_ERROR_INVALID: " outer.exit
  ensure ((← inner.exit).depth == 1) "inner"
  ensure ((← outer.exit).depth == 0) "outer"

def stale_arena : IO Unit := do
  let arena ← Arena.enter
  let _ ← arena.exit
  let _ ← refused "GPUMEM_ERROR_INVALID: " arena.exit
  let _ ← refused "GPUMEM_ERROR_INVALID: " arena.stats
  let _ ← refused "GPUMEM_ERROR_INVALID: " arena.attach
  return ()

def escape : IO Unit := do
  let b ← withArena none_ (withArena none_ (do
    let b ← filled 256 9
    b.escape
    return b))
  ensure ((← b.isLive) && (← holds b 9)) "escaped both"
  b.escape

def thread_attach : IO Unit := do
  let arena ← Arena.enter
  let mut tasks : Array (Task (Except IO.Error (Array Buffer))) := #[]
  for _ in [0:8] do
    let task ← IO.asTask (arena.run (allocMany 50 256)) Task.Priority.dedicated
    tasks := tasks.push task
  let mut all : Array Buffer := #[]
  for task in tasks do
    match (← IO.wait task) with
    | Except.ok made => all := all ++ made
    | Except.error e => throw e
  ensure (all.size == 400) "made on eight threads"
  let report ← arena.exit
  ensure (report.freed == 400 && (← noneLive all)) (toString report)

def other_threads_unaffected : IO Unit := do
  let b ← withArena none_ (elsewhere (Buffer.alloc 256))
  ensure (← b.isLive) "made by a thread that is in no arena"

def waitFor (flag : IO.Ref Nat) (value : Nat) : Nat → IO Unit
  | 0 => throw (IO.userError "nobody came")
  | n + 1 => do
    let now ← flag.get
    if now == value then return ()
    IO.sleep 1
    waitFor flag value n

def exceptionWhileAttached : IO Unit := do
  let outer ← Arena.enter
  let inside ← IO.mkRef (none : Option Arena)
  let stage ← IO.mkRef 0
  let task ← IO.asTask (do
    waitFor stage 1 60000
    match (← inside.get) with
    | none => throw (IO.userError "no arena")
    | some arena => arena.run (do
      stage.set 2
      waitFor stage 3 60000)) Task.Priority.dedicated
  let text ← refused "of the body's own" (withArena none_ (do
    inside.set (← Arena.current)
    let _ ← Arena.enter "forgotten"
    stage.set 1
    waitFor stage 2 60000
    throw (IO.userError "of the body's own") : IO Unit))
  let now ← Arena.current
  stage.set 3
  match (← IO.wait task) with
  | Except.ok _ => pure ()
  | Except.error e => throw e
  ensure (text == "of the body's own") text
  match now with
  | some arena => ensure (arena.handle == outer.handle) "in an arena that the block entered"
  | none => ensure false "out of the arena around"
  match (← inside.get) with
  | some arena =>
    let _ ← arena.abort
    pure ()
  | none => ensure false "no arena"
  -- Nor is it hidden where a task leaves an arena open inside the one that it joins.
  let text ← refused "of the task's own" (elsewhere (outer.run (do
    let _ ← Arena.enter "forgotten"
    throw (IO.userError "of the task's own") : IO Unit)))
  ensure (text == "of the task's own") text
  let _ ← outer.abort
  return ()

def exit_refused_while_attached : IO Unit := do
  let arena ← Arena.enter
  let stage ← IO.mkRef 0
  let task ← IO.asTask (arena.run (do
    stage.set 1
    waitFor stage 2 60000)) Task.Priority.dedicated
  waitFor stage 1 60000
  let _ ← refused "GPUMEM_ERROR_INVALID: " arena.exit
  let _ ← refused "GPUMEM_ERROR_INVALID: " arena.abort
  stage.set 2
  match (← IO.wait task) with
  | Except.ok _ => pure ()
  | Except.error e => throw e
  let _ ← arena.exit
  -- Nor does the refusal hide what a body threw, or leave this thread in the arena.
  exceptionWhileAttached

def arena_name_and_stats : IO Unit := do
  let arena ← Arena.enter "forward"
  let a ← Buffer.alloc 1000
  let b ← Buffer.alloc 24
  b.release
  let s ← arena.stats
  ensure (s.name == "forward" && s.live == 1 && s.liveBytes == 1000 && s.peakBytes == 1024 && s.depth == 0) (toString s)
  ensure (s.joined == 2 && s.left == 1 && s.freedEarly == 1) (toString s)
  let _ ← arena.exit
  ensure (!(← a.isLive)) "ended"

def detector_message : IO Unit := do
  let b ← stale 4096 "step"
  let text ← refused "GPUMEM_ERROR_USE_AFTER_FREE: " (b.check "add" "lhs")
  ensure (contains text "use-after-arena-free: add lhs was reclaimed by arena_exit at depth 0 (arena ") text
  ensure (contains text s!"\"step\", allocation {← b.id} of 4096 bytes)") text
  let text ← refused "GPUMEM_ERROR_USE_AFTER_FREE: " (b.fill 1)
  ensure (contains text "fill buffer was reclaimed") text

def detector_after_address_reuse : IO Unit := do
  let old ← stale 4096 "step"
  let young ← Buffer.alloc 4096
  ensure ((← old.addr) == (← young.addr)) "the address lives again"
  young.check "add" "lhs"
  let _ ← refused "GPUMEM_ERROR_USE_AFTER_FREE: " (old.check "add" "rhs")
  return ()

def exit_races_finalizers : IO Unit := do
  for _ in [0:20] do
    let before ← stats
    let arena ← Arena.enter
    let held ← IO.mkRef (← allocMany 1000 256)
    let task ← IO.asTask (held.set #[]) Task.Priority.dedicated
    let report ← arena.exit
    match (← IO.wait task) with
    | Except.ok _ => pure ()
    | Except.error e => throw e
    let after ← stats
    ensure (after.frees == before.frees + 1000 && after.doubleFrees == before.doubleFrees) "each is freed once"
    ensure (report.freed == after.lateFrees - before.lateFrees) "by one of both"

def capture_keeps_addresses : IO Unit :=
  withStream fun s => do
    let result ← withCapture s (do
      let b ← Buffer.alloc (4 * mib) s
      let address ← b.addr
      b.release
      return address)
    let graph := result.2
    for _ in [0:4] do
      let b ← Buffer.alloc (4 * mib) s
      ensure ((← b.addr) != result.1) "given to somebody else"
    graph.retain
    graph.release
    graph.release
    let _ ← refused "GPUMEM_ERROR_INVALID: " graph.release
    return ()

def capture_error_frees : IO Unit :=
  withStream fun s => do
    let held ← IO.mkRef (#[] : Array Buffer)
    let _ ← refused "in the capture" (withCapture s (do
      held.set #[← Buffer.alloc (4 * kib) s]
      throw (IO.userError "in the capture") : IO Unit))
    ensure (← noneLive (← held.get)) "freed"
    let again ← withCapture s (pure ())
    again.2.release

def reservation_draws : IO Unit :=
  withReservation (8 * mib64) fun r => do
    let b ← Buffer.alloc mib
    let info ← r.info
    ensure (info.promised == (8 * mib64) && info.drawn == mib64) "drawn"
    b.release
    ensure ((← r.info).drawn == 0) "given back"
    elsewhere (r.run (do
      let c ← Buffer.alloc (2 * mib)
      ensure ((← r.info).drawn == (2 * mib64)) "drawn by another thread"
      c.release))

def reservation_refuses_more : IO Unit := do
  let r ← Reservation.reserve mib64
  let text ← refused "GPUMEM_ERROR_OUT_OF_MEMORY: " (r.run (Buffer.alloc (2 * mib)))
  ensure (contains text "reservation") text
  ensure ((← r.release) == 0) "nothing drawn"
  let _ ← refused "GPUMEM_ERROR_INVALID: " r.release
  return ()

def reservation_ends_after_error : IO Unit := do
  let held ← IO.mkRef (#[] : Array Reservation)
  let _ ← refused "in the block" (withReservation mib64 (fun r => do
    held.set #[r]
    throw (IO.userError "in the block") : Reservation → IO Unit))
  for r in (← held.get) do
    let _ ← refused "GPUMEM_ERROR_INVALID: " r.info
    pure ()
  let b ← Buffer.alloc (2 * mib)
  b.release
  -- A body may release it itself, and its result is what it was.
  let result ← withReservation mib64 fun r => do
    let _ ← r.release
    pure (7 : Nat)
  ensure (result == 7) "released by the body"

def trim_gives_back : IO Unit := do
  let b ← Buffer.alloc (64 * mib)
  b.release
  Stream.default.sync
  ensure ((← stats).mapped >= (64 * mib64)) "mapped"
  trim
  ensure ((← stats).mapped == 0) "given back"

def stats_count : IO Unit := do
  let before ← stats
  let b ← Buffer.alloc 1000
  let now ← stats
  ensure (now.mallocs == before.mallocs + 1 && now.requested == 1000 && now.live >= 1000 && now.mapped >= now.live) (toString now)
  b.release
  ensure ((← stats).frees == before.frees + 1) "freed"

def behaviours : List (String × IO Unit) := [
  ("zero_bytes", zero_bytes),
  ("round_trip", round_trip),
  ("free_once", free_once),
  ("double_free", double_free),
  ("unknown_pointer", unknown_pointer),
  ("interior_free", interior_free),
  ("out_of_memory_text", out_of_memory_text),
  ("finalizer_frees", finalizer_frees),
  ("finalizer_after_exit", finalizer_after_exit),
  ("finalizer_after_address_reuse", finalizer_after_address_reuse),
  ("finalizer_on_other_thread", finalizer_on_other_thread),
  ("hundred_thousand_buffers", hundred_thousand_buffers),
  ("exit_frees_all", exit_frees_all),
  ("exit_keeps", exit_keeps),
  ("exit_keeps_interior_pointer", exit_keeps_interior_pointer),
  ("exit_counts_odd_entries", exit_counts_odd_entries),
  ("early_free_in_arena", early_free_in_arena),
  ("exception_keeps_nothing", exception_keeps_nothing),
  ("exception_ends_inner_arenas", exception_ends_inner_arenas),
  ("nested_promote", nested_promote),
  ("inner_keep_ends_with_outer", inner_keep_ends_with_outer),
  ("outermost_keep_is_ordinary", outermost_keep_is_ordinary),
  ("exit_in_wrong_order", exit_in_wrong_order),
  ("stale_arena", stale_arena),
  ("escape", escape),
  ("thread_attach", thread_attach),
  ("other_threads_unaffected", other_threads_unaffected),
  ("exit_refused_while_attached", exit_refused_while_attached),
  ("arena_name_and_stats", arena_name_and_stats),
  ("detector_message", detector_message),
  ("detector_after_address_reuse", detector_after_address_reuse),
  ("exit_races_finalizers", exit_races_finalizers),
  ("capture_keeps_addresses", capture_keeps_addresses),
  ("capture_error_frees", capture_error_frees),
  ("reservation_draws", reservation_draws),
  ("reservation_refuses_more", reservation_refuses_more),
  ("reservation_ends_after_error", reservation_ends_after_error),
  ("trim_gives_back", trim_gives_back),
  ("stats_count", stats_count)
]

end Test

def main (args : List String) : IO UInt32 := do
  if args == ["twoDevices"] then
    Test.twoDevices
    return 0
  let mut failed : UInt32 := 0
  for (name, test) in Test.behaviours do
    let outcome ← try
        test
        let now ← stats
        Test.ensure (now.allocations == 0 && now.requested == 0) s!"left behind: {now}"
        validate
        pure "ok"
      catch e =>
        pure s!"FAILED: {e}"
    if outcome == "ok" then
      IO.println s!"ok {name}"
    else
      IO.println s!"{name} {outcome}"
      failed := failed + 1
  let device ← backend
  IO.println s!"{Test.behaviours.length} behaviours on the {device} device, {failed} failed"
  return if failed == 0 then 0 else 1
