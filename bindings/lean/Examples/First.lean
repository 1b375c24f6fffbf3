import Gpumem

/-! A first program: `docs/lean.md`. -/
open Gpumem

def main : IO Unit := do
  let weights ← Buffer.alloc 4096
  weights.fill 1
  let loss ← withArena (fun b => #[b]) (name := "step") do
    let activations ← Buffer.alloc 4096     -- gone after the block, no matter who still holds it
    activations.copyFrom weights
    let result ← Buffer.alloc 4096          -- kept: the block's result
    result.copyFrom activations
    return result
  IO.println s!"{← stats}"
  IO.println s!"the result begins with {(← loss.download).get! 0}"
