//! Settings, from the environment ([`environment`](super::environment)) or from explicit options.

use crate::arena::DebugMode;
use crate::base::size::{GIB, KIB, MIB, TIB};
use crate::tier::Thresholds;
use std::path::PathBuf;
use std::time::Duration;

/// Everything that can be set. `Default` is what an empty environment gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which driver to use.
    pub backend: Backend,
    /// Addresses reserved at a time per device, bytes.
    pub va_size: u64,
    /// Smallest extent, bytes; 0 means the device's granularity.
    pub page_size: u64,
    /// Memory mapped when a pool starts.
    pub prealloc: Prealloc,
    /// The most a pool may map.
    pub limit: Limit,
    /// How much more than a workload needs may stay mapped, so that memory moves less often.
    pub slack: Slack,
    /// How memory freed on another stream is reused.
    pub reuse: Reuse,
    /// After a free that leaves more than this many mapped bytes unused, give memory back; 0 means
    /// never.
    pub trim_threshold: u64,
    /// At this interval, free memory that has gone unused for as long goes back to the device,
    /// except for `trim_threshold` bytes. Zero: no thread does that.
    pub trim_interval: Duration,
    /// How to find out which stream a handle is.
    pub stream_check: StreamCheck,
    /// How to find uses of memory after the arena that it belonged to has ended.
    pub arena_debug: DebugMode,
    /// How much of what arenas have freed is kept from being handed out again, for `arena_debug`.
    /// `None`: see [`Config::quarantine`].
    pub arena_quarantine: Option<u64>,
    /// Whether a stream that is being captured gets memory of its own automatically.
    pub capture: CaptureDetection,
    /// Counts every allocation in its device's space from the first on. Without it counting begins
    /// with the first call about spaces, reservations or moving.
    pub tiers: bool,
    /// The blocks that pinned host memory comes in.
    pub pinned_blocks: PinnedBlocks,
    /// The most pinned host memory, of each NUMA node.
    pub pinned_limit: Limit,
    /// Directories that data may be moved to, and how much each may hold.
    pub disks: Vec<DiskMount>,
    /// The use of a space at which data starts to move out of it, and the use at which that stops.
    pub thresholds: Thresholds,
    /// Whether a thread moves data out of spaces that are too full.
    pub mover: bool,
    /// Where every allocation is recorded; `None`: nowhere.
    pub record: Option<PathBuf>,
    /// The deepest stack that is recorded with an allocation, frames; 0: none is.
    pub record_stacks: u32,
    /// When a snapshot is written automatically.
    pub snapshot_on: SnapshotOn,
    /// Where automatic snapshots go. `None`: see [`Config::snapshot_file`].
    pub snapshot: Option<PathBuf>,
    /// How many of the last events are in a snapshot.
    pub snapshot_events: u32,
    /// Whether counters are published for `gpumem top`.
    pub stats_page: bool,
    /// Whether the slow path makes NVTX ranges.
    pub nvtx: bool,
    /// How much to say on stderr: 0 nothing, 1 warnings, 2 slow-path decisions.
    pub log: u32,
    /// `false` sends every request straight to the driver's own allocator, for comparison.
    pub pool: bool,
    /// Host device only: how many devices to simulate.
    pub host_devices: u32,
    /// Host device only: memory of each device, bytes (sparse; only touched pages cost anything).
    pub host_bytes: u64,
    /// Host device only: when it does what is submitted to it; `None`: see [`Config::host_mode`].
    pub host_mode: Option<HostMode>,
    /// Host device only, when it simulates: the seed that chooses the order in which its streams
    /// run. The same seed gives the same order.
    pub host_seed: u64,
}

/// How much a pool may map beyond what was ever live in a heap, to move memory less often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slack {
    /// Slack grows with how much memory the workload has moved, up to 23 %. None for work that
    /// repeats.
    Auto,
    /// Next to nothing.
    Tight,
    /// A fixed share, in percent, 1 to 100.
    Percent(u32),
}

impl Default for Config {
    fn default() -> Config {
        Config {
            backend: Backend::Auto,
            va_size: 8 * TIB,
            page_size: 0,
            prealloc: Prealloc::Bytes(0),
            limit: Limit::Device,
            slack: Slack::Auto,
            reuse: Reuse::Wait,
            trim_threshold: 0,
            trim_interval: Duration::ZERO,
            stream_check: StreamCheck::Auto,
            arena_debug: DebugMode::default(),
            arena_quarantine: None,
            capture: CaptureDetection::Off,
            tiers: false,
            pinned_blocks: PinnedBlocks::default(),
            pinned_limit: Limit::Percent(50),
            disks: Vec::new(),
            thresholds: Thresholds::default(),
            mover: true,
            record: None,
            record_stacks: 0,
            snapshot_on: SnapshotOn::default(),
            snapshot: None,
            snapshot_events: 256,
            stats_page: false,
            nvtx: false,
            log: 1,
            pool: true,
            host_devices: 1,
            host_bytes: 64 * GIB,
            host_mode: None,
            host_seed: 0,
        }
    }
}

impl Config {
    /// How much of what arenas have freed is kept: bytes of memory, or with `unmap` of addresses.
    pub fn quarantine(&self) -> u64 {
        let default = if self.arena_debug.unmap { 64 * GIB } else { 256 * MIB };
        self.arena_quarantine.unwrap_or(default)
    }

    /// Where a snapshot goes: `gpumem.PID.json` in the working directory, if nothing else was said.
    pub fn snapshot_file(&self) -> PathBuf {
        self.snapshot.clone().unwrap_or_else(|| format!("gpumem.{}.json", std::process::id()).into())
    }

    /// When the host device runs submitted work. A seed would change nothing where work runs at
    /// once, so a seed without a mode means a simulation.
    pub fn host_mode(&self) -> HostMode {
        let default = if self.host_seed == 0 { HostMode::Eager } else { HostMode::Simulate };
        self.host_mode.unwrap_or(default)
    }
}

/// When a snapshot is written automatically.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotOn {
    /// When a request fails for lack of memory, the first time.
    pub oom: bool,
    /// At the process's end.
    pub exit: bool,
}

/// Which driver to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// CUDA when a driver and a device exist, else the host device with one line on stderr.
    Auto,
    /// CUDA or an error.
    Cuda,
    /// The host device.
    Host,
}

/// When the host device does what is submitted to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostMode {
    /// At once.
    Eager,
    /// Late and in surprising orders. It reports races and other mistakes on stderr.
    Simulate,
    /// The same, and the process ends at the first mistake.
    Abort,
}

/// Memory mapped when a pool starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prealloc {
    /// This many bytes.
    Bytes(u64),
    /// This share of the memory that is free at the time, 0–100.
    Percent(u32),
}

impl Prealloc {
    /// In bytes, on a device with this much free.
    pub fn of(self, free: u64) -> u64 {
        match self {
            Prealloc::Bytes(bytes) => bytes,
            Prealloc::Percent(percent) => share(free, percent),
        }
    }
}

/// The blocks that pinned host memory comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinnedBlocks {
    /// Bytes of a block, a power of two from 4 KiB on.
    pub block_bytes: u64,
    /// How many are made at a time: a chunk.
    pub blocks: u32,
    /// Chunks that are made at first use.
    pub chunks: u32,
}

impl Default for PinnedBlocks {
    fn default() -> PinnedBlocks {
        PinnedBlocks { block_bytes: MIB, blocks: 128, chunks: 4 }
    }
}

impl PinnedBlocks {
    /// The most blocks of a chunk, and chunks at first use.
    const MOST: u32 = 1 << 20;

    /// These, or the field that is out of range, its value and what it may be.
    pub fn checked(self) -> Result<PinnedBlocks, (&'static str, u64, &'static str)> {
        if !self.block_bytes.is_power_of_two() || !(4 * KIB..=GIB).contains(&self.block_bytes) {
            return Err(("block_bytes", self.block_bytes, "a power of two from 4 KiB to 1 GiB"));
        }
        if !(1..=Self::MOST).contains(&self.blocks) {
            return Err(("blocks", self.blocks.into(), "a number from 1 to 1048576"));
        }
        if self.chunks > Self::MOST {
            return Err(("chunks", self.chunks.into(), "a number up to 1048576"));
        }
        Ok(self)
    }
}

/// A directory that data may be moved to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskMount {
    /// Where it is.
    pub path: PathBuf,
    /// The most bytes of files in it; `None`: what the file system has.
    pub limit: Option<u64>,
}

/// The most a pool may map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// What the device has.
    Device,
    /// This many bytes.
    Bytes(u64),
    /// This share of the device's memory, 1–100.
    Percent(u32),
}

impl Limit {
    /// In bytes, on a device with this much memory in all.
    pub fn of(self, total: u64) -> u64 {
        match self {
            Limit::Device => total,
            Limit::Bytes(bytes) => bytes,
            Limit::Percent(percent) => share(total, percent),
        }
    }
}

fn share(bytes: u64, percent: u32) -> u64 {
    let share = u128::from(bytes) * u128::from(percent) / 100;
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// How memory freed on another stream is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Only when the device has passed the free.
    Settled,
    /// Also by making the new stream wait on the device, when nothing else is left.
    Wait,
}

/// Whether captures get memory of their own without being asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureDetection {
    /// Only those that are begun.
    Off,
    /// Every stream that is being captured.
    Auto,
}

/// How to find out which stream a handle is at present, and whether it is being captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamCheck {
    /// In the driver's own structures where it has been proved that they show it, else by asking
    /// the driver.
    Auto,
    /// By asking the driver on every allocation.
    Driver,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_do_not_overflow() {
        assert_eq!(Limit::Percent(90).of(u64::MAX), u64::MAX / 10 * 9 + 4);
        assert_eq!(Limit::Percent(100).of(u64::MAX), u64::MAX);
        assert_eq!(Limit::Bytes(7).of(3), 7);
        assert_eq!(Limit::Device.of(3), 3);
        assert_eq!(Prealloc::Percent(0).of(1000), 0);
        assert_eq!(Prealloc::Percent(80).of(1000), 800);
    }
}
