//! Large tables of words. Only the used parts take memory, in small pages because they may be far
//! apart.

use super::pages;
use crate::base::sync::OnceBox;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::AtomicU64;

/// Mappings are multiples of this: the largest small page that Linux has, bytes.
const PAGE: usize = 64 << 10;
/// Smaller tables are boxes, bytes.
const LARGE: usize = 1 << 20;

/// Words that are zero at first, and shared by all that have a reference.
#[derive(Debug)]
pub struct Words {
    /// `len` words that this owns: of a mapping of their own, or of a box.
    start: NonNull<AtomicU64>,
    len: usize,
    mapped: bool,
}

// SAFETY: a box of atomics by another name.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Makes `len` words, all zero.
    pub fn zeroed(len: usize) -> Words {
        let bytes = len * size_of::<AtomicU64>();
        let mapped = (bytes >= LARGE).then(|| pages::map_zeroed(bytes.next_multiple_of(PAGE) as u64, false).ok());
        if let Some(start) = mapped.flatten().and_then(|addr| NonNull::new(addr as *mut AtomicU64)) {
            return Words { start, len, mapped: true };
        }
        // The system has cleared this memory, which is not there until it is used.
        let words = vec![0u64; len].into_boxed_slice();
        Words { start: NonNull::from(Box::leak(words)).cast(), len, mapped: false }
    }

    /// Gives the pages back that hold only these words, which are zero from then on. Nobody stores
    /// to them meanwhile.
    pub fn forget(&self, words: Range<usize>) {
        let page = pages::page_size() as usize / size_of::<AtomicU64>();
        let (from, to) = (words.start.next_multiple_of(page), words.end.min(self.len) / page * page);
        if self.mapped && from < to {
            // The mapping starts with a page.
            let (at, size) = (from * size_of::<AtomicU64>(), (to - from) * size_of::<AtomicU64>());
            pages::discard(self.start.as_ptr() as u64 + at as u64, size as u64);
        }
    }
}

/// Makes a table of cells, all empty.
pub fn empty_cells<T>(len: usize) -> Box<[OnceBox<T>]> {
    #[cfg(loom)]
    return (0..len).map(|_| OnceBox::new()).collect();
    #[cfg(not(loom))]
    {
        const { assert!(size_of::<OnceBox<T>>() == size_of::<usize>() && align_of::<OnceBox<T>>() == align_of::<usize>()) };
        let words = Box::into_raw(vec![0usize; len].into_boxed_slice());
        // SAFETY: just as many cells, each of which is one word, null while it is empty.
        unsafe { Box::from_raw(words as *mut [OnceBox<T>]) }
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: what this owns has as many words, aligned; those of a mapping are zero where
        // nobody wrote, which is an atomic, too; and it lives as long as this does.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        if self.mapped {
            let bytes = (self.len * size_of::<AtomicU64>()).next_multiple_of(PAGE);
            let _ = pages::unmap(self.start.as_ptr() as u64, bytes as u64);
        } else {
            let words = NonNull::slice_from_raw_parts(self.start, self.len);
            // SAFETY: the box that `zeroed` leaked, of just as many.
            drop(unsafe { Box::from_raw(words.as_ptr()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn all_words_are_zero_and_keep_what_is_stored() {
        for len in [0, 1, 700, LARGE / 8 - 1, LARGE / 8, LARGE / 8 + 1, 1 << 18] {
            let words = Words::zeroed(len);
            assert_eq!((words.len(), words.mapped), (len, len >= LARGE / 8));
            assert!(words.iter().all(|w| w.load(Relaxed) == 0));
            words.iter().zip(1..).for_each(|(w, i)| w.store(i, Relaxed));
            assert!(words.iter().zip(1..).all(|(w, i)| w.load(Relaxed) == i));
        }
    }

    #[test]
    fn what_is_forgotten_takes_no_memory() {
        let (words, page) = (Words::zeroed(1 << 18), pages::page_size() as usize / 8);
        words.iter().for_each(|w| w.store(7, Relaxed));
        // The pages from the third to the fifth, and parts of two others.
        words.forget(page + 1..5 * page + 9);
        let there = |i: usize| is_resident(words.start.as_ptr() as u64 + (i * page * 8) as u64);
        assert_eq!([1, 2, 3, 4, 5].map(there), [true, false, false, false, true]);
        let zero = |i: usize| words[i].load(Relaxed) == 0;
        assert!((0..words.len()).all(|i| zero(i) == (2 * page..5 * page).contains(&i)));
        // Boxes keep theirs, and so does what is no whole page.
        let few = Words::zeroed(700);
        few[0].store(7, Relaxed);
        few.forget(0..700);
        words.forget(1..page);
        assert!(few[0].load(Relaxed) == 7 && words[1].load(Relaxed) == 7);
    }

    #[test]
    fn cells_are_empty_until_they_are_set() {
        let cells = empty_cells::<String>(700);
        assert!(cells.len() == 700 && cells.iter().all(|c| c.get().is_none()));
        assert!(cells[7].set(Box::new("seven".into())).is_ok());
        assert_eq!((cells[7].get().map(String::as_str), cells[6].get()), (Some("seven"), None));
        assert!(empty_cells::<String>(0).is_empty());
    }

    #[test]
    fn dropping_it_gives_the_memory_back() {
        let many: Vec<Words> = (0..64).map(|_| Words::zeroed(LARGE / 8)).collect();
        let places: Vec<u64> = many.iter().map(|w| w.start.as_ptr() as u64).collect();
        assert!(places.iter().all(|&at| is_mapped(at)));
        drop(many);
        // Other tests may have mapped something at some of them.
        assert!(!places.iter().all(|&at| is_mapped(at)));
    }

    fn is_mapped(page: u64) -> bool {
        residence(page).is_some()
    }

    fn is_resident(page: u64) -> bool {
        residence(page).is_some_and(|there| there & 1 == 1)
    }

    fn residence(page: u64) -> Option<u8> {
        let mut there = 0;
        // SAFETY: asks about an address, which need not be mapped, and writes one byte.
        let known = unsafe { libc::mincore(page as *mut libc::c_void, 4096, &mut there) == 0 };
        known.then_some(there)
    }
}
