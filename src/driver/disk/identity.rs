//! Process identities for use in file names: a process number alone may have been reused.

use std::fmt;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::os::unix::fs::MetadataExt;

/// Tells a process from all others of this machine, including later ones with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The process number.
    pub pid: u32,
    /// When it started, in clock ticks since boot (`/proc/PID/stat`); 0 if that cannot be read.
    pub start: u64,
    /// A hash of the machine's boot and the PID namespace: elsewhere `pid` means nothing.
    pub place: u32,
}

impl Identity {
    /// This process.
    pub fn own() -> Identity {
        let pid = std::process::id();
        Identity { pid, start: start_time(pid).unwrap_or(0), place: place() }
    }

    /// Reads what [`fmt::Display`] wrote.
    pub fn parse(text: &str) -> Option<Identity> {
        let mut parts = text.splitn(3, '-');
        let pid = parts.next()?.parse().ok()?;
        let start = parts.next()?.parse().ok()?;
        let place = u32::from_str_radix(parts.next()?, 16).ok()?;
        Some(Identity { pid, start, place })
    }

    /// Whether it has ended, as far as can be told from here: `false` for processes of other
    /// places.
    pub fn is_dead(&self) -> bool {
        self.place == place() && self.start != 0 && start_time(self.pid) != Some(self.start)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{:08x}", self.pid, self.start, self.place)
    }
}

/// When a process started; `None` when there is none with this number.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in brackets and may contain anything; the start is the 22nd.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn place() -> u32 {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let numbers = fs::metadata("/proc/self/ns/pid").map(|m| m.ino()).unwrap_or(0);
    // FNV-1a: the same in every process and every version.
    let step = |h: u32, b: u8| (h ^ u32::from(b)).wrapping_mul(0x0100_0193);
    boot.trim().bytes().chain(numbers.to_le_bytes()).fold(0x811c_9dc5, step)
}

/// The user this process acts as.
pub fn user() -> u32 {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() }
}

/// A number that no other call, here or elsewhere, is likely to return.
pub fn unlikely_twice() -> u64 {
    // The standard library's keys come from the system's random numbers, and differ with each call.
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_itself_from_its_number_s_earlier_owner() {
        let own = Identity::own();
        assert!(own.start > 0 && !own.is_dead());
        assert_eq!(Identity::parse(&own.to_string()), Some(own));
        assert!(Identity { start: own.start - 1, ..own }.is_dead(), "an earlier process of this number");
        assert!(!Identity { place: own.place ^ 1, start: 1, ..own }.is_dead(), "who can tell from here?");
        for text in ["", "1", "1-2", "1-2-xyz", "-1-2-3", "1-2-3-4", "99999999999-1-0"] {
            assert_eq!(Identity::parse(text), None, "{text}");
        }
    }
}
