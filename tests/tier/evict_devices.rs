//! Items of two devices on a host of two NUMA nodes: one tag, two lanes, each device's nearest
//! memory first.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use gpumem::base::size::MIB;
use gpumem::base::{DeviceId, Result, Status, StreamHandle};
use gpumem::driver::host::{HostDriver, HostOptions, Kernel};
use gpumem::driver::{Driver, Fault, FaultRule};
use gpumem::pool::{AllocFlags, AllocRequest, Guest, Pool, PoolOptions};
use gpumem::tier::disk::StoreOptions;
use gpumem::tier::evict::{Evictor, Goal, Moved, MoverOptions, Parts, To};
use gpumem::tier::host::{HostNode, HostOptions as Held, HostTier};
use gpumem::tier::Disks;
use gpumem::tier::{HostMemory, Manager, SpaceId, SpaceOptions, Thresholds, Tier};
use std::sync::{Arc, OnceLock};
use tempfile::TempDir;
use test_support::stride;

const PAGE: u64 = 2 * MIB;
const TAG: u64 = 5;
/// Pages of each device, and of pinned memory of each node.
const PAGES: u64 = 32;
const S: StreamHandle = StreamHandle::LEGACY;
const DEVICES: [DeviceId; 2] = [DeviceId(0), DeviceId(1)];

const fn gpu(n: u32) -> SpaceId {
    SpaceId::new(Tier::Gpu, n)
}

const fn node(n: u32) -> SpaceId {
    SpaceId::new(Tier::Host, n)
}

const DISK: SpaceId = SpaceId::new(Tier::Disk, 0);

struct Rig {
    host: Arc<HostDriver>,
    fault: Arc<Fault>,
    pools: Arc<[OnceLock<Pool>]>,
    tier: Arc<HostTier>,
    disks: Arc<Disks>,
    manager: Arc<Manager>,
    evictor: Evictor,
    _dir: TempDir,
}

impl Rig {
    /// Two devices, the first next to node 0 and the other next to node 1, or the other way round.
    fn new(crossed: bool, late: Option<u64>) -> Rig {
        let options = match late {
            Some(seed) => HostOptions { devices: 2, bytes_per_device: PAGES * PAGE, ..HostOptions::simulation(seed) },
            None => HostOptions { devices: 2, bytes_per_device: PAGES * PAGE, ..HostOptions::default() },
        };
        let host = HostDriver::new(options).unwrap();
        let fault = Arc::new(Fault::new(host.clone()));
        let manager = Arc::new(Manager::new());
        let near = |d: u32| Some(if crossed { 1 - d } else { d });
        let space = |d| manager.add_space(gpu(d), &SpaceOptions { numa: near(d), ..SpaceOptions::new(PAGES * PAGE) });
        let gpus = vec![space(0).unwrap(), space(1).unwrap()];
        let node = |id| HostNode { id, capacity: PAGES * PAGE, limit: PAGES * PAGE };
        let options = Held { block_bytes: MIB, blocks: 8, chunks: 1, nodes: vec![node(0), node(1)], ..Held::default() };
        let tier = Arc::new(HostTier::new(fault.clone(), manager.clone(), &options).unwrap());
        let disks = Disks::new(manager.clone(), StoreOptions::default(), Thresholds::default());
        let dir = TempDir::new().unwrap();
        disks.add_mount(dir.path(), Some(PAGES * PAGE)).unwrap();
        let disks = Arc::new(disks);
        let pools: Arc<[OnceLock<Pool>]> = Arc::new([OnceLock::new(), OnceLock::new()]);
        for (cell, device) in pools.iter().zip(DEVICES) {
            let _ = cell.set(Pool::new(fault.clone(), device, PoolOptions::default()).unwrap());
        }
        let parts = Parts {
            driver: fault.clone(),
            manager: manager.clone(),
            pools: pools.clone(),
            gpu: gpus,
            host: tier.clone(),
            disks: disks.clone(),
            spare: Box::new(|| false),
            unasked: Box::new(|_| {}),
        };
        let evictor = Evictor::new(parts, MoverOptions { enabled: false, warn: false });
        Rig { host, fault, pools, tier, disks, manager, evictor, _dir: dir }
    }

    fn pool(&self, device: DeviceId) -> &Pool {
        self.pools[device.0 as usize].get().unwrap()
    }

    /// An allocation of a device's, with the pattern of its address.
    fn malloc(&self, device: DeviceId, pages: u64) -> Item {
        let req =
            AllocRequest { size: pages * PAGE, tag: TAG, flags: AllocFlags::EVICTABLE, ..AllocRequest::default() };
        let p = self.evictor.malloc(self.pool(device), &req, None).unwrap();
        self.host.launch(device, S, Kernel::write_pattern("fill", p..p + pages * PAGE, p, 64)).unwrap();
        Item { p, device, pages }
    }

    fn check(&self, all: &[Item]) {
        for &Item { p, device, pages } in all {
            self.host.launch(device, S, Kernel::check_pattern("check", p..p + pages * PAGE, p, 64)).unwrap();
        }
        DEVICES.into_iter().for_each(|d| self.host.device_sync(d).unwrap());
        assert!(self.host.reports().is_empty(), "{:#?}", self.host.reports());
    }

    fn shift(&self, goal: Goal) -> Result<Moved> {
        self.evictor.shift_tag(TAG, &goal, None, None)
    }

    fn at(&self, item: &Item) -> SpaceId {
        self.evictor.location(item.p).unwrap().space.unwrap()
    }

    /// Every counter is the sum of what lies there; `beside` is what a test has taken of the nodes.
    #[track_caller]
    fn exact(&self, all: &[Item], beside: [u64; 2]) {
        self.evictor.validate().unwrap();
        self.manager.validate().unwrap();
        self.tier.validate().unwrap();
        self.disks.mount(0).unwrap().store().unwrap().validate().unwrap();
        let lies = |space| all.iter().filter(|i| self.at(i) == space).map(|i| i.pages * PAGE).sum::<u64>();
        let used = |space| self.manager.usage(space).unwrap().used;
        for (n, (device, beside)) in DEVICES.into_iter().zip(beside).enumerate() {
            self.pool(device).validate().unwrap();
            let here = lies(gpu(n as u32));
            assert_eq!((used(gpu(n as u32)), self.pool(device).stats().live), (here, here), "device {n}");
            assert_eq!(self.host.mem_info(device).unwrap().free, PAGES * PAGE - here, "device {n}");
            assert_eq!(used(node(n as u32)), lies(node(n as u32)) + beside, "node {n}");
        }
        assert!((lies(DISK)..=lies(DISK) + all.len() as u64 * 64 * 1024).contains(&used(DISK)));
    }

    fn close(&self, all: &[Item]) {
        for i in all {
            self.pool(i.device).free(i.p, None).unwrap();
        }
        for device in DEVICES {
            self.host.device_sync(device).unwrap();
            self.pool(device).trim(0).unwrap();
        }
        self.exact(&[], [0, 0]);
        assert_eq!(self.manager.usage(DISK).unwrap().used, 0);
    }
}

#[derive(Clone, Copy, Debug)]
struct Item {
    p: u64,
    device: DeviceId,
    pages: u64,
}

/// Items of both, in turn.
fn some(rig: &Rig) -> Vec<Item> {
    (0..8).map(|i| rig.malloc(DEVICES[i as usize % 2], 1 + i / 2)).collect()
}

#[test]
fn each_device_has_its_nearest_node() {
    for (crossed, late) in [(false, None), (true, None), (false, Some(1)), (true, Some(2))] {
        let rig = Rig::new(crossed, late);
        let all = some(&rig);
        for goal in [Goal::Lower, Goal::Away(To::Tier(Tier::Host))] {
            let pages: u64 = all.iter().map(|i| i.pages).sum();
            let moved = rig.shift(goal).unwrap();
            assert_eq!((moved.items, moved.bytes, moved.already), (8, pages * PAGE, 0));
            for i in &all {
                let near = if crossed { 1 - i.device.0 } else { i.device.0 };
                assert_eq!(rig.at(i), node(near), "{i:?}");
            }
            rig.exact(&all, [0, 0]);
            assert_eq!(rig.shift(Goal::Device).unwrap().items, 8);
            assert!(all.iter().all(|i| rig.at(i) == gpu(i.device.0)), "each on its own device");
            rig.exact(&all, [0, 0]);
            rig.check(&all);
        }
        rig.close(&all);
    }
}

/// What the nearest node has no room for goes to the other one, and what neither has room for to
/// the disk.
#[test]
fn a_full_node_sends_on_to_the_other() {
    for full in [0, 1] {
        let rig = Rig::new(false, None);
        let all = some(&rig);
        // Room for two pages is left on the one node: the first item, and of the second, of two
        // pages, nothing.
        let take = |n: u32, left: u64| -> HostMemory { rig.tier.allocate(n, (PAGES - left) * PAGE, None).unwrap() };
        let beside = |n: u32, left: u64| if n == full { (PAGES - left) * PAGE } else { 0 };
        let taken = take(full, 2);
        assert_eq!(rig.shift(Goal::Lower).unwrap().items, 8);
        let places: Vec<SpaceId> = all.iter().filter(|i| i.device.0 == full).map(|i| rig.at(i)).collect();
        assert_eq!(places, [node(full), node(1 - full), node(1 - full), node(1 - full)], "the first fits");
        assert!(all.iter().filter(|i| i.device.0 != full).all(|i| rig.at(i) == node(1 - full)));
        rig.exact(&all, [beside(0, 2), beside(1, 2)]);
        rig.shift(Goal::Device).unwrap();
        rig.check(&all);
        drop(taken);

        // Neither has room for more than what is small.
        let taken = [take(0, 1), take(1, 3)];
        rig.shift(Goal::Lower).unwrap();
        let count = |space| all.iter().filter(|i| rig.at(i) == space).count();
        assert!(
            count(node(0)) == 1 && count(node(1)) >= 1 && count(DISK) >= 5,
            "{:?}",
            all.iter().map(|i| rig.at(i)).collect::<Vec<_>>()
        );
        rig.exact(&all, [(PAGES - 1) * PAGE, (PAGES - 3) * PAGE]);
        rig.shift(Goal::Device).unwrap();
        rig.exact(&all, [(PAGES - 1) * PAGE, (PAGES - 3) * PAGE]);
        rig.check(&all);
        drop(taken);
        rig.close(&all);
    }
}

/// From node to node, with either function, when the space is named; of a tier all that is there is
/// there already.
#[test]
fn a_named_node_is_gone_to_from_the_other() {
    let rig = Rig::new(false, None);
    let all = some(&rig);
    rig.shift(Goal::Lower).unwrap();
    let pages: u64 = all.iter().filter(|i| i.device.0 == 0).map(|i| i.pages).sum();
    for (goal, items) in [
        (Goal::Away(To::Tier(Tier::Host)), 0),
        (Goal::Nearer(To::Tier(Tier::Host)), 0),
        (Goal::Away(To::Space(node(1))), 4),
        (Goal::Nearer(To::Space(node(0))), 8),
    ] {
        let mut last = (0, 0);
        let mut progress = |done: u64, of: u64| {
            last = (done, of);
            true
        };
        let moved = rig.evictor.shift_tag(TAG, &goal, None, Some(&mut progress)).unwrap();
        let bytes = match items {
            0 => 0,
            4 => pages * PAGE,
            _ => all.iter().map(|i| i.pages * PAGE).sum(),
        };
        assert_eq!((moved.items, moved.bytes, moved.already), (items, bytes, 8 - items), "{goal:?}");
        assert_eq!(last, (bytes, bytes), "{goal:?}");
        rig.exact(&all, [0, 0]);
    }
    assert!(all.iter().all(|i| rig.at(i) == node(0)));
    rig.shift(Goal::Device).unwrap();
    rig.check(&all);
    rig.close(&all);
}

/// By way of files, and one told progress for both devices.
#[test]
fn a_progress_counts_the_bytes_of_both() {
    let rig = Rig::new(false, None);
    let all = some(&rig);
    let total: u64 = all.iter().map(|i| i.pages * PAGE).sum();
    for goal in
        [Goal::Away(To::Tier(Tier::Disk)), Goal::Nearer(To::Tier(Tier::Host)), Goal::Device, Goal::Lower, Goal::Device]
    {
        let mut told = Vec::new();
        let mut progress = |done: u64, of: u64| {
            told.push((done, of));
            true
        };
        rig.evictor.shift_tag(TAG, &goal, None, Some(&mut progress)).unwrap();
        assert!(told.windows(2).all(|w| w[0].0 <= w[1].0) && told.iter().all(|t| t.1 == total), "{goal:?}: {told:?}");
        assert_eq!(told.last(), Some(&(total, total)), "{goal:?}");
        rig.exact(&all, [0, 0]);
    }
    rig.check(&all);
    rig.close(&all);
}

/// What the pools and the register disagree about is noticed.
#[test]
fn the_books_of_pool_and_register_are_compared() {
    #[derive(Debug)]
    struct Nobody;
    impl Guest for Nobody {
        fn gone(&self) {}
    }
    let rig = Rig::new(false, None);
    let item = rig.malloc(DEVICES[1], 1);
    let pool = rig.pool(DEVICES[1]);
    let id = pool.info(item.p).unwrap().id;
    let says = |text: &str| {
        let e = rig.evictor.validate().unwrap_err();
        assert!(e.message.contains(text), "{e}");
    };
    let moving = pool.begin_move(item.p, id).unwrap().unwrap();
    says("nobody has claimed it");
    assert!(pool.end_move(&moving));
    rig.evictor.validate().unwrap();
    rig.host.device_sync(DEVICES[1]).unwrap();
    let moving = pool.begin_move(item.p, id).unwrap().unwrap();
    assert!(pool.vacate(moving).unwrap());
    says("has no memory there");
    let moving = pool.begin_move(item.p, id).unwrap().unwrap();
    assert!(pool.populate(&moving, S, None).unwrap() && pool.end_move(&moving));
    rig.evictor.validate().unwrap();
    let req = AllocRequest { size: PAGE, flags: AllocFlags::EVICTABLE, ..AllocRequest::default() };
    let other = pool.malloc_evictable(&req, Arc::new(Nobody)).unwrap();
    says("device 1: 2 evictable allocations live, 1 are registered");
    pool.free(other.base, None).unwrap();
    rig.close(&[item]);
}

/// Whatever call fails, of whichever device: those of both that have not arrived are whole where
/// they were.
#[test]
fn a_failure_on_one_device_leaves_the_items_of_both_whole() {
    for lasting in [false, true] {
        for goal in [Goal::Lower, Goal::Device] {
            let mut failed = 0;
            for after in (0..).step_by(stride(18)) {
                let rig = Rig::new(false, None);
                let all = some(&rig);
                if goal == Goal::Device {
                    rig.shift(Goal::Lower).unwrap();
                }
                let rule = FaultRule::nth(after);
                rig.fault.set_rule(Some(if lasting { rule.lasting() } else { rule }));
                let outcome = rig.shift(goal);
                let fired = rig.fault.fired() > 0;
                rig.fault.set_rule(None);
                if let Err(e) = &outcome {
                    assert!(fired && e.status != Status::Internal, "{e}");
                    failed += 1;
                }
                // Lanes that could not be waited for are found again by the next move.
                rig.shift(goal).unwrap();
                // What the driver would not take back it takes now.
                for device in DEVICES {
                    rig.pool(device).trim(0).unwrap();
                }
                rig.exact(&all, [0, 0]);
                rig.shift(Goal::Device).unwrap();
                rig.exact(&all, [0, 0]);
                rig.check(&all);
                rig.close(&all);
                if !fired {
                    break;
                }
            }
            assert!(failed > 1, "{failed}");
        }
    }
}
