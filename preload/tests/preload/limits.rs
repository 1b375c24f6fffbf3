//! What the library is made of: what it exports, and what it does not.

use crate::support;
use std::collections::BTreeSet;
use std::process::Command;

#[test]
fn nothing_but_hooks_and_gpumems_own_functions_is_exported() {
    let Ok(nm) = Command::new("nm").args(["-D", "--defined-only"]).arg(support::preload()).output() else {
        println!("skipped: no nm (binutils)");
        return;
    };
    let text = String::from_utf8(nm.stdout).unwrap();
    let names: BTreeSet<&str> = text.lines().filter_map(|l| l.split_whitespace().nth(2)).collect();
    let others: Vec<&&str> = names.iter().filter(|n| !n.starts_with("cu") && !n.starts_with("gpumem_")).collect();
    assert_eq!(others, [&"dlsym", &"dlvsym"]);
    assert!(names.contains("cuMemAlloc_v2") && names.contains("cuGetProcAddress_v2"));
    // The driver's own business.
    for name in ["cuGetExportTable", "cuInit", "cuMemUnmap", "cuMemAlloc", "cuEventRecord"] {
        assert!(!names.contains(name), "{name}");
    }
}
