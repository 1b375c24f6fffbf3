//! Data goes out and comes back.

use super::*;
use gpumem::base::{Error, Status};
use gpumem::tier::disk::Sink;
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Four threads write, read and remove data of 1 B to 64 MiB, several slots of each alive at once.
fn many_at_once(name: &str, options: StoreOptions) {
    const THREADS: u64 = 4;
    let mount = Mount::new(name);
    let store = Store::open_on(os(), &mount.0, &options).unwrap();
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, written) = (&store, &written);
            scope.spawn(move || {
                let mut own = buffers(3, options.chunk_bytes);
                let mut live = Vec::new();
                for i in 0..24 {
                    let seed = thread << 32 | i;
                    // Log-uniform, up to 4 MiB.
                    let bytes = (1 + random(seed, 1) % (4 * MIB)) >> (random(seed, 2) % 22);
                    let bytes = bytes.max(1);
                    live.push((put(store, seed, bytes, &mut own).unwrap(), seed));
                    written.fetch_add(bytes, Relaxed);
                    if random(seed, 3).is_multiple_of(2) {
                        let (slot, seed) = live.swap_remove((random(seed, 4) % live.len() as u64) as usize);
                        get(store, seed, slot, After::Keep, &mut own).unwrap();
                        get(store, seed, slot, After::Remove, &mut own).unwrap();
                        assert!(store.length(slot).is_err());
                    }
                }
                if thread == 0 {
                    live.push((put(store, 99, 64 * MIB, &mut own).unwrap(), 99));
                }
                assert_eq!(own.len(), 3, "buffers come back");
                for (slot, seed) in live {
                    get(store, seed, slot, After::Keep, &mut own).unwrap();
                    store.remove(slot).unwrap();
                }
            });
        }
    });
    assert!(written.load(Relaxed) > MIB && store.usage().peak > 64 * MIB);
    assert_empty(&store);
    drop(store);
    assert_eq!(mount.stores(), Vec::<PathBuf>::new());
}

#[test]
fn many_threads_use_a_store() {
    many_at_once("threads", StoreOptions::default());
}

#[test]
fn through_the_page_cache_in_odd_chunks_and_synced() {
    let options = StoreOptions { chunk_bytes: 12 * KIB, direct: false, sync: true, ..StoreOptions::default() };
    let mount = Mount::new("cache");
    let store = Store::open(&mount.0, &options).unwrap();
    assert!(!store.is_direct() && store.describe().contains("page cache (by option)"), "{}", store.describe());
    let mut own = buffers(2, 12 * KIB);
    for bytes in [1, 4095, 4096, 4097, 12 * KIB - 1, 12 * KIB, 12 * KIB + 1, 1_000_003] {
        let slot = put(&store, bytes, bytes, &mut own).unwrap();
        get(&store, bytes, slot, After::Remove, &mut own).unwrap();
    }
    assert_empty(&store);
}

/// Chunks in any order, all in flight at once, and more of them than the lane takes.
#[test]
fn any_order_and_any_number_in_flight() {
    const CHUNK: u64 = 4 * KIB;
    let mount = Mount::new("order");
    let options = StoreOptions { chunk_bytes: CHUNK, ..StoreOptions::default() };
    for threads in [1, 4] {
        let store = Store::open_on(Arc::new(OsDisk::with_threads(threads)), &mount.0, &options).unwrap();
        let chunks = 300;
        let bytes = chunks * CHUNK - 1000;
        let mut order: Vec<u64> = (0..chunks).collect();
        order.sort_by_key(|&i| random(5, i));
        let mut writer = store.begin_write(bytes).unwrap();
        for &i in &order {
            let mut buffer = Buffer::new(CHUNK).unwrap();
            fill(7, i * CHUNK, buffer.bytes_mut());
            writer.submit(i * CHUNK, buffer).unwrap();
        }
        let slot = writer.finish().unwrap();
        let mut reader = store.begin_read(slot).unwrap();
        for &i in &order {
            reader.submit(i * CHUNK, Buffer::new(CHUNK).unwrap()).unwrap();
        }
        let mut seen = 0;
        while seen < chunks {
            let over = reader.wait(7);
            assert!(over.len() >= 7.min((chunks - seen) as usize));
            for chunk in over {
                chunk.result.unwrap();
                assert_eq!(chunk.length, CHUNK.min(bytes - chunk.offset));
                let (data, rest) = chunk.buffer.bytes().split_at(chunk.length as usize);
                assert_eq!(differs(7, chunk.offset, data), None);
                assert!(rest.iter().all(|&b| b == 0), "what was behind the data in the buffer is not in the file");
                seen += 1;
            }
        }
        assert!(reader.wait(1).is_empty());
        reader.finish(After::Remove).unwrap();
        assert_empty(&store);
    }
}

/// A thread that ends takes its requests with it, as the kernel sees it; they are made again.
#[test]
fn the_thread_that_began_may_end() {
    let mount = Mount::new("handover");
    let store = Store::open(&mount.0, &small_chunks()).unwrap();
    let bytes = 4 * MIB;
    for round in 0..20 {
        let begin = || {
            let mut writer = store.begin_write(bytes).unwrap();
            for offset in (0..bytes).step_by(64 << 10) {
                let mut buffer = Buffer::new(64 * KIB).unwrap();
                fill(round, offset, buffer.bytes_mut());
                writer.submit(offset, buffer).unwrap();
            }
            writer
        };
        let writer = std::thread::scope(|s| s.spawn(begin).join().unwrap());
        let slot = writer.finish().unwrap();
        let begin = || {
            let mut reader = store.begin_read(slot).unwrap();
            for offset in (0..bytes).step_by(64 << 10) {
                reader.submit(offset, Buffer::new(64 * KIB).unwrap()).unwrap();
            }
            reader
        };
        let mut reader = std::thread::scope(|s| s.spawn(begin).join().unwrap());
        for chunk in reader.wait(usize::MAX) {
            chunk.result.unwrap();
            assert_eq!(differs(round, chunk.offset, chunk.buffer.bytes()), None);
        }
        reader.finish(After::Remove).unwrap();
    }
    assert_empty(&store);
}

#[test]
fn many_readers_of_one_slot() {
    let mount = Mount::new("readers");
    let store = Store::open(&mount.0, &small_chunks()).unwrap();
    let slot = put(&store, 3, 300_000, &mut buffers(2, 64 * KIB)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut own = buffers(2, 64 * KIB);
                (0..20).for_each(|_| get(&store, 3, slot, After::Keep, &mut own).unwrap());
            });
        }
    });
    assert_eq!(store.usage().reading, 0);
    store.remove(slot).unwrap();
    assert_empty(&store);
}

/// Notes what it is given, and whether that was what was written.
#[derive(Default)]
struct Notes {
    seed: u64,
    /// Offsets, and where the bytes were.
    arrived: Vec<(u64, usize)>,
    checked: Vec<(u64, usize)>,
    /// Of those that arrived.
    wrong: usize,
    refuses: Option<u64>,
}

impl Sink for Notes {
    fn arrived(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.arrived.push((offset, data.as_ptr() as usize));
        self.wrong += usize::from(differs(self.seed, offset, data).is_some());
        match self.refuses == Some(offset) {
            true => Err(Error::invalid("not this one")),
            false => Ok(()),
        }
    }

    fn checked(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        assert_eq!(differs(self.seed, offset, data), None, "at {offset}");
        assert_eq!(self.arrived.last(), Some(&(offset, data.as_ptr() as usize)), "the bytes have not moved");
        self.checked.push((offset, data.as_ptr() as usize));
        Ok(())
    }
}

#[test]
fn a_sink_gets_each_chunk_before_and_after_it_is_checked() {
    let mount = Mount::new("sinks");
    let store = Store::open(&mount.0, &small_chunks()).unwrap();
    let (chunk, bytes) = (64 * KIB, 60 * 64 * KIB - 100);
    let mut own = buffers(20, chunk);
    let slot = put(&store, 7, bytes, &mut own).unwrap();
    let mut notes = Notes { seed: 7, ..Notes::default() };
    store.read_into(slot, After::Keep, &mut own, &mut notes).unwrap();
    let mut offsets: Vec<u64> = notes.checked.iter().map(|c| c.0).collect();
    offsets.sort_unstable();
    assert_eq!(offsets, (0..60).map(|i| i * chunk).collect::<Vec<_>>());
    assert_eq!((notes.arrived, notes.wrong), (notes.checked.clone(), 0));
    // Those in flight may overtake each other; but for that, each buffer waits its turn.
    for window in notes.checked.windows(12) {
        let places: BTreeSet<usize> = window.iter().map(|c| c.1).collect();
        assert_eq!(places.len(), window.len(), "a buffer was used again too soon: {window:x?}");
    }

    // One that is refused before it is checked.
    let mut notes = Notes { seed: 7, refuses: Some(30 * chunk), ..Notes::default() };
    let e = store.read_into(slot, After::Remove, &mut own, &mut notes).unwrap_err();
    assert_eq!(e.message, "not this one");
    assert!(notes.checked.iter().all(|c| c.0 != 30 * chunk));
    assert_eq!(own.len(), 20);

    // One that is not what was written.
    let file = fs::OpenOptions::new().write(true).open(store.dir().join("0.slot")).unwrap();
    file.write_all_at(b"other bytes", 4 * KIB + 45 * chunk).unwrap();
    file.sync_all().unwrap();
    let mut notes = Notes { seed: 7, ..Notes::default() };
    let e = store.read_into(slot, After::Remove, &mut own, &mut notes).unwrap_err();
    assert_eq!(e.status, Status::Corrupt, "{e}");
    assert_eq!((notes.wrong, notes.arrived.len()), (1, notes.checked.len() + 1));
    assert_eq!((own.len(), store.usage().slots), (20, 1));
}
