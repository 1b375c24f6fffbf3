//! Processes that are killed while they write.

use super::*;
use gpumem::base::Status;
use gpumem::driver::disk::{DiskRule, Effect};
use gpumem::tier::disk::inspect;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const CHILD: &str = "GPUMEM_TEST_CRASH";
const NAME: &str = "crashes::killed_writers_leave_nothing_that_passes_for_data";

fn length(seed: u64, number: u64) -> u64 {
    (1 + random(seed ^ 0xFFFF, number) % 400_000) >> (random(seed, number) % 3 * 4)
}

fn spawn(mount: &Path, seed: u64, how: &str) -> Child {
    let exe = std::env::current_exe().unwrap();
    let mut command = Command::new(exe);
    command.args(["--exact", NAME, "--nocapture"]).env(CHILD, format!("{seed} {how} {}", mount.display()));
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Writes and removes until it is killed: `inside` by the file system at a random call, `outside` by the parent.
fn child(role: &str) {
    let mut words = role.splitn(3, ' ');
    let seed: u64 = words.next().unwrap().parse().unwrap();
    let inside = words.next().unwrap() == "inside";
    let mount = PathBuf::from(words.next().unwrap());
    let disk = Arc::new(FaultDisk::new(os(Engine::Auto)));
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

/// What the killed one left: every file that passes for whole is what was written. Returns files, and how many are not whole.
fn look(mount: &Mount, seed: u64) -> (u64, u64) {
    let disk = os(Engine::Auto);
    let (mut count, mut partial) = (0, 0);
    for path in mount.stores().iter().flat_map(|dir| fs::read_dir(dir).unwrap()).map(|e| e.unwrap().path()) {
        let Some(end) = path.extension() else { continue };
        count += 1;
        let number = path.file_stem().unwrap().to_str().unwrap().parse();
        let seed_of = |number: u64| seed + number;
        match inspect(&*disk, &path, |offset, part| {
            let number = *number.as_ref().expect("a whole file has a number");
            assert_eq!(differs(seed_of(number), offset, part), None, "{} passes for whole", path.display());
        }) {
            Ok(bytes) => assert_eq!(bytes, length(seed, number.unwrap())),
            Err(e) => {
                assert_eq!(e.status, Status::Corrupt, "{e}");
                assert_eq!(end, "part", "{} has the name of a finished write: {e}", path.display());
                partial += 1;
            }
        }
    }
    (count, partial)
}

#[test]
fn killed_writers_leave_nothing_that_passes_for_data() {
    if let Ok(role) = std::env::var(CHILD) {
        return child(&role);
    }
    const INSIDE: u64 = 200;
    const OUTSIDE: u64 = 20;
    let mount = Mount::new("killed");
    let (mut left, mut partial) = (0, 0);
    for i in 0..INSIDE + OUTSIDE {
        let seed = i * 1_000_003;
        let mut child = spawn(&mount.0, seed, if i < INSIDE { "inside" } else { "outside" });
        if i >= INSIDE {
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            assert!(lines.any(|line| line.is_ok_and(|l| l == "open")), "never opened");
            std::thread::sleep(Duration::from_micros(random(seed, 7) % 40_000));
            child.kill().unwrap();
        }
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}");
        let (files, torn) = look(&mount, seed);
        let stores = mount.stores().len() as u64;
        let next = Store::open(&mount.0, &small_chunks()).unwrap();
        let reclaimed = next.reclaimed();
        assert_eq!((reclaimed.files, mount.stores()), (files, vec![next.dir()]), "{stores} stores after kill {i}");
        assert_empty(&next);
        (left, partial) = (left + files, partial + torn);
    }
    println!("{left} files were left and removed, {partial} of them not whole");
    assert!(partial > INSIDE / 4 && left > partial, "{left} left, {partial} not whole: killed at the wrong moments");
}
