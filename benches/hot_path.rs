//! The hot path: a malloc and a free on one stream that find in the pool what the last free left
//! there. Through the C ABI and through `Context`, on the host device, whose share is the question
//! which stream it is; mimalloc's malloc and free of host memory stand beside.
//! benches/versus_mimalloc.rs compares with it in one line.

use criterion::{BenchmarkId, Criterion};
use std::time::Duration;
use support::{mimalloc_alloc, mimalloc_pair, CFace, OwnContext};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let c_abi = CFace::new();
    by_size(&mut criterion, &c_abi);
    by_live_blocks(&mut criterion, &c_abi);
    criterion.final_summary();
}

/// With two blocks of the size live, so that no candidate gives an empty slab or page back at every
/// free.
fn by_size(criterion: &mut Criterion, c_abi: &CFace) {
    let own = OwnContext::new();
    let mut group = criterion.benchmark_group("hot pair");
    for (name, size) in [("256 B", 256), ("4 KiB", 4 * KIB), ("64 KiB", 64 * KIB), ("1 MiB", MIB), ("64 MiB", 64 * MIB)]
    {
        for _ in 0..2 {
            c_abi.malloc(size);
            own.malloc(size as u64);
        }
        group.bench_function(BenchmarkId::new("C ABI", name), |b| b.iter(|| c_abi.pair(size)));
        group.bench_function(BenchmarkId::new("Context", name), |b| b.iter(|| own.pair(size as u64)));
    }
    for _ in 0..2 {
        mimalloc_alloc(4 * KIB);
    }
    group.bench_function(BenchmarkId::new("mimalloc", "4 KiB"), |b| b.iter(|| mimalloc_pair(4 * KIB)));
    group.finish();
}

/// Pairs of 4 KiB and 1 MiB among other live blocks of 256 B to 256 KiB.
fn by_live_blocks(criterion: &mut Criterion, c_abi: &CFace) {
    let mut group = criterion.benchmark_group("hot pair by live blocks");
    let mut live = 0;
    for others in [1_000_usize, 10_000, 100_000] {
        while live < others {
            c_abi.malloc(256 << (live * 7919 % 11));
            live += 1;
        }
        for (name, size) in [("4 KiB", 4 * KIB), ("1 MiB", MIB)] {
            group.bench_function(BenchmarkId::new(name, others), |b| b.iter(|| c_abi.pair(size)));
        }
    }
    group.finish();
}
