//! Many threads allocate, resize and free in every way there is while all of it is counted:
//! whenever they stop, the space says exactly what lives.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use gpumem::arena::capture::CaptureOptions;
use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::{DeviceId, Status, StreamHandle};
use gpumem::context::{Config, Context, Request};
use gpumem::driver::host::{HostDriver, HostOptions};
use gpumem::driver::Driver;
use gpumem::pool::AllocFlags;
use gpumem::tier::{self, *};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex};

const D: DeviceId = DeviceId(0);
const GPU: SpaceId = SpaceId::new(Tier::Gpu, 0);
const PAGE: u64 = 2 * MIB;

/// What the programs draw.
struct Rng(fastrand::Rng);

impl Rng {
    fn new(seed: u64) -> Rng {
        Rng(fastrand::Rng::with_seed(seed))
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0.u64(0..n)
    }

    /// Mostly small.
    fn size(&mut self) -> u64 {
        match self.below(16) {
            0 => self.below(2 * MIB),
            1..=4 => self.below(200 * KIB),
            _ => self.below(5000),
        }
    }

    fn flags(&mut self) -> AllocFlags {
        match self.below(60) {
            0 => AllocFlags::SINGLE_HANDLE,
            1 => AllocFlags::GUARD,
            _ => AllocFlags::default(),
        }
    }

    fn take(&mut self, from: &mut Vec<u64>) -> Option<u64> {
        (!from.is_empty()).then(|| from.swap_remove(self.below(from.len() as u64) as usize))
    }
}

/// Work runs late. Its accesses are not checked: the streams here are not ordered among each other
/// as users would.
fn context(config: Config) -> (Arc<HostDriver>, Context) {
    let host = HostDriver::new(HostOptions { bytes_per_device: 16 * GIB, check: false, ..HostOptions::simulation(5) })
        .unwrap();
    (host.clone(), Context::new(host, config).unwrap())
}

/// What live allocations count as.
fn due(ctx: &Context, live: &[u64]) -> u64 {
    let one = |&p: &u64| {
        let i = ctx.info(p).unwrap();
        i.requested.max(1).next_multiple_of(if i.flags == AllocFlags::default() { 256 } else { PAGE })
    };
    live.iter().map(one).sum()
}

#[track_caller]
fn assert_uses(ctx: &Context, bytes: u64, when: &str) {
    ctx.validate().unwrap();
    let used = ctx.tiers().unwrap().manager().usage(GPU).unwrap().used;
    assert_eq!((used, ctx.pool(D).unwrap().counted().unwrap()), (bytes, bytes), "{when}");
}

#[track_caller]
fn assert_empty(ctx: &Context) {
    assert_uses(ctx, 0, "in the end");
    let u = ctx.tiers().unwrap().manager().usage(GPU).unwrap();
    assert_eq!((u.promised, u.unreserved, u.beyond, u.available), (0, 0, 0, u.limit), "{u:?}");
    assert_eq!(ctx.stats(D).unwrap().allocations, 0);
}

/// One thread of the model.
struct Player<'a> {
    ctx: &'a Context,
    rng: Rng,
    /// Of its own, and one that others use, too.
    streams: [StreamHandle; 2],
    /// Only for captures.
    captured: StreamHandle,
    reservation: &'a Reservation,
    mine: Vec<u64>,
    shared: &'a Mutex<Vec<u64>>,
}

impl Player<'_> {
    fn malloc(&mut self, stream: StreamHandle) -> Option<u64> {
        let (size, flags) = (self.rng.size(), self.rng.flags());
        let reservation = (self.rng.below(4) == 0).then_some(self.reservation);
        match self.ctx.malloc(&Request { size, stream, flags, reservation, ..Request::default() }) {
            Ok(p) => Some(p),
            // The reservation is small, and the others draw from it, too.
            Err(e) if e.status == Status::OutOfMemory && e.message.contains("reservation") => None,
            Err(e) => panic!("{e}"),
        }
    }

    fn free(&mut self, ptr: u64) {
        let stream = self.streams[self.rng.below(2) as usize];
        match self.rng.below(4) {
            0 => self.ctx.free(ptr).unwrap(),
            1 => assert!(self.ctx.free_id(ptr, self.ctx.info(ptr).unwrap().id, Some(stream)).unwrap()),
            2 => {
                self.ctx.record_stream(ptr, self.streams[1]).unwrap();
                self.ctx.free_async(ptr, stream).unwrap();
            }
            _ => self.ctx.free_async(ptr, stream).unwrap(),
        }
    }

    fn step(&mut self) {
        let stream = self.streams[self.rng.below(2) as usize];
        match self.rng.below(40) {
            0..=14 => {
                let made = self.malloc(stream);
                self.mine.extend(made);
            }
            15..=24 => {
                if let Some(p) = self.rng.take(&mut self.mine) {
                    self.free(p);
                }
            }
            25..=30 => {
                if let Some(p) = self.rng.take(&mut self.mine) {
                    let size = self.rng.size();
                    match self.ctx.realloc(p, size, stream) {
                        Ok(p) => self.mine.push(p),
                        // As above: what moves stays in its reservation, or where it is.
                        Err(e) if e.status == Status::OutOfMemory && e.message.contains("reservation") => {
                            self.mine.push(p);
                        }
                        Err(e) => panic!("{e}"),
                    }
                }
            }
            31..=34 => {
                if let Some(p) = self.rng.take(&mut self.mine) {
                    self.shared.lock().unwrap().push(p);
                }
            }
            35..=37 => {
                let theirs = self.rng.take(&mut self.shared.lock().unwrap());
                if let Some(p) = theirs {
                    self.free(p);
                }
            }
            38 => self.arena(stream),
            _ => self.capture(),
        }
    }

    fn arena(&mut self, stream: StreamHandle) {
        let arena = self.ctx.arena_enter("model").unwrap();
        let inside: Vec<u64> = (0..self.rng.below(60)).filter_map(|_| self.malloc(stream)).collect();
        let (mut kept, mut freed) = (Vec::new(), Vec::new());
        for p in inside {
            match self.rng.below(8) {
                0 => kept.push(p),
                1 => freed.push(p),
                2 => {
                    self.ctx.arena_escape(p).unwrap();
                    self.mine.push(p);
                }
                _ => {}
            }
        }
        freed.into_iter().for_each(|p| self.free(p));
        if self.rng.below(4) == 0 {
            self.ctx.arena_abort(&arena).unwrap();
        } else {
            self.ctx.arena_exit(&arena, &kept).unwrap();
            self.mine.append(&mut kept);
        }
    }

    fn capture(&mut self) {
        let stream = self.captured;
        let capture = self.ctx.capture_begin(stream, CaptureOptions::default()).unwrap();
        let made: Vec<u64> = (0..6).filter_map(|_| self.malloc(stream)).collect();
        let (now, later) = made.split_at(made.len() / 2);
        now.iter().for_each(|&p| self.ctx.free_async(p, stream).unwrap());
        if self.rng.below(3) == 0 {
            // What has memory of its own is none of the capture's.
            let own = |p: &u64| self.ctx.info(*p).unwrap().flags != AllocFlags::default();
            self.mine.extend(later.iter().copied().filter(own));
            self.ctx.capture_abort(&capture).unwrap();
            return;
        }
        self.ctx.capture_end(&capture).unwrap();
        self.mine.extend(later);
        self.ctx.capture_release(&capture).unwrap();
    }
}

#[test]
fn whatever_eight_threads_do_what_lives_is_what_is_counted() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 6;
    const STEPS: u64 = 1500;
    let (host, ctx) = context(Config { tiers: true, ..Config::default() });
    let common = host.stream_create(D).unwrap();
    let shared = Mutex::new(Vec::new());
    let [fails, grows] =
        [LimitPolicy::Fail, LimitPolicy::Increase { factor: Factor::default(), cap: None, beyond_limit: false }]
            .map(|p| ctx.tiers().unwrap().manager().reserve(tier::Request::exact(GPU, 4 * MIB).policy(p)).unwrap());
    let stream = || host.stream_create(D).unwrap();
    let player = |i| Player {
        ctx: &ctx,
        rng: Rng::new(i),
        streams: [stream(), common],
        captured: stream(),
        reservation: if i % 2 == 0 { &fails } else { &grows },
        mine: Vec::new(),
        shared: &shared,
    };
    let mut players: Vec<Player> = (0..THREADS).map(player).collect();
    for round in 0..ROUNDS {
        std::thread::scope(|scope| {
            for player in &mut players {
                scope.spawn(|| {
                    // Some of the time what names none draws from the thread's; only from one that
                    // grows, as what is drawn from the other may fail.
                    if round >= ROUNDS / 2 && player.reservation.id() == grows.id() {
                        player.reservation.attach_thread().unwrap();
                    }
                    (0..STEPS).for_each(|_| player.step());
                });
            }
        });
        let mut all = shared.lock().unwrap().clone();
        players.iter().for_each(|p| all.extend(&p.mine));
        assert_uses(&ctx, due(&ctx, &all), &format!("round {round}, {} live", all.len()));
    }
    players.into_iter().flat_map(|p| p.mine).for_each(|p| ctx.free_async(p, common).unwrap());
    shared.into_inner().unwrap().into_iter().for_each(|p| ctx.free(p).unwrap());
    assert_eq!((fails.drawn(), grows.drawn()), (0, 0));
    assert_eq!(fails.size(), 4 * MIB);
    assert!(grows.size() > 4 * MIB, "it was never too small");
    drop((fails, grows));
    host.device_sync(D).unwrap();
    assert_empty(&ctx);
}

/// The tiers are started while four threads allocate and free. What lives then is counted, and
/// nothing slips by that was on its way.
#[test]
fn the_tiers_start_while_threads_allocate() {
    const THREADS: usize = 4;
    const TIMES: u64 = 40;
    let mut uncounted = 0;
    for time in 0..TIMES {
        let (host, ctx) = context(Config::default());
        let common = host.stream_create(D).unwrap();
        let (stop, steps) = (AtomicBool::new(false), [(); THREADS].map(|()| AtomicU64::new(0)));
        let mut all = Vec::new();
        std::thread::scope(|scope| {
            let threads: Vec<_> = steps
                .iter()
                .enumerate()
                .map(|(i, steps)| {
                    let own = host.stream_create(D).unwrap();
                    let (ctx, stop) = (&ctx, &stop);
                    scope.spawn(move || {
                        let mut rng = Rng::new(time << 8 | i as u64);
                        let mut mine = Vec::new();
                        while !stop.load(Acquire) {
                            let stream = if rng.below(2) == 0 { own } else { common };
                            match rng.below(if mine.len() < 200 { 3 } else { 5 }) {
                                0 | 1 => {
                                    let (size, flags) = (rng.size(), rng.flags());
                                    mine.push(
                                        ctx.malloc(&Request { size, stream, flags, ..Request::default() }).unwrap(),
                                    );
                                }
                                2 if rng.below(8) == 0 => {
                                    if let Some(p) = rng.take(&mut mine) {
                                        mine.push(ctx.realloc(p, rng.size(), stream).unwrap());
                                    }
                                }
                                _ => {
                                    if let Some(p) = rng.take(&mut mine) {
                                        ctx.free_async(p, stream).unwrap();
                                    }
                                }
                            }
                            steps.fetch_add(1, Release);
                        }
                        mine
                    })
                })
                .collect();
            let wait_for = |more: u64| {
                let from = steps.each_ref().map(|s| s.load(Acquire));
                while steps.iter().zip(from).any(|(s, from)| s.load(Acquire) < from + more) {
                    std::thread::yield_now();
                }
            };
            wait_for(300 + time * 7);
            uncounted += ctx.stats(D).unwrap().allocations;
            ctx.tiers().unwrap();
            wait_for(200);
            stop.store(true, Release);
            threads.into_iter().for_each(|t| all.extend(t.join().unwrap()));
        });
        assert_uses(&ctx, due(&ctx, &all), &format!("time {time}, {} live", all.len()));
        all.into_iter().for_each(|p| ctx.free(p).unwrap());
        host.device_sync(D).unwrap();
        assert_empty(&ctx);
    }
    assert!(uncounted > 0, "the tiers started before there was anything to count");
}
