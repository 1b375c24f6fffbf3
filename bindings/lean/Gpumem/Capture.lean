import Gpumem.Buffer

/-!
Memory for CUDA graphs, which use the same addresses at every launch.
-/
namespace Gpumem

/-- The memory of one or more graphs: nobody else gets an address of it until the last `release`.
Lean's runtime does not release it, as it does not see the graphs that use it. -/
structure Capture where
  handle : UInt64

namespace Capture

/-- One more reference, for one more graph: each needs a `release`. -/
def retain (c : Capture) : IO Unit := Raw.captureRetain c.handle

/-- Gives a reference up: no graph that it stood for is launched from now on. After the last one it
is ordinary memory. -/
def release (c : Capture) : IO Unit := Raw.captureRelease c.handle

end Capture

/-- Runs `body`; what is allocated on `stream` meanwhile, by any thread, comes from memory of its
own, for the graph that is captured there. An exception frees that memory and goes on. -/
def withCapture {α : Type} (stream : Stream) (body : IO α) : IO (α × Capture) := do
  let handle ← Raw.captureBegin stream.handle
  try
    let result ← body
    Raw.captureEnd handle
    return (result, ⟨handle⟩)
  catch e =>
    Raw.captureAbort handle
    throw e

end Gpumem
