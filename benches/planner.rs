//! The planner: `cargo bench --bench planner`. Solving problems that are hard for their size, large ones, and small ones
//! in a hurry; and verifying. A to F are those of `tests/data/plan`, to be placed in 1 MiB.

use criterion::{BatchSize, Criterion};
use gpumem::plan::{generate, solve, verify, Buffer, Effort, Problem, SolveOptions};
use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

/// What A to F are to fit in, bytes.
const CAPACITY: u64 = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(3))
        .sample_size(10)
        .configure_from_args();
    let normal = SolveOptions::default();
    let fast = SolveOptions { effort: Effort::Fast, ..normal };

    for name in ["A", "B", "C", "D", "E", "F"] {
        let mut problem = csv(name)?;
        bench_solve(&mut criterion, &format!("solve/{name}, smallest"), &problem, &normal);
        problem.set_capacity(Some(CAPACITY));
        bench_solve(&mut criterion, &format!("solve/{name}, 1 MiB"), &problem, &normal);
    }
    let cut = generate::guillotine(1, 300, 400, CAPACITY)?;
    bench_solve(&mut criterion, "solve/guillotine 300", &cut, &normal);
    bench_solve(&mut criterion, "fast/guillotine 300", &cut, &fast);
    bench_solve(&mut criterion, "fast/F", &csv("F")?, &fast);
    bench_solve(&mut criterion, "fast/training 300", &generate::training(1, 300)?, &fast);

    let training = generate::training(1, 100_000)?;
    bench_solve(&mut criterion, "solve/training 100,000", &training, &normal);
    bench_solve(&mut criterion, "fast/training 100,000", &training, &fast);
    for (name, count) in [("verify/training 100,000", 100_000), ("verify/training 1,000,000", 1_000_000)] {
        let problem = generate::training(1, count)?;
        let layout = solve(&problem, &fast)?;
        verify(&problem, &layout)?;
        criterion.bench_function(name, |b| b.iter(|| black_box(verify(&problem, &layout))));
    }
    criterion.final_summary();
    Ok(())
}

fn bench_solve(criterion: &mut Criterion, name: &str, problem: &Problem, options: &SolveOptions<'_>) {
    let mut result = None;
    criterion.bench_function(name, |b| {
        b.iter_batched_ref(|| None, |out| *out = Some(solve(black_box(problem), options)), BatchSize::PerIteration);
        result = Some(solve(problem, options));
    });
    // Without this a quick bad answer would look like progress. Nothing if the name is filtered out.
    match result {
        Some(Ok(layout)) => {
            let bound = 100.0 * layout.gap();
            println!("{name}: {} bytes, {}, {bound:.2} % above the bound", layout.size, layout.status.name());
        }
        Some(Err(e)) => println!("{name}: {e}"),
        None => {}
    }
}

fn csv(name: &str) -> Result<Problem, Box<dyn Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/plan/{name}.1048576.csv"));
    let mut problem = Problem::new();
    for line in std::fs::read_to_string(path)?.lines().skip(1) {
        let fields = line.split(',').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let [_, lower, upper, size] = fields[..] else { return Err(format!("{name}: {line:?}").into()) };
        problem.add(Buffer::new(size, lower, upper))?;
    }
    Ok(problem)
}
