//! The hot pair beside mimalloc's: malloc and free of 4 KiB that the last free left behind, with
//! nothing else live and with other blocks of the size live, which spares mimalloc the retiring of
//! an empty page at every free.
//!
//! Plain loops instead of criterion's: rounds of all candidates alternate, and the best round of
//! each counts, so that what else the machine does falls on all alike or on none. Nanoseconds a
//! pair (one malloc and one free).

use std::hint::black_box;
use std::time::Instant;
use support::{mi_malloc_pair, mimalloc_alloc, mimalloc_pair, CFace, OwnContext};

const SIZE: usize = 4096;

fn main() {
    // `cargo bench` says so; anything else, such as `cargo test --benches`, only wants to see it
    // run.
    let measuring = std::env::args().any(|a| a == "--bench");
    let (rounds, pairs) = if measuring { (200, 20_000) } else { (2, 100) };
    let (c_abi, own) = (CFace::new(), OwnContext::new());

    let mut summary = Vec::new();
    println!("4 KiB malloc+free, ns a pair   gpumem C ABI   gpumem Context   mimalloc   mi_malloc+mi_free");
    for live in [0, 1_000] {
        for _ in 0..live {
            c_abi.malloc(SIZE);
            own.malloc(SIZE as u64);
            mimalloc_alloc(SIZE);
        }
        let mut best = [f64::INFINITY; 4];
        for _ in 0..rounds {
            let times = [
                time(pairs, || c_abi.pair(SIZE)),
                time(pairs, || own.pair(SIZE as u64)),
                time(pairs, || mimalloc_pair(SIZE)),
                time(pairs, || mi_malloc_pair(SIZE)),
            ];
            best.iter_mut().zip(times).for_each(|(best, t)| *best = best.min(t));
        }
        let [c, context, mimalloc, mi_malloc] = best;
        println!("{live:>5} other blocks live {c:22.1} {context:16.1} {mimalloc:10.1} {mi_malloc:19.1}");
        summary.push(format!(
            "gpumem pair {c:.1} ns, mimalloc pair {mimalloc:.1} ns, ratio {:.2} ({live} other blocks live)",
            c / mimalloc
        ));
    }
    summary.iter().for_each(|line| println!("{line}"));
}

/// Nanoseconds of each of `pairs` calls.
fn time(pairs: u32, pair: impl Fn()) -> f64 {
    let start = Instant::now();
    for _ in 0..pairs {
        black_box(&pair)();
    }
    start.elapsed().as_nanos() as f64 / f64::from(pairs)
}
