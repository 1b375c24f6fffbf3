//! NVTX ranges, as a tool sees them: one that counts, loaded the way Nsight Systems is.

use crate::cc::{self, Language};
use std::collections::BTreeMap;
use std::process::Command;
use test_support::{forget_settings, must_succeed};

/// A tool that writes a line for each push, pop and mark, in the program's own order.
const TOOL: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <string.h>
struct attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const char *message;
};
struct callbacks {
    size_t size;
    int (*table)(int, void ****, unsigned *);
};
static char domain;
static void say(const char *what, void *d, const struct attributes *a) {
    int right = d == &domain && a->version == 3 && a->size == sizeof *a && a->payload_type == 1 && a->message_type == 1;
    fprintf(stderr, "%s %s %llu %s\n", what, right ? "right" : "wrong", (unsigned long long)a->payload, a->message);
}
static void mark(void *d, const struct attributes *a) { say("mark", d, a); }
static int push(void *d, const struct attributes *a) { say("push", d, a); return 0; }
static int pop(void *d) { fprintf(stderr, "pop %s 0 -\n", d == &domain ? "right" : "wrong"); return 0; }
static void *create(const char *name) { return strcmp(name, "gpumem") == 0 ? &domain : NULL; }
int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t)) {
    const struct callbacks *callbacks = (const struct callbacks *)export_table(1);
    void ***slots;
    unsigned n;
    int module;
    if (callbacks == NULL || callbacks->size < sizeof *callbacks || export_table(3) == NULL || export_table(9) != NULL)
        return 0;
    for (module = 1; module <= 6; module++)
        if (!callbacks->table(module, &slots, &n) || n < 7 || slots[n - 1] == NULL || slots[n] != NULL) return 0;
    if (callbacks->table(7, &slots, &n) || !callbacks->table(5, &slots, &n) || n != 16) return 0;
    *slots[1] = (void *)mark;
    *slots[4] = (void *)push;
    *slots[5] = (void *)pop;
    *slots[12] = (void *)create;
    return 1;
}
"#;

/// Grows, stitches, evicts, restores, trims and fails, on a device of 64 MiB.
const PROGRAM: &str = r#"
#include <gpumem.h>
#define MIB ((size_t)1 << 20)
#define OK(call) if ((call) != GPUMEM_OK) return __LINE__
int main(void) {
    gpumem_stream s;
    gpumem_malloc_options o;
    void *p[16], *q;
    int i;
    OK(gpumem_stream_create(&s));
    for (i = 0; i < 16; i++) OK(gpumem_malloc_async(4 * MIB, s, &p[i]));
    for (i = 0; i < 16; i += 2) OK(gpumem_free_async(p[i], s));
    OK(gpumem_malloc_async(20 * MIB, s, &q));
    if (gpumem_malloc_async(60 * MIB, s, &p[0]) != GPUMEM_ERROR_OUT_OF_MEMORY) return __LINE__;
    OK(gpumem_free_async(q, s));
    for (i = 1; i < 16; i += 2) OK(gpumem_free_async(p[i], s));
    OK(gpumem_stream_sync(s));
    OK(gpumem_trim(0));
    GPUMEM_INIT(&o);
    o.bytes = 6 * MIB;
    o.stream = s;
    o.flags = GPUMEM_MALLOC_EVICTABLE;
    OK(gpumem_malloc_with(&o, &q));
    OK(gpumem_evict(q, NULL, NULL));
    OK(gpumem_restore(q, NULL, NULL));
    return 0;
}
"#;

#[test]
fn a_tool_sees_what_the_slow_path_does() {
    if !cc::have("cc") {
        return;
    }
    let dir = cc::scratch("nvtx");
    let (tool, source, program) = (dir.join("tool.so"), dir.join("program.c"), dir.join("program"));
    std::fs::write(dir.join("tool.c"), TOOL).unwrap();
    cc::write(&source, PROGRAM);
    let mut build = Command::new("cc");
    build.args(["-shared", "-fPIC", "-Wall", "-o"]).arg(&tool).arg(dir.join("tool.c"));
    must_succeed("cc", &build.output().unwrap());
    cc::compile(&source, Language::C99, &program, &[]).unwrap();
    let run = |settings: &[(&str, &str)]| {
        let mut command = Command::new(&program);
        forget_settings(&mut command);
        command.envs([("GPUMEM_BACKEND", "host"), ("GPUMEM_LIMIT", "64M"), ("GPUMEM_SLACK", "tight")]);
        let out = command.envs(settings.iter().copied()).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{:?}: {said}", out.status);
        said
    };
    let path = tool.to_str().unwrap();
    let said = run(&[("NVTX_INJECTION64_PATH", path), ("GPUMEM_NVTX", "on")]);
    let (mut seen, mut open) = (BTreeMap::new(), 0);
    for line in said.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        let [what, verdict, bytes, name] = words[..] else { panic!("{line:?} is no event") };
        assert_eq!(verdict, "right", "{line}");
        match what {
            "pop" => open -= 1,
            _ => {
                open += i32::from(what == "push");
                *seen.entry(name).or_insert(0) += 1;
                seen.entry(if what == "push" { "ranges" } else { "marks" }).and_modify(|n| *n += 1).or_insert(1);
            }
        }
        assert!(open >= 0, "a range ends that did not begin");
        if name == "out of memory" {
            assert_eq!((what, bytes), ("mark", "62914560"));
        }
        if name == "evict" || name == "restore" {
            assert_eq!(bytes, "6291456");
        }
    }
    assert_eq!(open, 0);
    for name in ["growth", "stitch", "trim", "evict", "restore"] {
        assert!(seen.contains_key(name), "no {name} in {seen:?}");
    }
    assert_eq!((seen.get("marks"), seen.get("evict"), seen.get("restore")), (Some(&1), Some(&1), Some(&1)));
    // Nobody asked for it, or nobody listens, or the tool is none.
    assert_eq!(run(&[("NVTX_INJECTION64_PATH", path)]), "");
    assert_eq!(run(&[("GPUMEM_NVTX", "on")]), "");
    let said = run(&[("GPUMEM_NVTX", "on"), ("NVTX_INJECTION64_PATH", "/no/such/tool.so")]);
    assert!(said.contains("/no/such/tool.so") && said.lines().count() == 1, "{said}");
}
