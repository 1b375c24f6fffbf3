import Gpumem.Buffer

/-!
Memory for CUDA graphs, which use the same addresses at every launch.
-/
namespace Gpumem

/-- The memory of one or more graphs. Nothing else gets an address in it until the last `release`.
Lean's runtime does not release it, because it cannot see the graphs that use it. -/
structure Capture where
  handle : UInt64

namespace Capture

/-- Takes one more reference, for one more graph. Each needs a `release`. -/
def retain (c : Capture) : IO Unit := Raw.captureRetain c.handle

/-- Drops a reference. Its graph must not be launched from now on. After the last one the memory is
ordinary. -/
def release (c : Capture) : IO Unit := Raw.captureRelease c.handle

end Capture

/-- Runs `body`. What any thread allocates on `stream` meanwhile comes from separate memory, for the
graph that is captured there. An exception frees that memory and propagates. -/
def withCapture {α : Type} (stream : Stream) (body : IO α) : IO (α × Capture) := do
  let handle ← Raw.captureBegin stream.handle
  try
    let result ← body
    Raw.captureEnd handle
    return (result, ⟨handle⟩)
  catch e =>
    -- What `body` threw matters more than an abort that is refused.
    try Raw.captureAbort handle catch _ => pure ()
    throw e

end Gpumem
