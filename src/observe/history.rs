//! A recording followed event by event: its allocations, and when each was live.

#![deny(unsafe_code, clippy::unwrap_used, clippy::indexing_slicing)]

use super::event::Kind;
use super::recording::Recording;
use std::collections::{BTreeSet, HashMap, HashSet};

/// The end time of an allocation that did not end.
pub const NEVER: u64 = u64::MAX;

/// One allocation. A resize ends it and begins another at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Its first byte.
    pub address: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// When it was made, nanoseconds since the start of the recording.
    pub from: u64,
    /// When it was freed; [`NEVER`] if it was live at the end of the recording.
    pub to: u64,
    /// The stream of the request.
    pub stream: u64,
    /// The stream in whose order it was freed.
    pub freed_on: u64,
    /// The caller's tag.
    pub tag: u64,
    /// The arena it was last in.
    pub arena: u32,
    /// The stack of the request; 0: not known.
    pub stack: u32,
    /// The thread of the request.
    pub thread: u32,
    /// The device's ordinal.
    pub device: u8,
    /// Whether it was live before the recording.
    pub existed: bool,
}

/// The begin or end of an allocation, in the order of the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Nanoseconds since the start of the recording.
    pub time: u64,
    /// The index in [`History::lives`].
    pub life: u32,
    /// Whether the allocation begins; else it ends.
    pub begins: bool,
    /// The thread on which it happened.
    pub thread: u32,
}

/// All allocations of a recording.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The allocations, in the order in which they begin.
    pub lives: Vec<Life>,
    /// Begins and ends, in order.
    pub changes: Vec<Change>,
    /// Pairs of an end and a begin that are one resize.
    pub resizes: usize,
    /// Bytes live at the recording's end.
    pub live: u64,
    /// The most bytes that were live at once.
    pub peak: u64,
    /// When `peak` was first reached.
    pub peak_at: u64,
    /// Frees of allocations that are not in the recording: made before it, or lost.
    pub unknown_frees: u64,
    /// Requests that failed.
    pub failures: u64,
    /// The time of the last event.
    pub end: u64,
}

impl History {
    /// Follows a recording.
    pub fn of(recording: &Recording) -> History {
        let Follower { history, listed_late, .. } = Follower::through(recording, HashSet::new());
        // What is missing may be the free of what existed long before.
        if listed_late.is_empty() || recording.lost > 0 || recording.damaged > 0 {
            return history;
        }
        drop(history);
        // Once more without them, as they counted from the begin on.
        Follower::through(recording, listed_late).history
    }

    /// How many allocations were made or existed, however often they were resized.
    pub fn allocations(&self) -> usize {
        self.lives.len() - self.resizes
    }

    /// How many allocations were freed.
    pub fn frees(&self) -> usize {
        self.changes.len() - self.lives.len() - self.resizes
    }

    /// The indices of the allocations live at `time`.
    pub fn live_at(&self, time: u64) -> Vec<u32> {
        let alive = |l: &Life| l.from <= time && time < l.to;
        self.lives.iter().zip(0..).filter(|(l, _)| alive(l)).map(|(_, i)| i).collect()
    }
}

#[derive(Default)]
struct Follower {
    history: History,
    /// The index of each live allocation, by address.
    live: HashMap<u64, u32>,
    /// The addresses of the allocations in each arena.
    arenas: HashMap<u32, BTreeSet<u64>>,
    /// The addresses at which a malloc met what existed. A free carries an earlier time than the
    /// malloc that has its address next, so this malloc's allocation is what was listed.
    listed_late: HashSet<u64>,
}

impl Follower {
    /// Follows a recording, without what existed at the addresses `listed_late`.
    fn through(recording: &Recording, listed_late: HashSet<u64>) -> Follower {
        let mut follower = Follower { listed_late, ..Follower::default() };
        for happened in &recording.events {
            follower.follow(happened.event, happened.thread);
        }
        follower
    }

    fn follow(&mut self, e: super::Event, thread: u32) {
        self.history.end = self.history.end.max(e.time);
        match e.kind {
            // An allocation listed twice is known already, and one listed late by its malloc.
            Kind::Existing if self.live.contains_key(&e.address) || self.listed_late.contains(&e.address) => {}
            Kind::Malloc | Kind::Existing => {
                // The free of what was here before is lost, or it was listed late.
                if self.end(e.address, e.time, Some(e.stream), thread) && self.last_existed() {
                    self.listed_late.insert(e.address);
                }
                self.begin(
                    Life {
                        address: e.address,
                        bytes: e.bytes,
                        from: e.time,
                        to: NEVER,
                        stream: e.stream,
                        freed_on: e.stream,
                        tag: e.tag,
                        arena: e.arena,
                        stack: e.stack,
                        thread,
                        device: e.device,
                        existed: e.kind == Kind::Existing,
                    },
                    thread,
                );
            }
            Kind::Free => {
                // Without a stream, in the order of the one it was allocated on.
                let named = (e.stream != 0 || e.other != 0).then_some(e.stream);
                let known = self.end(e.address, e.time, named, thread);
                self.history.unknown_frees += u64::from(!known);
            }
            Kind::Realloc => {
                let old = self.live.get(&e.other).and_then(|i| self.history.lives.get(*i as usize)).copied();
                let known = self.end(e.other, e.time, Some(e.stream), thread);
                self.history.resizes += usize::from(known);
                let like = old.unwrap_or(Life {
                    address: 0,
                    bytes: 0,
                    from: 0,
                    to: NEVER,
                    stream: e.stream,
                    freed_on: e.stream,
                    tag: e.tag,
                    arena: 0,
                    stack: 0,
                    thread,
                    device: e.device,
                    existed: false,
                });
                let stack = if e.stack == 0 { like.stack } else { e.stack };
                let new =
                    Life { address: e.address, bytes: e.bytes, from: e.time, to: NEVER, stack, existed: false, ..like };
                self.end(e.address, e.time, Some(e.stream), thread);
                self.begin(new, thread);
            }
            Kind::Move => self.enter_arena(e.address, e.arena),
            Kind::ArenaExit => {
                for address in self.arenas.remove(&e.arena).unwrap_or_default() {
                    self.end(address, e.time, None, thread);
                }
            }
            Kind::OutOfMemory => self.history.failures += 1,
            _ => {}
        }
    }

    fn begin(&mut self, life: Life, thread: u32) {
        // More than 2^32 allocations of one recording: the rest is not followed.
        let Ok(index) = u32::try_from(self.history.lives.len()) else { return };
        self.live.insert(life.address, index);
        if life.arena != 0 {
            self.arenas.entry(life.arena).or_default().insert(life.address);
        }
        self.history.lives.push(life);
        self.history.changes.push(Change { time: life.from, life: index, begins: true, thread });
        self.history.live = self.history.live.saturating_add(life.bytes);
        if self.history.live > self.history.peak {
            (self.history.peak, self.history.peak_at) = (self.history.live, life.from);
        }
    }

    /// Ends the allocation at an address, in the order of a stream, or of its own. Returns whether
    /// there was one.
    fn end(&mut self, address: u64, time: u64, stream: Option<u64>, thread: u32) -> bool {
        let Some(index) = self.live.remove(&address) else { return false };
        let Some(life) = self.history.lives.get_mut(index as usize) else { return false };
        life.to = time;
        life.freed_on = stream.unwrap_or(life.stream);
        self.history.live = self.history.live.saturating_sub(life.bytes);
        if let Some(all) = self.arenas.get_mut(&life.arena) {
            all.remove(&address);
        }
        self.history.changes.push(Change { time, life: index, begins: false, thread });
        true
    }

    /// Whether the allocation that ended last was live before the recording.
    fn last_existed(&self) -> bool {
        let last = self.history.changes.last().and_then(|c| self.history.lives.get(c.life as usize));
        last.is_some_and(|life| life.existed)
    }

    fn enter_arena(&mut self, address: u64, arena: u32) {
        let life = self.live.get(&address).and_then(|i| self.history.lives.get_mut(*i as usize));
        let Some(life) = life else { return };
        if let Some(all) = self.arenas.get_mut(&life.arena) {
            all.remove(&address);
        }
        life.arena = arena;
        if arena != 0 {
            self.arenas.entry(arena).or_default().insert(address);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::observe::recording::Happened;
    use crate::observe::Event;

    fn history(events: &[Event]) -> History {
        let events = events.iter().map(|&event| Happened { event, thread: 1 }).collect();
        History::of(&Recording { events, ..Recording::default() })
    }

    fn malloc(time: u64, address: u64, bytes: u64) -> Event {
        Event { address, bytes, ..Event::new(Kind::Malloc, time) }
    }

    fn free(time: u64, address: u64) -> Event {
        Event { address, stream: 9, ..Event::new(Kind::Free, time) }
    }

    #[test]
    fn lives_begin_end_and_peak() {
        let h = history(&[malloc(1, 10, 100), malloc(2, 20, 50), free(3, 10), malloc(4, 10, 60), free(5, 99)]);
        let lives: Vec<_> = h.lives.iter().map(|l| (l.address, l.bytes, l.from, l.to, l.freed_on)).collect();
        assert_eq!(lives, [(10, 100, 1, 3, 9), (20, 50, 2, NEVER, 0), (10, 60, 4, NEVER, 0)]);
        assert_eq!((h.live, h.peak, h.peak_at, h.unknown_frees, h.end), (110, 150, 2, 1, 5));
        assert_eq!(h.live_at(3), [1]);
        assert_eq!(h.changes.len(), 4);
    }

    #[test]
    fn sums_of_a_file_that_lies_stay_numbers() {
        let h = history(&[malloc(1, 10, u64::MAX), malloc(2, 20, u64::MAX), free(3, 10), malloc(4, 30, 5)]);
        assert_eq!((h.lives.len(), h.peak, h.peak_at, h.live), (3, u64::MAX, 1, 5));
    }

    #[test]
    fn a_resize_ends_one_and_begins_another() {
        let resized =
            |time, from, to, bytes| Event { address: to, other: from, bytes, ..Event::new(Kind::Realloc, time) };
        let first = Event { tag: 7, stack: 3, ..malloc(1, 10, 100) };
        let h = history(&[first, resized(2, 10, 10, 300), resized(3, 10, 40, 10), free(4, 40)]);
        let lives: Vec<_> = h.lives.iter().map(|l| (l.address, l.bytes, l.to, l.tag, l.stack)).collect();
        assert_eq!(lives, [(10, 100, 2, 7, 3), (10, 300, 3, 7, 3), (40, 10, 4, 7, 3)]);
        assert_eq!((h.live, h.peak), (0, 300));
        assert_eq!((h.allocations(), h.resizes, h.frees()), (1, 2, 1));
    }

    #[test]
    fn an_arena_takes_what_is_in_it_and_leaves_what_moved() {
        let within = |e: Event, arena| Event { arena, ..e };
        let h = history(&[
            within(malloc(1, 10, 1), 5),
            within(malloc(2, 20, 2), 5),
            within(malloc(3, 30, 4), 6),
            Event { address: 20, arena: 6, ..Event::new(Kind::Move, 4) },
            within(Event::new(Kind::ArenaExit, 5), 5),
            Event { address: 30, ..Event::new(Kind::Move, 6) },
            within(Event::new(Kind::ArenaExit, 7), 6),
        ]);
        assert_eq!(h.lives.iter().map(|l| l.to).collect::<Vec<_>>(), [5, 7, NEVER]);
        assert_eq!(h.live, 4);
    }

    #[test]
    fn what_was_there_before_counts_once() {
        let existing = |a, bytes| Event { address: a, bytes, ..Event::new(Kind::Existing, 0) };
        let lives = |h: &History| h.lives.iter().map(|l| (l.address, l.bytes, l.from, l.existed)).collect::<Vec<_>>();
        // Listed twice, and freed.
        let h = history(&[existing(10, 8), existing(20, 8), existing(10, 8), free(3, 10), malloc(4, 10, 9)]);
        assert_eq!(lives(&h), [(10, 8, 0, true), (20, 8, 0, true), (10, 9, 4, false)]);
        assert_eq!((h.live, h.peak, h.unknown_frees), (17, 17, 0));
        // Made before its heap was listed; or in the place of another that was.
        let h = history(&[existing(10, 8), existing(20, 8), malloc(3, 10, 8)]);
        assert_eq!(lives(&h), [(20, 8, 0, true), (10, 8, 3, false)]);
        assert_eq!((h.live, h.peak, h.peak_at), (16, 16, 3));
        let h = history(&[existing(10, 8), malloc(3, 10, 90), free(4, 10), malloc(5, 10, 8)]);
        assert_eq!(lives(&h), [(10, 90, 3, false), (10, 8, 5, false)]);
        assert_eq!((h.live, h.peak, h.unknown_frees), (8, 90, 0));
    }
    /// The free of what existed may be in what is missing.
    #[test]
    fn what_was_there_before_has_lived_where_events_are_missing() {
        let existing = Event { address: 10, bytes: 8, ..Event::new(Kind::Existing, 0) };
        let events: Vec<_> =
            [existing, malloc(9, 10, 1)].into_iter().map(|event| Happened { event, thread: 1 }).collect();
        let lives = |lost, damaged| {
            let recording = Recording { events: events.clone(), lost, damaged, ..Recording::default() };
            let h = History::of(&recording);
            h.lives.iter().map(|l| (l.bytes, l.from, l.to)).collect::<Vec<_>>()
        };
        assert_eq!(lives(0, 0), [(1, 9, NEVER)]);
        for (lost, damaged) in [(1, 0), (0, 1)] {
            assert_eq!(lives(lost, damaged), [(8, 0, 9), (1, 9, NEVER)], "{lost} lost, {damaged} damaged");
        }
    }
}
