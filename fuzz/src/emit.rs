//! Programs as C, for finding the bug: they need only the header and the library.

use crate::generate::ENDS;
use crate::header::{Header, Param};
use crate::oracle::Failure;
use crate::program::{Arg, Callback, Kind, Op, Program, BOXES, SCRATCH, SLOTS};
use std::fmt::Write;

const HEAD: &str = r#"#define _GNU_SOURCE
#include <gpumem.h>
#include <gpumem/sim.h>
#include <gpumem/torch.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Says what failed, as calls of the library. */
#define CALL(call) ((last = (call)) == GPUMEM_OK ? 0 : printf("%d: %s\n", __LINE__, gpumem_status_name(last)))
#define CHECK(holds) ((holds) ? (void)0 : (printf("%d: does not hold: %s\n", __LINE__, #holds), exit(1)))
"#;

const VERIFY: &str = r#"
/* A block still has what it was filled with, in the order of its stream. */
static void verify(const void *p, unsigned char value, size_t bytes, gpumem_stream s) {
    unsigned char *seen = malloc(bytes);
    gpumem_stream_sync(s);
    gpumem_memcpy(seen, p, bytes);
    for (size_t i = 0; i < bytes; i++) CHECK(seen[i] == value);
    free(seen);
}
"#;

const COUNT: &str = r#"
static int count(const gpumem_allocation *a, void *n) { (void)a; ++*(int *)n; return 0; }
static int count_allocations(void) { int n = 0; gpumem_visit_allocations(NULL, count, &n); return n; }
"#;

const LEFT: &str = r#"
static int free_it(const gpumem_allocation *a, void *list) { void ***end = list; *(*end)++ = a->base; return 0; }
/* With everything freed and trimmed. */
static int nothing_left(void) {
    static void *list[4096];
    void **end = list;
    gpumem_stats stats;
    gpumem_visit_allocations(NULL, free_it, &end);
    while (end > list) gpumem_free(*--end);
    /* What is being moved between tiers goes back when the move has come to its end. */
    for (int i = 0; i < 1000; i++) {
        gpumem_device_sync();
        gpumem_trim(0);
        GPUMEM_INIT(&stats);
        gpumem_stats_get(0, &stats);
        if (stats.allocations == 0 && stats.live == 0 && stats.mapped == 0) return 1;
        usleep(10000);
    }
    return 0;
}
"#;

/// The program in C, with the failing check after the operation that makes it fail.
pub fn c(header: &Header, program: &Program, failure: &Failure) -> String {
    let mut body = String::new();
    for (t, ops) in program.threads.iter().enumerate() {
        let _ = writeln!(body, "\nstatic void *thread{t}(void *unused) {{\n    gpumem_status last = GPUMEM_OK;\n    (void)unused, (void)last;");
        if program.threads.len() > 1 {
            let _ = writeln!(body, "    pthread_barrier_wait(&start);");
        }
        for (at, op) in ops.iter().enumerate() {
            for line in operation(header, program, t, at, op) {
                let _ = writeln!(body, "    {line}");
            }
            if (failure.thread, failure.op) == (t, at) && !failure.check.is_empty() {
                let _ = writeln!(body, "    {}", failure.check);
            }
        }
        if (failure.thread, failure.op) == (t, ops.len()) && !failure.check.is_empty() {
            let _ = writeln!(body, "    {}", failure.check);
        }
        let _ = writeln!(body, "    return NULL;\n}}");
    }
    let n = program.threads.len();
    let said = failure.text.replace("*/", "* /");
    let mut out = format!("/* gpumem-fuzz, seed {}: {}.\n * {said} */\n{HEAD}\n", program.seed, failure.kind);
    for kind in Kind::ALL {
        let (name, ctype) = kind.c();
        if body.contains(&format!("{name}[")) {
            let _ = writeln!(out, "static {ctype}{}{name}[{n}][{SLOTS}];", if ctype.ends_with('*') { "" } else { " " });
        }
    }
    if body.contains("scratch[") {
        let _ = writeln!(out, "/* What calls give that nothing uses. */\nstatic union {{ uint32_t size; uint64_t words[{}]; }} scratch[{n}][8];", SCRATCH / 8);
    }
    if body.contains("boxes[") {
        let _ = writeln!(out, "static void *boxes[{BOXES}];\nstatic pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;");
        let _ = writeln!(out, "static void swap(void **a, void **b) {{\n    pthread_mutex_lock(&turn);\n    void *c = *a;\n    *a = *b, *b = c;\n    pthread_mutex_unlock(&turn);\n}}");
    }
    if n > 1 {
        let _ = writeln!(out, "static pthread_barrier_t start;");
    }
    for callback in CALLBACKS {
        if body.contains(name_of(callback)) {
            let _ = writeln!(out, "{}", definition(callback));
        }
    }
    for (used, text) in [("verify(", VERIFY), ("count_allocations(", COUNT), ("nothing_left(", LEFT)] {
        if body.contains(used) {
            out += text;
        }
    }
    out += &body;
    out += "\nint main(void) {\n";
    for (name, value) in &program.settings {
        if let (&"GPUMEM_DISK", Some((folder, _))) = (name, value.split_once('=')) {
            let _ = writeln!(out, "    mkdir({}, 0755);", quoted(folder));
        }
        let _ = writeln!(out, "    setenv(\"{name}\", {}, 1);", quoted(value));
    }
    match n {
        1 => out += "    thread0(NULL);\n",
        _ => {
            let _ = writeln!(out, "    pthread_t threads[{n}];\n    pthread_barrier_init(&start, NULL, {n});");
            for t in 0..n {
                let _ = writeln!(out, "    pthread_create(&threads[{t}], NULL, thread{t}, NULL);");
            }
            let _ = writeln!(out, "    for (int i = 0; i < {n}; i++) pthread_join(threads[i], NULL);");
        }
    }
    let whole = "    CHECK(gpumem_validate() != GPUMEM_ERROR_INTERNAL);\n";
    let _ = writeln!(out, "{whole}    return 0;\n}}");
    out
}

fn operation(header: &Header, program: &Program, t: usize, at: usize, op: &Op) -> Vec<String> {
    match op {
        Op::Swap { slot, at } => vec![format!("swap(&mem[{t}][{slot}], &boxes[{at}]);")],
        Op::Fill { slot, bytes, value } => {
            vec![format!(
                "CALL(gpumem_memset_async(mem[{t}][{slot}], {value}, {bytes}, {}));",
                stream(program, t, at, *slot)
            )]
        }
        Op::Verify { slot } => {
            let fill = program.threads[t][..at].iter().rev().find_map(|op| match op {
                Op::Fill { slot: s, bytes, value } if s == slot => Some((*bytes, *value)),
                _ => None,
            });
            let Some((bytes, value)) = fill else { return Vec::new() };
            let p = format!("mem[{t}][{slot}]");
            let shorter = format!("gpumem_usable_size({p}) < {bytes} ? gpumem_usable_size({p}) : {bytes}");
            vec![format!("verify({p}, {value}, {shorter}, {});", stream(program, t, at, *slot))]
        }
        Op::Call { function, args } => {
            let mut lines = call(header, t, function, args);
            let first =
                args.iter().find_map(|a| if let Arg::Slot(kind, slot, _) = a { Some((*kind, *slot)) } else { None });
            if let (Some((kind, slot)), true) = (first, program.threads.len() > 1 && ENDS.contains(&function.as_str()))
            {
                lines.push(format!("{}[{t}][{slot}] = NULL;", kind.c().0));
            }
            lines
        }
    }
}

/// The stream on which a slot's memory was allocated.
fn stream(program: &Program, t: usize, at: usize, slot: usize) -> String {
    let made = program.threads[t][..at].iter().rev().find_map(|op| match op {
        Op::Call { function, args } if args.contains(&Arg::Out(Kind::Mem, slot)) => {
            let named = args.iter().find(|a| matches!(a, Arg::Slot(Kind::Stream, ..)));
            let field = args.iter().find_map(|a| match a {
                Arg::Struct(_, fields) => fields.iter().find(|(n, _)| n == "stream").map(|(_, a)| a),
                _ => None,
            });
            let _ = function;
            Some(named.or(field).cloned())
        }
        _ => None,
    });
    match made.flatten() {
        Some(Arg::Slot(kind, slot, _)) => format!("{}[{t}][{slot}]", kind.c().0),
        _ => "NULL".to_owned(),
    }
}

fn call(header: &Header, t: usize, name: &str, args: &[Arg]) -> Vec<String> {
    let Some(function) = header.functions.iter().find(|f| f.name == name) else { return Vec::new() };
    let (mut before, mut words) = (Vec::new(), Vec::new());
    for (i, (arg, param)) in args.iter().zip(&function.params).enumerate() {
        words.push(expression(header, t, arg, param, &mut before, i));
    }
    let call = format!("{name}({})", words.join(", "));
    let call = match function.result.as_str() {
        "gpumem_status" => format!("CALL({call});"),
        "void *" => match args.get(function.params.len()) {
            Some(Arg::Out(kind, slot)) => format!("{}[{t}][{slot}] = {call};", kind.c().0),
            _ => format!("{call};"),
        },
        _ => format!("{call};"),
    };
    if before.is_empty() {
        return vec![call];
    }
    let mut lines = vec!["{".to_owned()];
    lines.extend(before.into_iter().chain([call]).map(|l| format!("    {l}")));
    lines.push("}".to_owned());
    lines
}

fn expression(header: &Header, t: usize, arg: &Arg, param: &Param, before: &mut Vec<String>, i: usize) -> String {
    let ctype = param.ctype.as_str();
    match arg {
        Arg::Num(n) => number(*n, ctype),
        Arg::Real(r) => format!("{r:e}"),
        Arg::Slot(kind, slot, 0) => format!("{}[{t}][{slot}]", kind.c().0),
        Arg::Slot(kind, slot, plus) => format!("(char *){}[{t}][{slot}] + {plus}", kind.c().0),
        Arg::Out(kind, slot) => format!("&{}[{t}][{slot}]", kind.c().0),
        Arg::Scratch(size) => {
            if *size > 0 {
                before.push(format!("scratch[{t}][{}].size = {size};", i % 8));
            }
            format!("(void *)&scratch[{t}][{}]", i % 8)
        }
        Arg::Null => "NULL".to_owned(),
        Arg::Text(text) => quoted(text),
        Arg::Callback(callback) => name_of(*callback).to_owned(),
        Arg::Array(of, items) => {
            let element = Param { ctype: (*of).to_owned(), ..param.clone() };
            let items: Vec<String> = items.iter().map(|a| expression(header, t, a, &element, before, i)).collect();
            let items = if items.is_empty() { "0".to_owned() } else { items.join(", ") };
            before.push(format!("{of} a{i}[] = {{{items}}};"));
            format!("a{i}")
        }
        Arg::Struct(name, fields) => {
            let variable = format!("o{i}{}", before.len());
            let mut lines = vec![format!("{name} {variable};"), format!("memset(&{variable}, 0, sizeof {variable});")];
            for (field, arg) in fields {
                let made = header.structs.get(name).and_then(|s| s.fields.iter().find(|f| f.name == *field));
                let Some(made) = made else { continue };
                let value = expression(header, t, arg, made, before, i * 10 + 1);
                let by_value = matches!(arg, Arg::Struct(n, _) if made.ctype == *n);
                let value = if by_value { value.trim_start_matches('&').to_owned() } else { value };
                lines.push(format!("{variable}.{field} = {value};"));
            }
            before.extend(lines);
            if ctype == name {
                variable
            } else {
                format!("&{variable}")
            }
        }
    }
}

fn number(n: u64, ctype: &str) -> String {
    match ctype {
        "int" | "int32_t" => format!("{}", n as i32),
        "uint32_t" => format!("{}u", n as u32),
        "ssize_t" => format!("(ssize_t){n}u"),
        _ if n > 1 << 31 => format!("{n:#x}u"),
        _ => format!("{n}"),
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

const CALLBACKS: [Callback; 7] = [
    Callback::Visitor,
    Callback::Event,
    Callback::Stack,
    Callback::Overdraw,
    Callback::Shortage,
    Callback::Progress,
    Callback::FreeUser,
];

fn name_of(callback: Callback) -> &'static str {
    match callback {
        Callback::Visitor => "visitor",
        Callback::Event => "on_event",
        Callback::Stack => "on_stack",
        Callback::Overdraw => "on_overdraw",
        Callback::Shortage => "on_shortage",
        Callback::Progress => "on_progress",
        Callback::FreeUser => "free_user",
    }
}

fn definition(callback: Callback) -> &'static str {
    match callback {
        Callback::Visitor => "static int visitor(const gpumem_allocation *a, void *u) { (void)a, (void)u; return 0; }",
        Callback::Event => "static void on_event(const gpumem_event *e, void *u) { (void)e, (void)u; }",
        Callback::Stack => {
            "static size_t on_stack(char *b, size_t n, void *u) { (void)b, (void)n, (void)u; return 0; }"
        }
        Callback::Overdraw => {
            "static int64_t on_overdraw(const gpumem_overdraw *w, void *u) { (void)w, (void)u; return 0; }"
        }
        Callback::Shortage => {
            "static int32_t on_shortage(const gpumem_shortage *w, void *u) { (void)w, (void)u; return 0; }"
        }
        Callback::Progress => {
            "static int32_t on_progress(uint64_t d, uint64_t n, void *u) { (void)d, (void)n, (void)u; return 0; }"
        }
        Callback::FreeUser => "static void free_user(void *u) { (void)u; }",
    }
}
