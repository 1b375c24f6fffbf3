//! Programs that tests run.

use std::io::Read;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Whether a program can be run at all.
pub fn have(program: &str) -> bool {
    let mut version = Command::new(program);
    version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

/// The C compiler that CC names, with the flags that it names: `ccache gcc`.
pub fn c_compiler() -> Command {
    command_of(&std::env::var("CC").unwrap_or_default(), "cc")
}

/// A command of a program and its first arguments, or of `otherwise` where there are no words.
fn command_of(words: &str, otherwise: &str) -> Command {
    let mut words = words.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or(otherwise));
    command.args(words);
    command
}

/// Takes what this process's user set for gpumem out of the environment of `command`.
pub fn forget_settings(command: &mut Command) -> &mut Command {
    let ours = |name: &str| ["GPUMEM_", "VPMM_", "SIM_"].iter().any(|prefix| name.starts_with(prefix));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(ours)) {
        command.env_remove(name);
    }
    command
}

/// Runs a command to its end, or kills it after `limit` and fails.
#[track_caller]
pub fn run(command: &mut Command, limit: Duration) -> Output {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (out, err) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let started = Instant::now();
    let status: ExitStatus = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > limit {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{command:?} did not end within {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Output { status, stdout: out.join().unwrap(), stderr: err.join().unwrap() }
}

fn drain<R: Read + Send + 'static>(from: Option<R>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            let _ = from.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// Fails with everything the command said, unless it succeeded.
#[track_caller]
pub fn must_succeed(what: &str, out: &Output) {
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    println!("-- {what}\n{stdout}");
    assert!(out.status.success(), "{what}: {}\n{stdout}\n{stderr}", out.status);
}

#[cfg(test)]
mod tests {
    use super::command_of;

    #[test]
    fn a_compiler_may_have_flags() {
        for (words, program, flags) in [("", "cc", ""), ("gcc", "gcc", ""), (" ccache  gcc -g", "ccache", "gcc -g")] {
            let command = command_of(words, "cc");
            assert_eq!(command.get_program(), program);
            assert!(command.get_args().eq(flags.split_whitespace()), "{command:?}");
        }
    }
}
