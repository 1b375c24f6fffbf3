import Lake
open Lake DSL System

package gpumem where
  -- The interpreter can call the shim only where it is compiled.
  precompileModules := true

input_file gpumem_lean.c where
  path := "c" / "gpumem_lean.c"
  text := true

/-- The shim, against the headers of this Lean and those of gpumem beside this package. No libgpumem
is needed to build it. -/
target gpumem_lean.o pkg : FilePath := do
  let source ← gpumem_lean.c.fetch
  let object := pkg.buildDir / "c" / "gpumem_lean.o"
  let headers := #["-I", (← getLeanIncludeDir).toString, "-I", (pkg.dir / ".." / ".." / "include").toString]
  buildO object source headers #["-fPIC", "-O2"] "cc" getLeanTrace

extern_lib libgpumem_lean pkg := do
  let object ← gpumem_lean.o.fetch
  buildStaticLib (pkg.staticLibDir / nameToStaticLib "gpumem_lean") #[object]

@[default_target]
lean_lib Gpumem

@[test_driver]
lean_exe gpumemTest where
  root := `Test.Main
  moreLinkArgs := #["-ldl", "-lpthread"]

lean_exe trainingLoop where
  root := `Examples.TrainingLoop
  moreLinkArgs := #["-ldl", "-lpthread"]

lean_exe pairs where
  root := `Examples.Pairs
  moreLinkArgs := #["-ldl", "-lpthread"]

lean_exe first where
  root := `Examples.First
  moreLinkArgs := #["-ldl", "-lpthread"]
