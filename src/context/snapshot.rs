//! The state of all memory of a process at one moment, as JSON, and the reason why a request
//! failed, in sentences.

#![deny(unsafe_code, clippy::unwrap_used, clippy::indexing_slicing)]

use super::{settings, Config, Context, Request};
use crate::base::size::human;
use crate::base::sync::OnceLock;
use crate::base::{DeviceId, Error, Result, Status};
use crate::driver::counted::Counted;
use crate::driver::{process, Driver};
use crate::observe::page::{self, Page};
use crate::pool::{Alive, AllocFlags, HeapView, Is, Pool, PoolStats};
use serde_json::{json, Value};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The version of the format.
const VERSION: u32 = 1;
/// How many of the largest holders a report names.
const NAMED: usize = 5;

/// Whether the process has written the snapshot of its first failure.
static FAILURE_WRITTEN: AtomicBool = AtomicBool::new(false);

/// A request that failed, and what it was told.
pub(super) struct Failure<'a> {
    request: &'a Request<'a>,
    error: &'a Error,
}

impl Failure<'_> {
    /// What could not be given, and the error that the request got: a limit, a reservation or a
    /// space may have refused what would have fitted.
    fn sentences(&self, device: DeviceId) -> [String; 2] {
        let request = self.request;
        let tag = if request.tag == 0 { String::new() } else { format!(" with tag {}", request.tag) };
        let (bytes, stream) = (request.size, request.stream.canonical());
        [
            format!("Device {device} could not give {} ({bytes} bytes) on stream {stream}{tag}.", human(bytes)),
            format!("The request was told: {}.", self.error.message),
        ]
    }
}

/// What a device's memory looks like to a request that did not fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shortage {
    /// Free bytes in physical pieces with nothing live in them, including slabs without an object.
    /// A trim gives these back once the device is done with them.
    pub whole: u64,
    /// Free bytes in physical pieces that also hold something live, so they cannot be moved.
    pub stranded: u64,
    /// The allocations that pin those pieces, largest first: address, and the bytes that would
    /// become free if only it were freed.
    pub by: Vec<(u64, u64)>,
    /// Bytes of evictable allocations that are in the device.
    pub evictable: u64,
}

impl Shortage {
    /// Looks at the heaps of a device.
    pub fn of(views: &[HeapView]) -> Shortage {
        let mut s = Shortage::default();
        let mut by: HashMap<u64, u64> = HashMap::new();
        for view in views {
            if view.number.is_none() {
                let there: HashMap<u64, u64> = view.extents.iter().copied().collect();
                let evictable = view.alive.iter().filter(|a| a.info.flags.has(AllocFlags::EVICTABLE));
                s.evictable += evictable.filter_map(|a| there.get(&a.info.base)).sum::<u64>();
                continue;
            }
            for &(address, bytes) in &view.extents {
                let end = address + bytes;
                let from = view.pieces.partition_point(|p| p.address + p.bytes <= address);
                let inside = view.pieces.iter().skip(from).take_while(|p| p.address < end);
                let within = |p: &crate::pool::Piece| (p.address + p.bytes).min(end) - p.address.max(address);
                let (mut free, mut empty, mut holders) = (0, 0, Vec::new());
                for p in inside {
                    match p.is {
                        Is::Free(_) | Is::Waiting => free += within(p),
                        // Kept for the next small object, but not from a trim.
                        Is::Slab(_, 0, _) => empty += within(p),
                        Is::Live | Is::Slab(..) => holders.push(p.address),
                        _ => {}
                    }
                }
                match holders.as_slice() {
                    [] => s.whole += free + empty,
                    holders => {
                        s.stranded += free;
                        // Shared holders free nothing alone; the first of several stands for them.
                        if let ([only], true) = (holders, free > 0) {
                            *by.entry(*only).or_default() += free;
                        }
                    }
                }
            }
        }
        s.by = by.into_iter().collect();
        s.by.sort_by_key(|&(address, bytes)| (std::cmp::Reverse(bytes), address));
        s
    }
}

impl Context {
    /// A snapshot of everything, as JSON; `reason` is a word for why it was taken.
    pub fn snapshot(&self, reason: &str) -> Value {
        self.picture(reason, None)
    }

    /// Writes [`Self::snapshot`] to a file, whole or not at all.
    pub fn snapshot_to(&self, file: &Path, reason: &str) -> Result<()> {
        write(file, &self.snapshot(reason))
    }

    /// A request has failed.
    #[cold]
    pub(super) fn failed(&self, request: &Request, error: &Error) {
        if error.status == Status::OutOfMemory && self.config.snapshot_on.oom && !FAILURE_WRITTEN.swap(true, Relaxed) {
            self.snapshot_by_itself("oom", Some(&Failure { request, error }));
        }
    }

    /// Writes a snapshot that the settings ask for, and says where on stderr.
    pub(super) fn snapshot_by_itself(&self, reason: &str, failure: Option<&Failure<'_>>) {
        write_wanted(&self.config, &self.picture(reason, failure));
    }

    fn picture(&self, reason: &str, failure: Option<&Failure<'_>>) -> Value {
        let command: Vec<String> = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
        let failed_on = failure.and_then(|f| self.device_of(f.request.device, f.request.stream.canonical()).ok());
        let mut devices = Vec::new();
        let mut report = Vec::new();
        if !self.config.pool {
            report.extend(failure.zip(failed_on).into_iter().flat_map(|(f, device)| f.sentences(device)));
            report.push(
                "GPUMEM_POOL=off sends every request to the driver, which does not say what it holds.".to_string(),
            );
        }
        for pool in self.pools() {
            let mut views = Vec::new();
            pool.walk(&mut |view| views.push(view));
            let shortage = Shortage::of(&views);
            let stats = pool.stats();
            let failure = failure.filter(|_| failed_on == Some(pool.device()));
            report.extend(self.sentences(pool, &stats, &views, &shortage, failure));
            devices.push(self.device(pool, &stats, &views, &shortage));
        }
        let events: Vec<Value> = self.recorder().last_events().iter().map(|h| event(&h.event, h.thread)).collect();
        let arenas: BTreeMap<String, Value> =
            self.arenas.names().into_iter().map(|(id, name)| (id.to_string(), name.into())).collect();
        let failure = failure.map(|f| {
            json!({
                "bytes": f.request.size,
                "device": failed_on.map(|d| d.0),
                "stream": handle(f.request.stream.canonical().0 as u64),
                "tag": f.request.tag,
                "error": f.error.message,
            })
        });
        json!({
            "gpumem_snapshot": VERSION,
            "gpumem": env!("CARGO_PKG_VERSION"),
            "reason": reason,
            "pid": std::process::id(),
            "unix_ms": unix_ms(),
            "command": command,
            "backend": self.driver().backend(),
            "settings": settings::in_force(&self.config),
            "failure": failure,
            "report": report,
            "devices": devices,
            "arenas": arenas,
            "events": events,
        })
    }

    fn device(&self, pool: &Pool, stats: &PoolStats, views: &[HeapView], shortage: &Shortage) -> Value {
        let heaps: Vec<Value> = views
            .iter()
            .map(|v| {
                let pieces: Vec<Value> =
                    v.pieces.iter().map(|p| json!([p.address, p.bytes, name(p.is), note(p.is)])).collect();
                json!({"heap": v.number, "stream": handle(v.stream), "pieces": pieces, "extents": v.extents})
            })
            .collect();
        let rows = |v: &HeapView| v.alive.iter().map(|a| self.row(a, v.number)).collect::<Vec<_>>();
        let alive: Vec<Value> = views.iter().flat_map(rows).collect();
        let device = pool.device();
        let props = self.driver().device_props(device).ok();
        json!({
            "device": device.0,
            "name": props.as_ref().map(|p| p.name.clone()),
            "total_bytes": props.map(|p| p.total_bytes),
            "free_bytes": self.driver().mem_info(device).ok().map(|m| m.free),
            "stats": counters(stats),
            "whole_free_bytes": shortage.whole,
            "stranded_bytes": shortage.stranded,
            "stranded_by": shortage.by.iter().take(100).collect::<Vec<_>>(),
            "evictable_bytes": shortage.evictable,
            "heaps": heaps,
            "columns": ["address", "bytes", "usable", "id", "stream", "tag", "arena", "heap", "flags"],
            "allocations": alive,
        })
    }

    fn row(&self, alive: &Alive, heap: Option<u32>) -> Value {
        let i = &alive.info;
        let arena = alive.scope.as_ref().and_then(|s| self.arenas.arena_of(s)).map_or(0, |a| a.id());
        json!([i.base, i.requested, i.usable, i.id, handle(i.stream.0 as u64), i.tag, arena, heap, i.flags.0])
    }

    /// What there is, and why something did not fit.
    fn sentences(
        &self,
        pool: &Pool,
        stats: &PoolStats,
        views: &[HeapView],
        shortage: &Shortage,
        failure: Option<&Failure<'_>>,
    ) -> Vec<String> {
        let mut say = Vec::new();
        let device = pool.device();
        say.extend(failure.into_iter().flat_map(|f| f.sentences(device)));
        let limit = match stats.limit {
            0 => self
                .driver()
                .device_props(device)
                .map_or(String::new(), |p| format!(" of the device's {}", human(p.total_bytes))),
            limit => format!(" of a limit of {}", human(limit)),
        };
        // What has left the device takes nothing of it.
        let evicted: HashSet<u64> =
            views.iter().flat_map(|v| &v.pieces).filter(|p| p.is == Is::Evicted).map(|p| p.address).collect();
        let (away, here): (Vec<&Alive>, Vec<&Alive>) =
            views.iter().flat_map(|v| &v.alive).partition(|a| evicted.contains(&a.info.base));
        let pieces = views.iter().flat_map(|v| &v.pieces);
        let room = pieces.map(|p| match p.is {
            Is::Slab(size, used, _) => p.bytes.saturating_sub(size * u64::from(used)),
            _ => 0,
        });
        let room = room.sum();
        say.push(format!(
            "The pool of device {device} has {} mapped{limit}: {} are live in {} allocations, {} are free, {} wait for a stream, \
             {} are in stock, {} are room among small objects.",
            human(stats.mapped),
            human(stats.live),
            stats.allocations.saturating_sub(away.len() as u64),
            human(stats.free),
            human(stats.waiting),
            human(stats.stock),
            human(room)
        ));
        say.push(format!(
            "The largest free block is {}; {} would have fitted without new physical memory.",
            human(stats.largest_free),
            human(stats.largest_without_growth)
        ));
        let device_free = self.driver().mem_info(device).map_or(0, |m| m.free);
        let headroom = match stats.limit {
            0 => device_free,
            limit => device_free.min(limit.saturating_sub(stats.mapped)),
        };
        say.push(format!(
            "{} more may be mapped, so at most about {} would have fitted in one piece.",
            human(headroom),
            human(headroom + stats.largest_without_growth)
        ));
        if shortage.stranded > 0 {
            let alive: HashMap<u64, &Alive> = here.iter().map(|a| (a.info.base, *a)).collect();
            let holders = first_few(shortage.by.iter().map(|(address, bytes)| match alive.get(address) {
                Some(a) => {
                    format!("{address:#x} (id {}, {}) strands {}", a.info.id, human(a.info.requested), human(*bytes))
                }
                None => format!("small objects at {address:#x} strand {}", human(*bytes)),
            }));
            let named = if holders.is_empty() { String::new() } else { format!(": {holders}") };
            say.push(format!(
                "{} of the free bytes are stranded: they share physical pieces with live allocations{named}.",
                human(shortage.stranded)
            ));
        }
        say.push(format!(
            "A trim would give {} back to the device, once it is done with them; moving evictable memory out would free up to {}.",
            human(shortage.whole + stats.stock),
            human(shortage.evictable)
        ));
        let mut tags: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for a in &here {
            let sum = tags.entry(a.info.tag).or_default();
            *sum = (sum.0 + a.info.requested, sum.1 + 1);
        }
        let mut tags: Vec<_> = tags.into_iter().collect();
        tags.sort_by_key(|&(tag, (bytes, _))| (std::cmp::Reverse(bytes), tag));
        let text = |(tag, (bytes, n)): &(u64, (u64, u64))| {
            let tag = if *tag == 0 { "no tag".to_string() } else { format!("tag {tag}") };
            format!("{tag}: {} in {n} allocations", human(*bytes))
        };
        if !tags.is_empty() {
            say.push(format!("What is live, by tag: {}.", first_few(tags.iter().map(text))));
        }
        if !away.is_empty() {
            let bytes = away.iter().map(|a| a.info.requested).sum();
            say.push(format!("Moved out of the device: {} in {} allocations.", human(bytes), away.len()));
        }
        let mut largest = here;
        largest.sort_by_key(|a| (std::cmp::Reverse(a.info.requested), a.info.id));
        if !largest.is_empty() {
            let text = |a: &&Alive| format!("{} at {:#x} (id {})", human(a.info.requested), a.info.base, a.info.id);
            say.push(format!("The largest live allocations: {}.", first_few(largest.iter().map(text))));
        }
        say
    }

    /// Publishes counters, if that is wanted and not done yet.
    pub(super) fn start_page(&self) {
        if self.one_of_several || !self.config.stats_page || self.page.get().is_some() {
            return;
        }
        let (pools, driver) = (self.pools.clone(), self.driver.clone());
        let text = move || page_text(std::iter::once((&*pools, &*driver)));
        match Page::publish(page::path(std::process::id()), text) {
            Ok(page) => {
                let _ = self.page.set(page);
            }
            Err(e) => self.complain(format_args!("no page of counters: {e}")),
        }
    }
}

/// What a page says of the pools of contexts that have a device each.
pub fn page_of<'a>(contexts: impl Iterator<Item = &'a Context>) -> String {
    page_text(contexts.map(|c| (&*c.pools, &*c.driver)))
}

fn page_text<'a>(all: impl Iterator<Item = (&'a [OnceLock<Pool>], &'a Counted)>) -> String {
    let device = |pool: &Pool| {
        let heaps: Vec<Value> = pool.heap_sizes().iter().map(|(n, s, live, free)| json!([n, s, live, free])).collect();
        json!({"device": pool.device().0, "stats": counters(&pool.stats()), "heaps": heaps})
    };
    let (mut backend, mut devices) = ("", Vec::new());
    let mut calls: BTreeMap<&str, u64> = BTreeMap::new();
    for (pools, driver) in all {
        backend = driver.backend();
        devices.extend(pools.iter().filter_map(OnceLock::get).map(device));
        for (name, n) in driver.counts().into_iter().filter(|(_, n)| *n > 0) {
            *calls.entry(name).or_default() += n;
        }
    }
    json!({
        "pid": std::process::id(),
        "backend": backend,
        "unix_ms": unix_ms(),
        "devices": devices,
        "driver_calls": calls,
    })
    .to_string()
}

/// One snapshot of several, of contexts that have a device each: all their devices, and what the
/// first says of the process.
pub fn join(mut snapshots: impl Iterator<Item = Value>) -> Option<Value> {
    let mut joined = snapshots.next()?;
    for mut one in snapshots {
        for part in ["devices", "report"] {
            let more = one.get_mut(part).and_then(Value::as_array_mut).map(std::mem::take);
            joined.get_mut(part).and_then(Value::as_array_mut)?.extend(more.unwrap_or_default());
        }
    }
    let number = |device: &Value| device.get("device").and_then(Value::as_u64);
    joined.get_mut("devices").and_then(Value::as_array_mut)?.sort_by_key(number);
    Some(joined)
}

/// Writes a snapshot that the settings ask for, and says where on stderr.
pub fn write_wanted(config: &Config, picture: &Value) {
    let mut file = config.snapshot_file();
    if picture.get("failure").is_none_or(Value::is_null) && FAILURE_WRITTEN.load(Relaxed) {
        // Why the request failed is in the other.
        file = at_exit(&file);
    }
    let line = match write(&file, picture) {
        Ok(()) => format!("a snapshot is in {0}; look at it with: gpumem view {0}", file.display()),
        Err(e) => format!("no snapshot: {e}"),
    };
    if config.log >= 1 {
        process::say(line);
    }
}

/// The first few, as many as a report names.
fn first_few(texts: impl Iterator<Item = String>) -> String {
    texts.take(NAMED).collect::<Vec<_>>().join("; ")
}

/// Milliseconds since 1970.
fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(0)
}

/// `snap.exit.json` for `snap.json`.
fn at_exit(file: &Path) -> PathBuf {
    let mut end = OsString::from("exit");
    if let Some(extension) = file.extension() {
        end.push(".");
        end.push(extension);
    }
    file.with_extension(end)
}

fn write(file: &Path, picture: &Value) -> Result<()> {
    let failed = |e: std::io::Error| Error::new(Status::Io, format!("{} cannot be written: {e}", file.display()));
    // A pipe or a device is written to, and not replaced.
    if std::fs::metadata(file).is_ok_and(|there| !there.is_file()) {
        return process::without_write_signals(|| std::fs::write(file, picture.to_string())).map_err(failed);
    }
    let (mut out, partial) = partial(file).map_err(failed)?;
    let text = picture.to_string();
    let written = process::without_write_signals(|| out.write_all(text.as_bytes()));
    let written = written.and_then(|()| std::fs::rename(&partial, file));
    written.map_err(|e| {
        let _ = std::fs::remove_file(&partial);
        failed(e)
    })
}

/// A new file beside `file` for this call alone. Other threads and processes may write the same
/// snapshot at once, such as ranks that run out of memory together.
fn partial(file: &Path) -> std::io::Result<(File, PathBuf)> {
    for n in 0_u32.. {
        let mut name = file.as_os_str().to_owned();
        name.push(format!(".{}.{n}.partial", std::process::id()));
        match File::create_new(&name) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            made => return made.map(|file| (file, name.into())),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// A stream as text: handles may be larger than what JSON's readers keep of a number.
fn handle(stream: u64) -> String {
    format!("{stream:#x}")
}

/// A snapshot's word for a piece.
fn name(is: Is) -> &'static str {
    match is {
        Is::Live => "live",
        Is::Slab(..) => "slab",
        Is::Free(true) => "free",
        Is::Free(false) => "free after use",
        Is::Waiting => "waiting",
        Is::Hole => "hole",
        Is::Old => "old addresses",
        Is::Dedicated => "dedicated",
        Is::Evicted => "evicted",
        Is::Leaving => "leaving",
    }
}

fn note(is: Is) -> Value {
    match is {
        Is::Slab(bytes, used, capacity) => json!([bytes, used, capacity]),
        _ => Value::Null,
    }
}

/// An event of a snapshot.
fn event(e: &crate::observe::Event, thread: u32) -> Value {
    json!({
        "time_ns": e.time, "event": e.kind.name(), "thread": thread, "address": e.address, "bytes": e.bytes, "other": e.other,
        "stream": handle(e.stream), "tag": e.tag, "arena": e.arena, "device": e.device,
    })
}

/// Every counter by its name.
pub fn counters(s: &PoolStats) -> Value {
    macro_rules! by_name {
        (() $($name:ident),*) => {{
            let PoolStats { $($name),* } = *s;
            let by_name = [$((stringify!($name).to_string(), Value::from($name))),*];
            Value::Object(by_name.into_iter().collect())
        }};
    }
    super::counters::counters!(by_name!())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::context::Config;
    use crate::context::What;
    use crate::driver::host::{HostDriver, HostOptions};
    use crate::tier::evict::Goal;
    use std::io::Read;
    use std::os::unix::fs::FileTypeExt;

    const M: u64 = 1 << 20;

    #[test]
    fn a_failure_says_what_was_there_and_what_is_stranded() {
        let host = HostDriver::new(HostOptions::default()).unwrap();
        let context =
            Context::new(host, Config { limit: super::super::config::Limit::Bytes(64 * M), ..Config::default() })
                .unwrap();
        let take = |size, tag| context.malloc(&Request { size, tag, ..Request::default() });
        // One MiB of each physical piece of 2 MiB stays live.
        let all: Vec<u64> = (0..60).map(|i| take(M, 40 + i % 2).unwrap()).collect();
        all.iter().step_by(2).for_each(|&p| context.free(p).unwrap());
        let request = Request { size: 48 * M, tag: 9, ..Request::default() };
        let error = context.malloc(&request).unwrap_err();
        let picture = context.picture("oom", Some(&Failure { request: &request, error: &error }));
        let report = picture["report"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).collect::<Vec<_>>();
        assert!(report[0].contains("could not give 48") && report[0].contains("tag 9"), "{report:#?}");
        assert_eq!(report[1], format!("The request was told: {}.", error.message));
        assert!(report[2].contains("30.00 MiB are live in 30 allocations"), "{report:#?}");
        assert!(report.iter().any(|s| s.contains("stranded")), "{report:#?}");
        assert!(report.iter().any(|s| s.contains("tag 41: 30")), "{report:#?}");
        let device = &picture["devices"][0];
        assert_eq!(device["allocations"].as_array().unwrap().len(), 30);
        assert_eq!(device["stats"]["allocations"], 30);
        assert_eq!(picture["failure"]["bytes"], 48 * M);
        // Whatever is not live is free, whole or stranded.
        let (whole, stranded) =
            (device["whole_free_bytes"].as_u64().unwrap(), device["stranded_bytes"].as_u64().unwrap());
        let stats = &device["stats"];
        assert_eq!(whole + stranded, stats["free"].as_u64().unwrap() + stats["waiting"].as_u64().unwrap());
    }

    #[test]
    fn what_a_trim_would_give_is_what_it_gives() {
        let host = HostDriver::new(HostOptions::default()).unwrap();
        let context = Context::new(host, Config::default()).unwrap();
        let take = |size| context.malloc(&Request { size, ..Request::default() }).unwrap();
        // A slab that is kept with no object in it.
        context.free(take(100)).unwrap();
        for live in [0, 3 * M] {
            let kept = (live > 0).then(|| take(live));
            let picture = context.picture("call", None);
            let device = &picture["devices"][0];
            assert!(live > 0 || device["stranded_bytes"] == 0, "{:#}", picture["report"]);
            let said = device["whole_free_bytes"].as_u64().unwrap() + device["stats"]["stock"].as_u64().unwrap();
            let mapped = || context.stats(DeviceId(0)).unwrap().mapped;
            let before = mapped();
            context.trim(0).unwrap();
            assert_eq!(said, before - mapped(), "{:#}", picture["report"]);
            if let Some(p) = kept {
                context.free(p).unwrap();
            }
            context.free(take(100)).unwrap();
        }
    }

    #[test]
    fn what_is_mapped_is_the_sum_of_what_it_is_said_to_be() {
        let host = HostDriver::new(HostOptions::default()).unwrap();
        let context = Context::new(host, Config::default()).unwrap();
        let take = |size| context.malloc(&Request { size, ..Request::default() }).unwrap();
        let small: Vec<u64> = (0..1_000).map(|i| take(100 + i % 2 * 900)).collect();
        take(3 * M);
        small.iter().step_by(3).for_each(|&p| context.free(p).unwrap());
        let picture = context.picture("call", None);
        let stats = &picture["devices"][0]["stats"];
        let named: u64 = ["live", "free", "waiting", "stock"].map(|name| stats[name].as_u64().unwrap()).iter().sum();
        let room = human(stats["mapped"].as_u64().unwrap() - named);
        let said = picture["report"][0].as_str().unwrap();
        assert!(room != human(0) && said.ends_with(&format!("{room} are room among small objects.")), "{said}");
    }

    #[test]
    fn a_failure_of_the_drivers_pool_says_so() {
        let host = HostDriver::new(HostOptions::default()).unwrap();
        let limit = super::super::config::Limit::Bytes(4 * M);
        let context = Context::new(host, Config { limit, pool: false, ..Config::default() }).unwrap();
        let request = Request { size: 5 * M, ..Request::default() };
        let error = context.malloc(&request).unwrap_err();
        let picture = context.picture("oom", Some(&Failure { request: &request, error: &error }));
        let report = picture["report"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).collect::<Vec<_>>();
        assert!(report[0].contains("could not give 5.00 MiB") && report[1].contains(&error.message), "{report:#?}");
        assert!(report[2].contains("GPUMEM_POOL=off"), "{report:#?}");
    }

    #[test]
    fn what_has_left_the_device_holds_nothing_of_it() {
        let host = HostDriver::new(HostOptions::default()).unwrap();
        let context = Context::new(host, Config::default()).unwrap();
        let take = |size, tag, flags| context.malloc(&Request { size, tag, flags, ..Request::default() }).unwrap();
        take(10 * M, 7, AllocFlags::EVICTABLE);
        take(2 * M, 8, AllocFlags(0));
        context.shift(What::Tag(7), Goal::Lower, None, None).unwrap();
        let picture = context.picture("call", None);
        let report = picture["report"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).collect::<Vec<_>>();
        assert!(report[0].contains("2.00 MiB are live in 1 allocations"), "{report:#?}");
        assert!(report.contains(&"What is live, by tag: tag 8: 2.00 MiB in 1 allocations."), "{report:#?}");
        assert!(report.contains(&"Moved out of the device: 10.00 MiB in 1 allocations."), "{report:#?}");
        assert!(report.last().unwrap().starts_with("The largest live allocations: 2.00 MiB at"), "{report:#?}");
    }

    #[test]
    fn a_snapshot_at_the_end_has_a_name_of_its_own() {
        assert_eq!(at_exit(Path::new("a/snap.json")), Path::new("a/snap.exit.json"));
        assert_eq!(at_exit(Path::new("gpumem.17.json")), Path::new("gpumem.17.exit.json"));
        assert_eq!(at_exit(Path::new("snap")), Path::new("snap.exit"));
    }

    #[test]
    fn a_snapshot_is_written_whole() {
        let host = HostDriver::new(HostOptions::default()).unwrap();
        let context = Context::new(host, Config::default()).unwrap();
        let arena = context.arena_enter("step").unwrap();
        let p = context.malloc(&Request { size: 100, tag: 7, ..Request::default() }).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("s.json");
        context.snapshot_to(&file, "call").unwrap();
        let read: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let row = &read["devices"][0]["allocations"][0];
        assert_eq!((row[0].as_u64(), row[1].as_u64(), row[5].as_u64()), (Some(p), Some(100), Some(7)));
        assert_eq!(read["arenas"][row[6].to_string()], "step");
        context.arena_exit(&arena, &[]).unwrap();
        // A pipe takes it, and stays one.
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let mut reader = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
        context.snapshot_to(&pipe, "call").unwrap();
        assert!(std::fs::metadata(&pipe).unwrap().file_type().is_fifo());
        let mut begin = [0; 10];
        reader.read_exact(&mut begin).unwrap();
        assert_eq!(&begin, br#"{"arenas":"#);
        // What fails leaves nothing behind.
        assert!(context.snapshot_to(dir.path(), "call").is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "the snapshot and the pipe");
        assert!(context.snapshot_to(Path::new("/no/such/place/s.json"), "call").is_err());
    }

    #[test]
    fn snapshots_to_one_file_are_each_whole() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("s.json");
        // Long and short ones, so that what is left of another shows.
        let pictures = [json!({"a": "x".repeat(1 << 16)}), json!({"b": 1})];
        std::thread::scope(|s| {
            let writers: Vec<_> = pictures
                .iter()
                .map(|picture| s.spawn(|| (0..test_support::rounds(300)).for_each(|_| write(&file, picture).unwrap())))
                .collect();
            while !writers.iter().all(|w| w.is_finished()) {
                if let Ok(bytes) = std::fs::read(&file) {
                    let read: Value = serde_json::from_slice(&bytes).unwrap();
                    assert!(pictures.contains(&read));
                }
            }
        });
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no partial one is left");
    }
}
