//! Spans: the longest runs of mapped addresses of a heap.
//!
//! At either end of a span's regions lies an *edge*, a descriptor with no bytes. Splitting and joining regions never
//! touches the edges, so what finds a span by its address changes only when memory is mapped or leaves.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::pages::Pages;
use super::region::{Regions, State};

/// The edges of a heap's spans.
pub(super) struct Spans {
    /// By the address of the span's first byte.
    starts: Pages<u32>,
    /// By the address after its last byte.
    ends: Pages<u32>,
}

impl Spans {
    /// None yet, of a pool with pages of this size: spans start and end where pages do.
    pub(super) fn of_pages(page: u64) -> Spans {
        Spans { starts: Pages::new(page), ends: Pages::new(page) }
    }
}

impl Regions {
    /// First regions of all spans, by address.
    pub(super) fn spans(&self) -> impl Iterator<Item = u32> + '_ {
        self.spans.starts.iter().map(|(_, edge)| self.get(edge).next)
    }

    /// Last regions of all spans, by address.
    pub(super) fn span_tails(&self) -> impl Iterator<Item = u32> + '_ {
        self.spans.ends.iter().map(|(_, edge)| self.get(edge).prev)
    }

    /// The last region of the span that ends at `end`.
    pub(super) fn tail_at(&self, end: u64) -> Option<u32> {
        self.spans.ends.get(end).map(|edge| self.get(edge).prev)
    }

    fn edge(&mut self, addr: u64) -> u32 {
        let e = self.alloc(addr, 0);
        self.get_mut(e).state = State::Edge;
        e
    }

    fn link(&mut self, left: u32, right: u32) {
        self.get_mut(left).next = right;
        self.get_mut(right).prev = left;
    }

    /// Adds newly mapped addresses as one live region: next to the spans that end or start there, or as a span of its own.
    pub(super) fn add(&mut self, addr: u64, size: u64) -> u32 {
        let r = self.alloc(addr, size);
        let end = addr + size;
        let before = match self.spans.ends.take(addr) {
            Some(edge) => {
                let last = self.get(edge).prev;
                self.release(edge);
                last
            }
            None => {
                let edge = self.edge(addr);
                self.spans.starts.set(addr, edge);
                edge
            }
        };
        let after = match self.spans.starts.take(end) {
            Some(edge) => {
                let first = self.get(edge).next;
                self.release(edge);
                first
            }
            None => {
                let edge = self.edge(end);
                self.spans.ends.set(end, edge);
                edge
            }
        };
        self.link(before, r);
        self.link(r, after);
        r
    }

    /// Removes a region (not in a bin) from the heap: its addresses are no longer mapped here. Its span is cut in two.
    pub(super) fn remove(&mut self, r: u32) {
        let (addr, end, prev, next) = (self.get(r).addr, self.get(r).end(), self.get(r).prev, self.get(r).next);
        if self.is_edge(prev) {
            self.spans.starts.take(addr);
            self.release(prev);
        } else {
            let edge = self.edge(addr);
            self.spans.ends.set(addr, edge);
            self.link(prev, edge);
        }
        if self.is_edge(next) {
            self.spans.ends.take(end);
            self.release(next);
        } else {
            let edge = self.edge(end);
            self.spans.starts.set(end, edge);
            self.link(edge, next);
        }
        self.release(r);
    }

    /// Checks that every span has two edges, where they should be; returns how many edges there are.
    pub(super) fn validate_spans(&self) -> Result<usize, String> {
        let (starts, ends) = (&self.spans.starts, &self.spans.ends);
        starts.validate()?;
        ends.validate()?;
        let mut counts = [0, 0];
        for (which, addr, edge) in starts.iter().map(|(a, e)| (0, a, e)).chain(ends.iter().map(|(a, e)| (1, a, e))) {
            counts[which] += 1;
            let e = self.get(edge);
            if e.state != State::Edge || e.addr != addr || e.size != 0 {
                return Err(format!("the edge at {addr:#x} is {:?} at {:#x}+{:#x}", e.state, e.addr, e.size));
            }
        }
        match counts {
            [starts, ends] if starts != ends => Err(format!("{starts} spans start and {ends} end")),
            [starts, ends] => Ok(starts + ends),
        }
    }
}
