//! Free memory that waits: freed on another stream than its heap's, until the device has passed the free.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::heap::HeapState;
use super::index::Index;
use super::order::{Order, Tag};
use super::region::{Region, State, GRANULE, MIN_SPLIT};
use super::slab::AfterFree;
use std::collections::{HashMap, VecDeque};

/// With more queues than this, empty ones are dropped; otherwise they are kept, to be filled again.
const MANY: usize = 16;

/// Something free that waits for another stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum Item {
    Region(u32),
    Object { slab: u32, number: u32 },
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    tag: Tag,
    ticket: u64,
    item: Item,
}

/// What waits in one heap, with the lane that each entry waits for.
#[derive(Default)]
pub(super) struct Waiting {
    /// Per lane, roughly in the order of the frees.
    queues: Vec<(u32, VecDeque<Wait>)>,
    /// Further tags of entries that wait for more than one stream, by ticket.
    also: HashMap<u64, Vec<Tag>>,
    last_ticket: u64,
}

impl Waiting {
    fn enqueue(&mut self, item: Item, tags: &[Tag]) -> u64 {
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        let first = tags.first().copied().unwrap_or(Tag::SETTLED);
        if tags.len() > 1 {
            self.also.insert(ticket, tags[1..].to_vec());
        }
        self.push(Wait { tag: first, ticket, item });
        ticket
    }

    fn push(&mut self, wait: Wait) {
        let lane = wait.tag.lane();
        match self.queues.iter_mut().find(|q| q.0 == lane) {
            Some(q) => q.1.push_back(wait),
            None => self.queues.push((lane, VecDeque::from([wait]))),
        }
    }

    /// The next tag an entry waits for, if any is left.
    fn next_tag(&mut self, ticket: u64, order: &Order) -> Option<Tag> {
        let tags = self.also.get_mut(&ticket)?;
        while let Some(tag) = tags.pop() {
            if !order.settled(tag) {
                return Some(tag);
            }
        }
        self.also.remove(&ticket);
        None
    }

    /// The regions that wait, by ticket.
    pub(super) fn tickets(&self) -> HashMap<u64, u32> {
        let all = self.queues.iter().flat_map(|q| q.1.iter());
        all.filter_map(|w| match w.item {
            Item::Region(r) => Some((w.ticket, r)),
            Item::Object { .. } => None,
        })
        .collect()
    }
}

impl HeapState {
    /// Makes a region (in no bin) wait for every one of the tags.
    pub(super) fn wait_for(&mut self, region: u32, tags: &[Tag]) {
        let ticket = self.waiting.enqueue(Item::Region(region), tags);
        let r = self.regions.get_mut(region);
        r.state = State::Waiting;
        r.order = tags.first().copied().unwrap_or(Tag::SETTLED);
        r.ticket = ticket;
        self.waiting_bytes += r.size;
    }

    /// Whatever waits now waits for `tag` instead, which comes after all that it waited for.
    pub(super) fn wait_anew(&mut self, tag: Tag) {
        self.waiting.also.clear();
        for wait in std::mem::take(&mut self.waiting.queues).into_iter().flat_map(|q| q.1) {
            if let Item::Region(r) = wait.item {
                let region = self.regions.try_get(r);
                if !region.is_some_and(|g| g.state == State::Waiting && g.ticket == wait.ticket) {
                    continue;
                }
                self.regions.get_mut(r).order = tag;
            }
            self.waiting.push(Wait { tag, ..wait });
        }
    }

    /// The lanes something here waits for.
    pub(super) fn waits_for(&self) -> impl Iterator<Item = u32> + '_ {
        self.waiting.queues.iter().filter(|q| !q.1.is_empty()).map(|q| q.0)
    }

    /// Tags that something here waits for and that no marker covers yet.
    pub(super) fn unmarked<'a>(&'a self, order: &'a Order) -> impl Iterator<Item = Tag> + 'a {
        self.waiting.queues.iter().filter_map(|q| q.1.back()).map(|w| w.tag).filter(|&t| !order.marked(t))
    }

    /// Whether a marker is on its way that will make something ready.
    pub(super) fn about_to_settle(&self, order: &Order) -> bool {
        self.waiting.queues.iter().filter_map(|q| q.1.front()).any(|w| order.marked(w.tag))
    }

    /// Whether something that waits for `lane` needs not wait any more.
    #[inline]
    pub(super) fn has_settled(&self, lane: u32, order: &Order) -> bool {
        let queue = self.waiting.queues.iter().find(|q| q.0 == lane);
        queue.and_then(|q| q.1.front()).is_some_and(|w| order.settled(w.tag))
    }

    /// Makes ready whatever the device is known to have passed. Returns whether anything was.
    pub(super) fn settle(&mut self, order: &Order, index: &Index) -> bool {
        let mut any = false;
        if self.is_monotone() {
            return any;
        }
        for q in 0..self.waiting.queues.len() {
            while let Some(&wait) = self.waiting.queues[q].1.front() {
                if !order.settled(wait.tag) {
                    break;
                }
                self.waiting.queues[q].1.pop_front();
                if let Item::Region(r) = wait.item {
                    let region = self.regions.try_get(r);
                    if !region.is_some_and(|g| g.state == State::Waiting && g.ticket == wait.ticket) {
                        continue;
                    }
                }
                if let Some(next) = self.waiting.next_tag(wait.ticket, order) {
                    if let Item::Region(r) = wait.item {
                        self.regions.get_mut(r).order = next;
                    }
                    self.waiting.push(Wait { tag: next, ..wait });
                    continue;
                }
                any = true;
                match wait.item {
                    Item::Region(r) => {
                        self.waiting_bytes -= self.regions.get(r).size;
                        self.regions.make_ready(r, Tag::SETTLED);
                    }
                    Item::Object { slab, number } => {
                        if self.slabs.settle(slab, number) == AfterFree::Drop {
                            self.drop_slab(slab, order, index);
                        }
                    }
                }
            }
        }
        if self.waiting.queues.len() > MANY {
            self.waiting.queues.retain(|q| !q.1.is_empty());
        }
        any
    }

    /// A waiting region that the present stream of `lane` freed itself, with room for `size` bytes at `align`: the
    /// smallest such, cut to size and marked live. Only that lane may use what is left over, too, so that goes on
    /// waiting.
    pub(super) fn take_waiting_of(&mut self, lane: u32, size: u64, align: u64, order: &Order) -> Option<u32> {
        let queue = &self.waiting.queues.iter().find(|q| q.0 == lane)?.1;
        let fits = |r: &Region| r.addr.next_multiple_of(align) == r.addr && r.size >= size;
        let best = queue
            .iter()
            .filter_map(|w| match w.item {
                Item::Region(r) => Some((w, r)),
                Item::Object { .. } => None,
            })
            .filter(|(w, r)| {
                let g = self.regions.get(*r);
                g.state == State::Waiting
                    && g.ticket == w.ticket
                    && fits(g)
                    && order.own(w.tag, lane)
                    && !self.waiting.also.contains_key(&w.ticket)
            })
            .min_by_key(|(_, r)| self.regions.get(*r).size)
            .map(|(_, r)| r)?;
        let tag = self.regions.get(best).order;
        self.waiting_bytes -= self.regions.get(best).size;
        self.regions.get_mut(best).state = State::Live;
        let spare = self.regions.get(best).size - size;
        if spare >= MIN_SPLIT.max(GRANULE) {
            let rest = self.regions.split(best, size);
            self.wait_for(rest, &[tag]);
        }
        Some(best)
    }

    /// Makes an object of a slab wait.
    pub(super) fn object_waits(&mut self, slab: u32, number: u32, tags: &[Tag]) {
        self.waiting.enqueue(Item::Object { slab, number }, tags);
    }
}
