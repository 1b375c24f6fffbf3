//! The disk tier: what is written comes back, or an error says why not; nothing is left behind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod crashes;
mod damage;
mod evicting;
mod faults;
mod killed;
mod leftovers;
mod misuse;
mod removal;
mod round_trips;

use gpumem::base::Result;
use gpumem::driver::disk::{Buffer, Disk, FaultDisk, OsDisk};
use gpumem::tier::disk::{After, Slot, Store, StoreOptions, StoreUsage};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A directory of a test's own, on a real disk, removed in the end.
struct Mount(PathBuf);

impl Mount {
    fn new(name: &str) -> Mount {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Mount(path)
    }

    /// What is in this user's directory, but for the guard.
    fn stores(&self) -> Vec<PathBuf> {
        let root = fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().path()).next();
        let all = root.into_iter().flat_map(|r| fs::read_dir(r).unwrap()).map(|e| e.unwrap().path());
        all.filter(|p| !p.ends_with("guard")).collect()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Names of the files in a directory, sorted.
fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn small_chunks() -> StoreOptions {
    StoreOptions { chunk_bytes: 64 * KIB, ..StoreOptions::default() }
}

fn os() -> Arc<dyn Disk> {
    Arc::new(OsDisk::default())
}

/// A store whose file system fails on request.
fn faulty(mount: &Mount, options: &StoreOptions) -> (Arc<FaultDisk>, Store) {
    let disk = Arc::new(FaultDisk::new(os()));
    let store = Store::open_on(disk.clone(), &mount.0, options).unwrap();
    (disk, store)
}

fn buffers(count: usize, bytes: u64) -> Vec<Buffer> {
    (0..count).map(|_| Buffer::new(bytes).unwrap()).collect()
}

/// Random bytes that depend on a seed and their place only.
fn fill(seed: u64, offset: u64, part: &mut [u8]) {
    assert_eq!(offset % 8, 0);
    for (i, bytes) in part.chunks_mut(8).enumerate() {
        let word = random(seed, offset / 8 + i as u64).to_le_bytes();
        bytes.copy_from_slice(&word[..bytes.len()]);
    }
}

/// The first byte that is not as [`fill`] would have it.
fn differs(seed: u64, offset: u64, part: &[u8]) -> Option<u64> {
    let mut expected = vec![0; part.len()];
    fill(seed, offset, &mut expected);
    part.iter().zip(&expected).position(|(a, b)| a != b).map(|i| offset + i as u64)
}

/// The word at a place, which can be asked for in any order.
fn random(seed: u64, i: u64) -> u64 {
    fastrand::Rng::with_seed(seed.rotate_left(32) ^ i).u64(..)
}

fn put(store: &Store, seed: u64, bytes: u64, buffers: &mut Vec<Buffer>) -> Result<Slot> {
    store.write(bytes, buffers, |offset, part| {
        fill(seed, offset, part);
        Ok(())
    })
}

/// Reads a slot and checks every byte.
fn get(store: &Store, seed: u64, slot: Slot, after: After, buffers: &mut Vec<Buffer>) -> Result<()> {
    let length = store.length(slot)?;
    let mut seen = 0;
    store.read(slot, after, buffers, |offset, part| {
        assert_eq!(differs(seed, offset, part), None, "of slot {slot:?}");
        seen += part.len() as u64;
        Ok(())
    })?;
    assert_eq!(seen, length);
    Ok(())
}

/// Nothing is used, and nothing is there but the lock.
#[track_caller]
fn assert_empty(store: &Store) {
    store.validate().unwrap();
    assert_eq!(StoreUsage { peak: 0, ..store.usage() }, StoreUsage::default());
    assert_eq!(files(&store.dir()), ["lock"]);
}
