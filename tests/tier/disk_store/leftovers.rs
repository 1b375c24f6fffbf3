//! What dead processes leave is removed; what the living have is not.

use super::*;
use crate::disk_support::Small;
use gpumem::base::size::GIB;
use gpumem::base::Status;
use gpumem::driver::disk::identity::Identity;
use gpumem::driver::disk::{DiskCall, DiskRule, Effect};
use gpumem::tier::disk::Reclaimed;

/// A directory as a process would have left it, with two files of 5 bytes.
fn leave(store: &Store, owner: Identity) -> PathBuf {
    let dir = store.dir().parent().unwrap().join(format!("{owner}-{:016x}", 0xABC));
    fs::create_dir(&dir).unwrap();
    for name in ["lock", "3.part", "4.slot"] {
        fs::write(dir.join(name), if name == "lock" { "" } else { "12345" }).unwrap();
    }
    dir
}

#[test]
fn the_dead_go_and_the_living_stay() {
    let mount = Mount::new("dead");
    let living = Store::open(&mount.0, &small_chunks()).unwrap();
    let mut own = buffers(1, 64 * KIB);
    let slot = put(&living, 1, 1000, &mut own).unwrap();
    let me = Identity::own();
    // Of an earlier process with this number; of one in another container: locks tell that both are
    // dead.
    let dead =
        [leave(&living, Identity { start: me.start - 1, ..me }), leave(&living, Identity { place: !me.place, ..me })];
    let next = Store::open(&mount.0, &small_chunks()).unwrap();
    assert_eq!(next.reclaimed(), Reclaimed { stores: 2, files: 4, bytes: 20 });
    assert!(dead.iter().all(|d| !d.exists()));
    assert_eq!(mount.stores().len(), 2);
    get(&living, 1, slot, After::Remove, &mut own).unwrap();
    assert_empty(&living);
    drop((living, next));
    assert_eq!(mount.stores(), Vec::<PathBuf>::new());
}

#[test]
fn files_that_are_not_ours_stay() {
    let mount = Mount::new("strangers");
    let living = Store::open(&mount.0, &small_chunks()).unwrap();
    let me = Identity::own();
    let dir = leave(&living, Identity { start: me.start - 1, ..me });
    let root = dir.parent().unwrap();
    fs::write(dir.join("notes.txt"), "mine").unwrap();
    fs::create_dir(root.join("my files")).unwrap();
    fs::write(root.join("my files").join("1.slot"), "mine").unwrap();
    std::os::unix::fs::symlink(root.join("my files"), root.join(format!("{me}-{:016x}", 1))).unwrap();
    let next = Store::open(&mount.0, &small_chunks()).unwrap();
    assert_eq!((next.reclaimed().stores, next.reclaimed().files), (0, 2));
    assert_eq!(files(&dir), ["notes.txt"]);
    assert_eq!(files(&root.join("my files")), ["1.slot"]);
}

/// Without locks, names tell; and only of processes whose numbers mean something here.
#[test]
fn where_files_cannot_be_locked() {
    let mount = Mount::new("lockless");
    for errno in [libc::ENOLCK, libc::EOPNOTSUPP] {
        let disk = Arc::new(FaultDisk::new(os()));
        disk.fail(DiskCall::Lock, errno);
        let living = Store::open_on(disk.clone(), &mount.0, &small_chunks()).unwrap();
        assert!(living.describe().contains("cannot be locked"), "{}", living.describe());
        let me = Identity::own();
        let dead = leave(&living, Identity { start: me.start - 1, ..me });
        let elsewhere = leave(&living, Identity { place: !me.place, ..me });
        let next = Store::open_on(disk.clone(), &mount.0, &small_chunks()).unwrap();
        assert_eq!(next.reclaimed().stores, 1);
        assert!(!dead.exists() && elsewhere.exists() && living.dir().exists());
        fs::remove_dir_all(elsewhere).unwrap();
    }
}

/// Stores that open and close at once never take each other for dead.
#[test]
fn stores_open_and_close_at_once() {
    let mount = Mount::new("crowd");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let mount = &mount;
            scope.spawn(move || {
                let mut own = buffers(1, 64 * KIB);
                for i in 0..25 {
                    let store = Store::open(&mount.0, &small_chunks()).unwrap();
                    let slot = put(&store, thread * 100 + i, 5000, &mut own).unwrap();
                    assert_eq!(store.reclaimed().files, 0);
                    get(&store, thread * 100 + i, slot, After::Remove, &mut own).unwrap();
                }
            });
        }
    });
    assert_eq!(mount.stores(), Vec::<PathBuf>::new());
}

/// At the exit of the process another thread may be removing files: those that are gone already,
/// and one that cannot go, do not keep the others.
#[test]
fn what_cannot_be_removed_does_not_keep_the_rest() {
    for errno in [libc::ENOENT, libc::EACCES] {
        let mount = Mount::new("some");
        let (disk, store) = faulty(&mount, &small_chunks());
        let mut own = buffers(1, 64 * KIB);
        (0..5).for_each(|i| {
            put(&store, i, 1000, &mut own).unwrap();
        });
        let third = DiskRule { call: Some(DiskCall::Remove), after: 2, effect: Effect::Errno(errno), lasting: false };
        disk.set(&[third]);
        let dir = store.dir();
        drop(store);
        assert_eq!(disk.fired(), 1);
        assert_eq!(mount.stores(), Vec::<PathBuf>::new(), "{errno}: {:?}", files(&dir));
    }
}

/// A child that is forked while a store is opened has all of its files open, for as long as it
/// lives.
#[test]
fn a_child_forked_while_a_store_opens_keeps_nobody_waiting() {
    let mount = Mount::new("child");
    let disk = Small::new(&mount.0, GIB, false);
    let store = Store::open_on(disk.clone(), &mount.0, &small_chunks()).unwrap();
    assert_eq!(disk.inherited(), 2, "the lock that others wait for, and the store's own");
    let guard = store.dir().parent().unwrap().join("guard");
    let other = os().open_lock(&guard).unwrap();
    assert!(os().lock(&other).unwrap(), "another process waits");
}

/// A process that has stopped while it has the guard keeps nobody waiting for ever: opening a store
/// fails and says what is in the way, and the next try finds the guard free.
#[test]
fn a_guard_that_is_never_given_back_is_an_error() {
    let mount = Mount::new("guard");
    let store = Store::open(&mount.0, &small_chunks()).unwrap();
    let path = store.dir().parent().unwrap().join("guard");
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let (tell, held) = std::sync::mpsc::channel();
    let other = std::thread::spawn(move || {
        let guard = os().open_lock(&path).unwrap();
        tell.send(os().lock(&guard).unwrap()).unwrap();
        // Longer than anybody waits, for code that waits as long as it takes.
        let _ = ended.recv_timeout(std::time::Duration::from_secs(20));
    });
    assert!(held.recv().unwrap());
    let e = Store::open(&mount.0, &small_chunks()).err().expect("an error");
    assert_eq!(e.status, Status::Io, "{e}");
    assert!(e.message.contains("/guard is locked by another process"), "{e}");
    assert_eq!(mount.stores().len(), 1, "nothing is left of the try");
    drop(end);
    other.join().unwrap();
    Store::open(&mount.0, &small_chunks()).unwrap();
}

#[test]
fn closing_removes_slots_that_were_left() {
    let mount = Mount::new("closing");
    let store = Store::open(&mount.0, &small_chunks()).unwrap();
    let mut own = buffers(1, 64 * KIB);
    (0..5).for_each(|i| {
        put(&store, i, 1000, &mut own).unwrap();
    });
    let writer = store.begin_write(1000).unwrap();
    let reader = store.begin_read(store.slots()[0]).unwrap();
    let dir = store.dir();
    drop(store);
    assert_eq!(files(&dir).len(), 7, "as long as one is reading or writing");
    drop(reader);
    assert!(dir.exists());
    drop(writer);
    assert!(!dir.exists());
}
