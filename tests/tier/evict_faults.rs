//! Failures while data is moved: the bytes stay whole in one tier, every counter stays exact, and
//! what failed works when it is tried again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::disk_support;
use crate::evict_support;

use disk_support::{without_waiting, Small};
use evict_support::{Options, Rig, D, PAGE};
use gpumem::base::size::MIB;
use gpumem::base::{DeviceId, Error, Result, Status, StreamHandle};
use gpumem::context::What;
use gpumem::driver::disk::{Disk, DiskCall, DiskRule, Effect, FaultDisk, OsDisk};
use gpumem::driver::host::{HostDriver, HostOptions, Kernel};
use gpumem::driver::{Call, Driver, FaultRule};
use gpumem::pool::{AllocFlags, AllocRequest, Pool, PoolOptions};
use gpumem::tier::disk::StoreOptions;
use gpumem::tier::evict::{Evictor, Goal, MoverOptions, Parts, To};
use gpumem::tier::host::{HostNode, HostOptions as Held, HostTier};
use gpumem::tier::Disks;
use gpumem::tier::{Manager, OutOfMemoryPolicy, Shortage, SpaceId, SpaceOptions, Thresholds, Tier};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use tempfile::TempDir;
use test_support::stride;

const DISK: Goal = Goal::Away(To::Tier(Tier::Disk));

/// Added by [`Parted::other_disk`].
const OTHER_DISK: Goal = Goal::Away(To::Space(SpaceId::new(Tier::Disk, 1)));

/// One step; it either does all it says, or nothing but an error.
type Step = Box<dyn Fn(&Rig, &[u64], StreamHandle) -> Result<()>>;

fn steps() -> Vec<(&'static str, Step)> {
    fn shift(what: impl Fn(&[u64]) -> What + 'static, goal: Goal) -> Step {
        Box::new(move |rig, all, s| rig.ctx.shift(what(all), goal, Some(s), None).map(drop))
    }
    fn hold(i: usize) -> Step {
        Box::new(move |rig, all, _| rig.ctx.hold(all[i]))
    }
    fn unhold(i: usize) -> Step {
        Box::new(move |rig, all, s| rig.ctx.unhold(all[i], s))
    }
    vec![
        ("evict the tag", shift(|_| What::Tag(1), Goal::Lower)),
        ("hold one", hold(0)),
        ("unhold it", unhold(0)),
        ("restore the tag", shift(|_| What::Tag(1), Goal::Device)),
        ("evict one to a file", shift(|all| What::One(all[1]), DISK)),
        ("evict another", shift(|all| What::One(all[2]), Goal::Lower)),
        ("move that on to a file", shift(|all| What::One(all[2]), DISK)),
        ("bring that to the host", shift(|all| What::One(all[2]), Goal::Nearer(To::Tier(Tier::Host)))),
        ("restore all", shift(|_| What::Tag(1), Goal::Device)),
    ]
}

/// Every driver call of a scenario fails once, and one in three from there on.
#[test]
fn every_driver_call_may_fail() {
    let sizes = [3 * PAGE, 1000, PAGE + 1];
    let mut after = 0;
    for lasting in [false, true] {
        let mut calls = u64::MAX;
        // Calls that do not fail alone here fail with those that follow.
        after = u64::from(lasting);
        while after < calls {
            let rig = Rig::new(Options { disk: true, ..Options::default() });
            let s = rig.stream();
            let all: Vec<u64> = sizes.iter().map(|&n| rig.malloc(n, 1, s)).collect();
            for (i, &p) in all.iter().enumerate() {
                rig.fill(s, p, sizes[i], i as u64);
            }
            rig.host.device_sync(D).unwrap();
            let rule = FaultRule::nth(after);
            rig.fault.set_rule(Some(if lasting { rule.lasting() } else { rule }));
            rig.fault.start_recording();
            for (name, step) in steps() {
                let before = rig.fault.fired();
                if let Err(e) = step(&rig, &all, s) {
                    assert!(rig.fault.fired() > before, "{name}: {e}");
                    assert_ne!(e.status, Status::Internal, "{name}: {e}");
                    rig.fault.set_rule(None);
                    rig.books();
                    for (i, &p) in all.iter().enumerate() {
                        let at = rig.ctx.location(p).unwrap();
                        assert!(at.space.is_some(), "{name}: {i} is nowhere");
                    }
                    step(&rig, &all, s).unwrap_or_else(|e| panic!("{name}, again: {e}"));
                }
                rig.books();
            }
            if calls == u64::MAX {
                calls = rig.fault.stop_recording().len() as u64;
            }
            rig.fault.set_rule(None);
            for (i, &p) in all.iter().enumerate() {
                rig.check(s, p, sizes[i], i as u64);
                rig.ctx.free_async(p, s).unwrap();
            }
            rig.close();
            after += stride(if lasting { 4 } else { 2 }) as u64;
        }
    }
    assert!(after > 50, "{after} calls");
}

/// An evictor over parts that can be made to fail.
struct Parted {
    host: Arc<HostDriver>,
    disk: Arc<FaultDisk>,
    dir: TempDir,
    pools: Arc<[OnceLock<Pool>]>,
    tier: Arc<HostTier>,
    disks: Arc<Disks>,
    manager: Arc<Manager>,
    evictor: Evictor,
}

impl Parted {
    fn new(held: u64) -> Parted {
        Parted::over(held, |_| Arc::new(OsDisk::default()))
    }

    /// Over what `disk` makes for its directory.
    fn over(held: u64, disk: impl FnOnce(&Path) -> Arc<dyn Disk>) -> Parted {
        let host = HostDriver::new(HostOptions { bytes_per_device: 64 * PAGE, ..HostOptions::default() }).unwrap();
        let manager = Arc::new(Manager::new());
        let gpu = manager.add_space(SpaceId::new(Tier::Gpu, 0), &SpaceOptions::new(64 * PAGE)).unwrap();
        let nodes = vec![HostNode { id: 0, capacity: held, limit: held }];
        let options = Held { block_bytes: MIB, blocks: 4, chunks: 1, nodes, ..Held::default() };
        let tier = Arc::new(HostTier::new(host.clone(), manager.clone(), &options).unwrap());
        let dir = TempDir::new().unwrap();
        let disk = Arc::new(FaultDisk::new(disk(dir.path())));
        let disks = Disks::new_on(disk.clone(), manager.clone(), StoreOptions::default(), Thresholds::default());
        disks.add_mount(dir.path(), Some(64 * PAGE)).unwrap();
        disks.mount(0).unwrap().store().unwrap();
        let disks = Arc::new(disks);
        let pools: Arc<[OnceLock<Pool>]> = Arc::new([OnceLock::new()]);
        let _ = pools[0].set(Pool::new(host.clone(), DeviceId(0), PoolOptions::default()).unwrap());
        let parts = Parts {
            driver: host.clone(),
            manager: manager.clone(),
            pools: pools.clone(),
            gpu: vec![gpu],
            host: tier.clone(),
            disks: disks.clone(),
            spare: Box::new(|| false),
            unasked: Box::new(|_| {}),
        };
        let evictor = Evictor::new(parts, MoverOptions { enabled: false, warn: false });
        Parted { host, disk, dir, pools, tier, disks, manager, evictor }
    }

    fn pool(&self) -> &Pool {
        self.pools[0].get().unwrap()
    }

    fn malloc(&self, size: u64) -> u64 {
        let req = AllocRequest { size, flags: AllocFlags::EVICTABLE, ..AllocRequest::default() };
        let p = self.evictor.malloc(self.pool(), &req, None).unwrap();
        self.host.launch(D, StreamHandle::LEGACY, Kernel::write_pattern("fill", p..p + size, p, 4096)).unwrap();
        p
    }

    fn check(&self, p: u64, size: u64) {
        self.host.launch(D, StreamHandle::LEGACY, Kernel::check_pattern("check", p..p + size, p, 4096)).unwrap();
        self.host.device_sync(D).unwrap();
        assert!(self.host.reports().is_empty(), "{:#?}", self.host.reports());
    }

    fn shift(&self, p: u64, goal: Goal) -> Result<()> {
        self.evictor.shift(p, &goal, None, None).map(drop)
    }

    fn at(&self, p: u64) -> Tier {
        self.evictor.location(p).unwrap().space.unwrap().tier
    }

    fn books(&self) {
        self.pool().validate().unwrap();
        self.manager.validate().unwrap();
        self.evictor.validate().unwrap();
        self.tier.validate().unwrap();
        self.disks.mount(0).unwrap().store().unwrap().validate().unwrap();
    }

    /// What every test ends with: all of it freed, nothing used anywhere.
    fn close(&self, all: &[u64]) {
        for &p in all {
            self.pool().free(p, None).unwrap();
        }
        self.books();
        for space in self.manager.spaces() {
            assert_eq!(self.manager.usage(space.id()).unwrap().used, 0, "{}", space.id());
        }
    }

    /// Adds one more mount, whose store has made its own tries of what the file system can do.
    fn other_disk(&self) -> TempDir {
        let dir = TempDir::new().unwrap();
        let id = self.disks.add_mount(dir.path(), Some(64 * PAGE)).unwrap();
        self.disks.mount(id).unwrap().store().unwrap();
        dir
    }

    /// The files of slots.
    fn files(&self) -> Vec<std::path::PathBuf> {
        let dir = self.disks.mount(0).unwrap().store().unwrap().dir();
        let all = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
        all.filter(|p| p.extension().is_some_and(|e| e == "slot")).collect()
    }
}

/// A write that the disk refuses, first or in the middle, leaves the bytes where they were.
#[test]
fn a_disk_that_fails_leaves_the_bytes_where_they_were() {
    let size = 3 * PAGE + 17;
    for (call, errno, status) in [
        (DiskCall::Allocate, libc::ENOSPC, Status::OutOfMemory),
        (DiskCall::Write, libc::ENOSPC, Status::OutOfMemory),
        (DiskCall::Write, libc::EIO, Status::Io),
        (DiskCall::Rename, libc::EIO, Status::Io),
        (DiskCall::CreateDirect, libc::EACCES, Status::Io),
    ] {
        for after in [0, 2] {
            let rig = Parted::new(64 * MIB);
            let p = rig.malloc(size);
            for from in [Tier::Gpu, Tier::Host] {
                if from == Tier::Host {
                    rig.shift(p, Goal::Lower).unwrap();
                }
                let rule = |call| DiskRule { call: Some(call), after, effect: Effect::Errno(errno), lasting: true };
                // Where files cannot be direct they are made otherwise.
                let also = if call == DiskCall::CreateDirect { DiskCall::Create } else { call };
                rig.disk.set(&[rule(call), rule(also)]);
                match rig.shift(p, DISK) {
                    Err(e) => {
                        assert_eq!(e.status, status, "{call:?}: {e}");
                        assert_eq!(rig.at(p), from, "{call:?}");
                        assert!(rig.files().is_empty());
                    }
                    Ok(()) => assert!(after > 0 && call != DiskCall::Write, "{call:?} {after}"),
                }
                rig.disk.set(&[]);
                rig.books();
                rig.shift(p, Goal::Device).unwrap();
                rig.check(p, size);
            }
            rig.close(&[p]);
        }
    }
}

/// A file that cannot be removed just now is counted for as long as it is there, and goes when room
/// for another is asked for.
#[test]
fn a_file_that_could_not_be_removed_is_removed_later() {
    let rig = Parted::new(64 * MIB);
    let used = || rig.manager.usage(SpaceId::new(Tier::Disk, 0)).unwrap().used;
    let all = [(); 2].map(|()| rig.malloc(20 * PAGE));
    all.iter().for_each(|&p| rig.shift(p, DISK).unwrap());
    let both = used();
    rig.disk.fail(DiskCall::Remove, libc::EIO);
    for p in all {
        rig.pool().free(p, None).unwrap();
    }
    assert_eq!((rig.files().len(), used()), (2, both));
    let p = rig.malloc(40 * PAGE);
    assert_eq!(rig.shift(p, DISK).unwrap_err().status, Status::OutOfMemory, "the files cannot be removed yet");
    rig.disk.set(&[]);
    rig.shift(p, DISK).unwrap();
    assert_eq!(rig.files().len(), 1);
    rig.books();
    rig.close(&[p]);
}

/// Reading fails: the file stays, and its bytes with it.
#[test]
fn a_read_that_fails_can_be_tried_again() {
    let size = 3 * PAGE + 17;
    for goal in [Goal::Device, Goal::Nearer(To::Tier(Tier::Host)), OTHER_DISK] {
        for after in [0, 1, 5] {
            let rig = Parted::new(64 * MIB);
            let p = rig.malloc(size);
            rig.shift(p, DISK).unwrap();
            let _other = rig.other_disk();
            rig.disk.set(&[DiskRule {
                call: Some(DiskCall::Read),
                after,
                effect: Effect::Errno(libc::EIO),
                lasting: false,
            }]);
            let e = rig.shift(p, goal).unwrap_err();
            assert_eq!(e.status, Status::Io, "{e}");
            assert_eq!((rig.at(p), rig.files().len()), (Tier::Disk, 1));
            assert_eq!(rig.pool().stats().live, 0);
            rig.books();
            rig.shift(p, goal).unwrap();
            rig.shift(p, Goal::Device).unwrap();
            rig.check(p, size);
            rig.close(&[p]);
        }
    }
}

/// A restore and a free of what is in files return although the file system has not given their
/// blocks back.
#[test]
fn nobody_waits_for_the_blocks_of_a_file() {
    let mut small = None;
    let rig = Parted::over(64 * MIB, |dir| small.insert(Small::new(dir, 64 * PAGE, false)).clone());
    let small = small.unwrap();
    let (p, freed) = (rig.malloc(3 * PAGE), rig.malloc(PAGE));
    [p, freed].into_iter().for_each(|p| rig.shift(p, DISK).unwrap());
    let both = || {
        rig.shift(p, Goal::Device).unwrap();
        rig.pool().free(freed, None).unwrap();
    };
    let ((), shut) = without_waiting(both, small.shut());
    assert_eq!((rig.files().len(), small.used() > 4 * PAGE), (0, true));
    assert_eq!(rig.manager.usage(SpaceId::new(Tier::Disk, 0)).unwrap().used, 0, "there is room at once");
    rig.check(p, 3 * PAGE);
    drop(shut);
    rig.close(&[p]);
}

/// A file that is truncated, altered or gone gives an error, never other bytes; the allocation can
/// still be freed.
#[test]
fn a_damaged_file_is_noticed() {
    let size = 2 * PAGE;
    let damage: [fn(&std::path::Path) -> Status; 3] = [
        |f| {
            fs::OpenOptions::new().write(true).open(f).unwrap().set_len(PAGE).unwrap();
            Status::Corrupt
        },
        |f| {
            let mut bytes = fs::read(f).unwrap();
            bytes[MIB as usize] ^= 1;
            fs::write(f, bytes).unwrap();
            Status::Corrupt
        },
        |f| {
            fs::remove_file(f).unwrap();
            Status::Io
        },
    ];
    for hurt in damage {
        for goal in [Goal::Device, Goal::Nearer(To::Tier(Tier::Host)), OTHER_DISK] {
            let rig = Parted::new(64 * MIB);
            let p = rig.malloc(size);
            let q = rig.malloc(size);
            rig.shift(p, DISK).unwrap();
            let status = hurt(&rig.files()[0]);
            rig.shift(q, DISK).unwrap();
            let _other = rig.other_disk();
            for _ in 0..2 {
                let e = rig.shift(p, goal).unwrap_err();
                assert_eq!(e.status, status, "{e}");
                assert_eq!((rig.at(p), rig.pool().stats().live), (Tier::Disk, 0));
                assert_eq!(rig.evictor.hold(p).unwrap_err().status, status);
            }
            rig.books();
            rig.shift(q, Goal::Device).unwrap();
            rig.check(q, size);
            rig.close(&[p, q]);
        }
    }
}

/// The directory vanishes while bytes are in it.
#[test]
fn a_mount_that_goes_away_is_an_error_and_no_more() {
    let rig = Parted::new(64 * MIB);
    let [p, q] = [(); 2].map(|()| rig.malloc(PAGE));
    rig.shift(p, DISK).unwrap();
    fs::remove_dir_all(rig.dir.path()).unwrap();
    assert_eq!(rig.shift(p, Goal::Device).unwrap_err().status, Status::Io);
    assert_eq!(rig.shift(q, DISK).unwrap_err().status, Status::Io);
    assert_eq!(rig.at(q), Tier::Gpu);
    rig.check(q, PAGE);
    // Pinned memory still does.
    rig.shift(q, Goal::Lower).unwrap();
    rig.shift(q, Goal::Device).unwrap();
    rig.check(q, PAGE);
    rig.close(&[p, q]);
}

/// The host is full and the disk is gone: the error says both, and has the status of the disk.
#[test]
fn a_full_host_does_not_hide_that_the_disk_is_gone() {
    let rig = Parted::new(MIB);
    let p = rig.malloc(PAGE);
    fs::remove_dir_all(rig.dir.path()).unwrap();
    let e = rig.shift(p, Goal::Lower).unwrap_err();
    assert_eq!(e.status, Status::Io, "{e}");
    assert!(e.message.contains("HOST 0") && e.message.contains(rig.dir.path().to_str().unwrap()), "{e}");
    rig.check(p, PAGE);
    rig.close(&[p]);
}

/// Pinned memory is refused: what has a disk goes there, with ordinary buffers; what has not stays.
#[test]
fn refused_pinned_memory_is_done_without() {
    let rig = Rig::new(Options { disk: true, ..Options::default() });
    let s = rig.stream();
    let p = rig.malloc(3 * PAGE, 0, s);
    rig.fill(s, p, 3 * PAGE, 4);
    for call in [Call::HostAllocOn, Call::HostAlloc] {
        rig.fault.set_rule(Some(FaultRule::nth_of(call, 0).with_status(Status::OutOfMemory).lasting()));
        let outcome = rig.ctx.shift(What::One(p), Goal::Away(To::Tier(Tier::Host)), Some(s), None);
        if rig.fault.fired() == 0 {
            // Not the call that holds.
            rig.ctx.shift(What::One(p), Goal::Device, Some(s), None).unwrap();
            continue;
        }
        let e: Error = outcome.unwrap_err();
        assert_eq!(e.status, Status::OutOfMemory, "{e}");
        rig.books();
        rig.ctx.shift(What::One(p), Goal::Lower, Some(s), None).unwrap();
        assert_eq!(rig.ctx.location(p).unwrap().space, Some(SpaceId::new(Tier::Disk, 0)));
        rig.ctx.shift(What::One(p), Goal::Device, Some(s), None).unwrap();
        rig.check(s, p, 3 * PAGE, 4);
        break;
    }
    assert!(rig.fault.fired() > 0);
    rig.fault.set_rule(None);
    rig.ctx.free_async(p, s).unwrap();
    rig.close();
}

/// The host's and the disk's spaces are too small for what is to move there: each one's own policy
/// is asked, and the move goes on when that has made room.
#[test]
fn the_policies_of_the_spaces_below_are_asked() {
    for tier in [Tier::Host, Tier::Disk] {
        let rig = Rig::new(Options { disk: true, ..Options::default() });
        let s = rig.stream();
        let manager = rig.ctx.tiers().unwrap().manager();
        let space = SpaceId::new(tier, 0);
        let told = Arc::new(Mutex::new(Vec::new()));
        let policy = OutOfMemoryPolicy::Callback({
            let (told, manager) = (told.clone(), Arc::downgrade(manager));
            Arc::new(move |shortage: &Shortage| {
                told.lock().unwrap().push((shortage.space, shortage.attempt));
                if shortage.attempt > 1 {
                    manager.upgrade().unwrap().set_limit(space, Some(64 * MIB)).unwrap();
                }
                told.lock().unwrap().len() > 1
            })
        });
        manager.set_limit(space, Some(PAGE)).unwrap();
        manager.set_out_of_memory_policy(space, policy).unwrap();
        let p = rig.malloc(2 * PAGE, 0, s);
        let evict = || rig.ctx.shift(What::One(p), Goal::Away(To::Tier(tier)), Some(s), None);
        assert_eq!(evict().unwrap_err().status, Status::OutOfMemory);
        assert_eq!(evict().unwrap().items, 1);
        assert_eq!(*told.lock().unwrap(), [(space, 1), (space, 1), (space, 2)]);
        rig.ctx.free(p).unwrap();
        manager.set_out_of_memory_policy(space, OutOfMemoryPolicy::Fail).unwrap();
        rig.close();
    }
}

/// The host is full, and there is no disk.
#[test]
fn no_room_below_is_an_error_that_changes_nothing() {
    let rig = Rig::new(Options { pinned: 8 * MIB, ..Options::default() });
    let s = rig.stream();
    let all: Vec<u64> = (0..6).map(|_| rig.malloc(PAGE, 1, s)).collect();
    for &p in &all {
        rig.fill(s, p, PAGE, p);
    }
    let e = rig.ctx.shift(What::Tag(1), Goal::Lower, Some(s), None).unwrap_err();
    assert_eq!(e.status, Status::OutOfMemory, "{e}");
    assert!(e.message.contains("allocations moved before: 4"), "{e}");
    rig.books();
    rig.ctx.shift(What::Tag(1), Goal::Device, Some(s), None).unwrap();
    for &p in &all {
        rig.check(s, p, PAGE, p);
        rig.ctx.free_async(p, s).unwrap();
    }
    rig.close();
}
