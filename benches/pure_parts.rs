//! The parts of the pool that need no driver, each alone: `cargo bench -p gpumem-bench --bench
//! pure_parts --features internals`.

use criterion::Criterion;
use gpumem::pool::bench_internals::parts;
use std::hint::black_box;
use std::time::Duration;

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500))
        .configure_from_args();
    for mut part in parts() {
        criterion.bench_function(&part.name, |b| b.iter(|| black_box((part.run)())));
    }
    criterion.final_summary();
}
