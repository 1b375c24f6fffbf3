//! How the search backtracks: its changes, undone last first.
//!
//! The trail is most of the memory of a search, so it holds only what cannot be recomputed, in
//! words of 32 bits. The last word of an entry has its kind and the item, or the end of its
//! sections; its other words come before.

/// The kind of an entry: the two highest bits of its last word.
const CHOICES: u32 = 0;
const PLACED: u32 = 1 << 30;
const RAISED: u32 = 2 << 30;
const KIND: u32 = 3 << 30;

/// One change.
pub(super) enum Change {
    /// The numbers of choices changed in a run of sections that ends before this one. Before it
    /// comes the first section, and before that the old numbers.
    Choices(u32),
    /// An item was placed. Before it comes the floor it stands on, and before that the saved state
    /// of its sections.
    Placed(u32),
    /// A run of sections that ends before this one was raised. Before it come, last to first, the
    /// first section, the old floor and the saved state.
    Raised(u32),
}

/// Adjacent sections that share one entry: `[from, to)`.
#[derive(Clone, Copy, Default)]
pub(super) struct Run {
    pub(super) from: u32,
    pub(super) to: u32,
    /// Their old floor if they were raised; `None` if their choices changed.
    raised: Option<u64>,
}

/// The changes of a search. Items and sections number less than 2^30: a search has sets with a bit
/// for each item and section.
#[derive(Default)]
pub(in super::super) struct Trail {
    words: Vec<u32>,
}

impl Trail {
    pub(super) fn clear(&mut self) {
        self.words.clear();
    }

    /// Its length in words.
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    /// Appends a word of the next entry.
    #[inline]
    pub(super) fn word(&mut self, word: u32) {
        self.words.push(word);
    }

    #[inline]
    pub(super) fn placed(&mut self, item: usize, floor: u64) {
        self.words.extend([floor as u32, (floor >> 32) as u32, PLACED | item as u32]);
    }

    /// Adds section `k` to `run`, or ends the run and begins another. The caller then appends at
    /// least one word about the section.
    #[inline]
    pub(super) fn extend(&mut self, run: &mut Run, k: usize, raised: Option<u64>) {
        if run.to != k as u32 || run.raised != raised {
            self.end(*run);
            *run = Run { from: k as u32, to: k as u32, raised };
        }
        run.to += 1;
    }

    /// Ends a run, which may be empty.
    #[inline]
    pub(super) fn end(&mut self, run: Run) {
        let Run { from, to, raised } = run;
        if from == to {
            return;
        }
        match raised {
            Some(floor) => self.words.extend([floor as u32, (floor >> 32) as u32, from, RAISED | to]),
            None => self.words.extend([from, CHOICES | to]),
        }
    }

    /// Pops the last change. The caller then pops its other words.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Change> {
        let word = self.words.pop()?;
        Some(match word & KIND {
            PLACED => Change::Placed(word & !KIND),
            RAISED => Change::Raised(word & !KIND),
            _ => Change::Choices(word & !KIND),
        })
    }

    #[inline]
    pub(super) fn pop_word(&mut self) -> u32 {
        self.words.pop().unwrap_or(0)
    }

    #[inline]
    pub(super) fn pop_height(&mut self) -> u64 {
        let high = self.pop_word();
        u64::from(high) << 32 | u64::from(self.pop_word())
    }
}
