//! The operating system's side of the host device: address space, sparse files, mappings.
//!
//! Every function takes addresses and sizes that the caller has checked against its own tables;
//! none of them touches memory that the host device did not make.

use crate::base::{size, Error, Result, Status};
use crate::driver::pages::{self, alignment};
use crate::driver::process;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

const QUIET: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

fn failed(call: &str, what: String) -> Error {
    let e = io::Error::last_os_error();
    if e.raw_os_error() == Some(libc::ENOMEM) {
        return Error::new(
            Status::OutOfMemory,
            format!(
                "{call} of {what}: {e}. Either the address space is used up (ulimit -v), or this process has as many \
                 separate mappings as sysctl vm.max_map_count allows; raise it, or use larger physical allocations"
            ),
        );
    }
    if e.raw_os_error() == Some(libc::EMFILE) {
        return Error::new(
            Status::Driver,
            format!("{call} of {what}: {e}. Each exportable allocation needs a file descriptor; raise ulimit -n"),
        );
    }
    Error::new(Status::Driver, format!("{call} of {what}: {e}"))
}

fn map_new(size: u64, prot: libc::c_int, flags: libc::c_int) -> Result<u64> {
    // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing else uses.
    let p = unsafe { libc::mmap(ptr::null_mut(), size as usize, prot, flags, -1, 0) };
    if p == libc::MAP_FAILED {
        return Err(failed("mmap", size::human(size)));
    }
    Ok(p as u64)
}

/// Reserves inaccessible addresses, aligned to `align` (a power of two, at least a page).
pub(super) fn reserve(size: u64, align: u64) -> Result<u64> {
    map_aligned(size, align, libc::PROT_NONE)
}

fn map_aligned(size: u64, align: u64, prot: libc::c_int) -> Result<u64> {
    let Some(slack) = size.checked_add(align).filter(|n| *n <= i64::MAX as u64) else {
        return Err(Error::new(
            Status::OutOfMemory,
            format!("no address space holds {} aligned to {}", size::human(size), size::human(align)),
        ));
    };
    let start = map_new(slack, prot, QUIET)?;
    let aligned = (start + align - 1) & !(align - 1);
    let (head, tail) = (aligned - start, start + slack - (aligned + size));
    let trimmed = unmap(start, head).and_then(|()| unmap(aligned + size, tail));
    if let Err(e) = trimmed {
        // Frees what is left of the attempt; if even this fails, only addresses are lost.
        let _ = unmap(start, slack);
        return Err(e);
    }
    Ok(aligned)
}

/// Readable and writable zeroed memory that belongs to no file, aligned as [`alignment`] says.
pub(super) fn map_anonymous(size: u64) -> Result<u64> {
    map_aligned(size, alignment(size), libc::PROT_READ | libc::PROT_WRITE)
}

/// Gives addresses back to the system; `size` may be 0.
pub(super) fn unmap(va: u64, size: u64) -> Result<()> {
    if size == 0 {
        return Ok(());
    }
    // SAFETY: the callers pass ranges that they obtained from `map_new` and that no table of theirs
    // lists any more.
    if unsafe { libc::munmap(va as *mut libc::c_void, size as usize) } != 0 {
        return Err(failed("munmap", size::human(size)));
    }
    Ok(())
}

/// Replaces reserved addresses by a part of `file`, shared and not yet accessible.
pub(super) fn map_file(va: u64, size: u64, file: &OwnedFd, offset: u64) -> Result<()> {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the caller owns the reservation around [va, va + size) and has checked that nothing
    // is mapped there.
    let p = unsafe {
        libc::mmap(
            va as *mut libc::c_void,
            size as usize,
            libc::PROT_NONE,
            flags,
            file.as_raw_fd(),
            offset as libc::off_t,
        )
    };
    if p == libc::MAP_FAILED {
        let e = failed("mmap", format!("{} at {va:#x}", size::human(size)));
        // The kernel may have removed the reservation before it failed.
        let _ = unmap_to_reserved(va, size);
        return Err(e);
    }
    Ok(())
}

/// Turns mapped addresses back into reserved ones.
pub(super) fn unmap_to_reserved(va: u64, size: u64) -> Result<()> {
    // SAFETY: the range lies within a reservation of the caller's, so nobody else's memory is
    // replaced.
    let p =
        unsafe { libc::mmap(va as *mut libc::c_void, size as usize, libc::PROT_NONE, QUIET | libc::MAP_FIXED, -1, 0) };
    if p == libc::MAP_FAILED {
        return Err(failed("mmap (to unmap)", format!("{} at {va:#x}", size::human(size))));
    }
    Ok(())
}

/// Makes mapped addresses readable and writable, or inaccessible.
pub(super) fn protect(va: u64, size: u64, accessible: bool) -> Result<()> {
    let prot = if accessible { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
    // SAFETY: the range consists of mappings of the caller's.
    if unsafe { libc::mprotect(va as *mut libc::c_void, size as usize, prot) } != 0 {
        return Err(failed("mprotect", format!("{} at {va:#x}", size::human(size))));
    }
    Ok(())
}

/// Mappings held only to be given up. When a process has as many mappings as the system allows,
/// even unmapping can fail, because it may have to cut a mapping in two; giving these up makes it
/// possible again.
pub(super) struct Headroom {
    start: u64,
}

/// An odd number of pages, alternately readable and not, so that each is a mapping of its own and
/// the outer ones do not merge with inaccessible neighbours.
const HEADROOM_PAGES: u64 = 17;

impl Headroom {
    pub(super) fn new() -> Result<Headroom> {
        let page = pages::page_size();
        let room = Headroom { start: map_new(HEADROOM_PAGES * page, libc::PROT_READ, QUIET)? };
        for i in (1..HEADROOM_PAGES).step_by(2) {
            protect(room.start + i * page, page, false)?;
        }
        Ok(room)
    }
}

impl Drop for Headroom {
    fn drop(&mut self) {
        // A failure leaks a few pages of addresses.
        let _ = unmap(self.start, HEADROOM_PAGES * pages::page_size());
    }
}

/// An empty file in memory. `sealable` ones can be fixed in size with [`seal_size`].
pub(super) fn memfd(sealable: bool) -> Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | if sealable { libc::MFD_ALLOW_SEALING } else { 0 };
    // SAFETY: the name is a NUL-terminated string.
    let fd = unsafe { libc::memfd_create(c"gpumem-host-device".as_ptr(), flags) };
    if fd < 0 {
        return Err(failed("memfd_create", "physical memory".into()));
    }
    // SAFETY: the descriptor is new, valid and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets a file's size; any growth is sparse.
pub(super) fn set_len(file: &OwnedFd, size: u64) -> Result<()> {
    let most = process::largest_file();
    if size > most {
        let (size, most) = (size::human(size), size::human(most));
        return Err(Error::new(
            Status::Driver,
            format!("the host device's memory is a file, which would have {size}; ulimit -f allows {most}: raise it"),
        ));
    }
    // SAFETY: `file` is an open descriptor.
    if unsafe { libc::ftruncate(file.as_raw_fd(), size as libc::off_t) } != 0 {
        return Err(failed("ftruncate", size::human(size)));
    }
    Ok(())
}

const SIZE_SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// Fixes a file's size, so that no importer can make mapped memory disappear.
pub(super) fn seal_size(file: &OwnedFd) -> Result<()> {
    // SAFETY: `file` is an open descriptor; F_ADD_SEALS takes an int.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SIZE_SEALS | libc::F_SEAL_SEAL) } != 0 {
        return Err(failed("fcntl(F_ADD_SEALS)", "an exportable allocation".into()));
    }
    Ok(())
}

/// Facts about a descriptor that came from outside.
pub(super) struct FileFacts {
    /// Identifies the file while it is open anywhere.
    pub(super) inode: (u64, u64),
    pub(super) size: u64,
    /// Bytes of memory it occupies.
    pub(super) resident: u64,
    /// Whether its size is sealed, as `seal_size` does; only memory files can be sealed.
    pub(super) size_sealed: bool,
}

/// Facts about an open file.
pub(super) fn facts(file: &OwnedFd) -> Result<FileFacts> {
    // SAFETY: all-zero bytes are a valid `stat`.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `file` is an open descriptor and `st` is writable.
    if unsafe { libc::fstat(file.as_raw_fd(), &mut st) } != 0 {
        return Err(failed("fstat", "a descriptor".into()));
    }
    // SAFETY: `file` is an open descriptor; on files that cannot be sealed this fails with EINVAL.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    Ok(FileFacts {
        inode: (st.st_dev, st.st_ino),
        size: u64::try_from(st.st_size).unwrap_or(0),
        resident: u64::try_from(st.st_blocks).unwrap_or(0) * 512,
        size_sealed: seals >= 0 && seals & SIZE_SEALS == SIZE_SEALS,
    })
}

/// Frees the memory behind part of a file; it reads as zeros again.
pub(super) fn punch_hole(file: &OwnedFd, offset: u64, size: u64) -> Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: `file` is an open descriptor.
    let rc = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as libc::off_t, size as libc::off_t) };
    if rc != 0 {
        return Err(failed("fallocate (to punch a hole)", size::human(size)));
    }
    Ok(())
}
