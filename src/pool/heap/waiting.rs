//! The waiting list: memory freed in the order of another stream than its heap's, until the device
//! has passed the free.

use crate::pool::order::{Order, Tag};
use std::collections::{HashMap, VecDeque};

/// With more queues than this, empty ones are dropped; otherwise they are kept, to be filled again.
pub(crate) const MANY: usize = 16;

/// This many entries may be stale, however few there are in all.
const FEW: usize = 64;

/// Something free that waits for another stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Item {
    Region(u32),
    Object { slab: u32, number: u32 },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) tag: Tag,
    pub(crate) ticket: u64,
    pub(crate) item: Item,
}

/// What waits in one heap, in a queue for each lane that is waited for.
#[derive(Default)]
pub(crate) struct Waiting {
    /// Per lane, roughly in the order of the frees.
    pub(crate) queues: Vec<(u32, VecDeque<Wait>)>,
    /// Further tags of entries that wait for more than one stream, by ticket.
    pub(crate) also: HashMap<u64, Vec<Tag>>,
    pub(crate) last_ticket: u64,
    /// Entries of regions that were taken meanwhile: few, or at most half of all.
    pub(crate) stale: usize,
}

impl Waiting {
    pub(crate) fn enqueue(&mut self, item: Item, tags: &[Tag]) -> u64 {
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        let first = tags.first().copied().unwrap_or(Tag::SETTLED);
        if tags.len() > 1 {
            self.also.insert(ticket, tags[1..].to_vec());
        }
        self.push(Wait { tag: first, ticket, item });
        ticket
    }

    pub(crate) fn push(&mut self, wait: Wait) {
        let lane = wait.tag.lane();
        match self.queues.iter_mut().find(|q| q.0 == lane) {
            Some(q) => q.1.push_back(wait),
            None => self.queues.push((lane, VecDeque::from([wait]))),
        }
    }

    /// The next tag an entry waits for, if any is left.
    pub(crate) fn next_tag(&mut self, ticket: u64, order: &Order) -> Option<Tag> {
        let tags = self.also.get_mut(&ticket)?;
        while let Some(tag) = tags.pop() {
            if !order.settled(tag) {
                return Some(tag);
            }
        }
        self.also.remove(&ticket);
        None
    }

    /// Whether more than [`FEW`] entries, and more than half of all, are stale.
    pub(crate) fn has_many_stale(&self) -> bool {
        self.stale > FEW && self.stale > self.queues.iter().map(|q| q.1.len()).sum::<usize>() / 2
    }

    /// The regions that wait, each with its ticket.
    pub(crate) fn regions(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let all = self.queues.iter().flat_map(|q| q.1.iter());
        all.filter_map(|w| match w.item {
            Item::Region(r) => Some((w.ticket, r)),
            Item::Object { .. } => None,
        })
    }
}
