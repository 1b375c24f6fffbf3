//! The pool's pure parts as closures for `benches/pure_parts.rs`; only with the feature
//! `bench-internals`.

use super::heap::region::Regions;
use super::heap::slab::{class_of, slab_size, Slabs};
use super::memory::extent::Extent;
use super::memory::holes::Holes;
use super::memory::index::{Entry, Index, SLOT};
use super::order::{lanes::Order, tag::Tag};
use super::remap::sources::Source;
use super::remap::stitch::{plan, Room};
use crate::base::size::{GIB, MIB, TIB};
use crate::base::{DeviceId, StreamHandle};
use crate::driver::PhysHandle;
use std::hint::black_box;

/// Distance of regions that must not touch, bytes.
const APART: u64 = GIB;

/// One operation to measure: `group/name`, and a closure that does it once and leaves the state as
/// it was.
pub struct Part {
    /// What criterion calls it.
    pub name: String,
    /// Runs it once. The result is for `black_box`.
    pub run: Box<dyn FnMut() -> u64>,
}

fn part(name: impl Into<String>, run: impl FnMut() -> u64 + 'static) -> Part {
    Part { name: name.into(), run: Box::new(run) }
}

/// Every part.
pub fn parts() -> Vec<Part> {
    let mut all = Vec::new();
    for n in [10, 1_000, 100_000] {
        all.push(best_fit(n));
        all.push(holes(n));
    }
    all.extend([10, 100, 1_000].map(stitch));
    all.extend(order());
    all.extend(index());
    all.extend([256, 4096, 65536].map(slab));
    all
}

/// Finds, cuts and gives back 1.5 MiB among `n` free regions of 64 KiB to 16 MiB.
fn best_fit(n: u64) -> Part {
    let mut regions = Regions::default();
    for i in 0..n {
        let r = regions.add(APART * (i + 1), (i * 7919 % 256 + 1) * 64 * 1024);
        regions.make_ready(r, Tag::SETTLED);
    }
    part(format!("bins/find+cut+give back, {n} free regions"), move || {
        let size = black_box(MIB + MIB / 2);
        let Some(r) = regions.find(size, 512, |_| true) else { return 0 };
        let at = regions.get(r).addr;
        let r = regions.cut(r, at, size);
        u64::from(regions.make_ready(r, Tag::SETTLED))
    })
}

/// Takes and gives 32 MiB of addresses among `n` spans.
fn holes(n: u64) -> Part {
    let mut holes = Holes::default();
    holes.add_root(8 * TIB, 256 * TIB);
    for _ in 0..n {
        holes.take(2 * MIB, 2 * MIB);
    }
    part(format!("holes/take+give, {n} spans"), move || {
        let at = holes.take(black_box(32 * MIB), 2 * MIB);
        at.inspect(|&at| holes.give(at, 32 * MIB)).unwrap_or(0)
    })
}

/// Plans a stitch for a third of the bytes of `n` sources of 2 to 64 MiB.
fn stitch(n: u64) -> Part {
    let source = |i: u64| Source {
        heap: 1,
        region: i as u32,
        region_size: 64 * MIB,
        neighbours: 2,
        addr: APART * (i + 1),
        extent: Extent { handle: PhysHandle(i), size: (2 * MIB) << (i * 7919 % 6), id: i as u32 },
        place: (0, 0),
        tag: Tag::SETTLED,
    };
    let sources: Vec<Source> = (0..n).map(source).collect();
    let need = (sources.iter().map(|s| s.extent.size).sum::<u64>() / 3).next_multiple_of(2 * MIB);
    part(format!("stitch/plan, {n} sources"), move || {
        let room = Room { hard: u64::MAX, cheap: 0, floor: 0 };
        plan(black_box(need), 2 * MIB, 64 * MIB, &sources, room).map_or(0, |p| p.moves.len() as u64)
    })
}

fn order() -> [Part; 2] {
    let lane = |order: &Order| order.add_lane(false, StreamHandle::LEGACY, 1).unwrap_or(0);
    let (tags, settled) = (Order::new(DeviceId(0), 4), Order::new(DeviceId(0), 4));
    let (a, b) = (lane(&tags), lane(&settled));
    let tag = settled.tag(b);
    [
        part("order/tag", move || u64::from(tags.tag(black_box(a)) == Tag::SETTLED)),
        part("order/settled, not yet", move || u64::from(settled.settled(black_box(tag)))),
    ]
}

fn index() -> [Part; 2] {
    let filled = || {
        let index = Index::of_pages(2 << 20);
        index.add_root(8 * TIB, 8 * TIB);
        index.set(9 * TIB, Entry::Block { heap: 1, region: 7 });
        index
    };
    let (read, write) = (filled(), filled());
    [
        part("index/get", move || u64::from(read.get(black_box(9 * TIB + SLOT / 2)) == Entry::Empty)),
        part("index/set", move || {
            write.set(black_box(9 * TIB), Entry::Block { heap: 1, region: 7 });
            0
        }),
    ]
}

/// Takes and frees an object of a slab in which another is live.
fn slab(bytes: u64) -> Part {
    let mut slabs = Slabs::default();
    let class = class_of(bytes);
    let slab = slabs.add(class, slab_size(class).next_multiple_of(SLOT) * 16, 1);
    slabs.alloc(class, bytes, 1);
    part(format!("slab/alloc+free, {bytes} B"), move || {
        let at = slabs.alloc(class, black_box(bytes), 2).map_or(0, |t| t.addr);
        if let Some(n) = slabs.try_get(slab).and_then(|s| s.object_at(at)) {
            slabs.free(slab, n, |_| Tag::SETTLED);
        }
        at
    })
}
