//! Processes that are killed while they write.

use super::killed::{is_killed, kill, look, spawn};
use super::*;
use gpumem::driver::disk::{DiskRule, Effect};
use std::time::Duration;
use test_support::rounds;

const CHILD: &str = "GPUMEM_TEST_CRASH";
const NAME: &str = "disk_store::crashes::killed_writers_leave_nothing_that_passes_for_data";

fn length(seed: u64, number: u64) -> u64 {
    (1 + random(seed ^ 0xFFFF, number) % 400_000) >> (random(seed, number) % 3 * 4)
}

/// Writes and removes until it is killed: `inside` by the file system at a random call, `outside`
/// by the parent.
fn child(role: &str) {
    let mut words = role.splitn(3, ' ');
    let seed: u64 = words.next().unwrap().parse().unwrap();
    let inside = words.next().unwrap() == "inside";
    let mount = PathBuf::from(words.next().unwrap());
    let disk = Arc::new(FaultDisk::new(os()));
    let calls = random(seed, 1);
    let effect =
        if random(seed, 2).is_multiple_of(2) { Effect::Kill } else { Effect::Torn(random(seed, 3) as usize % 65_536) };
    let rules = [DiskRule { call: None, after: calls % 90, effect, lasting: true }];
    // Now and then already while it opens.
    let early = inside && seed.is_multiple_of(10);
    if early {
        disk.set(&rules.map(|rule| DiskRule { after: calls % 20, ..rule }));
    }
    let store = Store::open_on(disk.clone(), &mount, &small_chunks()).unwrap();
    println!("\nopen");
    if inside {
        disk.set(&rules);
    }
    let mut own = buffers(3, 64 * KIB);
    let mut live = Vec::new();
    for number in 0.. {
        live.push(put(&store, seed + number, length(seed, number), &mut own).unwrap());
        if live.len() > 4 {
            store.remove(live.remove(0)).unwrap();
        }
    }
}

#[test]
fn killed_writers_leave_nothing_that_passes_for_data() {
    if let Ok(role) = std::env::var(CHILD) {
        return child(&role);
    }
    let (inside, outside) = (rounds(100), rounds(10));
    let mount = Mount::new("killed");
    let (mut left, mut partial) = (0, 0);
    for i in 0..inside + outside {
        let seed = i * 1_000_003;
        let how = if i < inside { "inside" } else { "outside" };
        let mut child = spawn(NAME, CHILD, format!("{seed} {how} {}", mount.0.display()));
        if i >= inside {
            kill(&mut child, Duration::from_micros(random(seed, 7) % 40_000));
        }
        is_killed(child);
        let (files, torn) = look(&mount, seed, 1, length);
        let stores = mount.stores().len() as u64;
        let next = Store::open(&mount.0, &small_chunks()).unwrap();
        let reclaimed = next.reclaimed();
        assert_eq!((reclaimed.files, mount.stores()), (files, vec![next.dir()]), "{stores} stores after kill {i}");
        assert_empty(&next);
        (left, partial) = (left + files, partial + torn);
    }
    println!("{left} files were left and removed, {partial} of them not whole");
    assert!(partial > inside / 4 && left > partial, "{left} left, {partial} not whole: killed at the wrong moments");
}
