//! Ordinary host memory by the page: near a NUMA node, in large pages where the system has them,
//! and populated before use.

use super::process::without_signals;
use crate::base::{size, Error, Result, Status};
use std::io;
use std::ptr;
use std::thread;

/// Bytes that one thread touches before another is worth starting: 64 MiB take 10 ms.
const PER_THREAD: u64 = 64 * size::MIB;
/// The most threads that touch pages. More are no faster: the system clears pages at memory speed.
const MOST_THREADS: u64 = 16;
/// The alignment of large blocks: the large page of x86-64 and of most other machines.
const LARGE: u64 = 2 * size::MIB;

/// The size of the machine's pages, bytes: a power of two, 4 or 64 KiB on machines with GPUs.
pub(super) fn page_size() -> u64 {
    // SAFETY: sysconf has no preconditions.
    let n = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(n).unwrap_or(4096)
}

/// The alignment of a block of this many bytes: its size rounded up to a power of two, at most 2
/// MiB.
pub(super) fn alignment(bytes: u64) -> u64 {
    bytes.checked_next_power_of_two().unwrap_or(LARGE).min(LARGE).max(page_size())
}

fn failed(call: &str, bytes: u64) -> Error {
    let e = io::Error::last_os_error();
    let status = if e.raw_os_error() == Some(libc::ENOMEM) { Status::OutOfMemory } else { Status::Driver };
    Error::new(status, format!("{call} of {} of host memory: {e}", size::human(bytes)))
}

/// Maps `bytes` (a multiple of the page size, not 0) of zeroed memory as [`map_zeroed`] does, in
/// large pages where the system has them. A forked child does not get it: pages that a device uses
/// must not be copied when the parent writes them.
pub(super) fn map(bytes: u64, numa: Option<u32>) -> Result<u64> {
    let addr = map_zeroed(bytes, true)?;
    advise(addr, bytes, libc::MADV_DONTFORK);
    if let Some(node) = numa {
        prefer(addr, bytes, node);
    }
    Ok(addr)
}

/// Tells the system what a mapping is for. This is only a hint: the memory works without it.
fn advise(addr: u64, bytes: u64, advice: libc::c_int) {
    // SAFETY: a mapping of this module's, whose contents the advices that it gives do not change.
    unsafe { libc::madvise(addr as *mut libc::c_void, bytes as usize, advice) };
}

/// Maps `bytes` (a multiple of the page size, not 0) of zeroed memory, not yet populated, aligned
/// as [`alignment`] says, in large pages if they are wanted and the system has them, else in small
/// ones.
pub(super) fn map_zeroed(bytes: u64, large_pages: bool) -> Result<u64> {
    let align = alignment(bytes);
    let Some(slack) = bytes.checked_add(align).and_then(|n| usize::try_from(n).ok()) else {
        return Err(Error::new(
            Status::OutOfMemory,
            format!("{bytes} bytes of host memory are more than any address space has; ask for less"),
        ));
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing else uses.
    let start = unsafe { libc::mmap(ptr::null_mut(), slack, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(failed("mmap", bytes));
    }
    let start = start as u64;
    let addr = (start + align - 1) & !(align - 1);
    let (head, tail) = (addr - start, start + align - addr);
    if let Err(e) = unmap(start, head) {
        let _ = unmap(start, bytes + align);
        return Err(e);
    }
    if let Err(e) = unmap(addr + bytes, tail) {
        // The addresses in front of it may already be somebody else's.
        let _ = unmap(addr, bytes + tail);
        return Err(e);
    }
    // If the system gives large pages unasked, each scattered use would take 2 MiB.
    advise(addr, bytes, if large_pages { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE });
    Ok(addr)
}

/// Gives the pages of a part of a mapping back (multiples of the page size). They are zero from
/// then on.
pub(super) fn discard(addr: u64, bytes: u64) {
    // SAFETY: a private mapping of this module's, and its owner's whose contents change.
    unsafe { libc::madvise(addr as *mut libc::c_void, bytes as usize, libc::MADV_DONTNEED) };
}

/// Asks for pages of a NUMA node, while it has any.
fn prefer(addr: u64, bytes: u64, node: u32) {
    const NODES: usize = 1024;
    const BITS: usize = u64::BITS as usize;
    const MPOL_PREFERRED: libc::c_long = 1;
    let mut mask = [0u64; NODES / BITS];
    let Some(word) = mask.get_mut(node as usize / BITS) else { return };
    *word = 1 << (node as usize % BITS);
    // SAFETY: a mapping of this module's, and a mask of as many bits as it says; the kernel only
    // reads it. It takes one bit less than it is told.
    unsafe {
        libc::syscall(libc::SYS_mbind, addr, bytes, MPOL_PREFERRED, mask.as_ptr(), NODES + 1, 0);
    }
}

/// Populates all pages of a mapping, with several threads if it is large. `OutOfMemory` if there
/// are not enough.
pub(super) fn touch(addr: u64, bytes: u64) -> Result<()> {
    let processors = thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let threads = (bytes / PER_THREAD).clamp(1, processors.min(MOST_THREADS));
    let step = size::round_up(bytes.div_ceil(threads), LARGE).unwrap_or(bytes).max(1);
    let mut parts = (0..bytes).step_by(step as usize).map(|at| (addr + at, step.min(bytes - at)));
    let own = parts.next();
    thread::scope(|scope| {
        let others: Vec<_> = parts
            .map(|(addr, bytes)| {
                let job = move || populate(addr, bytes);
                let started =
                    without_signals(|| thread::Builder::new().name("gpumem-touch".into()).spawn_scoped(scope, job));
                // If no thread starts, this one does the work.
                started.map_err(|_| populate(addr, bytes))
            })
            .collect();
        let mut result = own.map_or(Ok(()), |(addr, bytes)| populate(addr, bytes));
        for other in others {
            result = result.and(match other {
                Ok(thread) => {
                    thread.join().unwrap_or_else(|_| Err(Error::internal("a thread that touches memory ended")))
                }
                Err(done) => done,
            });
        }
        result
    })
}

fn populate(addr: u64, bytes: u64) -> Result<()> {
    // Since Linux 5.14; unlike touching, it can fail.
    // SAFETY: a mapping of the caller's, whose contents this does not change.
    if unsafe { libc::madvise(addr as *mut libc::c_void, bytes as usize, libc::MADV_POPULATE_WRITE) } == 0 {
        return Ok(());
    }
    let code = io::Error::last_os_error().raw_os_error();
    if code != Some(libc::EINVAL) {
        return Err(failed("touching", bytes));
    }
    for page in (addr..addr.saturating_add(bytes)).step_by(page_size() as usize) {
        // SAFETY: within a writable mapping of the caller's that nobody else uses yet: it reads as
        // zero.
        unsafe { ptr::write_volatile(page as *mut u8, 0) };
    }
    Ok(())
}

/// Gives a mapping of this module's back; `bytes` may be 0.
pub(super) fn unmap(addr: u64, bytes: u64) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: the callers pass ranges that `map` made and that nobody uses any more.
    match unsafe { libc::munmap(addr as *mut libc::c_void, bytes as usize) } {
        0 => Ok(()),
        _ => Err(failed("munmap", bytes)),
    }
}

/// How much memory this process may lock (`ulimit -l`), bytes; `None`: any.
pub fn lock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes one struct.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } == 0;
    (got && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_there_aligned_and_zero() {
        for bytes in [4096, 12 << 10, 2 * size::MIB, 200 * size::MIB + 4096] {
            let Ok(addr) = map(bytes, Some(0)) else { unreachable!() };
            assert!(addr.is_multiple_of(alignment(bytes)), "{addr:#x} of {bytes}");
            assert!(touch(addr, bytes).is_ok());
            let mut there = vec![0u8; (bytes / 4096) as usize];
            // SAFETY: the mapping made above, and a byte for each of its pages.
            unsafe {
                assert_eq!(libc::mincore(addr as *mut libc::c_void, bytes as usize, there.as_mut_ptr()), 0);
                let words = std::slice::from_raw_parts(addr as *const u64, bytes as usize / 8);
                assert!(words.iter().all(|&w| w == 0));
            }
            assert!(there.iter().all(|page| page & 1 == 1), "{bytes}: pages are missing");
            assert!(unmap(addr, bytes).is_ok());
        }
    }

    /// The lines after the first in the system's description of the mapping at an address.
    fn about(addr: u64) -> Vec<String> {
        let list = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let range = |line: &str| {
            let (from, to) = line.split(' ').next()?.split_once('-')?;
            Some(u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?)
        };
        let own = list.lines().skip_while(|line| !range(line).is_some_and(|r| r.contains(&addr)));
        own.skip(1).take_while(|line| range(line).is_none()).map(str::to_string).collect()
    }

    #[test]
    fn a_forked_child_does_not_get_it() {
        let Ok(addr) = map(8192, None) else { unreachable!() };
        let about = about(addr);
        let flags = about.iter().find(|l| l.starts_with("VmFlags:"));
        assert!(flags.is_some_and(|l| l.split(' ').any(|f| f == "dc")), "{addr:x}: {about:?}");
        assert!(unmap(addr, 8192).is_ok());
    }

    #[test]
    fn pages_are_wanted_on_the_node() {
        let Ok(addr) = map(8192, Some(0)) else { unreachable!() };
        assert!(touch(addr, 8192).is_ok());
        let list = std::fs::read_to_string("/proc/self/numa_maps").unwrap_or_default();
        match list.lines().find(|line| line.starts_with(&format!("{addr:x} "))) {
            Some(line) => assert!(line.contains("prefer") && line.contains(":0 "), "{line}"),
            None => println!("skipped: the system does not say which nodes are wanted"),
        }
        assert!(unmap(addr, 8192).is_ok());
    }

    #[test]
    fn a_node_that_is_not_there_is_no_error() {
        for node in [63, 64, 1023, 1024, u32::MAX] {
            let mapped = map(8192, Some(node));
            assert!(mapped.is_ok_and(|addr| touch(addr, 8192).and(unmap(addr, 8192)).is_ok()), "{node}");
        }
        assert!(map(!4095, None).is_err_and(|e| e.status == Status::OutOfMemory));
    }
}
