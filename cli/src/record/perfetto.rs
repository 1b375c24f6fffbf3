//! Chrome's trace event format, which Perfetto and chrome://tracing read: counters of live and
//! mapped bytes, slow steps as slices of their threads, arenas as asynchronous slices, failures as
//! instants.

use gpumem::observe::{History, Kind, Recording};
use serde::Serialize;
use serde_json::{json, Value};
use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};

/// The most points of a counter, besides the last: more than a screen shows, few enough for a
/// browser.
const POINTS: usize = 200_000;

/// Writes the trace events.
pub fn write(recording: &Recording, history: &History, out: &mut impl Write) -> io::Result<()> {
    let pid = recording.info.get("pid").and_then(Value::as_u64).unwrap_or(1);
    let mut sink = Sink { out, first: true };
    sink.out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
    sink.event(json!({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "gpumem"}}))?;
    let threads: BTreeSet<u32> = recording.events.iter().map(|h| h.thread).collect();
    for thread in threads {
        let name = format!("thread {thread}");
        sink.event(json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": thread, "args": {"name": name}}))?;
    }
    for (time, live) in live_points(history) {
        sink.event(
            json!({"ph": "C", "name": "live bytes", "pid": pid, "tid": 0, "ts": micros(time), "args": {"live": live}}),
        )?;
    }
    for (time, mapped) in mapped_points(recording) {
        let args = json!({"mapped": mapped});
        sink.event(json!({"ph": "C", "name": "mapped bytes", "pid": pid, "tid": 0, "ts": micros(time), "args": args}))?;
    }
    let names = recording.arena_names();
    for h in &recording.events {
        let e = &h.event;
        let at = micros(e.time);
        let arena = || match names.get(&e.arena) {
            Some(name) => format!("arena {} {name}", e.arena),
            None => format!("arena {}", e.arena),
        };
        match e.kind {
            Kind::OutOfMemory => {
                let args =
                    json!({"bytes": e.bytes, "stream": e.stream, "tag": e.tag, "stack": recording.frames(e.stack)});
                sink.event(
                    json!({"ph": "i", "s": "g", "name": "out of memory", "cat": "failure", "pid": pid, "tid": h.thread,
                    "ts": at, "args": args}),
                )?;
            }
            Kind::ArenaEnter => sink
                .event(json!({"ph": "b", "cat": "arena", "id": e.arena, "name": arena(), "pid": pid,
                "tid": h.thread, "ts": at}))?,
            Kind::ArenaExit => {
                let name = arena();
                sink.event(json!({"ph": "e", "cat": "arena", "id": e.arena, "name": name, "pid": pid, "tid": h.thread, "ts": at}))?;
            }
            kind if kind.is_slow() => {
                let args = json!({"bytes": e.bytes, "address": format!("{:#x}", e.address), "tag": e.tag});
                let cat = if kind.is_of_driver() { "driver" } else { "slow path" };
                sink.event(json!({"ph": "X", "cat": cat, "name": kind.name(), "pid": pid, "tid": h.thread, "ts": at,
                    "dur": micros(e.other), "args": args}))?;
            }
            _ => {}
        }
    }
    sink.out.write_all(b"\n]}\n")
}

/// Microseconds, the format's unit.
fn micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

struct Sink<'a, W> {
    out: &'a mut W,
    first: bool,
}

impl<W: Write> Sink<'_, W> {
    fn event(&mut self, event: impl Serialize) -> io::Result<()> {
        if !std::mem::take(&mut self.first) {
            self.out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut *self.out, &event)?;
        Ok(())
    }
}

/// Live bytes after each change; if there are too many, the least and the most of each run of
/// changes, and the last.
pub fn live_points(history: &History) -> Vec<(u64, u64)> {
    let mut live = 0_u64;
    let all = history.changes.iter().map(|c| {
        let bytes = history.lives.get(c.life as usize).map_or(0, |l| l.bytes);
        live = if c.begins { live.saturating_add(bytes) } else { live.saturating_sub(bytes) };
        (c.time, live)
    });
    thinned(all.collect())
}

/// Physical bytes that the driver has made and not taken back, after each such call.
pub fn mapped_points(recording: &Recording) -> Vec<(u64, u64)> {
    let mut handles: HashMap<u64, u64> = HashMap::new();
    let mut mapped = 0_u64;
    let mut points = Vec::new();
    for h in &recording.events {
        match h.event.kind {
            Kind::Create => {
                handles.insert(h.event.address, h.event.bytes);
                mapped = mapped.saturating_add(h.event.bytes);
            }
            // Memory made before the recording has no known size.
            Kind::Release => mapped = mapped.saturating_sub(handles.remove(&h.event.address).unwrap_or(0)),
            _ => continue,
        }
        points.push((h.event.time, mapped));
    }
    thinned(points)
}

fn thinned(all: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let run = (2 * all.len()).div_ceil(POINTS).max(1);
    if run == 1 {
        return all;
    }
    let extremes = |run: &[(u64, u64)]| {
        let least = run.iter().min_by_key(|p| p.1).copied();
        let most = run.iter().max_by_key(|p| p.1).copied();
        let mut both: Vec<_> = [least, most].into_iter().flatten().collect();
        both.sort_unstable();
        both.dedup();
        both
    };
    let mut thin: Vec<_> = all.chunks(run).flat_map(extremes).collect();
    // The value at the end is always kept.
    if thin.last() != all.last() {
        thin.extend(all.last());
    }
    thin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_the_extremes() {
        let all: Vec<(u64, u64)> = (0..1_000_000).map(|i| (i, if i == 777_777 { 9 } else { i % 3 + 1 })).collect();
        let thin = thinned(all);
        assert!(thin.len() <= POINTS + 1 && thin.is_sorted());
        assert_eq!(thin.last(), Some(&(999_999, 1)));
        assert!(thin.contains(&(777_777, 9)) && thin.iter().any(|p| p.1 == 1));
        assert_eq!(thinned(vec![(1, 2), (3, 4)]), [(1, 2), (3, 4)]);
    }
}
