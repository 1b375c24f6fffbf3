//! The pickle that `torch.cuda.memory._dump_snapshot` writes, for pytorch.org/memory_viz.
//!
//! A segment there is a range of mapped addresses; here, one that the driver had mapped at the end
//! of the recording. Blocks are its live allocations and the gaps between them.

use gpumem::observe::history::{Life, NEVER};
use gpumem::observe::{History, Kind, Recording};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};

#[derive(Serialize)]
struct Snapshot {
    segments: Vec<Segment>,
    device_traces: Vec<Vec<Entry>>,
    allocator_settings: BTreeMap<&'static str, Setting>,
    external_annotations: Vec<u8>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Setting {
    Text(&'static str),
    Flag(bool),
    Number(u64),
}

#[derive(Serialize)]
struct Segment {
    device: u8,
    address: u64,
    total_size: u64,
    allocated_size: u64,
    active_size: u64,
    requested_size: u64,
    stream: u64,
    segment_type: &'static str,
    segment_pool_id: (u64, u64),
    is_expandable: bool,
    frames: Vec<Frame>,
    blocks: Vec<Block>,
}

#[derive(Serialize)]
struct Block {
    address: u64,
    size: u64,
    requested_size: u64,
    state: &'static str,
    frames: Vec<Frame>,
}

#[derive(Serialize)]
struct Entry {
    action: &'static str,
    addr: u64,
    size: u64,
    stream: u64,
    time_us: u64,
    frames: Vec<Frame>,
    /// Torch's compiled region and the caller's metadata; here the values that torch writes for
    /// none.
    compile_context: &'static str,
    user_metadata: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_free: Option<u64>,
}

impl Entry {
    fn new(action: &'static str, addr: u64, size: u64, stream: u64, time_us: u64, frames: Vec<Frame>) -> Entry {
        let (compile_context, user_metadata) = ("N/A", "");
        Entry { action, addr, size, stream, time_us, frames, compile_context, user_metadata, device_free: None }
    }
}

#[derive(Clone, Serialize)]
struct Frame {
    name: String,
    filename: String,
    line: u64,
}

/// A frame as gpumem writes it, `name (file:line)`, taken apart.
fn frame(text: &str) -> Frame {
    let parts = text.rsplit_once(" (").and_then(|(name, rest)| {
        let (filename, line) = rest.strip_suffix(')')?.rsplit_once(':')?;
        Some(Frame { name: name.into(), filename: filename.into(), line: line.parse().ok()? })
    });
    parts.unwrap_or_else(|| Frame { name: text.into(), filename: "??".into(), line: 0 })
}

fn frames(recording: &Recording, stack: u32) -> Vec<Frame> {
    recording.frames(stack).into_iter().map(frame).collect()
}

/// Writes it.
pub fn write(recording: &Recording, history: &History, out: &mut impl Write) -> io::Result<()> {
    let unix_us = recording.info.get("unix_ms").and_then(serde_json::Value::as_u64).unwrap_or(0).saturating_mul(1000);
    let devices = usize::from(history.lives.iter().map(|l| l.device).max().unwrap_or(0)) + 1;
    let mut traces: Vec<Vec<Entry>> = (0..devices).map(|_| Vec::new()).collect();
    // Changes, and driver calls and failures between them, by time.
    let mut steps = recording.events.iter().map(|h| &h.event).peekable();
    let mut entry = |device: u8, e: Entry| {
        if let Some(trace) = traces.get_mut(usize::from(device)) {
            trace.push(e);
        }
    };
    let time = |ns: u64| unix_us.saturating_add(ns / 1000);
    // Steps after the last change count too: a failed request may have ended the program.
    for change in history.changes.iter().map(Some).chain([None]) {
        while let Some(e) = steps.next_if(|e| change.is_none_or(|c| e.time <= c.time)) {
            let (action, free) = match e.kind {
                Kind::Map => ("segment_map", None),
                Kind::Unmap => ("segment_unmap", None),
                Kind::OutOfMemory => ("oom", Some(0)),
                _ => continue,
            };
            let frames = frames(recording, e.stack);
            let (addr, size, stream) = (e.address, e.bytes, e.stream);
            let made = Entry::new(action, addr, size, stream, time(e.time), frames);
            entry(e.device, Entry { device_free: free, ..made });
        }
        let Some(change) = change else { break };
        let Some(life) = history.lives.get(change.life as usize) else { continue };
        let stack = frames(recording, life.stack);
        let actions: &[&str] = if change.begins { &["alloc"] } else { &["free_requested", "free_completed"] };
        for action in actions {
            let (stream, frames) =
                if change.begins { (life.stream, stack.clone()) } else { (life.freed_on, Vec::new()) };
            entry(life.device, Entry::new(action, life.address, life.bytes, stream, time(change.time), frames));
        }
    }
    let settings = [
        ("PYTORCH_CUDA_ALLOC_CONF", Setting::Text("")),
        ("max_split_size", Setting::Text("-1")),
        ("garbage_collection_threshold", Setting::Number(0)),
        ("expandable_segments", Setting::Flag(true)),
        ("pinned_num_register_threads", Setting::Number(1)),
        ("release_lock_on_cudamalloc", Setting::Flag(false)),
        ("pinned_use_cuda_host_register", Setting::Flag(false)),
        ("roundup_power2_divisions", Setting::Text("")),
    ];
    let snapshot = Snapshot {
        segments: segments(recording, history),
        device_traces: traces,
        allocator_settings: settings.into_iter().collect(),
        external_annotations: Vec::new(),
    };
    serde_pickle::to_writer(out, &snapshot, serde_pickle::SerOptions::new().proto_v2()).map_err(io::Error::other)
}

/// Runs of addresses mapped at the end, with the live allocations in them; live memory without a
/// recorded mapping is a segment of its own.
fn segments(recording: &Recording, history: &History) -> Vec<Segment> {
    let mut mapped: BTreeMap<u64, (u64, u8)> = BTreeMap::new();
    for h in &recording.events {
        let e = &h.event;
        match e.kind {
            Kind::Map => drop(mapped.insert(e.address, (e.bytes, e.device))),
            Kind::Unmap => {
                let before = mapped.range(..e.address).next_back();
                let before = before.filter(|(a, (len, _))| a.saturating_add(*len) > e.address);
                let inside = mapped.range(e.address..e.address.saturating_add(e.bytes));
                let gone: Vec<u64> = before.into_iter().chain(inside).map(|(a, _)| *a).collect();
                for address in gone {
                    mapped.remove(&address);
                }
            }
            _ => {}
        }
    }
    let mut runs: Vec<(u64, u64, u8)> = Vec::new();
    for (address, (bytes, device)) in mapped {
        match runs.last_mut() {
            Some((start, len, of)) if start.saturating_add(*len) == address && *of == device => {
                *len = len.saturating_add(bytes)
            }
            _ => runs.push((address, bytes, device)),
        }
    }
    let mut alive: BTreeMap<u64, &Life> =
        history.lives.iter().filter(|l| l.to == NEVER).map(|l| (l.address, l)).collect();
    let mut segments = Vec::new();
    for (start, bytes, device) in runs {
        let inside: Vec<&Life> = alive.range(start..start.saturating_add(bytes)).map(|(_, l)| *l).collect();
        for l in &inside {
            alive.remove(&l.address);
        }
        segments.push(segment(recording, (start, bytes, device), &inside));
    }
    segments.extend(alive.values().map(|l| segment(recording, (l.address, l.bytes.max(1), l.device), &[l])));
    segments.sort_by_key(|s| s.address);
    segments
}

fn segment(recording: &Recording, (start, bytes, device): (u64, u64, u8), inside: &[&Life]) -> Segment {
    let mut blocks = Vec::new();
    let (mut at, end) = (start, start.saturating_add(bytes));
    let gap = |at: u64, to: u64| Block {
        address: at,
        size: to - at,
        requested_size: 0,
        state: "inactive",
        frames: Vec::new(),
    };
    for (i, l) in inside.iter().enumerate() {
        if l.address > at {
            blocks.push(gap(at, l.address));
        }
        let next = inside.get(i + 1).map_or(end, |n| n.address);
        let size = l.bytes.min(next.saturating_sub(l.address)).max(1);
        let frames = frames(recording, l.stack);
        blocks.push(Block { address: l.address, size, requested_size: l.bytes, state: "active_allocated", frames });
        at = l.address.saturating_add(size);
    }
    if at < end {
        blocks.push(gap(at, end));
    }
    let live = inside.iter().fold(0_u64, |sum, l| sum.saturating_add(l.bytes));
    Segment {
        device,
        address: start,
        total_size: bytes,
        allocated_size: live,
        active_size: live,
        requested_size: live,
        stream: inside.first().map_or(0, |l| l.stream),
        segment_type: "large",
        segment_pool_id: (0, 0),
        is_expandable: true,
        frames: Vec::new(),
        blocks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumem::observe::recording::Happened;
    use gpumem::observe::Event;

    #[test]
    fn what_is_unmapped_is_in_no_segment() {
        let event = |kind, (address, bytes)| Event { address, bytes, ..Event::new(kind, 0) };
        let mapped = [(0, 10), (10, 10), (20, 10), (40, 10), (60, 10)].map(|at| event(Kind::Map, at));
        // One mapping alone, one by its middle, none, one again, and several with the gaps between
        // them.
        for (unmapped, left) in [
            (&[(10, 10)][..], &[(0, 10), (20, 10), (40, 10), (60, 10)][..]),
            (&[(45, 1)], &[(0, 30), (60, 10)]),
            (&[(30, 10), (70, 9)], &[(0, 30), (40, 10), (60, 10)]),
            (&[(0, 10), (0, 10)], &[(10, 20), (40, 10), (60, 10)]),
            (&[(25, 30)], &[(0, 20), (60, 10)]),
            (&[(5, u64::MAX)], &[]),
        ] {
            let events = mapped.into_iter().chain(unmapped.iter().map(|&at| event(Kind::Unmap, at)));
            let events = events.map(|event| Happened { event, thread: 1 }).collect();
            let segments = segments(&Recording { events, ..Recording::default() }, &History::default());
            let found: Vec<_> = segments.iter().map(|s| (s.address, s.total_size)).collect();
            assert_eq!(found, left, "{unmapped:?}");
        }
    }

    #[test]
    fn frames_are_taken_apart() {
        let f = frame("main::{closure} (/src/a b.c:17)");
        assert_eq!((f.name.as_str(), f.filename.as_str(), f.line), ("main::{closure}", "/src/a b.c", 17));
        assert_eq!(frame("0x1234").line, 0);
    }
}
