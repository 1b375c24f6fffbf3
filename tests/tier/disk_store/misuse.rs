//! Calls that cannot be granted: an error, and nothing changes.

use super::*;
use gpumem::base::Status;

#[test]
fn slots_that_are_not_there() {
    let mount = Mount::new("slots");
    let (store, other) =
        (Store::open(&mount.0, &small_chunks()).unwrap(), Store::open(&mount.0, &small_chunks()).unwrap());
    let mut own = buffers(1, 64 * KIB);
    let slot = put(&store, 1, 1000, &mut own).unwrap();
    let elsewhere = put(&other, 1, 1000, &mut own).unwrap();
    for (store, slot) in [(&store, elsewhere), (&other, slot)] {
        assert_eq!(store.remove(slot).unwrap_err().status, Status::Invalid);
        assert_eq!(store.begin_read(slot).err().unwrap().status, Status::Invalid);
        assert_eq!(store.length(slot).unwrap_err().status, Status::Invalid);
    }
    store.remove(slot).unwrap();
    assert_eq!(store.remove(slot).unwrap_err().status, Status::Invalid, "twice");
    assert_empty(&store);
    assert_eq!(other.slots(), [elsewhere]);
}

#[test]
fn a_slot_that_is_read_stays() {
    let mount = Mount::new("busy");
    let store = Store::open(&mount.0, &small_chunks()).unwrap();
    let mut own = buffers(1, 64 * KIB);
    let slot = put(&store, 1, 1000, &mut own).unwrap();
    let (first, second) = (store.begin_read(slot).unwrap(), store.begin_read(slot).unwrap());
    assert!(store.remove(slot).unwrap_err().message.contains("being read by 2"));
    drop(first);
    assert!(store.remove(slot).unwrap_err().message.contains("being read by 1"));
    let e = second.finish(After::Remove).unwrap_err();
    assert!(e.message.contains("1 of 1 chunks were not read"), "{e}");
    get(&store, 1, slot, After::Remove, &mut own).unwrap();
    assert_empty(&store);
}

#[test]
fn chunks_that_do_not_fit() {
    let mount = Mount::new("chunks");
    let store = Store::open(&mount.0, &small_chunks()).unwrap();
    assert_eq!(store.begin_write(0).err().unwrap().status, Status::Invalid);
    assert_eq!(store.begin_write(u64::MAX).err().unwrap().status, Status::Invalid);
    let mut writer = store.begin_write(100 * KIB).unwrap();
    let full = || Buffer::new(64 * KIB).unwrap();
    for offset in [1, 4096, 128 * KIB, u64::MAX, !0xFFFF] {
        let refused = writer.submit(offset, full()).unwrap_err();
        assert_eq!((refused.error.status, refused.buffer.len()), (Status::Invalid, 64 * KIB), "{offset}");
    }
    assert!(writer
        .submit(0, Buffer::new(60 * KIB).unwrap())
        .unwrap_err()
        .error
        .message
        .contains("a buffer of 60.00 KiB"));
    writer.submit(64 * KIB, Buffer::new(36 * KIB).unwrap()).unwrap();
    assert!(writer.submit(64 * KIB, full()).unwrap_err().error.message.contains("submitted before"));
    assert_eq!(writer.wait(usize::MAX).len(), 1);
    assert_eq!(store.usage().writing, 1);
    store.validate().unwrap();
    assert!(writer.finish().unwrap_err().message.contains("1 of 2 chunks were not submitted"));
    assert_empty(&store);

    let slot = put(&store, 1, 100 * KIB, &mut buffers(1, 64 * KIB)).unwrap();
    let mut reader = store.begin_read(slot).unwrap();
    for (offset, buffer) in [(1, full()), (128 * KIB, full()), (0, Buffer::new(4096).unwrap())] {
        assert_eq!(reader.submit(offset, buffer).unwrap_err().error.status, Status::Invalid);
    }
    reader.submit(0, full()).unwrap();
    assert!(reader.finish(After::Remove).unwrap_err().message.contains("1 of 2 chunks were not read"));
    store.remove(slot).unwrap();
    assert_empty(&store);
}

#[test]
fn no_buffers_and_failing_functions() {
    let mount = Mount::new("functions");
    let store = Store::open(&mount.0, &small_chunks()).unwrap();
    assert!(put(&store, 1, 1000, &mut Vec::new()).unwrap_err().message.contains("at least one"));
    assert_empty(&store);
    let mut own = buffers(3, 64 * KIB);
    let refuse =
        |at: u64| move |offset| if offset == at { Err(gpumem::base::Error::invalid("not me")) } else { Ok(()) };
    let e = store.write(MIB, &mut own, |offset, _| refuse(512 * KIB)(offset)).unwrap_err();
    assert_eq!((e.message.as_str(), own.len()), ("not me", 3));
    assert_empty(&store);
    let slot = put(&store, 1, MIB, &mut own).unwrap();
    let e = store.read(slot, After::Remove, &mut own, |offset, _| refuse(512 * KIB)(offset)).unwrap_err();
    assert_eq!((e.message.as_str(), own.len()), ("not me", 3));
    get(&store, 1, slot, After::Remove, &mut own).unwrap();
    assert_empty(&store);
}

#[test]
fn a_dropped_write_leaves_nothing() {
    let mount = Mount::new("dropped");
    let store = Store::open(&mount.0, &small_chunks()).unwrap();
    let mut writer = store.begin_write(MIB).unwrap();
    for offset in (0..MIB).step_by(128 << 10) {
        writer.submit(offset, Buffer::new(64 * KIB).unwrap()).unwrap();
    }
    assert_eq!(files(&store.dir()), ["0.part", "lock"]);
    drop(writer);
    assert_empty(&store);
}

#[test]
fn options_that_cannot_be() {
    let mount = Mount::new("options");
    let with = |chunk_bytes, limit| StoreOptions { chunk_bytes, limit, ..StoreOptions::default() };
    for options in [with(0, None), with(4095, None), with(2 << 30, None), with(MIB, Some(0)), with(MIB, Some(8 * KIB))]
    {
        assert_eq!(Store::open(&mount.0, &options).err().unwrap().status, Status::Invalid, "{options:?}");
    }
    assert_eq!(files(&mount.0), Vec::<String>::new());
    let e = Store::open(&mount.0.join("nowhere"), &small_chunks()).err().unwrap();
    assert!(e.status == Status::Io && e.message.contains("nowhere"), "{e}");
}
