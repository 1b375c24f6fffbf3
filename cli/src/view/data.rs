//! The data for the page: a part for the first view, and blocks of all changes, read while the page
//! is already shown.
//!
//! A block is columns of numbers, seven bits a byte: how many changes and how many allocations
//! begin in it; then for each change a code (0: an allocation begins; n: the n-th last begun one
//! ends) and the time since the change before; then for each allocation that begins its bytes, its
//! address as the difference from the one before, and the indices of its stream, tag, arena, stack,
//! thread and device.

use gpumem::observe::format::put;
use gpumem::observe::history::{Life, NEVER};
use gpumem::observe::{History, Kind, Recording};
use serde_json::{json, Value};
use std::collections::HashMap;

/// Changes in a block.
const CHUNK: usize = 1 << 17;
/// Time buckets of the first view.
const BUCKETS: usize = 1024;
/// The most slow steps listed: those that took longest.
const SLOW: usize = 20_000;
/// The most rows of a list.
const ROWS: usize = 200;

/// The data of a page.
pub struct Data {
    /// Shown at once.
    pub meta: Value,
    /// Blocks of changes, read one after the other.
    pub chunks: Vec<Vec<u8>>,
}

/// The properties by which allocations are grouped.
#[derive(Clone, Copy)]
enum By {
    Stream,
    Tag,
    Arena,
    Stack,
    Thread,
}

const BY: [(By, &str); 5] =
    [(By::Stream, "stream"), (By::Tag, "tag"), (By::Arena, "arena"), (By::Stack, "stack"), (By::Thread, "thread")];

impl By {
    fn of(self, life: &Life) -> u64 {
        match self {
            By::Stream => life.stream,
            By::Tag => life.tag,
            By::Arena => life.arena.into(),
            By::Stack => life.stack.into(),
            By::Thread => life.thread.into(),
        }
    }
}

/// Numbers for values, in the order of first use.
#[derive(Default)]
struct Numbers {
    known: HashMap<u64, u64>,
    values: Vec<u64>,
}

impl Numbers {
    fn of(&mut self, value: u64) -> u64 {
        *self.known.entry(value).or_insert_with(|| {
            self.values.push(value);
            self.values.len() as u64 - 1
        })
    }
}

/// A recording's page.
pub fn of_recording(name: &str, recording: &Recording, history: &History) -> Data {
    let mut numbers: [Numbers; 5] = Default::default();
    let chunks = history.changes.chunks(CHUNK);
    let mut begun = 0_u64;
    let mut time = 0;
    let mut address = 0;
    let chunks = chunks
        .map(|changes| {
            let mut out = Vec::new();
            let lives: Vec<&Life> =
                changes.iter().filter(|c| c.begins).filter_map(|c| history.lives.get(c.life as usize)).collect();
            put(&mut out, changes.len() as u64);
            put(&mut out, lives.len() as u64);
            for c in changes {
                let code = if c.begins { 0 } else { begun - u64::from(c.life) };
                begun += u64::from(c.begins);
                put(&mut out, code);
            }
            for c in changes {
                put(&mut out, c.time.saturating_sub(time));
                time = c.time;
            }
            lives.iter().for_each(|l| put(&mut out, l.bytes));
            for l in &lives {
                let d = l.address.wrapping_sub(address) as i64;
                put(&mut out, ((d << 1) ^ (d >> 63)) as u64);
                address = l.address;
            }
            for ((by, _), numbers) in BY.iter().zip(&mut numbers) {
                lives.iter().for_each(|l| put(&mut out, numbers.of(by.of(l))));
            }
            lives.iter().for_each(|l| put(&mut out, u64::from(l.device)));
            out
        })
        .collect::<Vec<_>>();
    let names = Names::of(recording);
    let labels: serde_json::Map<String, Value> = BY
        .iter()
        .zip(&numbers)
        .map(|((by, word), numbers)| {
            let labels: Vec<String> = numbers.values.iter().map(|v| names.label(*by, *v)).collect();
            (word.to_string(), labels.into())
        })
        .collect();
    let [_, _, _, stacks, _] = &numbers;
    let frames: Vec<Value> = stacks.values.iter().map(|s| json!(names.frames(*s))).collect();
    let end = history.end.max(1);
    let meta = json!({
        "kind": "recording",
        "name": name,
        "info": recording.info,
        "faults": recording.faults(),
        "end": end,
        "totals": totals(recording, history),
        "labels": labels,
        "frames": frames,
        "first": first_sight(history, end),
        "mapped": crate::record::mapped_points(recording),
        "slow": slow(recording),
        "leaks": leaks(history, &names, end),
        "report": report(recording, history, &names),
        "changes": history.changes.len(),
        "lives": history.lives.len(),
        "chunks": chunks.len(),
    });
    Data { meta, chunks }
}

/// The names of values.
struct Names<'a> {
    recording: &'a Recording,
    arenas: HashMap<u32, &'a str>,
}

impl<'a> Names<'a> {
    fn of(recording: &'a Recording) -> Names<'a> {
        Names { recording, arenas: recording.arena_names() }
    }

    fn frames(&self, stack: u64) -> Vec<&'a str> {
        self.recording.frames(u32::try_from(stack).unwrap_or(0))
    }

    fn label(&self, by: By, value: u64) -> String {
        match (by, value) {
            (By::Stream, 0) => "legacy stream".into(),
            (By::Stream, 2) => "per-thread stream".into(),
            (By::Stream, s) => format!("stream {s:#x}"),
            (By::Tag, 0) => "no tag".into(),
            (By::Tag, t) => format!("tag {t}"),
            (By::Arena, 0) => "no arena".into(),
            (By::Arena, a) => match self.arenas.get(&(a as u32)) {
                Some(name) => format!("arena {a} {name}"),
                None => format!("arena {a}"),
            },
            (By::Stack, 0) => "no stack".into(),
            (By::Stack, s) => {
                let frames: Vec<String> = self.frames(s).iter().take(4).map(|f| short(f)).collect();
                if frames.is_empty() {
                    format!("stack {s}")
                } else {
                    frames.join(" ← ")
                }
            }
            (By::Thread, t) => format!("thread {t}"),
        }
    }
}

/// A frame with the file's name only.
fn short(frame: &str) -> String {
    let file = frame.strip_suffix(')').and_then(|f| f.rsplit_once(" ("));
    match file.map(|(name, path)| (name, path.rsplit('/').next().unwrap_or(path))) {
        Some((name, file)) => format!("{name} ({file})"),
        None => frame.to_string(),
    }
}

/// Whether a recording says of all its events what became of them.
pub fn is_whole(recording: &Recording) -> bool {
    recording.complete && recording.damaged == 0
}

/// The most important numbers; `gpumem stats --json` has the same.
pub fn totals(recording: &Recording, history: &History) -> Value {
    let mapped = crate::record::mapped_points(recording);
    let slow: Vec<_> = recording.events.iter().map(|h| &h.event).filter(|e| e.kind.is_slow()).collect();
    let count = |kind| recording.events.iter().filter(|h| h.event.kind == kind).count();
    let driver = slow.iter().filter(|e| e.kind.is_of_driver()).fold(0_u64, |sum, e| sum.saturating_add(e.other));
    json!({
        "events": recording.events.len(),
        "allocations": history.allocations(),
        "frees": history.frees(),
        "resizes": history.resizes,
        "operations": history.changes.len() - history.resizes,
        "failures": history.failures,
        "unknown_frees": history.unknown_frees,
        // What was not ended, or has damaged blocks, does not say all that is missing.
        "lost": (recording.lost > 0 || is_whole(recording)).then_some(recording.lost),
        "complete": recording.complete,
        "peak_live_bytes": history.peak,
        "peak_at_ns": history.peak_at,
        "live_bytes": history.live,
        "live_allocations": history.lives.iter().filter(|l| l.to == NEVER).count(),
        "peak_mapped_bytes": mapped.iter().map(|p| p.1).max().unwrap_or(0),
        "nanoseconds": history.end,
        "growths": count(Kind::Growth),
        "stitches": count(Kind::Stitch),
        "trims": count(Kind::Trim),
        "driver_calls": slow.iter().filter(|e| e.kind.is_of_driver()).count(),
        "driver_nanoseconds": driver,
        "threads": recording.events.iter().map(|h| h.thread).collect::<std::collections::BTreeSet<_>>().len(),
    })
}

/// Live bytes in equal steps of time: the least and the most of each.
fn first_sight(history: &History, end: u64) -> Value {
    let bucket = |t: u64| ((u128::from(t) * BUCKETS as u128 / (u128::from(end) + 1)) as usize).min(BUCKETS - 1);
    let (mut least, mut most) = (vec![u64::MAX; BUCKETS], vec![0; BUCKETS]);
    let mut live = 0_u64;
    let mut at = 0;
    let mut touch = |at: &mut usize, to: usize, live: u64| {
        // Buckets without changes keep the bytes that were live before.
        while *at < to {
            if let (Some(l), Some(m)) = (least.get_mut(*at), most.get_mut(*at)) {
                (*l, *m) = ((*l).min(live), (*m).max(live));
            }
            *at += 1;
        }
        if let (Some(l), Some(m)) = (least.get_mut(*at), most.get_mut(*at)) {
            (*l, *m) = ((*l).min(live), (*m).max(live));
        }
    };
    for c in &history.changes {
        touch(&mut at, bucket(c.time), live);
        let bytes = history.lives.get(c.life as usize).map_or(0, |l| l.bytes);
        live = if c.begins { live.saturating_add(bytes) } else { live.saturating_sub(bytes) };
        touch(&mut at, bucket(c.time), live);
    }
    touch(&mut at, BUCKETS - 1, live);
    json!({"buckets": BUCKETS, "least": least, "most": most})
}

fn slow(recording: &Recording) -> Value {
    let mut all: Vec<_> = recording.events.iter().filter(|h| h.event.kind.is_slow()).collect();
    let whole = all.len();
    if whole > SLOW {
        // Failures are kept, however short they were.
        all.sort_by_key(|h| std::cmp::Reverse((h.event.kind == Kind::OutOfMemory, h.event.other)));
        all.truncate(SLOW);
        all.sort_by_key(|h| h.event.time);
    }
    let row = |h: &&gpumem::observe::recording::Happened| {
        let e = &h.event;
        let ns = if e.kind == Kind::OutOfMemory { 0 } else { e.other };
        json!([e.time, e.kind.name(), ns, e.bytes, h.thread, format!("{:#x}", e.address), e.tag])
    };
    json!({"all": whole, "rows": all.iter().map(row).collect::<Vec<_>>()})
}

/// The holders of memory at the end and after each quarter of the allocations and frees: holders
/// that grow, leak.
fn leaks(history: &History, names: &Names<'_>, end: u64) -> Value {
    let mut out = serde_json::Map::new();
    // Quarters of the calls, not of the time: a program does not leak while it waits.
    let quarter = |n: usize| history.changes.get(history.changes.len() * n / 4).map_or(end, |c| c.time);
    let looks = [quarter(1), quarter(2), quarter(3), end];
    for (by, word) in BY {
        // Bytes at 1/4, 2/4, 3/4 and the end; allocations at the end; when the oldest of them was
        // made.
        let mut groups: HashMap<u64, ([u64; 4], u64, u64)> = HashMap::new();
        for l in &history.lives {
            let group = groups.entry(by.of(l)).or_insert(([0; 4], 0, NEVER));
            for (sum, &t) in group.0.iter_mut().zip(&looks) {
                if l.from <= t && t < l.to {
                    *sum = sum.saturating_add(l.bytes);
                }
            }
            if l.to == NEVER {
                group.1 += 1;
                group.2 = group.2.min(l.from);
            }
        }
        let mut groups: Vec<_> = groups.into_iter().filter(|(_, g)| g.1 > 0).collect();
        groups.sort_by_key(|(value, g)| (std::cmp::Reverse(g.0[3]), *value));
        let row = |(value, (bytes, n, oldest)): &(u64, ([u64; 4], u64, u64))| {
            let grows = bytes.windows(2).all(|w| w[0] < w[1]);
            json!({"label": names.label(by, *value), "bytes": bytes, "allocations": n, "oldest": oldest, "grows": grows})
        };
        out.insert(word.into(), groups.iter().take(ROWS).map(row).collect::<Vec<_>>().into());
    }
    Value::Object(out)
}

/// The findings, in sentences.
fn report(recording: &Recording, history: &History, names: &Names<'_>) -> Vec<String> {
    use gpumem::base::size::human;
    let mut say = vec![format!(
        "{} allocations and {} frees in {:.3} s; at most {} were live at once, after {:.3} s; {} are live at the end.",
        history.allocations(),
        history.frees(),
        history.end as f64 / 1e9,
        human(history.peak),
        history.peak_at as f64 / 1e9,
        human(history.live)
    )];
    for h in recording.events.iter().filter(|h| h.event.kind == Kind::OutOfMemory).take(20) {
        let e = &h.event;
        let alive = history.live_at(e.time);
        let lives: Vec<&Life> = alive.iter().filter_map(|i| history.lives.get(*i as usize)).collect();
        let live = lives.iter().fold(0_u64, |sum, l| sum.saturating_add(l.bytes));
        let by = if e.stack != 0 || lives.iter().any(|l| l.stack != 0) { By::Stack } else { By::Tag };
        let mut sums: HashMap<u64, u64> = HashMap::new();
        for l in &lives {
            let sum = sums.entry(by.of(l)).or_default();
            *sum = sum.saturating_add(l.bytes);
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|&(value, bytes)| (std::cmp::Reverse(bytes), value));
        let most: Vec<String> =
            sums.iter().take(3).map(|(v, bytes)| format!("{} by {}", human(*bytes), names.label(by, *v))).collect();
        let who = names.frames(e.stack.into()).first().map_or(String::new(), |f| format!(" to {f}"));
        say.push(format!(
            "After {:.3} s {} ({} bytes) could not be given{who}: {} were live in {} allocations, of which {}.",
            e.time as f64 / 1e9,
            human(e.bytes),
            e.bytes,
            human(live),
            lives.len(),
            most.join(", ")
        ));
    }
    say.extend(recording.faults().map(|f| format!("Of the recording itself: {f}.")));
    say
}

/// A snapshot's page.
pub fn of_snapshot(name: &str, snapshot: &Value) -> Data {
    let mut meta = snapshot.clone();
    if let Some(m) = meta.as_object_mut() {
        m.insert("kind".into(), "snapshot".into());
        m.insert("name".into(), name.into());
    }
    Data { meta, chunks: Vec::new() }
}
