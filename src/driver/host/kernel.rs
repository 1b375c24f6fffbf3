//! Simulated kernels: what they declare, and what their bodies may do.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// The code of a simulated kernel. A captured one runs at each launch of the graph.
pub type Body = Arc<dyn Fn(&mut KernelCtx) + Send + Sync>;

/// A simulated kernel. It declares every byte it reads and writes; the device checks the
/// declaration when the kernel runs, and the body, if there is one, can touch nothing else through
/// its [`KernelCtx`].
#[must_use = "a kernel does nothing until it is launched"]
pub struct Kernel {
    pub(super) label: Cow<'static, str>,
    pub(super) reads: Vec<Range<u64>>,
    pub(super) writes: Vec<Range<u64>>,
    pub(super) body: Option<Body>,
}

impl Kernel {
    /// A kernel that touches nothing. The label names it in reports.
    pub fn new(label: impl Into<Cow<'static, str>>) -> Kernel {
        Kernel { label: label.into(), reads: Vec::new(), writes: Vec::new(), body: None }
    }

    /// Declares that the kernel also reads `r`.
    pub fn reads(mut self, r: Range<u64>) -> Kernel {
        self.reads.push(r);
        self
    }

    /// Declares that the kernel also writes `r`.
    pub fn writes(mut self, r: Range<u64>) -> Kernel {
        self.writes.push(r);
        self
    }

    /// Sets the kernel's code. It runs on the thread that drives the device, with no lock held. It
    /// may call the driver, except for calls that wait for the device: they fail.
    pub fn body(mut self, f: impl Fn(&mut KernelCtx) + Send + Sync + 'static) -> Kernel {
        self.body = Some(Arc::new(f));
        self
    }

    /// A kernel that marks `r` with the pattern of `id`: a word that depends on `id` and the place,
    /// at the start, at the end and every `stride` bytes between (rounded up to 8; touching every
    /// word of large ranges is slow).
    pub fn write_pattern(label: impl Into<Cow<'static, str>>, r: Range<u64>, id: u64, stride: u64) -> Kernel {
        Kernel::new(label).writes(r.clone()).body(move |k| {
            for (at, word) in pattern(r.clone(), id, stride) {
                let bytes = word.to_le_bytes();
                k.store(at.start, bytes.get(..(at.end - at.start) as usize).unwrap_or(&bytes));
            }
        })
    }

    /// A kernel that checks that `r` holds the pattern of `id`, and reports the first place where
    /// it does not.
    pub fn check_pattern(label: impl Into<Cow<'static, str>>, r: Range<u64>, id: u64, stride: u64) -> Kernel {
        Kernel::new(label).reads(r.clone()).body(move |k| {
            // Words that lie close together are read by the page. Zeros follow what was read, as
            // the last word may have less than 8 bytes.
            let most = if stride <= 64 { PAGE } else { 8 };
            let (mut page, mut read) = ([0; PAGE as usize + 8], 0..0);
            for (at, word) in pattern(r.clone(), id, stride) {
                if !read.contains(&at.start) {
                    read = at.start..r.end.min(at.start + most);
                    if let Some((page, rest)) = page.split_at_mut_checked((read.end - read.start) as usize) {
                        k.load(read.start, page);
                        rest.iter_mut().take(8).for_each(|b| *b = 0);
                    }
                }
                let bytes = page.get((at.start - read.start) as usize..).and_then(|p| p.first_chunk::<8>());
                let got = bytes.map_or(0, |b| u64::from_le_bytes(*b));
                let want = word & (u64::MAX >> (64 - 8 * (at.end - at.start)));
                if got != want {
                    return k.fail(format!("pattern {id} broken at {:#x}: {got:#018x}, not {want:#018x}", at.start));
                }
            }
        })
    }
}

/// Bytes that a check reads at a time.
const PAGE: u64 = 4096;

/// Where the words of a pattern lie, and what they are. The last may be cut short by the end of the
/// range.
fn pattern(r: Range<u64>, id: u64, stride: u64) -> impl Iterator<Item = (Range<u64>, u64)> {
    let step = stride.max(8).next_multiple_of(8);
    let base = r.start;
    // Words lie at multiples of 8 from the start, so that none overlaps another; the last holds the
    // last byte.
    let last = base + (r.end - base).saturating_sub(1) / 8 * 8;
    (r.start..last).step_by(usize::try_from(step).unwrap_or(usize::MAX)).chain((last < r.end).then_some(last)).map(
        move |at| {
            // The place is relative to the range, so that a copy of the range holds the same
            // pattern.
            let mut x = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (at - base).wrapping_mul(0xd6e8_feb8_6659_fd93);
            x ^= x >> 32;
            (at..r.end.min(at + 8), x.wrapping_mul(0xd6e8_feb8_6659_fd93) | 1)
        },
    )
}

/// A running kernel's access to the bytes it declared, and to no others.
pub struct KernelCtx {
    pub(super) reads: Vec<Range<u64>>,
    pub(super) writes: Vec<Range<u64>>,
    pub(super) problems: Vec<String>,
}

fn inside(at: u64, len: usize, ranges: &[Range<u64>]) -> bool {
    let Some(end) = at.checked_add(len as u64) else { return false };
    ranges.iter().any(|r| r.start <= at && end <= r.end)
}

impl KernelCtx {
    /// Reads bytes of a declared range (of a write too, for kernels that update in place).
    pub fn load(&mut self, at: u64, out: &mut [u8]) {
        if !inside(at, out.len(), &self.reads) && !inside(at, out.len(), &self.writes) {
            return self.fail(format!("{} bytes read at {at:#x} were not declared", out.len()));
        }
        // SAFETY: the device found the declared ranges mapped and accessible, and keeps them mapped
        // while the kernel runs. They are device memory, which no Rust object lives in, so a copy
        // by raw pointer is all that happens.
        unsafe { std::ptr::copy_nonoverlapping(at as *const u8, out.as_mut_ptr(), out.len()) }
    }

    /// Writes bytes of a declared range.
    pub fn store(&mut self, at: u64, data: &[u8]) {
        if !inside(at, data.len(), &self.writes) {
            return self.fail(format!("{} bytes written at {at:#x} were not declared", data.len()));
        }
        // SAFETY: as in `load`, for a range declared as written.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), at as *mut u8, data.len()) }
    }

    /// Reports that something is wrong with the data.
    pub fn fail(&mut self, text: impl Into<String>) {
        self.problems.push(text.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_cover_both_ends_and_nothing_outside() {
        for len in [1u64, 7, 8, 9, 15, 16, 4096, 10_000] {
            let r = 1000..1000 + len;
            let words: Vec<_> = pattern(r.clone(), 7, 64).map(|(at, _)| at).collect();
            assert!(words.first().is_some_and(|w| w.start == r.start), "{len}: {words:?}");
            assert!(words.last().is_some_and(|w| w.end == r.end), "{len}: {words:?}");
            assert!(words.iter().all(|w| w.start < w.end && w.end <= r.end), "{len}: {words:?}");
        }
    }
}
