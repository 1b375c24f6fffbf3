//! Stream order between two streams on a device that runs work late and checks every access: with a
//! true driver nothing is reported, and with a driver that breaks one rule of order the same
//! scenario is. The tests named `proof_…` show that the checks behind every other pool test can
//! fail. So does a hit that does not look which stream a handle is: with `still()` in
//! `src/pool/calls/resolve.rs` made to return `true`, the first test here finds races.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::pool_support;

use gpumem::base::size::{KIB, MIB};
use gpumem::base::Status;
use gpumem::driver::host::ReportKind;
use gpumem::driver::{Driver, Fault};
use gpumem::pool::PoolOptions;
use pool_support::{late, request, Rig, D};

const SEEDS: std::ops::Range<u64> = 1..13;
/// The pool's limit, bytes: less than the blocks of one stream and the free blocks of the other.
const LIMIT: u64 = 24 * MIB;

/// What one run showed.
#[derive(Debug, Default)]
struct Findings {
    /// Reports of two unordered operations on the same bytes.
    races: usize,
    /// Reports of contents that somebody else had overwritten.
    broken: usize,
    /// Reports of memory unmapped while work that uses it is pending.
    unmapped: usize,
    /// Any other report.
    other: usize,
    /// Blocks at addresses that the other stream had used before: without any the run shows
    /// nothing.
    passed_on: usize,
}

/// Two streams take turns with memory that suffices for one of them: each fills blocks, checks them
/// and frees them in its own order, and what the other stream then gets is what has just been
/// freed. Now and then a stream is destroyed with all its work pending, and the next one has its
/// handle. Every other run asks the driver which stream it is. `lie` is told to the driver first.
fn run(seed: u64, wait: bool, lie: fn(&Fault)) -> Findings {
    let options = PoolOptions { limit: LIMIT, wait, watch: seed.is_multiple_of(2), ..PoolOptions::default() };
    let rig = Rig::new(late(seed, 256 * MIB), options);
    lie(&rig.fault);
    let mut streams = [rig.stream(), rig.stream()];
    let mut f = Findings::default();
    let mut before: [Vec<(u64, u64)>; 2] = Default::default();
    for round in 0..24u64 {
        // A new stream comes right after the one whose handle it has.
        let turn = ((round - round / 5) % 2) as usize;
        let s = streams[turn];
        let mut blocks = Vec::new();
        for (i, size) in [40 * KIB, 3 * MIB, 300 * KIB, 5 * MIB, 2 * MIB, 6 * MIB].into_iter().enumerate() {
            let id = round << 8 | i as u64;
            match rig.pool.malloc(&request(size, s)) {
                Ok(p) => {
                    rig.fill(s, p, size, id);
                    blocks.push((p, size, id));
                }
                Err(e) => assert_eq!(e.status, Status::OutOfMemory, "{e}"),
            }
        }
        let overlaps = |p: u64, size: u64| before[1 - turn].iter().any(|&(q, n)| p < q + n && q < p + size);
        f.passed_on += blocks.iter().filter(|&&(p, size, _)| overlaps(p, size)).count();
        before[turn] = blocks.iter().map(|&(p, size, _)| (p, size)).collect();
        for (p, size, id) in blocks {
            rig.check(s, p, size, id);
            rig.free(p, s);
        }
        rig.pool.validate().unwrap();
        if round % 5 == 4 {
            rig.host.stream_destroy(D, s).unwrap();
            streams[turn] = rig.stream();
            assert_eq!(streams[turn], s, "the handle comes back");
        }
    }
    rig.sync();
    for r in rig.host.take_reports() {
        match r.kind {
            ReportKind::Race => f.races += 1,
            ReportKind::Check => f.broken += 1,
            ReportKind::UnmapInUse => f.unmapped += 1,
            _ => f.other += 1,
        }
    }
    f
}

/// All seeds, both ways of reuse. Returns the findings and how many of the runs found a race.
fn runs(lie: fn(&Fault)) -> (Vec<Findings>, usize) {
    let all: Vec<Findings> =
        SEEDS.flat_map(|seed| [false, true].map(|wait| (seed, wait))).map(|(s, w)| run(s, w, lie)).collect();
    let found = all.iter().filter(|f| f.races > 0).count();
    (all, found)
}

fn say(what: &str, all: &[Findings], found: usize) {
    let sum = |f: fn(&Findings) -> usize| all.iter().map(f).sum::<usize>();
    println!(
        "{what}: {found} of {} runs found races: {} races, {} broken patterns, {} unmapped in use, {} other; {} blocks \
         passed on",
        all.len(),
        sum(|f| f.races),
        sum(|f| f.broken),
        sum(|f| f.unmapped),
        sum(|f| f.other),
        sum(|f| f.passed_on),
    );
}

#[test]
fn blocks_go_round_between_streams_and_nothing_is_reported() {
    let (all, found) = runs(|_| {});
    say("a true driver", &all, found);
    for f in &all {
        assert_eq!((f.races, f.broken, f.unmapped, f.other), (0, 0, 0, 0), "{f:?}");
        assert!(f.passed_on > 0, "the streams never used each other's memory: {f:?}");
    }
}

/// `event_query` says "done" too early: memory goes to the other stream while the first still uses
/// it.
#[test]
fn proof_that_a_driver_that_calls_unfinished_work_done_is_found() {
    let (all, found) = runs(|fault| fault.pretend_done(true));
    say("event_query always true", &all, found);
    assert!(found > 0, "no run noticed that the order was broken: {all:#?}");
}

/// Markers are never recorded, so that waiting for them is waiting for nothing.
#[test]
fn proof_that_markers_that_are_never_recorded_are_found() {
    let (all, found) = runs(|fault| fault.drop_records(true));
    say("no marker recorded", &all, found);
    assert!(found > 0, "no run noticed that the order was broken: {all:#?}");
}
