//! Removing does not wait for the file system to give the blocks back; who needs them does.

use super::*;
use crate::disk_support::{remove, waiting, without_waiting, Small};
use gpumem::base::Status;
use gpumem::driver::disk::DiskCall;
use gpumem::tier::disk::file_bytes;
use test_support::alone;

const DATA: u64 = MIB;

fn small(mount: &Mount, total: u64, boasts: bool) -> (Arc<Small>, Store) {
    let disk = Small::new(&mount.0, total, boasts);
    let store = Store::open_on(disk.clone(), &mount.0, &small_chunks()).unwrap();
    (disk, store)
}

fn file() -> u64 {
    file_bytes(DATA, 64 * KIB).unwrap()
}

#[test]
fn who_removes_does_not_wait() {
    let mount = Mount::new("quick");
    let (disk, store) = small(&mount, 10 * file(), false);
    let mut own = buffers(2, 64 * KIB);
    type Way<'a> = Box<dyn FnOnce() + Send + 'a>;
    let ways: [fn(&Store, Slot) -> Way<'_>; 3] = [
        |store, slot| Box::new(move || store.remove(slot).unwrap()),
        |store, slot| Box::new(move || get(store, 1, slot, After::Remove, &mut buffers(2, 64 * KIB)).unwrap()),
        |store, slot| {
            store.remove(slot).unwrap();
            let writer = store.begin_write(DATA).unwrap();
            Box::new(move || drop(writer))
        },
    ];
    for (i, way) in ways.into_iter().enumerate() {
        let before = store.capacity().unwrap().available;
        let slot = put(&store, 1, DATA, &mut own).unwrap();
        let way = way(&store, slot);
        store.settle();
        assert_eq!(disk.used(), file());
        let ((), shut) = without_waiting(way, disk.shut());
        // Gone for the store at once, and still the file system's.
        assert_empty(&store);
        assert_eq!((disk.used(), store.capacity().unwrap().available), (file(), before), "way {i}");
        waiting(|| store.settle(), || disk.wait_for_closes(1), shut);
        assert_eq!((disk.used(), store.capacity().unwrap().available), (0, before), "way {i}");
    }
}

/// Whether the file system says how little is free, or only that a request is too much.
#[test]
fn who_needs_the_blocks_waits_for_them() {
    for boasts in [false, true] {
        let mount = Mount::new(if boasts { "enospc" } else { "statfs" });
        let (disk, store) = small(&mount, 3 * file() + file() / 2, boasts);
        let mut own = buffers(2, 64 * KIB);
        let [first, second, third] = [1, 2, 3].map(|seed| put(&store, seed, DATA, &mut own).unwrap());
        // Without anything pending it fails at once.
        let e = store.begin_write(DATA).err().unwrap();
        assert!(e.status == Status::OutOfMemory && e.message.contains("of data need a file of"), "{e}");
        assert_eq!(files(&store.dir()), ["0.slot", "1.slot", "2.slot", "lock"], "nothing is left of it");

        let shut = remove(&store, first, disk.shut());
        let (asked, calls) = (disk.asked(), if boasts { 2 } else { 1 });
        let writer = waiting(|| store.begin_write(DATA), || disk.wait_for_asking(asked + calls), shut).unwrap();
        drop(writer);
        store.settle();

        // All that is pending may not be enough: then it fails as ever.
        let shut = remove(&store, second, disk.shut());
        let (asked, before) = (disk.asked(), store.usage());
        let e = waiting(|| store.begin_write(3 * DATA), || disk.wait_for_asking(asked + calls), shut).err().unwrap();
        assert!(e.status == Status::OutOfMemory && e.message.contains("3.00 MiB of data need a file of"), "{e}");
        assert_eq!((store.usage(), disk.used()), (before, file()));
        store.remove(third).unwrap();
        assert_empty(&store);
    }
}

#[test]
fn what_is_free_is_not_waited_for() {
    let mount = Mount::new("enough");
    let (disk, store) = small(&mount, 3 * file(), false);
    let slot = put(&store, 1, DATA, &mut buffers(2, 64 * KIB)).unwrap();
    let shut = remove(&store, slot, disk.shut());
    let (written, shut) = without_waiting(|| put(&store, 2, DATA, &mut buffers(2, 64 * KIB)), shut);
    let slot = written.unwrap();
    drop(shut);
    get(&store, 2, slot, After::Remove, &mut buffers(2, 64 * KIB)).unwrap();
    assert_empty(&store);
}

#[test]
fn closing_waits_before_the_directory_goes() {
    let mount = Mount::new("end");
    let (disk, store) = small(&mount, 10 * file(), false);
    let mut own = buffers(2, 64 * KIB);
    let slots = [1, 2, 3].map(|seed| put(&store, seed, DATA, &mut own).unwrap());
    let shut = slots.into_iter().fold(disk.shut(), |shut, slot| remove(&store, slot, shut));
    waiting(move || drop(store), || disk.wait_for_closes(1), shut);
    assert_eq!(disk.log(), ["closed", "closed", "closed", "directory removed"]);
    assert_eq!((mount.stores(), disk.used()), (vec![], 0));
}

/// Descriptors are few: who removes faster than the file system gives back does that himself at
/// some point.
#[test]
fn not_too_many_files_are_pending() {
    const MOST: u64 = 64;
    let mount = Mount::new("many");
    let (disk, store) = small(&mount, 100 * file(), false);
    let mut own = buffers(1, 64 * KIB);
    let mut slots: Vec<Slot> = (0..=MOST).map(|seed| put(&store, seed, 1000, &mut own).unwrap()).collect();
    let shut = disk.shut();
    let last = slots.pop().unwrap();
    let ((), shut) = without_waiting(|| slots.into_iter().for_each(|slot| store.remove(slot).unwrap()), shut);
    // The thread at one of its files, and the caller at his.
    waiting(|| store.remove(last).unwrap(), || disk.wait_for_closes(2), shut);
    store.settle();
    assert_empty(&store);
}

#[test]
fn a_file_that_cannot_be_opened_is_removed_all_the_same() {
    let mount = Mount::new("unopened");
    let (disk, store) = faulty(&mount, &small_chunks());
    let slot = put(&store, 1, DATA, &mut buffers(2, 64 * KIB)).unwrap();
    disk.fail(DiskCall::Open, libc::EMFILE);
    store.remove(slot).unwrap();
    assert!(disk.fired() > 0);
    disk.set(&[]);
    assert_empty(&store);
}

#[test]
fn after_a_failed_removal_nothing_is_given_back() {
    let mount = Mount::new("kept");
    let small = Small::new(&mount.0, 10 * file(), false);
    let disk = Arc::new(FaultDisk::new(small.clone()));
    let store = Store::open_on(disk.clone(), &mount.0, &small_chunks()).unwrap();
    let slot = put(&store, 1, DATA, &mut buffers(2, 64 * KIB)).unwrap();
    let before = (store.usage(), store.capacity().unwrap());
    let shut = small.shut();
    disk.fail(DiskCall::Remove, libc::EROFS);
    let (removed, shut) = without_waiting(|| store.remove(slot), shut);
    assert_eq!(removed.unwrap_err().status, Status::Io);
    assert_eq!((store.usage(), store.capacity().unwrap()), before);
    disk.set(&[]);
    drop(shut);
    store.settle();
    assert_eq!(small.log(), Vec::<&str>::new(), "nothing was closed");
    get(&store, 1, slot, After::Remove, &mut buffers(2, 64 * KIB)).unwrap();
}

/// At the exit of the process others may still use the store.
#[test]
fn after_leaving_there_is_no_file() {
    let mount = Mount::new("leave");
    let store = Store::open(&mount.0, &small_chunks()).unwrap();
    let mut own = buffers(2, 64 * KIB);
    let slot = put(&store, 1, DATA, &mut own).unwrap();
    let mut reader = store.begin_read(slot).unwrap();
    let mut writer = store.begin_write(4096).unwrap();
    writer.submit(0, Buffer::new(4096).unwrap()).unwrap();
    store.leave();
    assert_eq!(mount.stores(), Vec::<PathBuf>::new());
    let refused = [store.begin_write(1).err(), store.begin_read(slot).err(), writer.finish().err()];
    for e in refused {
        assert_eq!(e.unwrap().status, Status::ShuttingDown);
    }
    // What was open is.
    reader.submit(0, own.pop().unwrap()).unwrap();
    assert!(reader.wait(1)[0].result.is_ok());
    drop(reader);
    store.remove(slot).unwrap();
    store.validate().unwrap();
    assert_eq!(StoreUsage { peak: 0, ..store.usage() }, StoreUsage::default());
}

/// The thread is the parent's, and so are the files.
#[test]
fn a_forked_child_waits_for_nothing() {
    alone!("a_forked_child_waits_for_nothing");
    let mount = Mount::new("fork");
    let (disk, store) = small(&mount, 10 * file(), false);
    let mut own = buffers(2, 64 * KIB);
    let [gone, kept] = [1, 2].map(|seed| put(&store, seed, DATA, &mut own).unwrap());
    let shut = remove(&store, gone, disk.shut());
    disk.wait_for_closes(1);
    // SAFETY: the child calls what it is about, whose locks nobody holds, and ends without running
    // anything of the parent's.
    unsafe {
        match libc::fork() {
            0 => {
                libc::alarm(20);
                store.settle();
                drop(store);
                libc::_exit(7);
            }
            child => {
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
            }
        }
    }
    drop(shut);
    get(&store, 2, kept, After::Remove, &mut own).unwrap();
    assert_empty(&store);
}
