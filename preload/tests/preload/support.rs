//! Programs that are built once, and run with gpumem and without.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A program that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// Where cargo put what it has just built: `deps/` of the profile, and the profile's folder.
fn built() -> (PathBuf, PathBuf) {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let profile = deps.parent().unwrap().to_path_buf();
    (deps, profile)
}

pub fn preload() -> PathBuf {
    let (deps, profile) = built();
    let found = [deps.join("libgpumem_preload.so"), profile.join("libgpumem_preload.so")];
    found.iter().find(|p| p.exists()).unwrap_or_else(|| panic!("{found:?}: cargo builds it with the tests")).clone()
}

/// A folder for what the tests build, in which the driver library has its name.
pub fn scratch() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("preload-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let driver = built().1.join("examples/libsimulated_cuda.so");
        assert!(driver.exists(), "{} is missing; build it: cargo build -p gpumem-preload --examples", driver.display());
        std::os::unix::fs::symlink(driver, dir.join("libcuda.so.1")).unwrap();
        dir
    })
}

/// A program of `tests/programs`, or a shared library of it; `None`, and why on stdout, without a
/// compiler.
pub fn program(source: &str, name: &str, flags: &[&str]) -> Option<PathBuf> {
    let out = scratch().join(name);
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let mut build = test_support::c_compiler();
    build.args(["-O1", "-Wall", "-Werror", "-o"]).arg(&out).arg(from).args(flags).arg("-L").arg(scratch());
    match build.args(["-l:libcuda.so.1", "-ldl", "-lpthread"]).status() {
        Ok(status) => assert!(status.success(), "{build:?}"),
        Err(e) => {
            println!("skipped: no C compiler {build:?}: {e}");
            return None;
        }
    }
    Some(out)
}

pub struct Run {
    pub out: String,
    pub err: String,
    pub code: Option<i32>,
}

impl Run {
    /// Lines that are the same with gpumem and without.
    pub fn same(&self) -> Vec<&str> {
        self.out.lines().filter(|l| !l.starts_with("# ")).collect()
    }

    /// Whether a line is there.
    #[track_caller]
    pub fn says(&self, line: &str) {
        assert!(self.out.lines().any(|l| l == line), "no line {line:?} in\n{}{}", self.out, self.err);
    }

    /// The numbers in front of a word of the summary, one for each process.
    pub fn counts(&self, word: &str) -> Vec<u64> {
        let one = |line: &str| {
            let rest = line.strip_prefix("gpumem: process ")?.split_once(": ")?.1;
            let at = rest.find(word)?;
            rest.get(..at)?.trim().rsplit(' ').next()?.parse().ok()
        };
        self.err.lines().filter_map(one).collect()
    }
}

/// Runs a program on the simulated driver, with variables besides.
pub fn run(mut command: Command, gpumem: bool, variables: &[(&str, &str)]) -> Run {
    let of_ours = |name: &str| name.starts_with("GPUMEM_") || name.starts_with("SIM_");
    for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_str().is_some_and(of_ours)) {
        command.env_remove(name);
    }
    command.env("LD_LIBRARY_PATH", scratch()).envs(variables.iter().copied());
    if gpumem {
        command.env("LD_PRELOAD", preload()).env("GPUMEM_STATS", "1");
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id() as i32;
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let start = Instant::now();
        if told.recv_timeout(LIMIT).is_err() && start.elapsed() >= LIMIT {
            // SAFETY: a process of this test's, which has not been waited for.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    });
    let mut err = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || std::io::read_to_string(&mut err).unwrap());
    let Output { status, stdout, .. } = child.wait_with_output().unwrap();
    let _ = tell.send(());
    Run { out: String::from_utf8(stdout).unwrap(), err: reader.join().unwrap(), code: status.code() }
}

pub fn flows() -> Option<&'static Path> {
    static FLOWS: OnceLock<Option<PathBuf>> = OnceLock::new();
    FLOWS.get_or_init(|| program("flows.c", "flows", &[])).as_deref()
}

pub fn flow(how: &str, name: &str, gpumem: bool, variables: &[(&str, &str)]) -> Option<Run> {
    let mut command = Command::new(flows()?);
    command.args([how, name]);
    Some(run(command, gpumem, variables))
}
