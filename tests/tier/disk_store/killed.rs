//! Children that are killed with SIGKILL, and what they leave.

use super::*;
use gpumem::base::Status;
use gpumem::tier::disk::inspect;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Runs a test of this program as a child, which finds its role in a variable of the environment.
pub fn spawn(test: &str, variable: &str, role: String) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(variable, role);
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Kills a child so long after it has said that its store is open.
pub fn kill(child: &mut Child, after: Duration) {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.is_ok_and(|l| l == "open")), "never opened");
    std::thread::sleep(after);
    child.kill().unwrap();
}

/// Waits for a child that somebody kills.
pub fn is_killed(mut child: Child) {
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}");
}

/// What the killed one left: every file that passes for whole is what was written: `length(seed,
/// n)` random bytes of `seed + n`, of which there are `copies` files, one after the other. Returns
/// files, and how many are not whole.
pub fn look(mount: &Mount, seed: u64, copies: u64, length: fn(u64, u64) -> u64) -> (u64, u64) {
    let disk = os();
    let (mut count, mut partial) = (0, 0);
    for path in mount.stores().iter().flat_map(|dir| fs::read_dir(dir).unwrap()).map(|e| e.unwrap().path()) {
        let Some(end) = path.extension() else { continue };
        count += 1;
        // Those that the store tries the file system with have none.
        let number = path.file_stem().unwrap().to_str().unwrap().parse::<u64>().map(|file| file / copies);
        let whole = inspect(&*disk, &path, |offset, part| {
            let number = number.as_ref().expect("a whole file has a number");
            assert_eq!(differs(seed + number, offset, part), None, "{} passes for whole", path.display());
        });
        match whole {
            Ok(bytes) => assert_eq!(bytes, length(seed, number.unwrap()), "{}", path.display()),
            Err(e) => {
                assert_eq!(e.status, Status::Corrupt, "{e}");
                assert_eq!(end, "part", "{} has the name of a finished write: {e}", path.display());
                partial += 1;
            }
        }
    }
    (count, partial)
}
