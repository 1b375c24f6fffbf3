//! `dlsym`, `dlvsym` and `cuGetProcAddress`: what is not the driver's stays what it was, and
//! nothing is made up.

use crate::support::{self, flow, program, run};
use std::process::Command;

#[test]
fn names_that_are_not_hooked_stay_what_they_were() {
    let Some(path) = program("look_ups.c", "look_ups", &[]) else { return };
    let [deep, local] = ["deep.so", "local.so"].map(|name| program("deep.c", name, &["-shared", "-fPIC"]).unwrap());
    let [without, with] = [false, true].map(|gpumem| {
        let mut command = Command::new(&path);
        command.args([&deep, &local]);
        run(command, gpumem, &[])
    });
    assert_eq!(without.same(), with.same(), "{}", with.err);
    with.says("before: nowhere, error");
    with.says("before, in the program: nowhere, error");
    with.says("a plugin's own: local.so");
    with.says("always the same: 1");
    with.says("# alloc: libgpumem_preload.so");
    // A documented limit: such objects do not see what is preloaded.
    with.says("# deep: libcuda.so.1");
    without.says("# alloc: libcuda.so.1");
}

#[test]
fn a_program_without_cuda_gets_what_it_always_got() {
    let one = |gpumem| run(Command::new("/bin/ls"), gpumem, &[]);
    let (without, with) = (one(false), one(true));
    assert_eq!((without.out, without.code), (with.out, with.code));
    assert_eq!(with.err, "", "nothing is said where nothing is done");
}

#[test]
fn unknown_versions_and_flags_pass_through() {
    let Some(path) = program("versions.c", "versions", &[]) else { return };
    for variables in [&[][..], &[("SIM_OTHER", "1")]] {
        let [without, with] = [false, true].map(|gpumem| run(Command::new(&path), gpumem, variables));
        assert_eq!(without.same(), with.same());
        with.says("# cuMemAlloc 3020 0: libgpumem_preload.so");
        with.says("# cuMemAllocAsync 11020 2: libgpumem_preload.so");
        with.says("# cuInit 2000 0: libcuda.so.1");
        without.says("# cuMemAlloc 3020 0: libcuda.so.1");
        // A variant of a later version, which only a driver knows that has another function for it.
        let future = if variables.is_empty() { "libgpumem_preload.so" } else { "libcuda.so.1" };
        with.says(&format!("# cuMemAlloc 99000 0: {future}"));
    }
}

#[test]
fn what_is_replaced_is_said_on_request() {
    let Some(with) = flow("proc", "basic", true, &[("GPUMEM_LOG", "2")]) else { return };
    assert!(with.err.contains("cuMemAlloc (version 3020, flags 0): cuMemAlloc_v2 is gpumem's"), "{}", with.err);
    assert!(!with.err.contains("cuInit (version"), "{}", with.err);
    assert!(support::preload().exists());
}

#[test]
fn a_summary_says_how_gpumems_functions_were_found() {
    for how in ["proc", "dlsym"] {
        let Some(with) = flow(how, "basic", true, &[]) else { return };
        let (rest, gave) = with.err.rsplit_once(" look-ups of functions that gpumem replaces, ").unwrap();
        let (_, all) = rest.rsplit_once("of ").unwrap();
        let all: u32 = all.parse().unwrap();
        assert!(all > 30 && gave.starts_with(&format!("{all} gave gpumem's")), "{how}: {}", with.err);
    }
    let linked = program("flows.c", "flows_linked", &["-DDIRECT"]).unwrap();
    let by_name = program("look_ups.c", "look_ups_alone", &[]).unwrap();
    let summary = |command: String| {
        let mut shell = Command::new("sh");
        // The process that `gpumem run` starts says something even if it has allocated nothing.
        shell.args(["-c", &format!("export GPUMEM_RUN=$$; exec {command}")]);
        run(shell, true, &[]).err
    };
    let said = summary(format!("{} direct basic", linked.display()));
    assert!(said.contains("2 allocations") && said.contains("gpumem's functions were linked, not looked up"), "{said}");
    let nothing = "allocated nothing that gpumem could serve; ";
    let said = summary(by_name.display().to_string());
    let two = "of 2 look-ups of functions that gpumem replaces, 2 gave gpumem's";
    assert!(said.contains(&format!("{nothing}{two}")), "{said}");
    let said = summary("true".to_string());
    let neither = "it neither called nor looked up a function that gpumem replaces";
    assert!(said.contains(&format!("{nothing}{neither}")), "{said}");
}
