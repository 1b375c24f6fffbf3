//! The planner, measured: `cargo bench -p gpumem-bench --bench planner -- [--limit S] [--orders N]
//! [--threads N] [--fast] [--set NAME:COUNT] [FILE.csv] ...`; or `-- --table FOLDER`, which makes
//! the tables of docs/benchmarks.md: every CSV file in the folder, those with a name of one letter
//! in ten orders, and generated sets with three limits; or `-- --rows CLASS,CLASS`, the rows of
//! some of those sets.
//!
//! Solves each file (columns id, lower, upper, size, and further ones that `gpumem plan` knows are
//! ignored) and each generated set, checks the layout with `verify`, and prints one line of
//! tab-separated columns. With `--orders N` each problem is solved in N orders of its buffers, the
//! first as given. Seconds are processor time of all threads while solving; memory is the largest
//! resident set while solving less what was resident before.
//!
//! Sets: `uniform`, `wide`, `ladder`, `training`, `random`, `guillotine`. `--aligned` gives every
//! buffer an alignment of 64 to 4,096; `--fixed P` solves once, quickly, and then again with P in
//! 1,000 of the buffers fixed where they came to lie; with `--fixed-well` the first layout is as
//! good as the planner can make it, so that the second can be, too.
#![allow(dead_code, missing_docs)]

#[path = "../tests/plan/plan_support/generate/mod.rs"]
mod generate;

use generate::Rng;
use gpumem::plan::{solve, verify, Buffer, Effort, Layout, Place, Problem, SolveOptions};
use std::error::Error;
use std::time::Duration;

type Failure = Box<dyn Error>;

#[derive(Clone, Default)]
struct Settings {
    limit: Option<f64>,
    orders: u64,
    threads: u32,
    fast: bool,
    aligned: bool,
    fixed: u64,
    fixed_well: bool,
}

fn main() -> Result<(), Failure> {
    let mut settings = Settings { orders: 1, ..Settings::default() };
    let mut args = std::env::args().skip(1);
    let mut header = true;
    let mut show = |name: &str, buffers: Vec<Buffer>, settings: &Settings| {
        if std::mem::take(&mut header) {
            println!(
                "problem\tbuffers\tbound\tarena\tgap %\tstatus\tprocessor s (median)\t(worst)\twall s (worst)\tMB"
            );
        }
        let Row { buffers, layout, median, worst, wall, memory } = measure(buffers, settings)?;
        let (bound, size, gap, status) = (layout.lower_bound, layout.size, 100.0 * layout.gap(), layout.status.name());
        println!(
            "{name}\t{buffers}\t{bound}\t{size}\t{gap:.3}\t{status}\t{median:.3}\t{worst:.3}\t{wall:.3}\t{memory:.1}"
        );
        Ok::<(), Failure>(())
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--bench" => {}
            "--limit" => settings.limit = Some(value()?.parse()?),
            "--orders" => settings.orders = value()?.parse()?,
            "--threads" => settings.threads = value()?.parse()?,
            "--fixed" => settings.fixed = value()?.parse()?,
            "--fixed-well" => settings.fixed_well = true,
            "--fast" => settings.fast = true,
            "--aligned" => settings.aligned = true,
            "--table" => table(&value()?)?,
            "--rows" => rows(&value()?.split(',').collect::<Vec<_>>())?,
            "--cell" => cell(&value()?)?,
            "--set" => {
                let set = value()?;
                let (name, count) = set.split_once(':').ok_or("--set takes NAME:COUNT")?;
                show(&set, made(name, count.parse()?)?, &settings)?;
            }
            file => show(file.rsplit('/').next().unwrap_or(file), read(file)?, &settings)?,
        }
    }
    Ok(())
}

/// Limits of the second table, seconds; sizes of its sets.
const LIMITS: [f64; 3] = [0.1, 1.0, 10.0];
const COUNTS: [u64; 5] = [1_000, 10_000, 100_000, 1_000_000, 5_000_000];

/// Every file of a folder, and every set with every limit.
fn table(folder: &str) -> Result<(), Failure> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if let (Some("csv"), Some(name)) = (path.extension().and_then(|e| e.to_str()), path.file_stem()) {
            files.push((name.len() > 1, name.to_string_lossy().into_owned(), path.to_string_lossy().into_owned()));
        }
    }
    files.sort();
    println!("| problem | buffers | lower bound | arena, worst order | median s | worst s | MB |\n|---|---|---|---|---|---|---|");
    for (large, name, file) in files {
        let settings = Settings { orders: if large { 1 } else { 10 }, ..Settings::default() };
        let Row { buffers, layout, median, worst, memory, .. } = measure(read(&file)?, &settings)?;
        let (bound, size) = (layout.lower_bound, layout.size);
        println!("| {name} | {buffers} | {bound} | {size} | {median:.3} | {worst:.3} | {memory:.0} |");
    }
    println!();
    rows(&CLASSES.map(|(class, _)| class))
}

/// The classes of the second table, and the sets that they are made of.
const CLASSES: [(&str, &str); 6] = [
    ("uniform", "uniform"),
    ("wide", "wide"),
    ("ladder", "ladder"),
    ("guillotine", "guillotine"),
    ("aligned", "uniform"),
    ("fixed", "uniform"),
];

/// Every set of these classes with every limit.
fn rows(classes: &[&str]) -> Result<(), Failure> {
    println!("| set | buffers | above the bound at 0.1 s | at 1 s | at 10 s | MB |\n|---|---|---|---|---|---|");
    for &class in classes {
        let (_, set) = CLASSES.iter().find(|(c, _)| *c == class).ok_or(format!("no class is called {class}"))?;
        for count in COUNTS {
            print!("| {class} | {count} |");
            let mut most = 0f64;
            for limit in LIMITS {
                // In a process of its own: what one has freed it may keep, and use for the next.
                let cell = format!("{class}:{set}:{count}:{limit}");
                let out = std::process::Command::new(std::env::current_exe()?).args(["--cell", &cell]).output()?;
                let text = String::from_utf8(out.stdout)?;
                let (gap, memory) = text.trim().split_once('\t').ok_or(format!("{cell}: no result"))?;
                print!(" {gap} |");
                most = most.max(memory.parse()?);
            }
            println!(" {most:.0} |");
        }
    }
    Ok(())
}

/// One set with one limit: what it came to, and its memory.
fn cell(of: &str) -> Result<(), Failure> {
    let [class, set, count, limit] = of.split(':').collect::<Vec<_>>()[..] else {
        return Err("--cell takes CLASS:SET:COUNT:LIMIT".into());
    };
    let limit: f64 = limit.parse()?;
    let fixed = if class == "fixed" { 5 } else { 0 };
    let settings =
        Settings { limit: Some(limit), aligned: class == "aligned", fixed, orders: 1, ..Settings::default() };
    let Row { layout, wall, memory, .. } = measure(made(set, count.parse()?)?, &settings)?;
    let late = if wall > limit + 0.02 { format!(" ({wall:.2} s)") } else { String::new() };
    println!("{:.2} %{late}\t{memory}", 100.0 * layout.gap());
    Ok(())
}

fn read(file: &str) -> Result<Vec<Buffer>, Failure> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().ok_or("no header")?.split(',').collect();
    let column = |name: &str| header.iter().position(|c| *c == name).ok_or(format!("{file}: no column {name}"));
    let (lower, upper, size) = (column("lower")?, column("upper")?, column("size")?);
    lines
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            let field = |k: usize| fields.get(k).ok_or(format!("{file}: {line:?}"));
            Ok(Buffer::new(field(size)?.parse()?, field(lower)?.parse()?, field(upper)?.parse()?))
        })
        .collect()
}

/// A set of about `count` buffers, the same on every machine.
fn made(name: &str, count: u64) -> Result<Vec<Buffer>, Failure> {
    let rng = &mut Rng::new(1);
    let each = |make: &mut dyn FnMut(u64) -> Buffer| Ok((0..count).map(make).collect());
    let problem = match name {
        // Short lives, any size.
        "uniform" => {
            return each(&mut |_| {
                let lower = rng.below(count);
                Buffer::new(rng.between(1, 1_000_000), lower, lower + rng.between(1, 100))
            })
        }
        // Both ends anywhere: a third of all is live in the middle.
        "wide" => {
            return each(&mut |_| {
                let (a, b) = (rng.draw() >> 2, rng.draw() >> 2);
                Buffer::new(rng.between(1, 1_000_000), a.min(b), a.max(b) + 1)
            })
        }
        // A staircase: each is born one step after the one before.
        "ladder" => {
            let life = count.isqrt();
            return each(&mut |k| Buffer::new(rng.between(1, 1_000_000), k, k + 1 + rng.below(2 * life)));
        }
        "training" => generate::training(1, count as usize)?,
        "random" => generate::random(1, count as usize, count, 1 << 20)?,
        "guillotine" => generate::guillotine(1, count as usize, count + 3, 1 << 20)?,
        _ => return Err(format!("no set is called {name}").into()),
    };
    Ok(problem.buffers().to_vec())
}

/// What was measured of one problem, in the order that came off worst.
struct Row {
    buffers: usize,
    layout: Layout,
    /// Processor seconds of all orders.
    median: f64,
    worst: f64,
    wall: f64,
    memory: f64,
}

fn measure(mut buffers: Vec<Buffer>, settings: &Settings) -> Result<Row, Failure> {
    let rng = &mut Rng::new(7);
    if settings.aligned {
        buffers.iter_mut().for_each(|b| b.alignment = 64 << rng.below(7));
    }
    if settings.fixed > 0 {
        let effort = if settings.fixed_well { Effort::Normal } else { Effort::Fast };
        let layout = solve(&problem(&buffers)?, &SolveOptions { effort, ..SolveOptions::default() })?;
        for (buffer, slot) in buffers.iter_mut().zip(layout.slots) {
            if let (true, Some(slot)) = (rng.below(1_000) < settings.fixed, slot) {
                buffer.place = Place::Fixed(slot.offset);
            }
        }
    }
    let effort = if settings.fast { Effort::Fast } else { Effort::Normal };
    let time_limit = settings.limit.map(Duration::from_secs_f64);
    let options = SolveOptions { effort, time_limit, threads: settings.threads, ..SolveOptions::default() };
    let (mut seconds, mut wall, mut memory) = (Vec::new(), 0f64, 0);
    let mut worst = None;
    for order in 0..settings.orders {
        if order > 0 {
            rng.shuffle(&mut buffers);
        }
        let problem = problem(&buffers)?;
        // Forgets the highest so far; without it the figure is an upper bound.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        let (resident, before) = (status("VmRSS:")?, processor()?);
        let layout = solve(&problem, &options)?;
        seconds.push(processor()? - before);
        memory = memory.max(status("VmHWM:")?.saturating_sub(resident));
        verify(&problem, &layout)?;
        wall = wall.max(layout.elapsed.as_secs_f64());
        let best = worst.get_or_insert_with(|| layout.clone());
        if layout.size > best.size {
            *best = layout;
        }
    }
    seconds.sort_by(f64::total_cmp);
    let layout = worst.ok_or("--orders must be 1 or more")?;
    let (median, worst) = (seconds.get(seconds.len() / 2), seconds.last());
    Ok(Row {
        buffers: buffers.len(),
        layout,
        median: *median.unwrap_or(&0.0),
        worst: *worst.unwrap_or(&0.0),
        wall,
        memory: memory as f64 / 1000.0,
    })
}

fn problem(buffers: &[Buffer]) -> Result<Problem, Failure> {
    let mut problem = Problem::new();
    for buffer in buffers {
        problem.add(buffer.clone())?;
    }
    Ok(problem)
}

/// Seconds that this thread was on a processor, and with it those that it waited for: Linux only.
fn processor() -> Result<f64, Failure> {
    let text = std::fs::read_to_string("/proc/self/schedstat")?;
    Ok(text.split(' ').next().ok_or("no time in schedstat")?.parse::<f64>()? / 1e9)
}

/// A line of the process's status, kB.
fn status(name: &str) -> Result<u64, Failure> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find(|l| l.starts_with(name)).ok_or(format!("no {name} in status"))?;
    Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
}
