//! The table of settings. Everything that knows them follows from it: the environment's parsing,
//! the fields of `gpumem_context_options`, what `gpumem doctor` shows, and the table in
//! `docs/settings.md` (`tests/rules/settings.rs`).
//!
//! A setting is known by its environment variable, and every way to set it goes through the text
//! that the variable would have: so ranges are checked in one place.

#![deny(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

use super::config::{Backend, CaptureDetection, Config, HostMode, Reuse, StreamCheck};
use super::values::{self, any_size, exactly, name, number, word, SWITCHES};

/// One setting.
pub struct Setting {
    /// The environment variable.
    pub variable: &'static str,
    /// The variable of VPMM's that counts where that is not set.
    pub alias: Option<&'static str>,
    /// The fields of `gpumem_context_options`.
    pub fields: &'static [&'static str],
    /// The values it takes, as `docs/settings.md` has them.
    pub values: &'static str,
    /// What an error says that it can be, after "set" or "it is".
    pub accepted: &'static str,
    /// What the text `0`, or an empty one, stands for.
    pub zero: &'static str,
    /// What it does, as `docs/settings.md` has it; links are relative to `docs/`.
    pub doc: &'static str,
    set: fn(&mut Config, &str) -> Option<()>,
    text: fn(&Config) -> String,
}

impl Setting {
    /// Sets it as the variable with this text would; `None` when that is not understood, and
    /// nothing has changed.
    pub fn set(&self, config: &mut Config, text: &str) -> Option<()> {
        (self.set)(config, text)
    }

    /// The value in force, as the variable would give it.
    pub fn text(&self, config: &Config) -> String {
        (self.text)(config)
    }

    /// The value in force for people: with what it stands for where the text does not say.
    pub fn shown(&self, config: &Config) -> String {
        match self.text(config) {
            // As people read it, and not as Markdown has it.
            text if text.is_empty() => self.zero.replace('`', ""),
            text if text == "0" && !self.zero.is_empty() => format!("0: {}", self.zero),
            text => text,
        }
    }
}

/// The setting that a variable sets.
pub fn find(variable: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|s| s.variable == variable)
}

/// The values in force by variable, for people and tools.
pub(super) fn in_force(config: &Config) -> serde_json::Map<String, serde_json::Value> {
    SETTINGS.iter().map(|s| (s.variable.to_string(), s.text(config).into())).collect()
}

/// The table of `docs/settings.md`.
pub fn markdown() -> String {
    let mut table = "| variable | field of `gpumem_context_options` | values | default | what it does |\n".to_string();
    table.push_str("|---|---|---|---|---|\n");
    for s in SETTINGS {
        let default = match (s.text)(&Config::default()) {
            text if text.is_empty() => s.zero.to_string(),
            text if text == "0" && !s.zero.is_empty() => format!("`0`: {}", s.zero),
            text => format!("`{text}`"),
        };
        let fields = s.fields.iter().map(|f| format!("`{f}`")).collect::<Vec<_>>().join(", ");
        table.push_str(&format!("| `{}` | {fields} | {} | {default} | {} |\n", s.variable, s.values, s.doc));
    }
    table
}

const BACKENDS: [(&str, Backend); 3] = [("auto", Backend::Auto), ("cuda", Backend::Cuda), ("host", Backend::Host)];
const REUSES: [(&str, Reuse); 2] = [("settled", Reuse::Settled), ("wait", Reuse::Wait)];
const CHECKS: [(&str, StreamCheck); 2] = [("auto", StreamCheck::Auto), ("driver", StreamCheck::Driver)];
const CAPTURES: [(&str, CaptureDetection); 2] = [("off", CaptureDetection::Off), ("auto", CaptureDetection::Auto)];
const HOST_MODES: [(&str, HostMode); 3] =
    [("eager", HostMode::Eager), ("simulate", HostMode::Simulate), ("abort", HostMode::Abort)];

const SIZE: &str = "a size: bytes, or a number with K, M, G or T, such as 512M";
const SWITCH: &str = "one of on, off";

/// Sets a field to what a function makes of the text, and writes it with another.
macro_rules! by {
    ($field:ident, $parse:expr, $write:expr) => {
        (
            |c: &mut Config, text: &str| {
                c.$field = $parse(text)?;
                Some(())
            },
            |c: &Config| $write(c.$field.clone()),
        )
    };
}

/// Sets a field to one of some words.
macro_rules! by_word {
    ($field:ident, $words:expr) => {
        by!($field, |text| word(text, &$words), |value| name(&value, &$words))
    };
}

type Access = (fn(&mut Config, &str) -> Option<()>, fn(&Config) -> String);

const fn setting(
    (variable, alias): (&'static str, Option<&'static str>),
    fields: &'static [&'static str],
    (values, accepted, zero): (&'static str, &'static str, &'static str),
    doc: &'static str,
    (set, text): Access,
) -> Setting {
    Setting { variable, alias, fields, values, accepted, zero, doc, set, text }
}

/// Every setting there is, in the order in which people are shown them.
pub const SETTINGS: &[Setting] = &[
    setting(
        ("GPUMEM_BACKEND", None),
        &["backend"],
        ("`auto`, `cuda`, `host`", "one of auto, cuda, host", ""),
        "the kind of device; `auto` takes CUDA where there is a driver and a device, else the host device, with a line on stderr",
        by_word!(backend, BACKENDS),
    ),
    setting(
        ("GPUMEM_POOL", Some("VPMM_PAGE_SIZE")),
        &["pool"],
        ("`on`, `off`", SWITCH, ""),
        "`off` sends every request to `cudaMallocAsync`, for comparison",
        by_word!(pool, SWITCHES),
    ),
    setting(
        ("GPUMEM_LIMIT", None),
        &["limit_bytes", "limit_percent"],
        (
            "size, `N%` of the device, 0",
            "a size such as 16G, a share of the device from 1% to 100%, or 0 for all of it",
            "what the device has",
        ),
        "the most memory a pool maps on a device, which is in pieces of 2 MiB on most; with `GPUMEM_POOL=off`, the most that is live there",
        by!(limit, values::limit, values::limit_text),
    ),
    setting(
        ("GPUMEM_PREALLOC", Some("VPMM_PAGES")),
        &["prealloc_bytes", "prealloc_percent"],
        ("size, `N%` of what is free", "a size such as 16G, or a share of the free memory from 0% to 100%", "none"),
        "how much memory a pool maps when it starts",
        by!(prealloc, values::prealloc, values::prealloc_text),
    ),
    setting(
        ("GPUMEM_REUSE", None),
        &["reuse"],
        ("`wait`, `settled`", "one of settled, wait", ""),
        "`wait`: as a last resort, a stream waits on the device for memory that another freed; `settled`: never",
        by_word!(reuse, REUSES),
    ),
    setting(
        ("GPUMEM_SLACK", None),
        &["slack"],
        ("`auto`, `tight`, `N%` (1 to 100)", "auto, tight, or a share from 1% to 100%", ""),
        "how much more than the peak of live memory may stay mapped, of each stream's heap and of all together, so that memory \
         moves less often; `auto`: more the more a workload has moved, up to 23%, and nothing more where it repeats; `tight`: next \
         to nothing; `N%`: so much from the start ([how](adr/renting-or-buying.md))",
        by!(slack, values::slack, values::slack_text),
    ),
    setting(
        ("GPUMEM_TRIM_THRESHOLD", None),
        &["trim_threshold"],
        ("size, 0", SIZE, "never"),
        "a free that leaves more than this free in one stream's heap gives memory back to the device; one that names \
         no stream may end captures that gpumem does not see",
        by!(trim_threshold, any_size, exactly),
    ),
    setting(
        ("GPUMEM_TRIM_INTERVAL", None),
        &["trim_interval_ms"],
        (
            "whole seconds, or `500ms`, 0",
            "whole seconds such as 10, milliseconds such as 500ms, or 0 for no background trim",
            "never",
        ),
        "a thread gives back, at this interval, free memory that has gone unused for as long, and keeps \
         `GPUMEM_TRIM_THRESHOLD` bytes; do not use it in programs that capture graphs on streams gpumem does not see",
        by!(trim_interval, values::interval, values::interval_text),
    ),
    setting(
        ("GPUMEM_STREAM_CHECK", None),
        &["stream_check"],
        ("`auto`, `driver`", "one of auto, driver", ""),
        "how gpumem learns which stream a handle names; `auto`: it reads where the driver keeps that; `driver`: it asks the driver \
         on every allocation, which takes 30 ns ([how](adr/stream-identity.md))",
        by_word!(stream_check, CHECKS),
    ),
    setting(
        ("GPUMEM_ARENA_DEBUG", None),
        &["arena_debug"],
        (
            "`off`, or some of `check`, `abort`, `poison`, `unmap` with commas between",
            "off, or some of check (or 1), abort, poison and unmap with commas between, but not both poison and unmap",
            "",
        ),
        "finds uses of memory after its arena has ended ([how](spec/arena-detector.md))",
        by!(arena_debug, values::arena_debug, |mode| format!("{mode}")),
    ),
    setting(
        ("GPUMEM_ARENA_QUARANTINE", None),
        &["arena_quarantine"],
        ("size", SIZE, ""),
        "how much of what arenas have freed is not handed out again; with `poison`, bytes of memory, and larger allocations are \
         not kept; with `unmap`, bytes of addresses, and the default is `64G`",
        (
            |c, text| {
                c.arena_quarantine = Some(any_size(text)?);
                Some(())
            },
            |c| exactly(c.quarantine()),
        ),
    ),
    setting(
        ("GPUMEM_CAPTURE", None),
        &["capture_detection"],
        ("`off`, `auto`", "one of off, auto", ""),
        "`auto`: memory allocated on a stream while it is captured into a CUDA graph keeps its addresses until the graph is gone; \
         needs CUDA 11.3 or newer ([how](spec/capture.md))",
        by_word!(capture, CAPTURES),
    ),
    setting(
        ("GPUMEM_PAGE_SIZE", Some("VPMM_PAGE_SIZE")),
        &["page_size"],
        (
            "a power of two up to `1G`, 0",
            "0 for the device's granularity, or a size that is a power of two up to 1G (GPUMEM_POOL=off turns the pool off)",
            "the device's granularity",
        ),
        "the smallest piece of physical memory",
        by!(page_size, values::page_size, exactly),
    ),
    setting(
        ("GPUMEM_VA_SIZE", Some("VPMM_VA_SIZE")),
        &["va_size"],
        ("a multiple of 2 MiB up to `64T`", "a size, a multiple of 2 MiB from 2M to 64T", ""),
        "how many addresses are reserved at a time; they cost nothing",
        by!(va_size, values::va_size, exactly),
    ),
    setting(
        ("GPUMEM_TIERS", None),
        &["tiers"],
        ("`on`, `off`", SWITCH, ""),
        "`on`: every allocation counts in its device's space from the start; `off`: counting begins with the first call about \
         spaces, reservations or moves",
        by_word!(tiers, SWITCHES),
    ),
    setting(
        ("GPUMEM_PINNED_BLOCKS", None),
        &["pinned_block_bytes", "pinned_blocks", "pinned_chunks"],
        (
            "three values, such as `1M,128,4`: bytes of a block, blocks in a chunk, chunks at first",
            "the size of a block (a power of two from 4K to 1G), how many are made at a time and how often at first (up to \
             1048576 each), such as 1M,128,4",
            "",
        ),
        "pinned host memory is handed out in blocks and made in chunks: of which size, and how many before it is needed",
        by!(pinned_blocks, values::pinned_blocks, values::pinned_blocks_text),
    ),
    setting(
        ("GPUMEM_PINNED_LIMIT", None),
        &["pinned_limit_bytes", "pinned_limit_percent"],
        (
            "size, `N%` of a NUMA node's memory, 0",
            "a size such as 16G, a share of a NUMA node's memory from 1% to 100%, or 0 for all of it",
            "what each NUMA node has",
        ),
        "the most pinned host memory on each NUMA node",
        by!(pinned_limit, values::limit, values::limit_text),
    ),
    setting(
        ("GPUMEM_DISK", None),
        &["disk"],
        (
            "absolute paths of directories separated by `;`, each with `=size` if it has a limit",
            "directories that begin with /, each once, with ; between, and with = and a size if one has a limit, such \
             as /scratch=200G;/mnt/nvme",
            "none",
        ),
        "where data may move to",
        by!(disks, values::disks, values::disks_text),
    ),
    setting(
        ("GPUMEM_DOWNGRADE", None),
        &["downgrade_trigger", "downgrade_stop"],
        (
            "two numbers from 0 to 1, the second not the larger",
            "two numbers from 0 to 1 of which the second is not the larger, such as 0.85,0.65",
            "",
        ),
        "the share of a space's limit at which data starts to move out, and the share at which it stops",
        by!(thresholds, values::thresholds, |t| format!("{t}")),
    ),
    setting(
        ("GPUMEM_MOVER", None),
        &["mover"],
        ("`on`, `off`", SWITCH, ""),
        "whether a thread moves evictable allocations out of spaces that are too full",
        by_word!(mover, SWITCHES),
    ),
    setting(
        ("GPUMEM_RECORD", None),
        &["record"],
        ("a file", "a file that can be made", "none"),
        "records every allocation in this file, for `gpumem view` and `gpumem replay` ([how](recording.md)); if the file exists, \
         `.` and the process's number are added to the name",
        by!(record, values::file, values::file_text),
    ),
    setting(
        ("GPUMEM_RECORD_STACKS", None),
        &["record_stacks"],
        ("frames up to 256", "a number from 0 to 256", "none"),
        "also records this many frames of each allocation's call stack (some microseconds each)",
        by!(record_stacks, |text| number(text, 0, 256), |n| format!("{n}")),
    ),
    setting(
        ("GPUMEM_SNAPSHOT_ON", None),
        &["snapshot_on"],
        ("`off`, `oom`, `exit` or `oom,exit`", "off, or oom, exit, or oom,exit", ""),
        "writes a snapshot of all memory when a request first fails for lack of memory, when the process ends, or both; \
         `.exit` is put into the second one's name; `oom` keeps the last events, so each malloc and free takes some tens of \
         nanoseconds longer; `GPUMEM_SNAPSHOT_EVENTS=0` avoids that",
        by!(snapshot_on, values::snapshot_on, values::snapshot_on_text),
    ),
    setting(
        ("GPUMEM_SNAPSHOT", None),
        &["snapshot"],
        ("a file", "a file that can be made", "`gpumem.PID.json` in the working directory"),
        "the snapshot's file",
        by!(snapshot, values::file, values::file_text),
    ),
    setting(
        ("GPUMEM_SNAPSHOT_EVENTS", None),
        &["snapshot_events"],
        ("number up to 65536", "a number from 0 to 65536", "none"),
        "how many of the latest events a snapshot holds, with `GPUMEM_SNAPSHOT_ON=oom` or during a recording",
        by!(snapshot_events, |text| number(text, 0, 65536), |n| format!("{n}")),
    ),
    setting(
        ("GPUMEM_STATS_PAGE", None),
        &["stats_page"],
        ("`on`, `off`", SWITCH, ""),
        "a thread publishes counters ten times a second in `/dev/shm`, for `gpumem top`",
        by_word!(stats_page, SWITCHES),
    ),
    setting(
        ("GPUMEM_NVTX", None),
        &["nvtx"],
        ("`on`, `off`", SWITCH, ""),
        "NVTX ranges in the domain `gpumem` for growths, stitches, trims, evictions and restores, and marks for failures, for \
         Nsight Systems ([how](recording.md#on-nsights-timeline))",
        by_word!(nvtx, SWITCHES),
    ),
    setting(
        ("GPUMEM_LOG", None),
        &["log"],
        ("0, 1, 2", "0, 1 or 2", ""),
        "stderr: nothing, warnings, or also what the slow path decides (growths, stitches, fresh starts)",
        by!(log, |text| number(text, 0, 2), |log| format!("{log}")),
    ),
    setting(
        ("GPUMEM_HOST_DEVICES", None),
        &["host_devices"],
        ("1 to 64", "a number from 1 to 64", ""),
        "how many host devices there are",
        by!(host_devices, |text| number(text, 1, 64), |n| format!("{n}")),
    ),
    setting(
        ("GPUMEM_HOST_BYTES", None),
        &["host_bytes"],
        ("a multiple of 2 MiB up to `1024T`", "a size, a multiple of 2 MiB from 2M to 1024T, such as 16G", ""),
        "the memory of each host device; only what is touched costs anything",
        by!(host_bytes, values::host_size, exactly),
    ),
    setting(
        ("GPUMEM_HOST_MODE", None),
        &["host_mode"],
        ("`eager`, `simulate`, `abort`", "one of eager, simulate, abort", ""),
        "when a host device does its work; `eager`: when it is submitted; `simulate`: late and in surprising orders, and races \
         and other mistakes are reported on stderr ([how](host-device.md#stream-order-checked)); `abort`: the same, and the first \
         mistake ends the process. Unset: `simulate` where `GPUMEM_HOST_SEED` is not 0, else `eager`",
        (
            |c, text| {
                c.host_mode = Some(word(text, &HOST_MODES)?);
                Some(())
            },
            |c| name(&c.host_mode(), &HOST_MODES),
        ),
    ),
    setting(
        ("GPUMEM_HOST_SEED", None),
        &["host_seed"],
        ("number", "a number below 2^64", ""),
        "with `simulate` or `abort`, chooses the order in which streams run; one thread gets the same order from the same seed",
        by!(host_seed, |text: &str| text.trim().parse().ok(), |n| format!("{n}")),
    ),
];
