//! The waiting list: memory freed in the order of another stream than its heap's, until the device
//! has passed the free.

use crate::pool::order::{Order, Tag};
use std::collections::VecDeque;

/// With more queues than this, empty ones are dropped; otherwise they are kept, to be filled again.
pub(crate) const MANY: usize = 16;

/// Something free that waits for another stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Item {
    Region(u32),
    Object { slab: u32, number: u32 },
}

impl Item {
    pub(crate) fn region(self) -> Option<u32> {
        if let Item::Region(r) = self {
            Some(r)
        } else {
            None
        }
    }
}

/// An entry of the waiting list.
#[derive(Debug)]
pub(crate) struct Wait {
    /// What it waits for at present.
    pub(crate) tag: Tag,
    pub(crate) item: Item,
    /// If it has more than one tag: all but the first, as long as they are not known to be settled.
    /// Once the first is, `tag` is one of them, so an entry with several tags never looks like one
    /// that has had a single tag.
    pub(crate) also: Vec<Tag>,
}

/// What waits in one heap, in a queue for each lane that is waited for.
#[derive(Default)]
pub(crate) struct Waiting {
    /// Per lane, in the order of the epochs: a look at either end says what waits.
    pub(crate) queues: Vec<(u32, VecDeque<Wait>)>,
}

impl Waiting {
    pub(crate) fn enqueue(&mut self, item: Item, tags: &[Tag]) {
        let tag = tags.first().copied().unwrap_or(Tag::SETTLED);
        self.push(Wait { tag, item, also: tags.iter().skip(1).copied().collect() });
    }

    pub(crate) fn push(&mut self, wait: Wait) {
        let lane = wait.tag.lane();
        match self.queues.iter_mut().find(|q| q.0 == lane) {
            // What has waited for another lane first may come before others.
            Some((_, q)) if q.back().is_some_and(|last| last.tag.epoch() > wait.tag.epoch()) => {
                q.insert(q.partition_point(|w| w.tag.epoch() <= wait.tag.epoch()), wait);
            }
            Some((_, q)) => q.push_back(wait),
            None => self.queues.push((lane, VecDeque::from([wait]))),
        }
    }

    /// Takes the first entry of a queue, if the device is known to have passed its tag.
    pub(crate) fn pop_settled(&mut self, queue: usize, order: &Order) -> Option<Wait> {
        let queue = &mut self.queues[queue].1;
        match queue.front().is_some_and(|w| order.settled(w.tag)) {
            true => queue.pop_front(),
            false => None,
        }
    }

    /// The regions that wait.
    pub(crate) fn regions(&self) -> impl Iterator<Item = u32> + '_ {
        self.queues.iter().flat_map(|q| &q.1).filter_map(|w| w.item.region())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What has waited for another lane first comes behind later frees, and does not wait for them.
    #[test]
    fn a_queue_is_in_the_order_of_the_epochs() {
        let mut waiting = Waiting::default();
        for (item, epoch) in [(1, 2), (2, 5), (3, 1), (4, 4), (5, 5)] {
            waiting.enqueue(Item::Region(item), &[Tag::new(7, epoch)]);
        }
        assert_eq!(waiting.regions().collect::<Vec<_>>(), [3, 1, 4, 2, 5]);
    }
}
