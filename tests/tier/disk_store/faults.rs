//! A file system that fails: an error that says what to do, counters exact, data where it was.

use super::*;
use gpumem::base::Status;
use gpumem::driver::disk::{DiskCall, DiskRule, Effect};
use test_support::alone;

fn rule(call: DiskCall, after: u64, effect: Effect, lasting: bool) -> DiskRule {
    DiskRule { call: Some(call), after, effect, lasting }
}

/// Fails the k-th call of a kind, for every kind and k, of a scenario that writes twice, reads and
/// removes. Closing cannot fail, and happens on a thread that nobody waits for.
#[test]
fn every_call_may_fail() {
    use DiskCall::{Allocate, Create, CreateDirect, Lane, Open, Read, Remove, Rename, Space, Sync, SyncDir, Write};
    let mount = Mount::new("each");
    let (disk, store) = faulty(&mount, &StoreOptions { sync: true, ..small_chunks() });
    let create = if store.is_direct() { CreateDirect } else { Create };
    let mut own = buffers(3, 64 * KIB);
    for call in [create, Open, Allocate, Sync, SyncDir, Rename, Remove, Read, Write, Space, Lane] {
        let mut failures = 0;
        for after in 0.. {
            let before = put(&store, 5, 150_000, &mut own).unwrap();
            disk.set(&[rule(call, after, Effect::Errno(libc::EIO), false)]);
            let fired = disk.fired();
            let written = put(&store, 6, 400_000, &mut own);
            let kept = get(&store, 5, before, After::Keep, &mut own);
            let removed = get(&store, 5, before, After::Remove, &mut own);
            disk.set(&[]);
            assert_eq!(own.len(), 3, "buffers after failing call {after} of {call:?}");
            store.validate().unwrap();
            let errors = [written.as_ref().err(), kept.as_ref().err(), removed.as_ref().err()];
            for e in errors.into_iter().flatten() {
                assert!(e.status == Status::Io && e.message.contains("os error 5"), "{call:?} {after}: {e}");
                assert!(e.message.contains(mount.0.to_str().unwrap()), "{e} names no file");
                failures += 1;
            }
            assert_eq!(store.usage().slots, u64::from(written.is_ok()) + u64::from(removed.is_err()));
            if removed.is_err() {
                get(&store, 5, before, After::Remove, &mut own).unwrap();
            }
            if let Ok(slot) = written {
                get(&store, 6, slot, After::Remove, &mut own).unwrap();
            }
            assert_empty(&store);
            if disk.fired() == fired {
                break;
            }
        }
        // Some file systems cannot reserve space.
        assert!(failures > 0 || call == Allocate, "{call:?} never failed anything");
    }
}

#[test]
fn more_than_there_is() {
    let mount = Mount::new("full");
    let (disk, store) = faulty(&mount, &small_chunks());
    let free = disk.space(&mount.0).unwrap().free;
    let e = store.begin_write(free + (1 << 30)).err().unwrap();
    assert_eq!(e.status, Status::OutOfMemory);
    for part in ["of data need a file of", "free", "ulimit -f", mount.0.to_str().unwrap()] {
        assert!(e.message.contains(part), "{e} lacks {part}");
    }
    assert_empty(&store);
    for errno in [libc::ENOSPC, libc::EDQUOT, libc::EFBIG] {
        disk.fail(DiskCall::Allocate, errno);
        let e = store.begin_write(MIB).err().unwrap();
        assert!(e.status == Status::OutOfMemory && e.message.contains("1.00 MiB of data need a file of"), "{e}");
        assert_empty(&store);
    }
    // Where nothing can be reserved, space may run out on the way.
    disk.set(&[rule(DiskCall::Write, 2, Effect::Errno(libc::ENOSPC), true)]);
    let mut own = buffers(2, 64 * KIB);
    let e = put(&store, 1, MIB, &mut own).unwrap_err();
    assert!(e.status == Status::OutOfMemory && e.message.contains("free space there"), "{e}");
    assert_eq!(own.len(), 2);
    assert_empty(&store);
}

#[test]
fn a_limit_is_kept_by_many_threads() {
    let mount = Mount::new("limit");
    // Room for three files: 64 KiB of data, a header, a footer.
    let file = 72 * KIB;
    let store = Store::open(&mount.0, &StoreOptions { limit: Some(3 * file + 100), ..small_chunks() }).unwrap();
    assert_eq!(store.capacity().unwrap().capacity, 3 * file + 100);
    let granted: u64 = std::thread::scope(|scope| {
        let one = |seed| {
            let store = &store;
            move || {
                (0..50u64).filter(|&i| put(store, seed + i, 64 * KIB, &mut buffers(1, 64 * KIB)).is_ok()).count() as u64
            }
        };
        let threads: Vec<_> = (0..4).map(|t| scope.spawn(one(t * 100))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert_eq!(granted, 3);
    let usage = store.usage();
    assert_eq!((usage.slots, usage.data, usage.used, usage.peak), (3, 3 * 64 * KIB, 3 * file, 3 * file));
    assert_eq!(store.capacity().unwrap().available, 100);
    let e = store.begin_write(1).err().unwrap();
    assert!(e.status == Status::OutOfMemory && e.message.contains("raise the limit"), "{e}");
    store.slots().into_iter().for_each(|slot| store.remove(slot).unwrap());
    assert_empty(&store);
}

/// A limit of the process's, which the kernel enforces by a signal that ends it.
#[test]
fn a_file_longer_than_the_process_may_write() {
    alone!("a_file_longer_than_the_process_may_write");
    let mount = Mount::new("fsize");
    let limit = libc::rlimit { rlim_cur: MIB, rlim_max: MIB };
    // SAFETY: the struct is complete; only this process, made for it, is affected.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
    let store = Store::open(&mount.0, &small_chunks()).unwrap();
    let e = store.begin_write(MIB).err().unwrap();
    assert!(e.status == Status::OutOfMemory && e.message.contains("File too large"), "{e}");
    assert_empty(&store);
    let mut own = buffers(2, 64 * KIB);
    let slot = put(&store, 1, MIB - 8 * KIB, &mut own).unwrap();
    get(&store, 1, slot, After::Remove, &mut own).unwrap();
    assert_empty(&store);
}

#[test]
fn short_and_interrupted_transfers_go_on() {
    let mount = Mount::new("short");
    let (disk, store) = faulty(&mount, &small_chunks());
    let direct = store.is_direct();
    let mut own = buffers(3, 64 * KIB);
    for call in [DiskCall::Write, DiskCall::Read] {
        for rules in [
            vec![rule(call, 0, Effect::Short(4096), true)],
            vec![rule(call, 0, Effect::Short(20_480), true)],
            vec![rule(call, 2, Effect::Errno(libc::EINTR), false)],
            vec![
                rule(call, 2, Effect::Errno(libc::EAGAIN), false),
                rule(call, 4, Effect::Errno(libc::ECANCELED), false),
            ],
            vec![rule(call, 1, Effect::Short(0), false)],
        ] {
            let fired = disk.fired();
            disk.set(&rules);
            let slot = put(&store, 9, 200_000, &mut own).unwrap();
            get(&store, 9, slot, After::Remove, &mut own).unwrap();
            assert!(disk.fired() > fired, "{rules:?} on direct {direct}");
            assert_empty(&store);
        }
        // But not for ever.
        for (effect, status) in [(Effect::Short(0), None), (Effect::Errno(libc::EINTR), Some(Status::Io))] {
            disk.set(&[]);
            let slot = put(&store, 9, 200_000, &mut own).unwrap();
            disk.set(&[rule(call, 3, effect, true)]);
            let end = if call == DiskCall::Read { Status::Corrupt } else { Status::Io };
            let e = match call {
                DiskCall::Read => get(&store, 9, slot, After::Remove, &mut own).unwrap_err(),
                _ => put(&store, 10, 200_000, &mut own).unwrap_err(),
            };
            assert_eq!(e.status, status.unwrap_or(end), "{call:?} {effect:?}: {e}");
            assert_eq!(own.len(), 3);
            disk.set(&[]);
            get(&store, 9, slot, After::Remove, &mut own).unwrap();
            assert_empty(&store);
        }
    }
}

#[test]
fn permission_refused() {
    let mount = Mount::new("permission");
    let disk = Arc::new(FaultDisk::new(os()));
    for (call, errno) in
        [(DiskCall::MakeDir, libc::EACCES), (DiskCall::OpenLock, libc::EPERM), (DiskCall::Create, libc::EROFS)]
    {
        disk.fail(call, errno);
        let e = Store::open_on(disk.clone(), &mount.0, &small_chunks()).err().unwrap();
        assert!(e.status == Status::Io && e.message.contains("let this user write there"), "{call:?}: {e}");
        disk.set(&[]);
        assert_eq!(mount.stores(), Vec::<PathBuf>::new(), "{call:?}");
    }
    // Its own directory is there by then, and goes again.
    disk.set(&[rule(DiskCall::List, 0, Effect::Errno(libc::EACCES), false)]);
    assert!(Store::open_on(disk.clone(), &mount.0, &small_chunks()).is_err());
    disk.set(&[]);
    assert_eq!(mount.stores(), Vec::<PathBuf>::new());
    let store = Store::open_on(disk.clone(), &mount.0, &small_chunks()).unwrap();
    for call in [DiskCall::CreateDirect, DiskCall::Create] {
        disk.fail(call, libc::EACCES);
        if (call == DiskCall::CreateDirect) == store.is_direct() {
            assert!(put(&store, 1, 1, &mut buffers(1, 4096))
                .unwrap_err()
                .message
                .contains("let this user write there"));
        }
    }
    disk.set(&[]);
    assert_empty(&store);
}

#[test]
fn a_root_that_is_no_directory_of_ours() {
    let mount = Mount::new("root");
    drop(Store::open(&mount.0, &small_chunks()).unwrap());
    let root = fs::read_dir(&mount.0).unwrap().next().unwrap().unwrap().path();
    fs::remove_dir_all(&root).unwrap();
    let elsewhere = mount.0.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &root).unwrap();
    let e = Store::open(&mount.0, &small_chunks()).err().unwrap();
    assert!(e.status == Status::Io && e.message.contains("is not a directory of user"), "{e}");
    assert_eq!(files(&elsewhere), Vec::<String>::new());
    fs::remove_file(&root).unwrap();
    fs::create_dir(&root).unwrap();
    let mut open = fs::metadata(&root).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut open, 0o777);
    fs::set_permissions(&root, open).unwrap();
    assert!(Store::open(&mount.0, &small_chunks()).is_err(), "others may put files there");
}

/// What some file systems lack: direct I/O, reserving space.
#[test]
fn lesser_file_systems() {
    let mount = Mount::new("lesser");
    let disk = Arc::new(FaultDisk::new(os()));
    let lacks = |call, errno| rule(call, 0, Effect::Errno(errno), true);
    let (direct, reserve) = (lacks(DiskCall::CreateDirect, libc::EINVAL), lacks(DiskCall::Allocate, libc::EOPNOTSUPP));
    for (rules, says) in [
        (vec![direct], vec!["through the page cache", "O_DIRECT: Invalid argument"]),
        (vec![reserve], vec!["space not reserved"]),
        (vec![direct, reserve], vec!["through the page cache", "space not reserved"]),
    ] {
        disk.set(&rules);
        let store = Store::open_on(disk.clone(), &mount.0, &small_chunks()).unwrap();
        let description = store.describe();
        says.iter().for_each(|part| assert!(description.contains(part), "{description} lacks {part}"));
        let mut own = buffers(2, 64 * KIB);
        for bytes in [1, 100_000] {
            let slot = put(&store, bytes, bytes, &mut own).unwrap();
            get(&store, bytes, slot, After::Remove, &mut own).unwrap();
        }
        assert_empty(&store);
    }
}

/// A write is synced when that is asked for: the file, then its name.
#[test]
fn syncing_on_request() {
    let mount = Mount::new("sync");
    for sync in [false, true] {
        let (disk, store) = faulty(&mount, &StoreOptions { sync, ..small_chunks() });
        for call in [DiskCall::Sync, DiskCall::SyncDir] {
            disk.fail(call, libc::EIO);
            let written = put(&store, 1, 1000, &mut buffers(1, 4096));
            assert_eq!(written.as_ref().err().map(|e| e.status), sync.then_some(Status::Io), "{call:?}");
            if let Ok(slot) = written {
                store.remove(slot).unwrap();
            }
            assert_empty(&store);
        }
    }
}

#[test]
fn a_file_that_cannot_be_removed_stays_a_slot() {
    let mount = Mount::new("stays");
    let (disk, store) = faulty(&mount, &small_chunks());
    let mut own = buffers(1, 64 * KIB);
    let slot = put(&store, 1, 1000, &mut own).unwrap();
    disk.fail(DiskCall::Remove, libc::EROFS);
    assert_eq!(store.remove(slot).unwrap_err().status, Status::Io);
    assert_eq!(get(&store, 1, slot, After::Remove, &mut own).unwrap_err().status, Status::Io);
    store.validate().unwrap();
    disk.set(&[]);
    get(&store, 1, slot, After::Remove, &mut own).unwrap();
    assert_empty(&store);
}
