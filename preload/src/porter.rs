//! The porter hands memory to other processes. It is a thread behind a socket with an abstract
//! name, started by the first handle. It answers processes of the same user with file descriptors
//! of the memory under a live allocation. It needs no right to trace processes, which containers
//! seldom have.

use crate::guard::Inside;
use crate::name::Name;
use crate::served;
use gpumem::driver::exit;
use std::ffi::c_int;
use std::io::{Error, ErrorKind, Read, Write};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The most descriptors of one message, and so the most that either process has open. The kernel
/// holds those under way, of all processes of a user, against the limit of one process: eight
/// processes may each be sending to seven others.
const DESCRIPTORS: usize = 16;
/// The most words of an answer: an offset, and a size for each descriptor.
const WORDS: usize = 1 + DESCRIPTORS;
/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(10);

/// The process in which the thread was started, and its nonce.
static STARTED: Mutex<Option<(u32, u64)>> = Mutex::new(None);
/// The socket's descriptor, or -1.
static LISTENER: AtomicI32 = AtomicI32::new(-1);

/// Closes a forked child's copy of the socket: nobody answers there, so whoever connects once this
/// process has ended would wait.
extern "C" fn in_child() {
    let fd = LISTENER.swap(-1, Relaxed);
    // SAFETY: the child has no thread that uses it. One system call, as a fork handler must do no
    // more; the C library's `close` is a cancellation point.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

fn address(pid: u32, nonce: u64) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("gpumem-{pid}-{nonce:016x}"))
}

/// Starts the thread unless it runs, and returns this process's nonce; `None` if it cannot start.
pub fn start() -> Option<u64> {
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if let Some((_, nonce)) = started.filter(|(by, _)| *by == pid) {
        return Some(nonce);
    }
    let mut nonce = [0u8; 8];
    std::fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut nonce)).ok()?;
    let nonce = u64::from_ne_bytes(nonce);
    let listener = UnixListener::bind_addr(&address(pid, nonce).ok()?).ok()?;
    let fd = listener.as_raw_fd();
    exit::spawn("gpumem-ipc", move || serve(&listener)).ok()?;
    LISTENER.store(fd, Relaxed);
    // SAFETY: a function of this library, which stays loaded (`-z nodelete`).
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    *started = Some((pid, nonce));
    Some(nonce)
}

fn serve(listener: &UnixListener) {
    // This thread's driver calls are gpumem's own.
    let _inside = Inside::enter();
    loop {
        match listener.accept() {
            // The other side reports a failure.
            Ok((stream, _)) => drop(answer(stream)),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            // The process may be out of descriptors, so the next try waits.
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Whether the other side is a process of this user, or of the administrator.
fn is_trusted(stream: &UnixStream) -> bool {
    // SAFETY: integers, so zero is a value; the call writes no more than the length says.
    unsafe {
        let mut peer: libc::ucred = zeroed();
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let got =
            libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &mut len);
        got == 0 && (peer.uid == libc::geteuid() || peer.uid == 0)
    }
}

fn answer(mut stream: UnixStream) -> Option<()> {
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    if !is_trusted(&stream) {
        return None;
    }
    let mut asked = [0u8; 32];
    stream.read_exact(&mut asked).ok()?;
    let [device, base, id, done] = words(&asked);
    // If the memory is freed or reused, nothing is sent and the connection ends.
    let served = served::existing(c_int::try_from(device).ok()?)?;
    let info = served.info_containing(base).filter(|i| i.base == base && i.id == id)?;
    let left = info.requested.checked_sub(done)?;
    let (pieces, offset) = {
        let _work = exit::work()?;
        served.ledger.export(base + done, left, DESCRIPTORS).ok()?
    };
    let answer: Vec<u8> =
        std::iter::once(offset).chain(pieces.iter().map(|p| p.bytes)).flat_map(u64::to_ne_bytes).collect();
    let fds: Vec<RawFd> = pieces.iter().map(|p| p.fd.as_raw_fd()).collect();
    send(&stream, answer, &fds)
}

fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let (chunks, _) = bytes.as_chunks();
    let mut words = [0; N];
    words.iter_mut().zip(chunks).for_each(|(word, chunk)| *word = u64::from_ne_bytes(*chunk));
    words
}

/// Makes a call again if a signal interrupts it, until [`PATIENCE`] is over. The kernel does not do
/// so for a socket with a time limit, even where the signal's handler asks for it.
fn uninterrupted<T>(mut call: impl FnMut() -> std::io::Result<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        match call() {
            Err(e) if e.kind() == ErrorKind::Interrupted && start.elapsed() < PATIENCE => {}
            done => return done.ok(),
        }
    }
}

/// What a system call gives: a length, or -1 and the thread's error.
fn length(given: isize) -> std::io::Result<usize> {
    usize::try_from(given).map_err(|_| Error::last_os_error())
}

/// Room for a control message with the most descriptors.
type Control = [u64; 16];

/// Sends a message with descriptors.
fn send(stream: &UnixStream, mut text: Vec<u8>, fds: &[RawFd]) -> Option<()> {
    let mut control: Control = [0; 16];
    let bytes = u32::try_from(size_of_val(fds)).ok()?;
    // SAFETY: the message points to locals that outlive the call, and the control data fits its
    // room.
    unsafe {
        let mut part = libc::iovec { iov_base: text.as_mut_ptr().cast(), iov_len: text.len() };
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(bytes) as usize;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(bytes) as usize;
        std::ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), bytes as usize);
        let sent = uninterrupted(|| length(libc::sendmsg(stream.as_raw_fd(), &message, libc::MSG_NOSIGNAL)))?;
        (sent == text.len()).then_some(())
    }
}

/// Receives a message: its text and its descriptors.
fn receive(stream: &UnixStream) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    let mut text = vec![0u8; 8 * WORDS];
    let mut control: Control = [0; 16];
    let mut fds = Vec::new();
    // SAFETY: as above; the kernel writes whole control messages, and the descriptors in them are
    // new and this process's.
    unsafe {
        let mut part = libc::iovec { iov_base: text.as_mut_ptr().cast(), iov_len: text.len() };
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of::<Control>();
        let got = uninterrupted(|| length(libc::recvmsg(stream.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC)))?;
        text.truncate(got);
        let header = libc::CMSG_FIRSTHDR(&message);
        if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            return None;
        }
        let count = ((*header).cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
        for i in 0..count {
            let fd = libc::CMSG_DATA(header).cast::<RawFd>().add(i).read_unaligned();
            fds.push(OwnedFd::from_raw_fd(fd));
        }
    }
    Some((text, fds))
}

/// Fetches some of the memory under another process's allocation, from `done` bytes on: its offset
/// in the first piece, and the pieces, at least one, with their sizes.
pub fn fetch(name: &Name, done: u64) -> Option<(u64, Vec<(OwnedFd, u64)>)> {
    let exporter = address(name.pid, name.nonce).ok()?;
    let mut stream = uninterrupted(|| UnixStream::connect_addr(&exporter))?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let asked = [u64::from(name.device), name.base, name.id, done].map(u64::to_ne_bytes).concat();
    stream.write_all(&asked).ok()?;
    let (text, fds) = receive(&stream)?;
    let [offset, sizes @ ..] = words::<WORDS>(&text);
    // The kernel leaves out descriptors that this process has no room for.
    let sound = text.len() == 8 * (1 + fds.len()) && !fds.is_empty() && !sizes[..fds.len()].contains(&0);
    sound.then(|| (offset, fds.into_iter().zip(sizes).collect()))
}
