//! Spans: the longest runs of mapped addresses of a heap.
//!
//! At either end of a span's regions lies an *edge*, a descriptor with no bytes and one neighbour. Splitting and joining
//! regions never touches the edges, so what finds a span by its address changes only when memory is mapped or leaves.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::bins::NONE;
use super::region::{Regions, State};

impl Regions {
    /// First regions of all spans, by address.
    pub(super) fn spans(&self) -> impl Iterator<Item = u32> + '_ {
        let firsts = self.edges.values().map(|&edge| self.get(edge).next).filter(|&r| r != NONE);
        let mut firsts: Vec<u32> = firsts.collect();
        firsts.sort_unstable_by_key(|&r| self.get(r).addr);
        firsts.into_iter()
    }

    /// The last region of the span that ends at `end`.
    pub(super) fn tail_at(&self, end: u64) -> Option<u32> {
        self.edges.get(&end).map(|&edge| self.get(edge).prev).filter(|&r| r != NONE)
    }

    /// The first region of the span that starts at `start`.
    pub(super) fn head_at(&self, start: u64) -> Option<u32> {
        self.edges.get(&start).map(|&edge| self.get(edge).next).filter(|&r| r != NONE)
    }

    fn edge(&mut self, addr: u64) -> u32 {
        let e = self.alloc(addr, 0);
        self.get_mut(e).state = State::Edge;
        self.edges.insert(addr, e);
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
        // What has an edge at the start ends there, and the other way round: these addresses were in no span.
        let before = match self.edges.remove(&addr) {
            Some(edge) => {
                let last = self.get(edge).prev;
                self.release(edge);
                last
            }
            None => self.edge(addr),
        };
        let after = match self.edges.remove(&end) {
            Some(edge) => {
                let first = self.get(edge).next;
                self.release(edge);
                first
            }
            None => self.edge(end),
        };
        self.link(before, r);
        self.link(r, after);
        r
    }

    /// Takes `[addr, stop)` of the ready region `r` out of the heap: it is no longer mapped here, and the span is cut. What is left of
    /// the region is ready still; the part before, if there is one, keeps the number.
    pub(super) fn take_out(&mut self, r: u32, addr: u64, stop: u64) {
        let region = self.get(r);
        let (start, end, prev, next, order) = (region.addr, region.end(), region.prev, region.next, region.order);
        self.take_ready(r);
        if stop < end {
            let right = self.alloc(stop, end - stop);
            self.link(right, next);
            self.start_span(right, stop);
            self.put_back(right, order);
        } else {
            self.start_span(next, stop);
        }
        if start == addr {
            self.end_span(prev, addr);
            self.release(r);
        } else {
            self.get_mut(r).size = addr - start;
            self.end_span(r, addr);
            self.put_back(r, order);
        }
    }

    /// What lies before `addr` ends there: the region `last`, or nothing if that is the edge there.
    fn end_span(&mut self, last: u32, addr: u64) {
        if self.is_edge(last) {
            self.edges.remove(&addr);
            self.release(last);
        } else {
            let edge = self.edge(addr);
            self.link(last, edge);
        }
    }

    /// What lies behind `addr` starts there: the region `first`, or nothing if that is the edge there.
    fn start_span(&mut self, first: u32, addr: u64) {
        if self.is_edge(first) {
            self.edges.remove(&addr);
            self.release(first);
        } else {
            let edge = self.edge(addr);
            self.link(edge, first);
        }
    }

    /// Checks that every span has two edges, where they should be; returns how many edges there are.
    pub(super) fn validate_spans(&self) -> Result<usize, String> {
        let (mut starts, mut ends) = (0, 0);
        for (&addr, &edge) in &self.edges {
            let e = self.get(edge);
            if e.state != State::Edge || e.addr != addr || e.size != 0 || (e.prev == NONE) == (e.next == NONE) {
                return Err(format!("the edge at {addr:#x} is {:?} at {:#x}+{:#x}", e.state, e.addr, e.size));
            }
            *(if e.prev == NONE { &mut starts } else { &mut ends }) += 1;
        }
        match starts == ends {
            false => Err(format!("{starts} spans start and {ends} end")),
            true => Ok(starts + ends),
        }
    }
}
