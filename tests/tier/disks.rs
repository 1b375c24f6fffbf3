//! The spaces of disks: when they are there, what they count, and when their stores are opened.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::disk_support;

use disk_support::{remove, waiting, Small};
use gpumem::base::size::{KIB, MIB};
use gpumem::base::{Error, Status};
use gpumem::context::config::{DiskMount, Limit, PinnedBlocks};
use gpumem::context::{Config, Context};
use gpumem::driver::disk::{Buffer, Disk, OsDisk};
use gpumem::driver::host::{HostDriver, HostOptions};
use gpumem::driver::{numa, Driver};
use gpumem::tier::disk::{file_bytes, After, Store, StoreOptions};
use gpumem::tier::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;

/// A directory for a test, removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let unique = format!("disks-{name}-{}-{}", std::process::id(), LAST.fetch_add(1, SeqCst));
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(unique);
        fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn entries(&self) -> usize {
        fs::read_dir(&self.0).unwrap().count()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn disks() -> (Arc<Manager>, Disks) {
    let manager = Arc::new(Manager::new());
    let options = StoreOptions { chunk_bytes: 64 * KIB, ..StoreOptions::default() };
    (manager.clone(), Disks::new(manager, options, Thresholds::default()))
}

fn id(n: u32) -> SpaceId {
    SpaceId::new(Tier::Disk, n)
}

#[track_caller]
fn says<T>(result: Result<T, Error>, status: Status, parts: &[&str]) {
    let Err(e) = result else { panic!("it passed") };
    assert_eq!(e.status, status, "{e}");
    for part in parts {
        assert!(e.message.contains(part), "{e:?} does not say {part:?}");
    }
}

#[test]
fn a_space_is_listed_from_the_start_and_its_store_opened_at_first_use() {
    let (dir, (manager, disks)) = (Dir::new("lazy"), disks());
    assert_eq!(disks.add_mount(&dir.0, Some(MIB)).unwrap(), 0);
    let usage = manager.usage(id(0)).unwrap();
    assert_eq!((usage.capacity, usage.limit, usage.used), (MIB, MIB, 0));
    let mount = disks.mount(0).unwrap();
    assert_eq!((mount.is_open(), dir.entries()), (false, 0), "nothing is written before it is used");
    let store = mount.store().unwrap();
    assert!(mount.is_open() && store.dir().starts_with(fs::canonicalize(&dir.0).unwrap()));
    assert!(Arc::ptr_eq(&store, &mount.store().unwrap()), "one store");
    drop((store, mount, disks));
    let root = fs::read_dir(&dir.0).unwrap().next().unwrap().unwrap().path();
    let stores = fs::read_dir(root).unwrap().filter(|e| e.as_ref().unwrap().path().is_dir());
    assert_eq!(stores.count(), 0, "it is gone");
}

/// A directory whose guard nobody gives back keeps one caller waiting, not each: those that need it
/// for the next item hear of it at once.
#[test]
fn a_guard_that_is_never_given_back_is_waited_for_once() {
    let dir = Dir::new("guard");
    let other = Store::open(&dir.0, &StoreOptions::default()).unwrap();
    let path = other.dir().parent().unwrap().join("guard");
    let guard = OsDisk::with_threads(1).open_lock(&path).unwrap();
    assert!(OsDisk::with_threads(1).lock(&guard).unwrap());
    let small = Small::new(&dir.0, 8 * MIB, false);
    let manager = Arc::new(Manager::new());
    let disks = Disks::new_on(small.clone(), manager, StoreOptions::default(), Thresholds::default());
    disks.add_mount(&dir.0, None).unwrap();
    let mount = disks.mount(0).unwrap();
    says(mount.store(), Status::Io, &["opening DISK 0", "guard is locked by another process"]);
    let tries = small.locks();
    says(mount.store(), Status::Io, &["guard is locked by another process"]);
    assert_eq!(small.locks(), tries, "nobody tries again so soon");
    assert!(!mount.is_open());
}

#[test]
fn without_a_limit_it_is_what_the_file_system_has_left() {
    let (dir, (manager, disks)) = (Dir::new("unlimited"), disks());
    let before = OsDisk::with_threads(1).space(&dir.0).unwrap();
    disks.add_mount(&dir.0, None).unwrap();
    let usage = manager.usage(id(0)).unwrap();
    assert_eq!(usage.capacity, before.total);
    assert!(
        usage.limit <= usage.capacity && usage.limit.abs_diff(before.free) < before.free / 2,
        "{usage:?}, {before:?}"
    );
    let other = Dir::new("huge");
    disks.add_mount(&other.0, Some(u64::MAX)).unwrap();
    assert_eq!(manager.usage(id(1)).unwrap().capacity, before.total, "no more than there is");
}

/// What has been removed elsewhere on the file system is no reason to have less, however long its
/// blocks take.
#[test]
fn what_a_file_system_is_giving_back_is_left() {
    let dir = Dir::new("pending");
    let [a, b] = ["a", "b"].map(|name| dir.0.join(name));
    [&a, &b].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    let small = Small::new(&dir.0, 8 * MIB, false);
    let manager = Arc::new(Manager::new());
    let disks = Disks::new_on(small.clone(), manager.clone(), StoreOptions::default(), Thresholds::default());
    disks.add_mount(&a, None).unwrap();
    let store = disks.mount(0).unwrap().store().unwrap();
    let slot = store.write(3 * MIB, &mut vec![Buffer::new(MIB).unwrap()], |_, _| Ok(())).unwrap();
    let shut = remove(&store, slot, small.shut());
    waiting(|| disks.add_mount(&b, None).unwrap(), || small.wait_for_closes(1), shut);
    assert_eq!(manager.usage(id(1)).unwrap().limit, 8 * MIB);
}

#[test]
fn what_is_counted_is_what_the_files_take() {
    let (dir, (manager, disks)) = (Dir::new("count"), disks());
    disks.add_mount(&dir.0, Some(MIB)).unwrap();
    let mount = disks.mount(0).unwrap();
    let store = mount.store().unwrap();
    let mine = manager.reserve(Request::exact(id(0), 500 * KIB)).unwrap();
    let mut held = Vec::new();
    for (i, bytes) in [1u64, 4096, 64 * KIB, 200 * KIB + 1].into_iter().enumerate() {
        let drawn = mount.draw(bytes, (i % 2 == 0).then_some(&mine)).unwrap();
        let mut buffers = vec![Buffer::new(64 * KIB).unwrap()];
        let slot = store.write(bytes, &mut buffers, |_, part| {
            part.fill(i as u8);
            Ok(())
        });
        assert_eq!(drawn.reservation().is_some(), i % 2 == 0);
        assert_eq!(drawn.bytes(), file_bytes(bytes, 64 * KIB).unwrap());
        held.push((drawn, slot.unwrap()));
        assert_eq!(manager.usage(id(0)).unwrap().used, store.usage().used);
    }
    says(mount.draw(MIB, None), Status::OutOfMemory, &["DISK 0"]);
    says(mount.draw(500 * KIB, Some(&mine)), Status::OutOfMemory, &["reservation"]);
    says(mount.draw(0, None), Status::Invalid, &["0"]);
    for (drawn, slot) in held {
        store.read(slot, After::Remove, &mut vec![Buffer::new(64 * KIB).unwrap()], |_, _| Ok(())).unwrap();
        drop(drawn);
        assert_eq!(manager.usage(id(0)).unwrap().used, store.usage().used);
    }
    drop(mine);
    let usage = manager.usage(id(0)).unwrap();
    assert_eq!((usage.used, usage.promised, usage.unreserved), (0, 0, 0));
    manager.validate().unwrap();
}

#[test]
fn mounts_that_make_no_sense_are_refused() {
    let (dir, (manager, disks)) = (Dir::new("refused"), disks());
    says(disks.mount(0), Status::Invalid, &["GPUMEM_DISK"]);
    says(disks.add_mount(&dir.0.join("absent"), None), Status::Io, &["absent", "directory"]);
    says(disks.add_mount(&dir.0, Some(0)), Status::Invalid, &["0 bytes", "leave the directory out"]);
    assert!(manager.spaces().is_empty());
    disks.add_mount(&dir.0, None).unwrap();
    says(disks.add_mount(&dir.0.join("..").join(dir.0.file_name().unwrap()), None), Status::Invalid, &["DISK 0"]);
    let file = dir.0.join("file");
    fs::write(&file, "x").unwrap();
    says(disks.add_mount(&file, None), Status::Io, &["file", "not a directory"]);
    says(disks.mount(1), Status::Invalid, &["DISK 1", "last is 0"]);
    let two = Dir::new("second");
    assert_eq!(disks.add_mount(&two.0, Some(MIB)).unwrap(), 1);
    let other = manager.reserve(Request::exact(id(1), 100 * KIB)).unwrap();
    says(disks.mount(0).unwrap().draw(1, Some(&other)), Status::Invalid, &["DISK 1", "DISK 0"]);
    assert_eq!(disks.mounts().len(), 2);
}

#[test]
fn a_store_that_cannot_be_opened_is_tried_again() {
    let (dir, (_manager, disks)) = (Dir::new("again"), disks());
    let place = dir.0.join("place");
    fs::create_dir(&place).unwrap();
    disks.add_mount(&place, None).unwrap();
    let mount = disks.mount(0).unwrap();
    fs::remove_dir(&place).unwrap();
    says(mount.store(), Status::Io, &["opening DISK 0", "place"]);
    assert!(!mount.is_open());
    fs::create_dir(&place).unwrap();
    assert!(mount.store().is_ok());
}

#[test]
fn threads_that_come_at_once_get_one_store_and_one_space() {
    let (dir, (manager, disks)) = (Dir::new("threads"), disks());
    let start = Barrier::new(8);
    let added: usize = thread::scope(|scope| {
        let join = || {
            start.wait();
            let added = disks.add_mount(&dir.0, None).is_ok();
            disks.mount(0).unwrap().store().unwrap();
            usize::from(added)
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(join)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert_eq!((added, manager.spaces().len()), (1, 1));
    let root = fs::read_dir(&dir.0).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_dir(root).unwrap().filter(|e| e.as_ref().unwrap().path().is_dir()).count(), 1, "one store");
}

#[test]
fn a_context_has_the_spaces_of_its_settings() {
    let (a, b) = (Dir::new("context-a"), Dir::new("context-b"));
    let disks = vec![DiskMount { path: a.0.clone(), limit: Some(MIB) }, DiskMount { path: b.0.clone(), limit: None }];
    let config = Config {
        disks,
        pinned_blocks: PinnedBlocks { block_bytes: 64 * KIB, blocks: 8, chunks: 2 },
        pinned_limit: Limit::Percent(25),
        thresholds: Thresholds::new(0.5, 0.25).unwrap(),
        ..Config::default()
    };
    let driver: Arc<dyn Driver> = HostDriver::new(HostOptions { devices: 2, ..HostOptions::default() }).unwrap();
    let context = Context::new(driver.clone(), config.clone()).unwrap();
    let tiers = context.tiers().unwrap();
    let nodes = numa::nodes();
    let mut want: Vec<_> = (0..2).map(|n| SpaceId::new(Tier::Gpu, n)).collect();
    want.extend(nodes.iter().map(|n| SpaceId::new(Tier::Host, n.id)));
    want.extend([id(0), id(1)]);
    assert_eq!(tiers.manager().spaces().iter().map(|s| s.id()).collect::<Vec<_>>(), want);
    let node = nodes[0];
    let host = tiers.manager().usage(SpaceId::new(Tier::Host, node.id)).unwrap();
    assert_eq!((host.capacity, host.trigger), (node.bytes, host.limit.div_ceil(2)));
    assert!(host.limit.abs_diff(node.bytes / 4) <= 1, "{host:?}");
    assert_eq!(tiers.manager().usage(id(0)).unwrap().trigger, MIB / 2);
    let memory = tiers.host().allocate(node.id, 100 * KIB, None).unwrap();
    tiers.host().settle();
    assert_eq!((memory.counted(), tiers.host().stats(node.id).unwrap().pinned), (128 * KIB, 2 * 8 * 64 * KIB));
    assert_eq!(tiers.disks().mount(1).unwrap().path(), fs::canonicalize(&b.0).unwrap());
    assert_eq!((a.entries(), b.entries()), (0, 0));
    drop(memory);
    let gone = Config { disks: vec![DiskMount { path: a.0.join("absent"), limit: None }], ..config };
    let text = ["starting the tiers", "GPUMEM_DISK or gpumem_context_options.disk", "absent"];
    says(Context::new(driver, gone).unwrap().tiers(), Status::Config, &text);
}
