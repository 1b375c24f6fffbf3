//! NVIDIA's own runtime library asks for its functions, and gets gpumem's among them. It goes no
//! further than that here: it checks that the driver is NVIDIA's.

use crate::support::{program, run};
use std::path::PathBuf;
use std::process::Command;

/// The runtime of a CUDA version, from the packages `nvidia-cuda-runtime-cu12` and
/// `nvidia-cuda-runtime`, or where `GPUMEM_TEST_CUDART_12` and `_13` say.
fn cudart(major: u32) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(format!("GPUMEM_TEST_CUDART_{major}")) {
        return Some(PathBuf::from(path));
    }
    let folder = if major == 12 { "nvidia/cuda_runtime/lib" } else { "nvidia/cu13/lib" };
    let ask = "import sys, site; print('\\n'.join(sys.path + [site.getusersitepackages()]))";
    let out = Command::new("python3").args(["-c", ask]).output().ok()?;
    let paths = String::from_utf8(out.stdout).ok()?;
    paths.lines().map(|p| PathBuf::from(p).join(folder).join(format!("libcudart.so.{major}"))).find(|p| p.exists())
}

/// What the runtime must get from gpumem, whichever its version.
const ALL: [&str; 14] = [
    "cuMemAlloc_v2",
    "cuMemAllocPitch_v2",
    "cuMemFree_v2",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemPoolTrimTo",
    "cuMemPoolGetAttribute",
    "cuMemPoolSetAttribute",
    "cuMemGetInfo_v2",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuDevicePrimaryCtxReset",
    "cuStreamEndCapture",
];

fn resolves(major: u32) {
    let Some(library) = cudart(major) else {
        println!("skipped: no libcudart.so.{major}: pip install the CUDA runtime, or set GPUMEM_TEST_CUDART_{major}");
        return;
    };
    let Some(path) = program("cudart.c", &format!("cudart{major}"), &[]) else { return };
    for other in [false, true] {
        let mut variables = vec![("SIM_STUBS", "1"), ("SIM_LOOKUPS", "1"), ("GPUMEM_LOG", "2")];
        if other {
            variables.push(("SIM_OTHER", "1"));
        }
        let mut command = Command::new(&path);
        command.arg(&library);
        let with = run(command, true, &variables);
        let looked_up = with.err.lines().filter(|l| l.starts_with("sim: ")).count();
        assert!(looked_up > 300, "{looked_up} look-ups: {}", with.err);
        for name in ALL {
            assert!(with.err.contains(&format!(": {name} is gpumem's")), "{name}: {}", with.err);
        }
        // The variants for per-thread default streams too.
        for name in ["cuMemAllocAsync_ptsz", "cuMemFreeAsync_ptsz", "cuMemAllocFromPoolAsync_ptsz"] {
            assert!(with.err.contains(&format!("{name} is gpumem's")), "{name}: {}", with.err);
        }
        println!("CUDA {major}: {looked_up} look-ups, {} replaced", with.err.matches(" is gpumem's").count());
    }
}

#[test]
fn the_runtime_of_cuda_12_gets_gpumems_functions() {
    resolves(12);
}

#[test]
fn the_runtime_of_cuda_13_gets_gpumems_functions() {
    resolves(13);
}
