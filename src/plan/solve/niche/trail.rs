//! How the search goes back: what it changed, last first.
//!
//! This is most of the memory of a search, so it holds what cannot be worked out, in words of 32
//! bits. An entry ends with a word for its kind and the item or the end of its sections; before
//! that are the words that go with it.

/// What an entry was about: the two highest bits of its last word.
const CHOICES: u32 = 0;
const PLACED: u32 = 1 << 30;
const RAISED: u32 = 2 << 30;
const KIND: u32 = 3 << 30;

/// One change.
pub(super) enum Change {
    /// The numbers of choices of the sections up to this one. Before it is the first of them, and
    /// before that what those numbers were.
    Choices(u32),
    /// An item was placed. Before it is the height at which it stands, and before that what its
    /// sections were.
    Placed(u32),
    /// The sections up to this one were left empty up to some height. Before it is the first of
    /// them, their floor, and what they were.
    Raised(u32),
}

/// Sections side by side that one entry is about: `[from, to)`.
#[derive(Clone, Copy, Default)]
pub(super) struct Run {
    pub(super) from: u32,
    pub(super) to: u32,
    /// Their floor, if they were raised; otherwise it is their choices that changed.
    raised: Option<u64>,
}

/// Changes. Items and sections are fewer than 2^30: a search has sets with a bit for each item and
/// section.
#[derive(Default)]
pub(in super::super) struct Trail {
    words: Vec<u32>,
}

impl Trail {
    pub(super) fn clear(&mut self) {
        self.words.clear();
    }

    /// How far it goes.
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    /// A word of the next entry.
    #[inline]
    pub(super) fn word(&mut self, word: u32) {
        self.words.push(word);
    }

    #[inline]
    pub(super) fn placed(&mut self, item: usize, floor: u64) {
        self.words.extend([floor as u32, (floor >> 32) as u32, PLACED | item as u32]);
    }

    /// Takes section `k` into `run`, or ends it and begins another. A word, or more, about the
    /// section is to follow.
    #[inline]
    pub(super) fn extend(&mut self, run: &mut Run, k: usize, raised: Option<u64>) {
        if run.to != k as u32 || run.raised != raised {
            self.end(*run);
            *run = Run { from: k as u32, to: k as u32, raised };
        }
        run.to += 1;
    }

    /// Ends a run, which may be of no sections.
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

    /// The last change, whose other words are to be taken next.
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
