//! Random programs against the C ABI of `libgpumem.so`, on the host device.
//!
//! Each program is a sequence of calls by one thread or several, made from a seed and the
//! declarations in `include/gpumem/*.h`, and runs in a child process beside an oracle. The oracle
//! checks the contract of every call, where live memory is, its contents, the order in which work
//! touched it, the library's own checks, and that nothing is left in the end. A program that fails
//! is shrunk and written out as C.

mod emit;
mod generate;
mod header;
mod oracle;
mod program;
mod run;
mod shrink;

use clap::Parser;
use header::Header;
use oracle::Failure;
use program::Program;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Calls libgpumem.so at random and checks what it does; exits with 1 and a C program when
/// something is wrong.
#[derive(Parser)]
struct Options {
    /// The shared library
    #[arg(long)]
    library: PathBuf,
    /// The folder with gpumem.h
    #[arg(long, default_value = "include")]
    include: PathBuf,
    /// How long, seconds; 0 is no limit
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// How many programs at most
    #[arg(long, default_value_t = u64::MAX)]
    programs: u64,
    /// Operations of a program
    #[arg(long, default_value_t = 250)]
    ops: usize,
    /// Threads of a program
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=32))]
    threads: u64,
    /// The first program's seed; the following ones count up
    #[arg(long)]
    seed: Option<u64>,
    /// A setting that every program has, such as GPUMEM_POOL=off; several are allowed
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    set: Vec<(&'static str, String)>,
    /// Where programs that fail are written to
    #[arg(long, default_value = ".")]
    out: PathBuf,
    /// How many kinds of failures it collects before it stops
    #[arg(long, default_value_t = 1)]
    failures: usize,
    /// How long one failure is shrunk, seconds
    #[arg(long, default_value_t = 60)]
    shrink_seconds: u64,
}

fn main() -> ExitCode {
    match fuzz(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            eprintln!("gpumem-fuzz: {why}");
            ExitCode::from(2)
        }
    }
}

fn setting(text: &str) -> Result<(&'static str, String), String> {
    let (name, value) = text.split_once('=').ok_or("a setting is NAME=VALUE")?;
    Ok((name.to_owned().leak(), value.to_owned()))
}

/// Whether every program went well.
fn fuzz(options: &Options) -> Result<bool, String> {
    let header = Header::read(&options.include.join("gpumem"))?;
    let absolute = |p: &Path| p.canonicalize().map_err(|e| format!("{}: {e}", p.display()));
    let (library, include) = (absolute(&options.library)?, absolute(&options.include)?);
    std::fs::create_dir_all(&options.out).map_err(|e| format!("{}: {e}", options.out.display()))?;
    let out = absolute(&options.out)?;
    // Programs write files into the working directory.
    let disk = std::env::temp_dir().join("gpumem-fuzz");
    std::fs::create_dir_all(&disk).map_err(|e| format!("{}: {e}", disk.display()))?;
    std::env::set_current_dir(&disk).map_err(|e| format!("{}: {e}", disk.display()))?;
    let disk = disk.display().to_string();
    let first = options.seed.unwrap_or_else(|| fastrand::u64(..1 << 40));
    println!("gpumem-fuzz: {} functions, from seed {first}", header.functions.len());
    let start = Instant::now();
    let (mut calls, mut accepted, mut done) = (0, 0, 0);
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    while done < options.programs && (options.seconds == 0 || start.elapsed().as_secs() < options.seconds) {
        let seed = first + done;
        let mut program = generate::program(&header, seed, options.threads as usize, options.ops, &disk);
        program.settings.extend(options.set.iter().cloned());
        let outcome = run::run(&header, &library, &program)?;
        done += 1;
        calls += outcome.calls;
        accepted += outcome.accepted;
        let Some(failure) = outcome.failure else { continue };
        *found.entry(failure.kind.clone()).or_default() += 1;
        if found[&failure.kind] > 1 {
            continue;
        }
        println!("seed {seed}: {}: {}", failure.kind, failure.text);
        let (program, failure) = shrunk(&header, &library, program, failure, options.shrink_seconds)?;
        let file = out.join(format!("fuzz-{seed}.c"));
        std::fs::write(&file, emit::c(&header, &program, &failure)).map_err(|e| format!("{}: {e}", file.display()))?;
        println!("  shrunk to {} operations: {}", program.len(), failure.text);
        println!("  {}: {}", file.display(), tried(&file, &include, &library));
        if found.len() >= options.failures {
            break;
        }
    }
    let kinds: Vec<String> = found.iter().map(|(kind, n)| format!("{kind}: {n}")).collect();
    println!(
        "gpumem-fuzz: {done} programs in {} s, {calls} calls, {accepted} of them accepted; {}",
        start.elapsed().as_secs(),
        if kinds.is_empty() { "none failed".to_owned() } else { format!("failed: {}", kinds.join(", ")) }
    );
    Ok(found.is_empty())
}

fn shrunk(
    header: &Header,
    library: &Path,
    program: Program,
    failure: Failure,
    seconds: u64,
) -> Result<(Program, Failure), String> {
    let mut broken = None;
    let mut run = |p: &Program| match run::run(header, library, p) {
        Ok(outcome) => outcome.failure,
        Err(e) => {
            broken = Some(e);
            None
        }
    };
    let mut shrinker = shrink::Shrinker { run: &mut run, limit: Duration::from_secs(seconds) };
    let shrunk = shrinker.shrink(program, failure);
    broken.map_or(Ok(shrunk), Err)
}

/// Compiles and runs the program in C: whether it shows the failure as well.
fn tried(file: &Path, include: &Path, library: &Path) -> String {
    let program = file.with_extension("");
    let folder = library.parent().unwrap_or(Path::new("."));
    // Programs look for the library by the name that is recorded in it.
    let names = file.with_file_name("lib");
    if library.file_name().is_some_and(|name| name == "libgpumem.so") {
        let _ = std::fs::create_dir_all(&names);
        let _ = std::os::unix::fs::symlink(library, names.join("libgpumem.so.0"));
    }
    // CC may have flags.
    let words = std::env::var("CC").unwrap_or_default();
    let mut words = words.split_whitespace();
    let mut cc = Command::new(words.next().unwrap_or("cc"));
    cc.args(words)
        .args(["-std=gnu11", "-g", "-w", "-I"])
        .arg(include)
        .arg(file)
        .arg("-o")
        .arg(&program)
        // The library may be one that wraps gpumem's.
        .args(["-Wl,--copy-dt-needed-entries", "-Wl,-rpath-link"])
        .arg(folder)
        .arg(library)
        .arg("-lpthread");
    match cc.output() {
        Err(e) => return format!("not compiled: {e}"),
        Ok(out) if !out.status.success() => {
            return format!("does not compile: {}", String::from_utf8_lossy(&out.stderr));
        }
        Ok(_) => {}
    }
    for _ in 0..20 {
        let mut run = Command::new("timeout");
        match run
            .arg("60")
            .arg(&program)
            .env("LD_LIBRARY_PATH", format!("{}:{}", names.display(), folder.display()))
            .output()
        {
            Err(e) => return format!("cannot be run: {e}"),
            Ok(out) if out.status.code() == Some(127) => {
                return format!("cannot be run: {}", String::from_utf8_lossy(&out.stderr));
            }
            Ok(out) if !out.status.success() => return format!("shows it as well ({})", out.status),
            Ok(_) => {}
        }
    }
    "the C program runs well; the failure is in the sequence that the seed gives".to_owned()
}
