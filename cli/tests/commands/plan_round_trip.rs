//! What the library writes as CSV is what `gpumem plan` reads: the same layout if there is one,
//! else the same buffers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{file, gpumem, json, refused, run, stderr, stdout};
use gpumem::plan::{csv, solve, Arena, Buffer, Interval, Kind, Kinds, Layout, LayoutStatus, Place, Problem};
use std::process::Output;
use tempfile::tempdir;
use test_support::{rounds, Rng};

fn plan(contents: &str, args: &[&str]) -> Output {
    let dir = tempdir().unwrap();
    let path = file(&dir, "in.csv", contents.as_bytes());
    run(gpumem().arg("plan").args(args).arg(path).current_dir(dir.path()))
}

/// Quoting aside.
fn fields(text: &str) -> Vec<::csv::StringRecord> {
    let mut reader = ::csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
    reader.records().map(Result::unwrap).collect()
}

/// A problem with everything that CSV has.
fn made(seed: u64) -> Problem {
    let rng = &mut Rng::new(seed);
    let arenas = rng.between(1, 3) as u32;
    let named = rng.below(3);
    let mut p = Problem::new();
    for _ in 1..arenas {
        p.add_arena(Arena { name: Some("another".into()), capacity: None });
    }
    for i in 0..rng.between(1, 40) {
        let (lower, life) = (rng.below(30), rng.below(9));
        let gap = Interval::new(lower + 1, lower + 2);
        let alignment = 1 << rng.below(6);
        p.add(Buffer {
            gaps: if life > 3 && rng.below(3) == 0 { vec![gap] } else { vec![] },
            alignment,
            guard: rng.below(3) * rng.below(9),
            place: if rng.below(9) == 0 { Place::Preferred(alignment * rng.below(9)) } else { Place::Anywhere },
            arena: if rng.below(2) == 0 { Some(rng.below(u64::from(arenas)) as u32) } else { None },
            kind: Kind::ALL[rng.below(5) as usize],
            name: match named {
                0 => None,
                1 => Some(format!(" name, \"{i}\"\n").into()),
                _ => Some([" ", "same", "same"][i as usize % 3].into()),
            },
            ..Buffer::new(rng.below(500), lower, lower + life)
        })
        .unwrap();
    }
    if rng.below(3) > 0 {
        p.set_left_out(Kinds::NONE.with(Kind::Constant).with(Kind::Input));
    }
    p
}

#[test]
fn a_layout_comes_back_as_it_was() {
    let (mut several, mut left_out) = (0, 0);
    for seed in 0..rounds(24) {
        let p = made(seed);
        let layout = solve(&p, &Default::default()).unwrap();
        let text = csv(&p, &layout);
        let out = plan(&text, &["--json"]);
        let r = json(&out);
        assert_eq!(out.status.code(), Some(0), "seed {seed}: {}\n{text}", stderr(&out));
        assert_eq!(r["arena_size"], layout.size, "seed {seed}\n{text}");
        assert_eq!((&r["total_unshared"], &r["buffers"]), (&layout.total_unshared.into(), &p.buffers().len().into()));
        assert_eq!(r["ignored_columns"], serde_json::json!([]), "seed {seed}");
        // The empty arenas at the end are not in the text.
        let used = layout.arenas.iter().map(|a| a.size).collect::<Vec<_>>();
        for (i, arena) in r["arenas"].as_array().into_iter().flatten().enumerate() {
            assert_eq!(arena["size"], used[i], "seed {seed}, arena {i}\n{text}");
        }
        assert_eq!(fields(&stdout(&plan(&text, &["--out", "-"]))), fields(&text), "seed {seed}");
        several += u32::from(r["arenas"].is_array());
        left_out += u32::from(text.contains(",,-\n"));
    }
    assert!(several > 4 && left_out > 4, "{several} {left_out}");
}

#[test]
fn buffers_without_a_layout_come_back_to_be_laid_out() {
    for seed in 0..rounds(12) {
        let p = made(seed);
        let layout = solve(&p, &Default::default()).unwrap();
        let none = Layout { slots: vec![None; p.buffers().len()], status: LayoutStatus::OutOfTime, ..layout.clone() };
        let text = csv(&p, &none);
        let r = json(&plan(&text, &["--json"]));
        assert_eq!(r["total_unshared"], layout.total_unshared, "seed {seed}\n{text}");
        // What is bound stays bound, and the rest has as many arenas at most.
        let bound = p.buffers().iter().filter(|b| !p.left_out().contains(b.kind)).filter_map(|b| b.arena).max();
        let arenas = r["arenas"].as_array().map_or(1, Vec::len);
        assert_eq!(arenas, 1 + bound.unwrap_or(0) as usize, "seed {seed}\n{text}");
        let status = r["status"].as_str().unwrap();
        assert!(["optimal", "feasible"].contains(&status), "seed {seed}: {status}");
    }
}

#[test]
fn arenas_have_a_capacity_each() {
    let text = "id,lower,upper,size,arena\na,0,9,60,1\nb,0,9,50,\nc,0,9,70,\nd,0,9,1000,-\n";
    let out = plan(text, &["--json", "--capacity", "120"]);
    let r = json(&out);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_eq!((&r["arena_size"], &r["total_unshared"], &r["capacity"]), (&180.into(), &180.into(), &120.into()));
    assert!(r["arenas"].as_array().unwrap().iter().all(|a| a["size"].as_u64().unwrap() <= 120));
    let table = stdout(&plan(text, &["--capacity", "120"]));
    assert!(table.contains("arena 0") && table.contains("arena 1"), "{table}");
    let out = plan(text, &["--out", "-", "--capacity", "120"]);
    assert!(stdout(&out).ends_with("d,0,9,1000,-,\n"), "{}", stdout(&out));
    assert!(!stdout(&out).contains(",,"), "each has its arena: {}", stdout(&out));
    let out = plan(text, &["--capacity", "80"]);
    assert_eq!(out.status.code(), Some(1), "{}", stdout(&out));
    assert!(stderr(&out).contains("80 bytes for each arena"), "{}", stderr(&out));
    // Without a column for arenas there is one, and nothing of arenas is said.
    let r = json(&plan("id,lower,upper,size\na,0,9,60\n", &["--json"]));
    assert!(r.get("arenas").is_none());
}

#[test]
fn fixed_offsets_are_compared_within_an_arena() {
    let text = "id,lower,upper,size,offset,arena\na,0,9,60,0,0\nb,0,9,60,0,1\nc,0,9,60,0,-\n";
    assert_eq!(json(&plan(text, &["--json"]))["arena_size"], 120);
    refused(&plan(&format!("{text}d,3,4,1,59,1\n"), &[]), &["in.csv:5", "bytes 0 to 59 of line 3", "step 3"]);
    // Bound to none, it goes where it is in nobody's way.
    let r = json(&plan(&format!("{text}d,3,4,1,70,1\ne,0,9,5,70,\n"), &["--json"]));
    assert_eq!(r["arena_size"], 75 + 71);
}

#[test]
fn arenas_that_are_none_are_refused() {
    for bad in ["65536", "4294967296", "-1", "x", "1.5"] {
        let text = format!("id,lower,upper,size,arena\na,0,9,60,0\nb,0,9,60,{bad}\n");
        refused(&plan(&text, &[]), &["in.csv:3: column arena", bad, "below 65536"]);
    }
    // What is left out counts nowhere, however large.
    let most = 1u64 << 62;
    let text = format!("id,lower,upper,size,arena\na,0,9,{most},-\nb,0,9,{most},-\nc,0,9,5,\n");
    assert_eq!(json(&plan(&text, &["--json"]))["arena_size"], 5);
}
