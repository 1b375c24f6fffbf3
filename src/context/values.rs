//! The values of settings as text: what is accepted, and how a value is written so that it would be
//! accepted again.

#![deny(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

use super::config::{DiskMount, Limit, PinnedBlocks, Prealloc, Slack, SnapshotOn};
use crate::arena::DebugMode;
use crate::base::size::{self, GIB, KIB, MIB, TIB};
use crate::tier::Thresholds;
use std::path::PathBuf;
use std::time::Duration;

/// Sizes of address ranges and devices are multiples of this: a whole number of pages on every CUDA
/// device so far.
const UNIT: u64 = 2 * MIB;
/// The most addresses reserved at a time.
const LARGEST_VA: u64 = 64 * TIB;
/// The largest host device.
const LARGEST_HOST: u64 = 1024 * TIB;
/// The largest extent, hence the largest page size.
pub(super) const LARGEST_PAGE: u64 = GIB;

// ---- one of a few words -------------------------------------------------------------------------

/// What a list of words means; the first word of a value is how it is written.
pub(super) type Words<T> = [(&'static str, T)];

/// The value of a word, in either case.
pub(super) fn word<T: Copy>(text: &str, words: &Words<T>) -> Option<T> {
    words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text.trim())).map(|(_, value)| *value)
}

/// The word of a value.
pub(super) fn name<T: PartialEq>(value: &T, words: &Words<T>) -> String {
    words.iter().find(|(_, v)| v == value).map_or_else(String::new, |(word, _)| (*word).into())
}

/// On or off, in every spelling that is understood.
pub(super) const SWITCHES: [(&str, bool); 8] = [
    ("on", true),
    ("off", false),
    ("1", true),
    ("0", false),
    ("true", true),
    ("false", false),
    ("yes", true),
    ("no", false),
];

// ---- numbers ------------------------------------------------------------------------------------

/// Bytes, or a number with `K`, `M`, `G` or `T`.
pub(super) fn any_size(text: &str) -> Option<u64> {
    size::parse(text).ok()
}

/// A size in the largest unit that gives a whole number.
pub(super) fn exactly(bytes: u64) -> String {
    let units = [(TIB, "T"), (GIB, "G"), (MIB, "M"), (KIB, "K")];
    match units.iter().find(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit)) {
        Some((unit, letter)) => format!("{}{letter}", bytes / unit),
        None => bytes.to_string(),
    }
}

pub(super) fn va_size(text: &str) -> Option<u64> {
    any_size(text).filter(|bytes| (UNIT..=LARGEST_VA).contains(bytes) && bytes % UNIT == 0)
}

pub(super) fn host_size(text: &str) -> Option<u64> {
    any_size(text).filter(|bytes| (UNIT..=LARGEST_HOST).contains(bytes) && bytes % UNIT == 0)
}

pub(super) fn page_size(text: &str) -> Option<u64> {
    any_size(text).filter(|bytes| *bytes == 0 || (bytes.is_power_of_two() && *bytes <= LARGEST_PAGE))
}

pub(super) fn vpmm_page_size(text: &str) -> Option<u64> {
    any_size(text).filter(|bytes| bytes.is_power_of_two() || *bytes >= LARGEST_PAGE)
}

pub(super) fn number(text: &str, least: u32, most: u32) -> Option<u32> {
    text.trim().parse().ok().filter(|n| (least..=most).contains(n))
}

/// `Some(None)` when the text is a percentage out of range.
fn percent(text: &str) -> Option<Option<u32>> {
    let digits = text.trim().strip_suffix('%')?.trim_end();
    Some(digits.parse().ok().filter(|p| *p <= 100))
}

pub(super) fn limit(text: &str) -> Option<Limit> {
    match percent(text) {
        Some(percent) => percent.filter(|p| *p > 0).map(Limit::Percent),
        None => any_size(text).map(|bytes| if bytes == 0 { Limit::Device } else { Limit::Bytes(bytes) }),
    }
}

pub(super) fn limit_text(limit: Limit) -> String {
    match limit {
        Limit::Device => "0".into(),
        Limit::Bytes(bytes) => exactly(bytes),
        Limit::Percent(percent) => format!("{percent}%"),
    }
}

pub(super) fn slack(text: &str) -> Option<Slack> {
    match text.trim().to_ascii_lowercase().as_str() {
        "auto" => Some(Slack::Auto),
        "tight" => Some(Slack::Tight),
        share => percent(share)?.filter(|p| *p > 0).map(Slack::Percent),
    }
}

pub(super) fn slack_text(slack: Slack) -> String {
    match slack {
        Slack::Auto => "auto".into(),
        Slack::Tight => "tight".into(),
        Slack::Percent(percent) => format!("{percent}%"),
    }
}

pub(super) fn prealloc(text: &str) -> Option<Prealloc> {
    match percent(text) {
        Some(percent) => percent.map(Prealloc::Percent),
        None => any_size(text).map(Prealloc::Bytes),
    }
}

pub(super) fn prealloc_text(prealloc: Prealloc) -> String {
    match prealloc {
        Prealloc::Bytes(bytes) => exactly(bytes),
        Prealloc::Percent(percent) => format!("{percent}%"),
    }
}

/// A file's path.
pub(super) fn file(text: &str) -> Option<Option<PathBuf>> {
    (!text.is_empty()).then(|| Some(PathBuf::from(text)))
}

pub(super) fn file_text(file: Option<PathBuf>) -> String {
    file.map_or_else(String::new, |f| f.to_string_lossy().into_owned())
}

pub(super) fn snapshot_on(text: &str) -> Option<SnapshotOn> {
    let mut on = SnapshotOn::default();
    let text = text.trim().to_ascii_lowercase();
    if text == "off" {
        return Some(on);
    }
    for word in text.split(',') {
        match word.trim() {
            "oom" => on.oom = true,
            "exit" => on.exit = true,
            _ => return None,
        }
    }
    Some(on)
}

pub(super) fn snapshot_on_text(on: SnapshotOn) -> String {
    match (on.oom, on.exit) {
        (false, false) => "off",
        (true, false) => "oom",
        (false, true) => "exit",
        (true, true) => "oom,exit",
    }
    .into()
}

pub(super) fn interval(text: &str) -> Option<Duration> {
    let text = text.trim().to_ascii_lowercase();
    let number = |digits: &str| digits.trim_end().parse::<u64>().ok();
    match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(ms), _) => number(ms).map(Duration::from_millis),
        (None, Some(seconds)) => number(seconds).map(Duration::from_secs),
        (None, None) => number(&text).map(Duration::from_secs),
    }
}

pub(super) fn interval_text(interval: Duration) -> String {
    match interval.as_millis() {
        0 => "0".into(),
        ms if ms % 1000 == 0 => (ms / 1000).to_string(),
        ms => format!("{ms}ms"),
    }
}

// ---- several in one -----------------------------------------------------------------------------

pub(super) fn arena_debug(text: &str) -> Option<DebugMode> {
    let mut mode = DebugMode::default();
    let text = text.trim().to_ascii_lowercase();
    if matches!(text.as_str(), "off" | "0") {
        return Some(mode);
    }
    for word in text.split(',') {
        match word.trim() {
            "1" | "check" => mode.check = true,
            "abort" => mode.abort = true,
            "poison" => mode.poison = true,
            "unmap" => mode.unmap = true,
            _ => return None,
        }
    }
    // All of them need the table that checks look into.
    mode.check = true;
    (!(mode.poison && mode.unmap)).then_some(mode)
}

pub(super) fn pinned_blocks(text: &str) -> Option<PinnedBlocks> {
    let mut parts = text.split(',').map(str::trim);
    let block_bytes = any_size(parts.next()?)?;
    let (blocks, chunks) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let pinned = PinnedBlocks { block_bytes, blocks, chunks };
    parts.next().map_or_else(|| pinned.checked().ok(), |_| None)
}

pub(super) fn pinned_blocks_text(pinned: PinnedBlocks) -> String {
    format!("{},{},{}", exactly(pinned.block_bytes), pinned.blocks, pinned.chunks)
}

pub(super) fn disks(text: &str) -> Option<Vec<DiskMount>> {
    let mut mounts: Vec<DiskMount> = Vec::new();
    for entry in text.split(';').map(str::trim).filter(|e| !e.is_empty()) {
        let (path, limit) = match entry.rsplit_once('=') {
            Some((path, size)) => (path, Some(any_size(size).filter(|n| *n > 0)?)),
            None => (entry, None),
        };
        let path = PathBuf::from(path);
        if !path.is_absolute() || mounts.iter().any(|m| m.path == path) {
            return None;
        }
        mounts.push(DiskMount { path, limit });
    }
    (!mounts.is_empty()).then_some(mounts)
}

pub(super) fn disks_text(mounts: Vec<DiskMount>) -> String {
    let text = |m: &DiskMount| match m.limit {
        Some(limit) => format!("{}={}", m.path.display(), exactly(limit)),
        None => m.path.display().to_string(),
    };
    mounts.iter().map(text).collect::<Vec<_>>().join(";")
}

pub(super) fn thresholds(text: &str) -> Option<Thresholds> {
    let (trigger, stop) = text.split_once(',')?;
    Thresholds::new(trigger.trim().parse().ok()?, stop.trim().parse().ok()?).ok()
}
