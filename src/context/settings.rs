//! The table of settings. Everything that knows them follows from it: the environment's parsing, the fields of
//! `gpumem_context_options`, what `gpumem doctor` shows, and the table in the README (`tests/rules/settings.rs`).
//!
//! A setting is known by its environment variable, and every way to set it goes through the text that the variable would have:
//! so ranges are checked in one place.

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
    /// What it can be, as the README has it.
    pub values: &'static str,
    /// What an error says that it can be, after "set" or "it is".
    pub accepted: &'static str,
    /// What the text `0`, or an empty one, stands for.
    pub zero: &'static str,
    /// What it does, as the README has it.
    pub doc: &'static str,
    set: fn(&mut Config, &str) -> Option<()>,
    text: fn(&Config) -> String,
}

impl Setting {
    /// Sets it as the variable with this text would; `None` when that is not understood, and nothing has changed.
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
            text if text.is_empty() => self.zero.into(),
            text if text == "0" && !self.zero.is_empty() => format!("0: {}", self.zero),
            text => text,
        }
    }
}

/// The setting that a variable sets.
pub fn find(variable: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|s| s.variable == variable)
}

/// The README's table.
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
        "the device kind; `auto` takes CUDA where there is a driver and a device, else the host device with a line on stderr",
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
        "most memory a pool maps",
        by!(limit, values::limit, values::limit_text),
    ),
    setting(
        ("GPUMEM_PREALLOC", Some("VPMM_PAGES")),
        &["prealloc_bytes", "prealloc_percent"],
        ("size, `N%` of what is free", "a size such as 16G, or a share of the free memory from 0% to 100%", "none"),
        "memory mapped when a pool starts",
        by!(prealloc, values::prealloc, values::prealloc_text),
    ),
    setting(
        ("GPUMEM_REUSE", None),
        &["reuse"],
        ("`wait`, `settled`", "one of settled, wait", ""),
        "whether, as a last resort, a stream is made to wait on the device for memory that another freed",
        by_word!(reuse, REUSES),
    ),
    setting(
        ("GPUMEM_SLACK", None),
        &["slack"],
        ("`auto`, `tight`, `N%`", "auto, tight, or a share from 1% to 100%", ""),
        "how much more than was ever live may be mapped to move memory less often: with `auto` what a workload earns by moving it, up \
         to 23%, which is nothing where it repeats; with `tight` next to nothing ([how](docs/adr/renting-or-buying.md))",
        by!(slack, values::slack, values::slack_text),
    ),
    setting(
        ("GPUMEM_TRIM_THRESHOLD", None),
        &["trim_threshold"],
        ("size, 0", SIZE, "never"),
        "a free that leaves more than this free in one stream's heap gives memory back",
        by!(trim_threshold, any_size, exactly),
    ),
    setting(
        ("GPUMEM_TRIM_INTERVAL", None),
        &["trim_interval_ms"],
        (
            "seconds, or `500ms`, 0",
            "seconds such as 10, milliseconds such as 500ms, or 0 for no background trim",
            "never",
        ),
        "every so often, in a thread of its own, free memory that has been unused for as long goes back, but for \
         `GPUMEM_TRIM_THRESHOLD` bytes; not for programs that capture graphs on streams which gpumem does not see",
        by!(trim_interval, values::interval, values::interval_text),
    ),
    setting(
        ("GPUMEM_STREAM_CHECK", None),
        &["stream_check"],
        ("`auto`, `driver`", "one of auto, driver", ""),
        "`driver`: the CUDA driver is asked on every allocation which stream a handle is (30 ns), instead of looking where it \
         keeps that ([how](docs/adr/stream-identity.md))",
        by_word!(stream_check, CHECKS),
    ),
    setting(
        ("GPUMEM_ARENA_DEBUG", None),
        &["arena_debug"],
        (
            "`off`, or some of `check`, `abort`, `poison`, `unmap`",
            "off, or some of check (or 1), abort, poison and unmap with commas between, but not both poison and unmap",
            "",
        ),
        "find uses of memory after the arena that it belonged to has ended ([how](docs/spec/arena-detector.md))",
        by!(arena_debug, values::arena_debug, |mode| format!("{mode}")),
    ),
    setting(
        ("GPUMEM_ARENA_QUARANTINE", None),
        &["arena_quarantine"],
        ("size", SIZE, ""),
        "how much of what arenas have freed is kept from being handed out: with `poison` bytes of memory, which larger allocations \
         pass by; with `unmap` of addresses, and then the default is `64G`",
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
        "`auto`: what is allocated on a stream while that is captured into a CUDA graph keeps its addresses until the graph is \
         gone ([how](docs/spec/capture.md))",
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
        "smallest piece of physical memory",
        by!(page_size, values::page_size, exactly),
    ),
    setting(
        ("GPUMEM_VA_SIZE", Some("VPMM_VA_SIZE")),
        &["va_size"],
        ("size up to `64T`", "a size, a multiple of 2 MiB from 2M to 64T", ""),
        "addresses reserved at a time; they cost nothing",
        by!(va_size, values::va_size, exactly),
    ),
    setting(
        ("GPUMEM_TIERS", None),
        &["tiers"],
        ("`on`, `off`", SWITCH, ""),
        "`on`: every allocation is counted in its device's space from the first on. Otherwise that begins with the first call \
         about spaces, reservations or moving",
        by_word!(tiers, SWITCHES),
    ),
    setting(
        ("GPUMEM_PINNED_BLOCKS", None),
        &["pinned_block_bytes", "pinned_blocks", "pinned_chunks"],
        (
            "size of a block, blocks made at a time, how often at first",
            "the size of a block (a power of two from 4K to 1G), how many are made at a time and how often at first (up to \
             1048576 each), such as 1M,128,4",
            "",
        ),
        "what pinned host memory comes in",
        by!(pinned_blocks, values::pinned_blocks, values::pinned_blocks_text),
    ),
    setting(
        ("GPUMEM_PINNED_LIMIT", None),
        &["pinned_limit_bytes", "pinned_limit_percent"],
        (
            "size, or `N%` of a NUMA node's memory",
            "a size such as 16G, a share of a NUMA node's memory from 1% to 100%, or 0 for all of it",
            "what each NUMA node has",
        ),
        "the most pinned host memory, of each NUMA node",
        by!(pinned_limit, values::limit, values::limit_text),
    ),
    setting(
        ("GPUMEM_DISK", None),
        &["disk"],
        (
            "directories with `;` between, each with `=size` if it has a limit",
            "directories that begin with /, with ; between, each with = and a size if it has a limit, such as \
             /scratch=200G;/mnt/nvme",
            "none",
        ),
        "where data may be moved to",
        (
            |c, text| {
                c.disks = values::disks(text)?;
                Some(())
            },
            |c| values::disks_text(&c.disks),
        ),
    ),
    setting(
        ("GPUMEM_DOWNGRADE", None),
        &["downgrade_trigger", "downgrade_stop"],
        (
            "two numbers from 0 to 1",
            "two numbers from 0 to 1 of which the second is not the larger, such as 0.85,0.65",
            "",
        ),
        "from which share of a space's limit on data is moved out of it, and down to which",
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
        "every allocation is recorded there, for `gpumem view` and `gpumem replay` ([how](docs/recording.md)); where there is a file of \
         that name, `.` and the process's number are added",
        by!(record, values::file, values::file_text),
    ),
    setting(
        ("GPUMEM_RECORD_STACKS", None),
        &["record_stacks"],
        ("frames up to 256", "a number from 0 to 256", "none"),
        "the call stack of each allocation is recorded too, so many frames of it (some microseconds each)",
        by!(record_stacks, |text| number(text, 0, 256), |n| format!("{n}")),
    ),
    setting(
        ("GPUMEM_SNAPSHOT_ON", None),
        &["snapshot_on"],
        ("`off`, or some of `oom`, `exit`", "off, or oom, exit, or oom,exit", ""),
        "a snapshot of all memory is written when a request first fails for lack of memory, at the process's end, or both",
        by!(snapshot_on, values::snapshot_on, values::snapshot_on_text),
    ),
    setting(
        ("GPUMEM_SNAPSHOT", None),
        &["snapshot"],
        ("a file", "a file that can be made", "`gpumem.PID.json` in the working directory"),
        "where that goes",
        by!(snapshot, values::file, values::file_text),
    ),
    setting(
        ("GPUMEM_SNAPSHOT_EVENTS", None),
        &["snapshot_events"],
        ("number up to 65536", "a number from 0 to 65536", "none"),
        "how many of the last events are in a snapshot: with `GPUMEM_SNAPSHOT_ON=oom`, or while something is recorded",
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
        "the host device: how many",
        by!(host_devices, |text| number(text, 1, 64), |n| format!("{n}")),
    ),
    setting(
        ("GPUMEM_HOST_BYTES", None),
        &["host_bytes"],
        ("size", "a size, a multiple of 2 MiB and not 0, such as 16G", ""),
        "the host device: memory of each; only what is touched costs anything",
        by!(host_bytes, values::host_size, exactly),
    ),
    setting(
        ("GPUMEM_HOST_MODE", None),
        &["host_mode"],
        ("`eager`, `simulate`, `abort`", "one of eager, simulate, abort", ""),
        "the host device: `eager` does work when it is submitted; `simulate` does it late and in surprising orders, and says on \
         stderr which work races ([how](#stream-order-checked-without-a-gpu)); `abort` also ends the process there. Unset: \
         `simulate` where `GPUMEM_HOST_SEED` is not 0, else `eager`",
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
        "the host device, `simulate`: chooses the order in which its streams run; one thread gets the same order from the same seed",
        by!(host_seed, |text: &str| text.trim().parse().ok(), |n| format!("{n}")),
    ),
];
