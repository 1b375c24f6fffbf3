//! Settings, from the environment or from explicit options.

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
    /// Most bytes a pool may map; 0 means what the device has.
    pub limit: u64,
    /// How memory freed on another stream is reused.
    pub reuse: Reuse,
    /// After a free that leaves more than this many mapped bytes unused, give memory back; 0 means never.
    pub trim_threshold: u64,
    /// How much to say on stderr: 0 nothing, 1 warnings, 2 slow-path decisions.
    pub log: u32,
    /// `false` sends every request straight to the driver's own allocator, for comparison.
    pub pool: bool,
    /// Host device only: how many devices to pretend.
    pub host_devices: u32,
    /// Host device only: memory of each, bytes (sparse; only touched pages cost anything).
    pub host_bytes: u64,
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

/// Memory mapped when a pool starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prealloc {
    /// This many bytes.
    Bytes(u64),
    /// This share of the memory that is free at the time, 0–100.
    Percent(u32),
}

/// How memory freed on another stream is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Only when the device has passed the free.
    Settled,
    /// Also by making the new stream wait on the device, when nothing else is left.
    Wait,
}
