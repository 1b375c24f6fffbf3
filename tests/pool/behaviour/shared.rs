//! The heap that all streams share: what never repeats on several streams costs what it does on
//! one.

use crate::pool_support::{checked, late, request, Rig, D};
use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::StreamHandle;
use gpumem::driver::host::{HostOptions, Kernel};
use gpumem::driver::{CaptureMode, Driver};
use gpumem::pool::PoolOptions;

const PEAK: u64 = 4 * GIB;
const DEVICE: u64 = 32 * GIB;

/// Blocks of up to 256 MiB that end at random, each on the next stream.
pub struct Work {
    pub rig: Rig,
    pub streams: Vec<StreamHandle>,
    pub live: Vec<(u64, u64, StreamHandle)>,
    pub bytes: u64,
    pub turn: usize,
    pub rng: fastrand::Rng,
    /// Streams that hold the device back: the work of an allocation begins so many allocations
    /// later.
    behind: Vec<StreamHandle>,
}

impl Work {
    pub fn new(streams: usize, host: HostOptions) -> Work {
        let rig = Rig::new(host, PoolOptions::default());
        let streams = (0..streams).map(|_| rig.stream()).collect();
        Work { rig, streams, live: Vec::new(), bytes: 0, turn: 0, rng: fastrand::Rng::with_seed(5), behind: Vec::new() }
    }

    /// So many allocations; returns how many extents were moved for them.
    fn play(&mut self, allocations: u32) -> u64 {
        let before = self.rig.pool.stats().moved;
        for _ in 0..allocations {
            self.turn += 1;
            let (size, stream) = (self.rng.u64(MIB..256 * MIB), self.streams[self.turn % self.streams.len()]);
            while self.bytes + size > PEAK {
                let i = self.rng.usize(..self.live.len());
                self.end_one(i);
            }
            self.live.push((self.rig.malloc(size, stream), size, stream));
            self.bytes += size;
            self.hold_back(stream);
        }
        self.rig.pool.validate().unwrap();
        self.rig.pool.stats().moved - before
    }

    /// What the stream does from here on waits for its turn.
    fn hold_back(&self, stream: StreamHandle) {
        if self.behind.is_empty() {
            return;
        }
        let (host, gate) = (&self.rig.host, self.behind[self.turn % self.behind.len()]);
        host.release(D, gate).unwrap();
        host.hold(D, gate).unwrap();
        host.launch(D, gate, Kernel::new("turn")).unwrap();
        let opens = host.event_create(D).unwrap();
        host.event_record(D, opens, gate).unwrap();
        host.stream_wait(D, stream, opens).unwrap();
        host.event_destroy(D, opens).unwrap();
    }

    pub fn end_one(&mut self, i: usize) {
        let (p, size, stream) = self.live.swap_remove(i);
        self.rig.free(p, stream);
        self.bytes -= size;
    }

    pub fn end(&mut self) {
        while !self.live.is_empty() {
            self.end_one(self.live.len() - 1);
        }
    }

    /// Plays until the shared heap is there, and on until it has met all requests of a while.
    fn until_shared(&mut self) {
        for _ in 0..100 {
            self.play(100);
            if self.rig.pool.has_shared_heap() {
                self.play(400);
                return;
            }
        }
        panic!("no heap is shared after 10,000 allocations");
    }

    /// The shared heap is there, nothing is live, and so much is mapped at most.
    fn empty_once_shared(&mut self, mapped: u64) {
        self.until_shared();
        self.end();
        self.rig.sync();
        // Not by a trim, which ends sharing.
        for _ in 0..8 {
            self.rig.pool.trim_unused(mapped).unwrap();
        }
        assert!(self.rig.mapped() <= mapped, "{}", self.rig.pool.dump());
    }
}

#[test]
fn what_never_repeats_on_many_streams_moves_as_little_as_on_one() {
    let [mut many, mut one] = [8, 1].map(|n| Work::new(n, checked(DEVICE)));
    let moved = [&mut many, &mut one].map(|w| {
        w.play(4000);
        w.play(2000)
    });
    assert!(many.rig.pool.has_shared_heap() && !one.rig.pool.has_shared_heap());
    assert!(moved[0] <= 3 * moved[1] + 100, "{moved:?} extents moved");
    let mapped = many.rig.pool.stats().peak_mapped;
    assert!(mapped <= PEAK + PEAK / 3, "{mapped} bytes mapped");
}

#[test]
fn streams_whose_own_memory_does_share_nothing() {
    let rig = Rig::new(checked(DEVICE), PoolOptions::default());
    let streams = [(); 4].map(|()| rig.stream());
    let mut live: Vec<Vec<u64>> =
        streams.iter().map(|&s| (1..20).map(|layer| rig.malloc(layer * MIB, s)).collect()).collect();
    for _ in 0..500 {
        // One layer of each stream after the other is made anew.
        for (blocks, &s) in live.iter_mut().zip(&streams) {
            for (layer, p) in (1..20).zip(blocks) {
                rig.free(*p, s);
                *p = rig.malloc(layer * MIB, s);
            }
        }
    }
    rig.pool.validate().unwrap();
    assert!(!rig.pool.has_shared_heap());
}

/// Sixty heaps of a few blocks each: hardly a request finds room in its own, and none needs to move
/// anything, because another one has a block that fits. To look for it takes as long as moving.
#[test]
fn looking_into_many_heaps_all_the_time_is_a_reason_to_share() {
    let rig = Rig::new(checked(DEVICE), PoolOptions::default());
    let streams: Vec<_> = (0..60).map(|_| rig.stream()).collect();
    let (mut rng, mut live, mut size) = (fastrand::Rng::with_seed(9), Vec::new(), MIB);
    for turn in 0..20_000 {
        let stream = streams[turn % streams.len()];
        size = if size < 2 * MIB { size + 8 * KIB } else { MIB };
        live.push((rig.malloc(size, stream), stream));
        if live.len() > 1000 {
            let (p, stream) = live.swap_remove(rng.usize(..live.len()));
            rig.free(p, stream);
        }
    }
    rig.pool.validate().unwrap();
    let stats = rig.pool.stats();
    assert!(stats.moved < 100, "{} extents moved", stats.moved);
    assert!(rig.pool.has_shared_heap());
    assert!(stats.peak_mapped <= 2400 * MIB, "{} bytes mapped for 1,500 MiB live", stats.peak_mapped);
}

/// While its own heap grows, a lone stream looks at many others in vain.
#[test]
fn a_stream_among_many_that_rest_shares_nothing() {
    let rig = Rig::new(checked(DEVICE), PoolOptions::default());
    for _ in 0..500 {
        let stream = rig.stream();
        rig.free(rig.malloc(100 * KIB, stream), stream);
    }
    rig.sync();
    let (stream, mut rng) = (rig.stream(), fastrand::Rng::with_seed(11));
    for _ in 0..4000 {
        rig.free(rig.malloc(rng.u64(MIB..16 * MIB), stream), stream);
    }
    rig.pool.validate().unwrap();
    assert!(!rig.pool.has_shared_heap());
}

/// A device that is some allocations behind the host, as it is where kernels run, has not passed
/// what one stream has freed when another asks; each stream has its own back at once.
#[test]
fn nothing_is_shared_while_the_device_is_behind() {
    let mut w = Work::new(3, checked(DEVICE));
    w.behind = (0..24).map(|_| w.rig.stream()).collect();
    let moved = w.play(3000);
    assert!(moved > 500, "{moved} extents moved: too few to tell");
    let mapped = w.rig.pool.stats().peak_mapped;
    // What the device has not passed is mapped besides.
    assert!(mapped <= 2 * PEAK, "{mapped} bytes mapped");
    assert!(!w.rig.pool.has_shared_heap());
}

/// When the device falls behind, a stream has back at once what it freed in the shared heap, in
/// pieces for whatever it wants.
#[test]
fn what_a_stream_freed_in_the_shared_heap_is_in_its_order() {
    let mut w = Work::new(3, late(7, DEVICE));
    w.rig.host.keep_up(true);
    w.empty_once_shared(0);
    w.rig.pool.reset_peaks();
    w.streams.truncate(1);
    // In the shared heap still.
    w.play(60);
    w.rig.host.keep_up(false);
    w.rig.host.hold(D, w.streams[0]).unwrap();
    w.play(400);
    let mapped = w.rig.pool.stats().peak_mapped;
    // Twice the peak and more if each piece came back only for a request that is no larger.
    assert!(mapped <= PEAK * 3 / 2, "{mapped} bytes mapped");
}

/// The same while several streams work, with blocks that a second stream used: nobody gets what
/// another may still be using.
#[test]
fn what_comes_back_from_the_shared_heap_is_nobody_elses() {
    let mut w = Work::new(3, late(9, DEVICE));
    let host = w.rig.host.clone();
    host.keep_up(true);
    w.empty_once_shared(0);
    // In the shared heap still.
    w.play(60);
    host.keep_up(false);
    w.streams.iter().for_each(|&s| host.hold(D, s).unwrap());
    for turn in 0..600 {
        w.play(1);
        let &(p, size, stream) = w.live.last().unwrap();
        host.launch(D, stream, Kernel::write_pattern("made", p..p + size, turn, 8 * MIB)).unwrap();
        if turn % 3 == 0 {
            let other = w.streams[(w.turn + 1) % 3];
            w.rig.pool.record_stream(p, other).unwrap();
            let made = host.event_create(D).unwrap();
            host.event_record(D, made, stream).unwrap();
            host.stream_wait(D, other, made).unwrap();
            host.event_destroy(D, made).unwrap();
            host.launch(D, other, Kernel::write_pattern("used", p..p + size, turn, 8 * MIB)).unwrap();
        }
    }
    w.streams.iter().for_each(|&s| host.release(D, s).unwrap());
    w.rig.sync();
    assert_eq!(host.take_reports(), vec![]);
}

/// Freed in the shared heap, memory is the freeing stream's at once and every other stream's when
/// the device has passed it.
#[test]
fn shared_memory_is_handed_on_in_order() {
    let mut w = Work::new(4, late(3, DEVICE));
    w.until_shared();
    let host = w.rig.host.clone();
    for turn in 0..400 {
        w.turn += 1;
        let stream = w.streams[w.turn % 4];
        let size = w.rng.u64(MIB..256 * MIB);
        while w.bytes + size > PEAK {
            let i = w.rng.usize(..w.live.len());
            w.end_one(i);
        }
        let p = w.rig.malloc(size, stream);
        w.live.push((p, size, stream));
        w.bytes += size;
        host.launch(D, stream, Kernel::write_pattern("use", p..p + size, turn, MIB)).unwrap();
    }
    w.rig.sync();
    assert_eq!(host.take_reports(), vec![]);
    w.rig.pool.validate().unwrap();
}

#[test]
fn a_shared_block_is_resized_where_it_is() {
    let mut w = Work::new(4, late(3, DEVICE));
    w.until_shared();
    let host = w.rig.host.clone();
    // Few: what moves is copied.
    let (mut stayed, count) = (0, w.live.len().min(6));
    for i in 0..count {
        let (p, size, stream) = w.live[i];
        let other = w.streams[(i + 1) % 4];
        host.launch(D, stream, Kernel::write_pattern("old", p..p + size, 1, 64 * MIB)).unwrap();
        // In the order of the stream that it was used on: what it gives back is for that stream at
        // first.
        let q = w.rig.pool.realloc(p, size / 2, stream).unwrap();
        stayed += usize::from(p == q);
        w.live[i] = (q, size / 2, stream);
        w.bytes -= size - size / 2;
        let r = w.rig.malloc(size / 3 + MIB, other);
        host.launch(D, other, Kernel::write_pattern("new", r..r + size / 3, 2, 64 * MIB)).unwrap();
        w.rig.free(r, other);
        let back = w.rig.pool.realloc(q, size, stream).unwrap();
        host.launch(D, stream, Kernel::write_pattern("again", back..back + size, 3, 64 * MIB)).unwrap();
        w.live[i] = (back, size, stream);
        w.bytes += size - size / 2;
    }
    w.rig.pool.validate().unwrap();
    w.rig.sync();
    assert_eq!(host.take_reports(), vec![]);
    assert!(stayed > count / 2, "{stayed} of {count} stayed where they were");
}

/// A request that does not fit is refused as one of a stream's own heap is, and all free memory
/// serves it first.
#[test]
fn the_shared_heap_gives_everything_before_a_request_fails() {
    let mut w = Work::new(4, checked(DEVICE));
    w.until_shared();
    w.end();
    let limit = w.rig.mapped();
    w.rig.pool.set_limit(limit).unwrap();
    let size = limit / 8 * 7;
    let p = w.rig.malloc(size, w.streams[3]);
    let refused = w.rig.pool.malloc(&request(limit / 2, w.streams[0])).unwrap_err();
    assert!(refused.message.contains("limit"), "{}", refused.message);
    w.rig.pool.validate().unwrap();
    w.rig.free(p, w.streams[3]);
    w.rig.sync();
    w.rig.pool.trim(0).unwrap();
    assert_eq!(w.rig.mapped(), 0);
}

/// Where the device lags, streams take back at once what they have freed, as they do without a
/// shared heap: what is mapped follows what is live.
#[test]
fn what_is_mapped_does_not_grow_with_the_lag_of_the_device() {
    let mut w = Work::new(3, late(5, DEVICE));
    w.empty_once_shared(0);
    w.rig.pool.reset_peaks();
    for &s in &w.streams {
        w.rig.host.hold(D, s).unwrap();
    }
    w.play(400);
    let mapped = w.rig.pool.stats().peak_mapped;
    // Nothing that was freed in the shared heap comes back but to its own stream: 3.4 times the
    // peak if it were used all the same.
    assert!(mapped <= 2 * PEAK, "{mapped} bytes mapped");
}

/// The same while no marker of the context can be recorded, on streams that have taken others'
/// handles, which need one.
#[test]
fn what_is_mapped_does_not_grow_while_something_is_captured() {
    let mut w = Work::new(3, checked(DEVICE));
    w.empty_once_shared(0);
    let captured = w.rig.stream();
    w.rig.host.capture_begin(D, captured, CaptureMode::Relaxed).unwrap();
    w.rig.malloc(MIB, captured);
    for s in &mut w.streams {
        w.rig.host.stream_destroy(D, *s).unwrap();
        *s = w.rig.stream();
    }
    w.rig.pool.reset_peaks();
    w.play(400);
    let mapped = w.rig.pool.stats().peak_mapped;
    assert!(mapped <= 2 * PEAK, "{mapped} bytes mapped");
}

/// At the limit, with gaps of up to 24 MiB between blocks that live on in the extents around them:
/// what cannot be moved is lent.
#[test]
fn a_request_fails_only_when_nothing_free_holds_it() {
    let mut w = Work::new(4, checked(DEVICE));
    w.empty_once_shared(0);
    let (a, b) = (w.streams[0], w.streams[1]);
    let blocks: Vec<u64> = (0..400).map(|_| w.rig.malloc(MIB * 19 / 10, a)).collect();
    // So that there is a heap of its own.
    w.rig.malloc(MIB, b);
    let freed = blocks.iter().enumerate().filter(|(i, _)| i % 14 != 0);
    freed.for_each(|(_, &p)| w.rig.free(p, a));
    w.rig.sync();
    w.rig.pool.set_limit(w.rig.mapped()).unwrap();
    let failures = w.rig.pool.stats().out_of_memory;
    while w.rig.pool.malloc(&request(20 * MIB, b)).is_ok() {}
    let s = w.rig.pool.stats();
    assert_eq!(s.out_of_memory, failures + 1);
    assert!(s.largest_free < 20 * MIB, "{} free in one piece", s.largest_free);
    w.rig.pool.validate().unwrap();
}

/// What a stream takes back while it waits leaves an entry in the waiting list: `validate` bounds
/// how many.
#[test]
fn a_stream_far_ahead_that_takes_its_own_back_leaves_no_trail() {
    let mut w = Work::new(4, late(7, DEVICE));
    w.rig.host.keep_up(true);
    w.empty_once_shared(256 * MIB);
    w.play(20);
    w.rig.host.keep_up(false);
    let a = w.streams[0];
    w.rig.host.hold(D, a).unwrap();
    for _ in 0..3000 {
        let p = w.rig.malloc(4 * MIB, a);
        w.rig.free(p, a);
    }
    assert!(w.rig.pool.stats().waiting >= 4 * MIB);
    w.rig.pool.validate().unwrap();
    w.rig.host.release(D, a).unwrap();
}

/// What the shared heap has no room for is lent by another heap, before anything is waited for: a
/// context marker would end the capture.
#[test]
fn a_capture_outlives_a_request_that_is_lent_a_block() {
    let mut w = Work::new(4, checked(DEVICE));
    w.empty_once_shared(0);
    let (a, b, captured) = (w.streams[0], w.streams[1], w.rig.stream());
    // Holes of 25 MiB, none of whose extents are wholly free, and the least that can be mapped.
    let blocks: Vec<u64> = (0..1600).map(|_| w.rig.malloc(480 * KIB, a)).collect();
    w.rig.malloc(MIB, b);
    let holes = blocks.iter().enumerate().filter(|(i, _)| i % 56 != 0);
    holes.for_each(|(_, &p)| w.rig.free(p, a));
    w.rig.sync();
    w.rig.pool.set_limit(w.rig.mapped()).unwrap();
    w.rig.host.begin_capture(captured).unwrap();
    w.rig.malloc(1000, captured);
    let lent = std::iter::from_fn(|| w.rig.pool.malloc(&request(20 * MIB, b)).ok()).take(20).count();
    assert_eq!(lent, 20);
    assert!(w.rig.pool.has_shared_heap());
    assert!(w.rig.host.end_capture(captured).unwrap());
}

/// At the limit, with one gap whose ends are parts of extents: it is lent as a whole, not cut up
/// for its whole extents.
#[test]
fn a_request_is_met_that_one_gap_holds() {
    let mut w = Work::new(4, checked(DEVICE));
    w.empty_once_shared(0);
    let (a, b) = (w.streams[0], w.streams[1]);
    let blocks: Vec<u64> = (0..100).map(|_| w.rig.malloc(MIB * 19 / 10, a)).collect();
    // So that there is a heap of its own.
    w.rig.malloc(MIB, b);
    blocks[11..78].iter().for_each(|&p| w.rig.free(p, a));
    w.rig.sync();
    w.rig.pool.set_limit(w.rig.mapped()).unwrap();
    let gap = w.rig.pool.stats().largest_free;
    assert!(gap >= 100 * MIB, "{}", w.rig.pool.dump());
    w.rig.malloc(gap, b);
    assert!(w.rig.pool.has_shared_heap());
    w.rig.pool.validate().unwrap();
}

/// What streams have paid for is given back by a trim, and with it the reason to share.
#[test]
fn a_trim_ends_sharing() {
    let mut w = Work::new(3, checked(DEVICE));
    w.until_shared();
    w.end();
    w.rig.sync();
    let shares = |w: &Work| w.rig.pool.dump().contains("the shared heap");
    w.play(60);
    assert!(shares(&w));
    w.end();
    w.rig.sync();
    w.rig.pool.trim(0).unwrap();
    w.play(60);
    assert!(!shares(&w), "{}", w.rig.pool.dump());
}
