//! Files that change behind the store's back: an error, never other data.

use super::*;
use gpumem::base::Status;
use std::os::unix::fs::FileExt;

fn flip(path: &Path, at: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

#[test]
fn any_altered_byte_is_found() {
    let mount = Mount::new("altered");
    for direct in [true, false] {
        let store = Store::open(&mount.0, &StoreOptions { direct, ..small_chunks() }).unwrap();
        let mut own = buffers(2, 64 * KIB);
        let bytes = 200_000;
        let slot = put(&store, 1, bytes, &mut own).unwrap();
        let path = store.dir().join("0.slot");
        let length = fs::metadata(&path).unwrap().len();
        let footer = length - 4096;
        let places = [0, 8, 4095, 4096, 4096 + 64 * KIB, 4096 + bytes - 1, footer - 1, footer, footer + 60, length - 1];
        for at in places.into_iter().chain((0..30).map(|i| random(i, 0) % length)) {
            flip(&path, at);
            let e = get(&store, 1, slot, After::Remove, &mut own).unwrap_err();
            let part = match at {
                at if at < 4096 => "the header",
                at if at < footer => "the data from byte",
                _ => "the footer",
            };
            assert!(e.status == Status::Corrupt && e.message.contains(part), "{at}: {e}");
            assert_eq!((own.len(), store.usage().slots, store.usage().reading), (2, 1, 0), "kept, and not being read");
            flip(&path, at);
        }
        get(&store, 1, slot, After::Remove, &mut own).unwrap();
        assert_empty(&store);
    }
}

#[test]
fn a_truncated_or_longer_file_is_found() {
    let mount = Mount::new("truncated");
    for direct in [true, false] {
        let store = Store::open(&mount.0, &StoreOptions { direct, ..small_chunks() }).unwrap();
        let mut own = buffers(2, 64 * KIB);
        let slot = put(&store, 1, 200_000, &mut own).unwrap();
        let path = store.dir().join("0.slot");
        let whole = fs::read(&path).unwrap();
        let length = whole.len() as u64;
        for cut in [0, 1, 4095, 4096, 100_000, length - 4096, length - 1, length + 1, length + 4096] {
            fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(cut).unwrap();
            let e = get(&store, 1, slot, After::Keep, &mut own).unwrap_err();
            assert!(e.status == Status::Corrupt && e.message.contains("0.slot"), "{cut}: {e}");
            fs::write(&path, &whole).unwrap();
        }
        get(&store, 1, slot, After::Keep, &mut own).unwrap();
        // Truncated while it is being read.
        let mut reader = store.begin_read(slot).unwrap();
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(70_000).unwrap();
        for (chunk, good) in [(0, true), (64 * KIB, false)] {
            reader.submit(chunk, own.pop().unwrap()).unwrap();
            let chunk = reader.wait(1).pop().unwrap();
            own.push(chunk.buffer);
            assert_eq!(chunk.result.map_err(|e| e.status), if good { Ok(()) } else { Err(Status::Corrupt) });
        }
        assert_eq!(reader.finish(After::Remove).unwrap_err().status, Status::Corrupt);
        store.remove(slot).unwrap();
        assert_empty(&store);
    }
}

/// Another write's file of the same length, or its parts.
#[test]
fn another_write_s_file_is_found() {
    let mount = Mount::new("swapped");
    let store = Store::open(&mount.0, &small_chunks()).unwrap();
    let mut own = buffers(2, 64 * KIB);
    let slots = [put(&store, 1, 200_000, &mut own).unwrap(), put(&store, 1, 200_000, &mut own).unwrap()];
    let (a, b) = (store.dir().join("0.slot"), store.dir().join("1.slot"));
    let (first, second) = (fs::read(&a).unwrap(), fs::read(&b).unwrap());
    fs::write(&a, &second).unwrap();
    let e = get(&store, 1, slots[0], After::Keep, &mut own).unwrap_err();
    assert!(e.status == Status::Corrupt && e.message.contains("header is of another write"), "{e}");
    let end = second.len() - 4096;
    fs::write(&a, [&first[..end], &second[end..]].concat()).unwrap();
    let e = get(&store, 1, slots[0], After::Keep, &mut own).unwrap_err();
    assert!(e.status == Status::Corrupt && e.message.contains("different writes"), "{e}");
    get(&store, 1, slots[1], After::Keep, &mut own).unwrap();
}

#[test]
fn a_directory_that_goes_away() {
    let mount = Mount::new("gone");
    let store = Store::open(&mount.0, &small_chunks()).unwrap();
    let mut own = buffers(2, 64 * KIB);
    let (kept, read) = (put(&store, 1, 200_000, &mut own).unwrap(), put(&store, 2, 200_000, &mut own).unwrap());
    let mut reader = store.begin_read(read).unwrap();
    let mut writer = store.begin_write(100_000).unwrap();
    fs::remove_dir_all(&mount.0).unwrap();
    // What is open goes on until it is to be named.
    reader.submit(0, own.pop().unwrap()).unwrap();
    reader.wait(1).pop().unwrap().result.unwrap();
    drop(reader);
    for offset in [0, 64 * KIB] {
        writer.submit(offset, Buffer::new(64 * KIB).unwrap()).unwrap();
    }
    let e = writer.finish().unwrap_err();
    assert!(e.status == Status::Io && e.message.contains("unmounted"), "{e}");
    let e = put(&store, 1, 1000, &mut own).unwrap_err();
    assert!(e.status == Status::Io && e.message.contains("unmounted"), "{e}");
    let e = get(&store, 1, kept, After::Keep, &mut own).unwrap_err();
    assert!(e.status == Status::Io && e.message.contains("unmounted"), "{e}");
    assert_eq!(store.capacity().unwrap_err().status, Status::Io);
    assert_eq!(store.usage().slots, 2);
    store.validate().unwrap();
    store.remove(kept).unwrap();
    store.remove(read).unwrap();
    assert_eq!(StoreUsage { peak: 0, ..store.usage() }, StoreUsage::default());
    drop(store);
    assert!(!mount.0.exists());
}
