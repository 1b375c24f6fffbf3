//! Reservations against a model: eight threads do whatever they like with the same reservations and
//! allocations.
//!
//! - At every moment a count of its own, which never says more than what is really taken, must stay
//!   within the limit of each space, and another within the size of each reservation.
//! - Ten times everybody stops, and every counter must be what the model says.
//! - Nobody is overtaken, every wait ends, and in the end all counters are exactly 0.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use gpumem::base::Status;
use gpumem::tier::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use test_support::Rng;

const THREADS: u64 = 8;
const ROUNDS: u64 = 10;
const STEPS: u64 = 1_300;
const IDS: [SpaceId; 4] =
    [SpaceId::new(Tier::Gpu, 0), SpaceId::new(Tier::Gpu, 1), SpaceId::new(Tier::Host, 0), SpaceId::new(Tier::Disk, 0)];
const LIMIT: u64 = 10_000;
const STREAMS: u64 = 6;

/// Mostly small, sometimes nearly everything.
fn any_bytes(rng: &mut Rng) -> u64 {
    match rng.below(20) {
        0 => 1 + rng.below(LIMIT + 100),
        1..=5 => 1 + rng.below(2_000),
        _ => 1 + rng.below(300),
    }
}

fn pick<T: Clone>(rng: &mut Rng, from: &Mutex<Vec<T>>) -> Option<T> {
    rng.pick(&from.lock().unwrap())
}

/// A reservation and what the model knows of it.
struct Held {
    r: Reservation,
    space: usize,
    /// No policy changes its size.
    fixed: bool,
    /// Its size when nobody is changing it.
    size: AtomicI64,
    /// Never less than what is not drawn of it.
    room: AtomicI64,
    /// What is drawn of it when nobody is drawing.
    drawn: AtomicI64,
    /// `None` once it may be released.
    counted: Mutex<Option<Counted>>,
    released: AtomicU64,
}

/// A reservation's part in `Model::taken`.
struct Counted {
    /// Its size but for what it grew by a moment ago: may be below 0 where it has shrunk by that
    /// already.
    size: i64,
    /// What of it is in `Model::taken`.
    shown: i64,
}

/// An allocation and what the model knows of it.
struct Live {
    drawn: Drawn,
    space: usize,
    /// Its reservation, while that was live, else none.
    of: Option<Arc<Held>>,
    inside: i64,
    /// Counted in `Model::taken`: bytes outside of any reservation.
    outside: i64,
}

struct Model {
    m: Manager,
    spaces: Vec<Arc<Space>>,
    /// For each space, never more than is promised or used outside.
    taken: [AtomicI64; 4],
    held: Mutex<Vec<Arc<Held>>>,
    live: Mutex<Vec<Live>>,
    tokens: Mutex<Vec<Cancel>>,
    /// Arrival and grant, the space it became, and those that would have done.
    turns: Mutex<Vec<(Turn, usize, Vec<usize>)>>,
    done: Mutex<BTreeMap<&'static str, u64>>,
}

impl Model {
    fn new() -> Model {
        let m = Manager::new();
        let options = SpaceOptions { limit: Some(LIMIT), ..SpaceOptions::new(LIMIT + LIMIT / 10) };
        let spaces = IDS.iter().map(|id| m.add_space(*id, &options).unwrap()).collect();
        Model {
            m,
            spaces,
            taken: Default::default(),
            held: Mutex::default(),
            live: Mutex::default(),
            tokens: Mutex::default(),
            turns: Mutex::default(),
            done: Mutex::default(),
        }
    }

    fn count(&self, what: &'static str) {
        *self.done.lock().unwrap().entry(what).or_default() += 1;
    }

    /// After taking.
    fn take(&self, space: usize, bytes: i64) {
        let now = self.taken[space].fetch_add(bytes, SeqCst) + bytes;
        assert!(now <= LIMIT as i64, "{now} bytes of {} are taken, {LIMIT} may be", IDS[space]);
    }

    /// Before giving back.
    fn give(&self, space: usize, bytes: i64) {
        self.taken[space].fetch_sub(bytes, SeqCst);
    }

    /// Counts `bytes` of a reservation: more after they have been promised, fewer before they go
    /// back.
    fn show(&self, space: usize, counted: &mut Counted, bytes: i64) {
        let more = bytes.max(0) - counted.shown;
        counted.shown += more;
        match more > 0 {
            true => self.take(space, more),
            false => self.give(space, -more),
        }
    }

    fn wait(&self, rng: &mut Rng) -> Wait {
        match rng.below(3) {
            0 => Wait::For(Duration::from_micros(rng.below(1_500))),
            _ => Wait::No,
        }
    }

    fn reserve(&self, rng: &mut Rng) {
        let all: Vec<usize> = (0..IDS.len()).collect();
        let at = rng.below(4) as usize;
        let (strategy, candidates) = match rng.below(5) {
            0 => (Strategy::Tier(Tier::Gpu), vec![0, 1]),
            1 => (Strategy::Tiers(vec![Tier::Gpu, Tier::Host, Tier::Disk]), all),
            2 => (Strategy::DowngradeFrom { from: IDS[1], to: None }, vec![2, 3]),
            _ => (Strategy::Space(IDS[at]), vec![at]),
        };
        let (a, b) = (any_bytes(rng), any_bytes(rng));
        let amount = match rng.below(3) {
            0 => Amount::UpTo { least: a.min(b), most: a.max(b) },
            _ => Amount::Exact(a),
        };
        let (policy, fixed) = match rng.below(4) {
            0 => (LimitPolicy::Ignore, true),
            1 => {
                (LimitPolicy::Increase { factor: Factor::default(), cap: Some(LIMIT / 2), beyond_limit: false }, false)
            }
            _ => (LimitPolicy::Fail, true),
        };
        let mut request = Request::new(strategy, amount).wait(self.wait(rng)).policy(policy);
        if rng.below(10) == 0 {
            let token = self.m.cancel_token();
            self.tokens.lock().unwrap().push(token.clone());
            // Others trigger it at their next step, long before the time is over.
            request = request.wait(Wait::For(Duration::from_secs(2))).cancel(&token);
        }
        match self.m.reserve(request) {
            Ok(r) => {
                let size = r.size();
                let (least, most) = match amount {
                    Amount::Exact(n) => (n, n),
                    Amount::UpTo { least, most } => (least, most),
                };
                let space = IDS.iter().position(|id| *id == r.space()).unwrap();
                assert!((least..=most).contains(&size) && candidates.contains(&space));
                self.take(space, size as i64);
                if r.turn().granted > r.turn().arrived + 1 {
                    self.count("waited for a reservation");
                }
                self.turns.lock().unwrap().push((r.turn(), space, candidates));
                let size = size as i64;
                self.held.lock().unwrap().push(Arc::new(Held {
                    r,
                    space,
                    fixed,
                    size: size.into(),
                    room: size.into(),
                    drawn: 0.into(),
                    counted: Mutex::new(Some(Counted { size, shown: size })),
                    released: 0.into(),
                }));
                self.count("reserved");
            }
            Err(e) => {
                let status = match e.status {
                    Status::TimedOut => "timed out",
                    Status::Cancelled => "cancelled",
                    Status::OutOfMemory => "had no room",
                    _ => panic!("{e}"),
                };
                self.count(status);
            }
        }
    }

    fn grow(&self, rng: &mut Rng) {
        let Some(held) = pick(rng, &self.held) else { return };
        let more = any_bytes(rng) as i64;
        held.room.fetch_add(more, SeqCst);
        match held.r.grow(more as u64, self.wait(rng), None) {
            Ok(()) => {
                held.size.fetch_add(more, SeqCst);
                if let Some(counted) = &mut *held.counted.lock().unwrap() {
                    counted.size += more;
                    let size = counted.size;
                    self.show(held.space, counted, size);
                }
                self.count("grew");
            }
            Err(_) => {
                held.room.fetch_sub(more, SeqCst);
            }
        }
    }

    fn shrink(&self, rng: &mut Rng) {
        let Some(held) = pick(rng, &self.held) else { return };
        let less = (rng.below(2) == 0).then(|| any_bytes(rng) as i64);
        // While this is held nobody else shrinks it; drawing, growing and releasing go on.
        let mut counted = held.counted.lock().unwrap();
        if let Some(c) = &mut *counted {
            let least = less.map_or(0, |less| c.size - less);
            self.show(held.space, c, least);
        }
        let shrunk = match less {
            None => held.r.shrink_to_fit().map_or(0, |n| n as i64),
            Some(less) => held.r.shrink(less as u64).map_or(0, |()| less),
        };
        held.size.fetch_sub(shrunk, SeqCst);
        held.room.fetch_sub(shrunk, SeqCst);
        if let Some(c) = &mut *counted {
            c.size -= shrunk;
            let size = c.size;
            self.show(held.space, c, size);
        }
        (shrunk > 0).then(|| self.count("shrank"));
    }

    fn release(&self, rng: &mut Rng) {
        let Some(held) = pick(rng, &self.held) else { return };
        if let Some(counted) = held.counted.lock().unwrap().take() {
            self.give(held.space, counted.shown);
        }
        // Others may try the same: one succeeds.
        match held.r.release() {
            Ok(_) => assert_eq!(held.released.fetch_add(1, SeqCst), 0, "released twice"),
            Err(e) => assert_eq!(e.status, Status::Invalid),
        }
        self.held.lock().unwrap().retain(|h| !Arc::ptr_eq(h, &held));
        self.count("released");
    }

    fn draw(&self, rng: &mut Rng) {
        let (bytes, stream) = (rng.below(400), rng.below(STREAMS));
        let held = pick(rng, &self.held).filter(|_| rng.below(3) > 0);
        let space = held.as_ref().map_or(rng.below(4) as usize, |h| h.space);
        let size = held.as_ref().map_or(u64::MAX, |h| h.r.size());
        let drawn = match &held {
            Some(held) => held.r.draw(bytes, stream),
            None if rng.below(2) == 0 => self.m.draw(&self.spaces[space], DrawFrom::Outside, bytes, stream),
            None => self.m.draw(&self.spaces[space], None, bytes, stream),
        };
        let Ok(drawn) = drawn else { return self.count("drew nothing") };
        assert_eq!(drawn.bytes(), bytes);
        let of = drawn.reservation().and_then(|id| match held {
            Some(held) => Some(held),
            None => self.held.lock().unwrap().iter().find(|h| h.r.id() == id && h.space == space).cloned(),
        });
        let inside = drawn.inside() as i64;
        let outside = bytes as i64 - inside;
        self.take(space, outside);
        if let Some(held) = &of {
            held.drawn.fetch_add(inside, SeqCst);
            let room = held.room.fetch_sub(inside, SeqCst) - inside;
            assert!(!held.fixed || room >= 0, "{inside} bytes drawn and {room} left of {:?}", held.r);
            if outside > 0 {
                self.count("drew beyond");
            }
            if !held.fixed && held.r.size() > size {
                self.count("grew by its policy");
            }
        }
        self.live.lock().unwrap().push(Live { drawn, space, of, inside, outside });
        self.count("drew");
    }

    /// Ends an allocation that any thread made, or a part of it.
    fn free(&self, rng: &mut Rng) {
        let taken = {
            let mut live = self.live.lock().unwrap();
            let at = (!live.is_empty()).then(|| rng.below(live.len() as u64) as usize);
            at.map(|at| live.swap_remove(at))
        };
        let Some(mut live) = taken else { return };
        let bytes = live.drawn.bytes() as i64;
        let part = if rng.below(4) == 0 { rng.below(bytes as u64 + 1) as i64 } else { bytes };
        let (out, inn) = (part.min(live.outside), part - part.min(live.outside));
        self.give(live.space, out);
        if let Some(held) = &live.of {
            held.drawn.fetch_sub(inn, SeqCst);
            held.room.fetch_add(inn, SeqCst);
        }
        if part == bytes {
            drop(live);
            return self.count("freed");
        }
        live.drawn.shrink(part as u64);
        (live.outside, live.inside) = (live.outside - out, live.inside - inn);
        assert_eq!(live.drawn.inside() as i64, live.inside);
        self.live.lock().unwrap().push(live);
        self.count("freed a part");
    }

    fn step(&self, rng: &mut Rng) {
        match rng.below(100) {
            0..=14 => self.reserve(rng),
            15..=44 => self.draw(rng),
            45..=71 => self.free(rng),
            72..=77 => self.grow(rng),
            78..=83 => self.shrink(rng),
            84..=94 => self.release(rng),
            95..=96 => {
                let attached = pick(rng, &self.held).is_some_and(|h| h.r.attach_stream(rng.below(STREAMS)).is_ok());
                attached.then(|| self.count("attached"));
            }
            97 => drop(self.m.detach_stream(&self.spaces[rng.below(4) as usize], rng.below(STREAMS))),
            _ => {}
        }
        let token = self.tokens.lock().unwrap().pop();
        if let Some(token) = token {
            token.cancel();
        }
    }

    /// While everybody stands still.
    fn check(&self) {
        self.m.validate().unwrap();
        assert_eq!(self.m.waiters(), 0);
        let (held, live) = (self.held.lock().unwrap(), self.live.lock().unwrap());
        for (space, id) in IDS.iter().enumerate() {
            let here = || held.iter().filter(|h| h.space == space);
            let u = self.m.usage(*id).unwrap();
            assert_eq!(u.promised, here().map(|h| h.r.size()).sum::<u64>());
            assert_eq!(u.reservations, here().count() as u64);
            let used = live.iter().filter(|l| l.space == space).map(|l| l.drawn.bytes()).sum::<u64>();
            assert_eq!((u.used, u.beyond), (used, 0), "{u:?}");
            let mut drawn = 0;
            for h in here() {
                let mine = |l: &&Live| l.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, h));
                let inside = live.iter().filter(mine).map(|l| l.inside as u64).sum::<u64>();
                assert_eq!((h.r.drawn(), h.drawn.load(SeqCst)), (inside, inside as i64));
                assert!(!h.fixed || h.size.load(SeqCst) == h.r.size() as i64, "{:?} is {}", h.size, h.r.size());
                drawn += inside;
            }
            assert_eq!(u.unreserved, used - drawn);
        }
    }

    /// Nobody who wanted a space was served after another who came later and took from it.
    fn assert_in_turn(&self) {
        let mut turns = self.turns.lock().unwrap();
        turns.sort_by_key(|t| t.0.arrived);
        for (space, id) in IDS.iter().enumerate() {
            let mut earliest = u64::MAX;
            for (turn, from, candidates) in turns.iter().rev() {
                let wanted = candidates.contains(&space);
                assert!(!wanted || turn.granted < earliest, "{turn:?} was overtaken in {id}");
                if *from == space {
                    earliest = earliest.min(turn.granted);
                }
            }
        }
    }
}

/// Where threads meet; all of them fail when one does.
#[derive(Default)]
struct Meeting {
    here: AtomicU64,
    failed: AtomicBool,
}

impl Meeting {
    /// Waits until everybody is here for the `n`th time, ending other threads' waits meanwhile.
    fn meet(&self, n: u64, model: &Model) {
        self.here.fetch_add(1, SeqCst);
        while self.here.load(SeqCst) < n * THREADS {
            assert!(!self.failed.load(SeqCst), "another thread failed");
            let token = model.tokens.lock().unwrap().pop();
            token.inspect(Cancel::cancel);
            thread::yield_now();
        }
    }
}

struct Watch<'a>(&'a Meeting);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.failed.store(true, SeqCst);
        }
    }
}

fn run(seed: u64) {
    let model = Model::new();
    let meeting = Meeting::default();
    thread::scope(|s| {
        for t in 0..THREADS {
            let (model, meeting) = (&model, &meeting);
            s.spawn(move || {
                let _watch = Watch(meeting);
                let mut rng = Rng::new(seed * 1_000 + t);
                for round in 1..=ROUNDS {
                    (0..STEPS).for_each(|_| model.step(&mut rng));
                    meeting.meet(2 * round - 1, model);
                    if t == 0 {
                        model.check();
                    }
                    meeting.meet(2 * round, model);
                }
            });
        }
    });
    model.assert_in_turn();
    model.held.lock().unwrap().clear();
    model.live.lock().unwrap().clear();
    model.m.validate().unwrap();
    for (space, id) in IDS.iter().enumerate() {
        let u = model.m.usage(*id).unwrap();
        let counts = [u.promised, u.unreserved, u.used, u.beyond, u.reservations, u.waiters];
        assert_eq!((counts, u.available), ([0; 6], LIMIT), "{id}");
        assert!(u.peak > 0 && u.peak <= LIMIT);
        for stream in 0..STREAMS {
            let usage = model.m.stream_usage(&model.spaces[space], stream).unwrap().unwrap();
            assert_eq!(usage.now(), 0, "stream {stream} of {id}");
        }
    }
    let done = model.done.lock().unwrap();
    println!("seed {seed}: {done:?}");
    let all = ["waited for a reservation", "timed out", "cancelled", "had no room", "grew", "shrank", "drew beyond"];
    for what in all.into_iter().chain(["grew by its policy", "freed a part", "attached"]) {
        assert!(done.get(what).is_some_and(|n| *n > 50), "{what}: {done:?}");
    }
}

/// 104,000 steps each.
#[test]
fn eight_threads_keep_every_counter_exact() {
    (1..=4).for_each(run);
}
