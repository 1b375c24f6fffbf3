//! `gpumem run`: starts a program with `libgpumem_preload.so` in front of it, or says why that
//! cannot work.

use crate::report;
use clap::{Args as ClapArgs, ValueEnum};
use gpumem::context::preload::PreloadSettings;
use gpumem::context::{settings, Config};
use gpumem::driver::cuda;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use thiserror::Error;

const LIBRARY: &str = "libgpumem_preload.so";

#[derive(ClapArgs)]
pub struct Args {
    /// The most memory that gpumem takes on each device, such as 20G or 50%. The program sees a
    /// device of that size.
    #[arg(long, value_name = "SIZE", value_parser = limit)]
    limit: Option<String>,
    /// How cudaFree makes sure that the memory is no longer in use: it waits on the host (sync), or
    /// holds the memory back (marker, the default).
    #[arg(long, value_enum)]
    free: Option<Free>,
    /// Prints one line for each process that uses CUDA, at its end: calls, peak memory, time.
    #[arg(long)]
    stats: bool,
    /// Records every allocation, for gpumem view, stats and replay. The first allocation creates
    /// the file; further processes write FILE.PID.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Makes PyTorch take every tensor from CUDA, and so from gpumem, instead of its own cache
    /// (backend:cudaMallocAsync).
    #[arg(long)]
    torch: bool,
    /// The path of libgpumem_preload.so, if it is neither beside this command nor in a lib folder
    /// beside this command's folder: lib, lib64, or that of the processor in lib.
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Free {
    Sync,
    Marker,
}

#[derive(Debug, Error)]
enum RunError {
    #[error("{0} is in none of {1}; make install puts it there, --library names another")]
    NoLibrary(&'static str, String),
    #[error("--library {0:?}: {1}")]
    NoSuchLibrary(PathBuf, std::io::Error),
    #[error("{0:?} is no program: no folder of PATH has an executable file of that name")]
    NotFound(OsString),
    #[error("{0:?} is no program: {1}")]
    NoProgram(OsString, &'static str),
    #[error("{0}: cannot be read: {1}")]
    Unreadable(PathBuf, std::io::Error),
    #[error("{0} is statically linked, so nothing can be put in front of it; link it dynamically (libc; the CUDA runtime may be static)")]
    Static(PathBuf),
    #[error("{0} is a setuid or setgid program, for which the system ignores LD_PRELOAD; run a copy without that bit")]
    Privileged(PathBuf),
    #[error("{0} is a 32-bit program; CUDA programs that gpumem serves have 64 bits")]
    Narrow(PathBuf),
    #[error("{0} is for another processor architecture than gpumem")]
    Foreign(PathBuf),
    #[error("{0} is neither an ELF program nor a script")]
    Unknown(PathBuf),
    #[error("{0} is not a shared library; --library names {LIBRARY}")]
    NotALibrary(PathBuf),
    #[error("{0} has a colon or a space in its path, which LD_PRELOAD cannot express; move it, or name a link with --library")]
    Unspeakable(PathBuf),
    #[error("--torch, and {0} chooses a backend already: {1}; leave one of them out")]
    Backend(&'static str, String),
    #[error("--record {0:?}: the path is not UTF-8, as those of recordings are; record to another")]
    Record(PathBuf),
    #[error("{0}: {1}")]
    Exec(PathBuf, std::io::Error),
}

/// Checks a value for `GPUMEM_LIMIT`.
fn limit(text: &str) -> Result<String, String> {
    let Some(setting) = settings::find("GPUMEM_LIMIT") else { return Ok(text.into()) };
    let set = setting.set(&mut Config::default(), text);
    set.map(|()| text.into()).ok_or_else(|| format!("it is {}", setting.accepted))
}

/// Replaces this process by the program, so the caller gets its exit status and its signals.
pub fn run(args: &Args) -> Result<bool, Box<dyn std::error::Error>> {
    let library = library(args.library.as_deref())?;
    let Some((name, rest)) = args.program.split_first() else { return Ok(false) };
    let program = find(name)?;
    check(&program, 0)?;

    let mut command = Command::new(&program);
    command.arg0(name).args(rest);
    let mut preload = library.into_os_string().into_vec();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|o| !o.is_empty()) {
        preload.push(b':');
        preload.extend(others.as_bytes());
    }
    command.env("LD_PRELOAD", OsString::from_vec(preload));
    command.env("GPUMEM_RUN", std::process::id().to_string());
    if let Some(limit) = &args.limit {
        command.env("GPUMEM_LIMIT", limit);
    }
    if let Some(free) = args.free {
        command.env("GPUMEM_FREE", if matches!(free, Free::Sync) { "sync" } else { "marker" });
    }
    if args.stats {
        command.env("GPUMEM_STATS", "1");
    }
    if let Some(file) = &args.record {
        let file = std::path::absolute(file)?;
        command.env("GPUMEM_RECORD", file.to_str().ok_or_else(|| RunError::Record(file.clone()))?);
    }
    if args.torch {
        torch(&mut command)?;
    }
    // Checks the library's settings, so that a wrong one is reported before anything runs.
    let given: Vec<(OsString, OsString)> =
        command.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect();
    let settings = |name: &str| match given.iter().find(|(n, _)| n == name) {
        Some((_, value)) => Some(value.clone()),
        None => env::var_os(name),
    };
    let config = Config::from_lookup(&settings)?;
    PreloadSettings::from_lookup(&settings)?;
    if let Some(why) = cuda::missing().filter(|_| config.log >= 1) {
        let lost = if config.record.is_some() { ", and records only what uses gpumem itself" } else { "" };
        report::say(format_args!("{}; the program runs, with nothing for gpumem to serve{lost}", why.message));
    }
    let failed = command.exec();
    Err(RunError::Exec(program, failed).into())
}

/// Sets PyTorch's settings, in the variable that is in use.
fn torch(command: &mut Command) -> Result<(), RunError> {
    let (new, old) = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF");
    let name = if env::var_os(new).is_some() { new } else { old };
    let others = env::var_os(name).map(|v| v.to_string_lossy().into_owned()).filter(|v| !v.is_empty());
    let value = match others {
        None => "backend:cudaMallocAsync".to_string(),
        Some(v) if v.contains("backend:cudaMallocAsync") => v,
        Some(v) if v.contains("backend:") => return Err(RunError::Backend(name, v)),
        Some(v) => format!("backend:cudaMallocAsync,{v}"),
    };
    command.env(name, value);
    Ok(())
}

fn library(named: Option<&Path>) -> Result<PathBuf, RunError> {
    let exe = env::current_exe().ok().and_then(|e| fs::canonicalize(e).ok());
    let beside = exe.as_deref().and_then(Path::parent).unwrap_or(Path::new("."));
    let found = match named {
        Some(path) => fs::canonicalize(path).map_err(|e| RunError::NoSuchLibrary(path.to_path_buf(), e))?,
        None => {
            // The last one is Debian's name, which says the processor as Rust does.
            let multiarch = format!("../lib/{}-linux-gnu", env::consts::ARCH);
            let folders = ["", "../lib", "../lib64", multiarch.as_str()];
            let places = folders.map(|folder| beside.join(folder).join(LIBRARY));
            places.iter().find_map(|p| fs::canonicalize(p).ok()).ok_or_else(|| {
                RunError::NoLibrary(LIBRARY, places.each_ref().map(|p| p.display().to_string()).join(", "))
            })?
        }
    };
    let mut head = [0; 4];
    if File::open(&found).and_then(|mut f| f.read_exact(&mut head)).is_err() || head != *b"\x7fELF" {
        return Err(RunError::NotALibrary(found));
    }
    match found.as_os_str().as_bytes().iter().any(|b| b": \t\n".contains(b)) {
        true => Err(RunError::Unspeakable(found)),
        false => Ok(found),
    }
}

/// Finds a program as the shell does.
fn find(name: &OsStr) -> Result<PathBuf, RunError> {
    let is_program = |p: &PathBuf| fs::metadata(p).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        let why = match fs::metadata(&path) {
            _ if is_program(&path) => return Ok(path),
            Ok(about) if about.is_file() => "the file is not executable; chmod +x makes it so",
            Ok(_) => "it is not a file",
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => "there is no such file",
            Err(_) => "the file cannot be reached",
        };
        return Err(RunError::NoProgram(name.to_owned(), why));
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let found = env::split_paths(&path).map(|d| d.join(name)).find(is_program);
    found.ok_or_else(|| RunError::NotFound(name.to_owned()))
}

/// Checks that the system will preload a library into the program.
fn check(program: &Path, depth: u32) -> Result<(), RunError> {
    let unreadable = |e| RunError::Unreadable(program.to_path_buf(), e);
    let mut file = match File::open(program) {
        // A program that can be run but not read is run.
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => return Ok(()),
        file => file.map_err(unreadable)?,
    };
    let about = file.metadata().map_err(unreadable)?;
    if about.mode() & 0o6000 != 0 {
        return Err(RunError::Privileged(program.to_path_buf()));
    }
    let mut head = Vec::new();
    file.by_ref().take(4096).read_to_end(&mut head).map_err(unreadable)?;
    if let Some(rest) = head.strip_prefix(b"#!") {
        let line = rest.split(|b| *b == b'\n').next().unwrap_or_default().trim_ascii();
        let interpreter = line.split(|b| b" \t".contains(b)).next().unwrap_or_default();
        // The system follows this many interpreters.
        return match depth < 4 && !interpreter.is_empty() {
            true => check(Path::new(OsStr::from_bytes(interpreter)), depth + 1),
            false => Err(RunError::Unknown(program.to_path_buf())),
        };
    }
    elf(program, &file, &head)
}

fn elf(program: &Path, file: &File, head: &[u8]) -> Result<(), RunError> {
    let unknown = || RunError::Unknown(program.to_path_buf());
    let number = |bytes: &[u8], at: usize, n: usize| -> Option<u64> {
        let part = bytes.get(at..at.checked_add(n)?)?;
        Some(part.iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b)))
    };
    if head.get(..4) != Some(b"\x7fELF") {
        return Err(unknown());
    }
    if head.get(4) != Some(&2) {
        return Err(RunError::Narrow(program.to_path_buf()));
    }
    // EM_X86_64 and EM_AARCH64; both little-endian.
    let own = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    if head.get(5) != Some(&1) || number(head, 18, 2) != Some(own) {
        return Err(RunError::Foreign(program.to_path_buf()));
    }
    let field = |at, n| number(head, at, n).ok_or_else(unknown);
    let (start, size, count) = (field(32, 8)?, field(54, 2)?, field(56, 2)?);
    // PT_INTERP: a loader loads libraries.
    const INTERP: u64 = 3;
    for i in 0..count {
        let mut kind = [0u8; 4];
        let at = i.checked_mul(size).and_then(|o| o.checked_add(start)).ok_or_else(unknown)?;
        file.read_exact_at(&mut kind, at).map_err(|_| unknown())?;
        if u64::from(u32::from_le_bytes(kind)) == INTERP {
            return Ok(());
        }
    }
    Err(RunError::Static(program.to_path_buf()))
}
