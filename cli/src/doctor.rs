//! `gpumem doctor`: what the library finds on this machine, and whether it works.

use crate::limits::{self, Limit};
use crate::report;
use crate::self_test::{self, Check};
use crate::session::{self, Backend};
use crate::settings::{self, Setting};
use gpumem::base::{size, DeviceId, Result};
use gpumem::context::config::{Config, SnapshotOn};
use gpumem::context::preload::PreloadSettings;
use gpumem::context::{self, environment, Context};
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};

/// Command line of `doctor`.
#[derive(clap::Args)]
pub struct Args {
    /// Device kind to look at, overriding a valid GPUMEM_BACKEND.
    #[arg(long, value_enum)]
    backend: Option<Backend>,
    /// Prints one JSON object on stdout instead of tables.
    #[arg(long)]
    json: bool,
}

/// Everything `doctor` found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// gpumem's own version.
    pub version: &'static str,
    /// Whether there is no problem.
    pub ok: bool,
    /// The backend in use; absent when none could be opened.
    pub backend: Option<BackendReport>,
    /// Every device of it.
    pub devices: Vec<DeviceReport>,
    /// Limits of machine and process.
    pub limits: Vec<Limit>,
    /// The configuration in force.
    pub settings: Vec<Setting>,
    /// The checks made on each device.
    pub self_test: Vec<Check>,
    /// Everything that is wrong.
    pub problems: Vec<String>,
}

/// The backend in use.
#[derive(Debug, Serialize)]
pub struct BackendReport {
    /// `cuda` or `host`.
    pub name: &'static str,
    /// The driver's version.
    pub driver: String,
    /// Why this backend is in use.
    pub why: String,
}

/// One device.
#[derive(Debug, Serialize)]
pub struct DeviceReport {
    /// Its number, as `cudaSetDevice` counts.
    pub ordinal: u32,
    /// Product name.
    pub name: String,
    /// Bytes that nobody uses.
    pub free_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
    /// Unit of physical memory, bytes.
    pub granularity: u64,
    /// `major.minor`; absent on the host device.
    pub compute_capability: Option<String>,
    /// Virtual memory management; the pool needs it.
    pub vmm: bool,
    /// Memory can be exported as a file descriptor.
    pub posix_fd: bool,
    /// Memory can be made ready for RDMA.
    pub rdma: bool,
    /// Other devices whose memory this one can use.
    pub peers: Vec<u32>,
    /// Most bytes the pool may map.
    pub pool_limit_bytes: u64,
}

/// Runs the command; `Ok(false)` when something is wrong.
pub fn run(args: &Args) -> std::result::Result<bool, Box<dyn std::error::Error>> {
    let report = examine(args.backend);
    if args.json {
        report::json(&report)?;
    } else {
        print(&report)?;
    }
    Ok(report.ok)
}

fn examine(backend: Option<Backend>) -> Report {
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        ok: false,
        backend: None,
        devices: Vec::new(),
        limits: Vec::new(),
        settings: Vec::new(),
        self_test: Vec::new(),
        problems: Vec::new(),
    };
    let variables = |name: &str| std::env::var_os(name);
    report.problems.extend(environment::unknown(std::env::vars_os().map(|(name, _)| name)));
    report.problems.extend(PreloadSettings::from_lookup(&variables).err().map(|e| e.to_string()));
    let wrong = settings::wrong();
    report.problems.extend(wrong.values().map(|e| e.to_string()));
    match Config::from_lookup(&|name| variables(name).filter(|_| !wrong.contains_key(name))) {
        Ok(config) => {
            let mut config = session::with_backend(config, backend);
            report.settings = settings::describe(&config, &wrong, backend.is_some());
            report.limits = limits::read(config.va_size);
            report.problems.extend(unwritable(&config));
            // A recording here would take the file name of the program that it is meant for.
            config.record = None;
            match wrong.is_empty().then(|| session::open(config)) {
                Some(Ok(ctx)) => look_at(ctx, &mut report),
                Some(Err(e)) => report.problems.push(format!("no backend: {e}")),
                // Programs do not start then either.
                None => {}
            }
        }
        Err(e) => {
            report.limits = limits::read(0);
            report.problems.push(e.to_string());
        }
    }
    let low = report.limits.iter().filter(|l| l.too_low);
    report.problems.extend(low.map(|l| format!("{} is {}: {}", l.name, l.value, l.remark.as_deref().unwrap_or(""))));
    let failed = report.self_test.iter().filter(|c| !c.passed);
    report.problems.extend(
        failed.map(|c| format!("device {}: {}: {}", c.device, c.check, c.detail.as_deref().unwrap_or("failed"))),
    );
    report.ok = report.problems.is_empty();
    report
}

/// The files that could not be made, as problems.
fn unwritable(config: &Config) -> Vec<String> {
    let snapshot = config.snapshot_on != SnapshotOn::default();
    let files =
        [("GPUMEM_RECORD", config.record.clone()), ("GPUMEM_SNAPSHOT", snapshot.then(|| config.snapshot_file()))];
    let problem = |(name, file): (&str, Option<PathBuf>)| {
        let file = file?;
        if file.is_dir() || file.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Some(format!("{name} is {}, which is the name of a directory; name a file", file.display()));
        }
        if file.exists() && !file.is_file() {
            // A recording refuses a device or a pipe; a snapshot is written to it.
            let refused = name == "GPUMEM_RECORD";
            return refused.then(|| format!("{name} is {}, and that is no regular file; name one", file.display()));
        }
        let folder = file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let why = tempfile::tempfile_in(folder).err()?;
        Some(format!("{name} is {}, and no file can be made in {}: {why}", file.display(), folder.display()))
    };
    files.into_iter().filter_map(problem).collect()
}

fn look_at(ctx: &Context, report: &mut Report) {
    if !ctx.config().disks.is_empty() {
        report.problems.extend(ctx.tiers().err().map(|e| e.to_string()));
    }
    let driver = ctx.driver();
    report.backend = Some(BackendReport {
        name: driver.backend(),
        driver: driver.version(),
        why: context::backend::explain(ctx.config()),
    });
    for ordinal in 0..driver.device_count() {
        match device(ctx, DeviceId(ordinal)) {
            Ok(d) => {
                if !d.vmm {
                    report.problems.push(format!(
                        "device {ordinal} has no virtual memory management; set GPUMEM_POOL=off to use it without a pool"
                    ));
                }
                report.devices.push(d);
                report.self_test.extend(self_test::run(ctx, DeviceId(ordinal)));
            }
            Err(e) => report.problems.push(format!("device {ordinal}: {e}")),
        }
    }
}

fn device(ctx: &Context, dev: DeviceId) -> Result<DeviceReport> {
    let driver = ctx.driver();
    let props = driver.device_props(dev)?;
    let mem = driver.mem_info(dev)?;
    let mut peers = Vec::new();
    for other in (0..driver.device_count()).map(DeviceId).filter(|&other| other != dev) {
        if driver.can_access(dev, other)? {
            peers.push(other.0);
        }
    }
    Ok(DeviceReport {
        ordinal: dev.0,
        name: props.name,
        free_bytes: mem.free,
        total_bytes: mem.total,
        granularity: props.granularity,
        compute_capability: (props.compute != (0, 0)).then(|| format!("{}.{}", props.compute.0, props.compute.1)),
        vmm: props.vmm,
        posix_fd: props.posix_fd,
        rdma: props.rdma,
        peers,
        pool_limit_bytes: ctx.config().limit.of(props.total_bytes),
    })
}

/// The result as a table.
fn print(r: &Report) -> io::Result<()> {
    let mut t = report::Table::default();
    t.row("gpumem", r.version);
    match &r.backend {
        Some(b) => {
            t.row("backend", format!("{} ({})", b.name, b.why));
            t.row("driver", &b.driver);
        }
        None => t.row("backend", "none could be opened"),
    }
    // Equal neighbours are shown once.
    for alike in r.devices.chunk_by(DeviceReport::is_like) {
        let Some(d) = alike.first() else { continue };
        t.heading(ordinals(alike.iter().map(|d| d.ordinal)).replacen('d', "D", 1));
        t.row("name", &d.name);
        let free = alike.iter().map(|d| size::human(d.free_bytes)).collect::<Vec<_>>();
        t.row("memory", format!("{} free of {}", free.join(", "), size::human(d.total_bytes)));
        t.row("granularity", size::human(d.granularity));
        t.row("compute capability", d.compute_capability.as_deref().unwrap_or("none (host device)"));
        t.row("virtual memory management", yes(d.vmm));
        t.row("export as POSIX fd", yes(d.posix_fd));
        t.row("GPUDirect RDMA", yes(d.rdma));
        t.row("peers", peers(alike, d));
        t.row("pool limit", report::bytes(d.pool_limit_bytes));
    }
    t.heading("Limits");
    for l in &r.limits {
        t.row(
            l.name,
            match &l.remark {
                Some(remark) => format!("{} ({remark})", l.value),
                None => l.value.clone(),
            },
        );
    }
    if !r.settings.is_empty() {
        t.heading("Settings, and where each comes from");
    }
    for s in &r.settings {
        t.row(s.name, format!("{} ({})", s.value, s.source));
    }
    t.heading("Self-test");
    let mut tests: Vec<(&Check, Vec<u32>)> = Vec::new();
    for c in &r.self_test {
        let same = |t: &Check| (&t.check, t.passed, &t.detail) == (&c.check, c.passed, &c.detail);
        match tests.iter_mut().find(|(t, _)| same(t)) {
            Some((_, on)) => on.push(c.device),
            None => tests.push((c, vec![c.device])),
        }
    }
    for (c, on) in tests {
        let verdict = if c.passed { "pass" } else { "FAIL" };
        t.row(
            format!("{}: {}", ordinals(on.into_iter()), c.check),
            match &c.detail {
                Some(detail) => format!("{verdict}: {detail}"),
                None => verdict.to_string(),
            },
        );
    }
    if r.self_test.is_empty() {
        t.row("not run", "there is no device to run it on");
    }
    t.heading(if r.problems.is_empty() { "No problem found." } else { "Problems" });
    for p in &r.problems {
        t.row(format!("- {p}"), "");
    }
    t.print_beside(false)
}

impl DeviceReport {
    /// Whether both devices can be shown as one.
    fn is_like(&self, next: &DeviceReport) -> bool {
        // The two are peers of each other, and of the same others.
        let with = |d: &DeviceReport, other: u32| {
            let mut all = d.peers.clone();
            all.retain(|&p| p != other);
            all
        };
        let links = self.peers.contains(&next.ordinal) == next.peers.contains(&self.ordinal)
            && with(self, next.ordinal) == with(next, self.ordinal);
        let facts = |d: &DeviceReport| {
            let can = (d.vmm, d.posix_fd, d.rdma);
            (d.name.clone(), d.total_bytes, d.granularity, d.compute_capability.clone(), can, d.pool_limit_bytes)
        };
        links && facts(self) == facts(next)
    }
}

/// The peers of devices that are alike, of which `d` is the first.
fn peers(alike: &[DeviceReport], d: &DeviceReport) -> String {
    let (inside, outside): (Vec<u32>, Vec<u32>) = d.peers.iter().partition(|&&p| alike.iter().any(|a| a.ordinal == p));
    match (inside.is_empty(), outside.is_empty()) {
        (true, _) => list(&outside),
        (false, true) => "each other".to_string(),
        (false, false) => format!("each other, {}", list(&outside)),
    }
}

/// `device 0`, `devices 0 to 3` where none is missing, `devices 0, 2`.
fn ordinals(all: impl Iterator<Item = u32>) -> String {
    let all: Vec<u32> = all.collect();
    match all.as_slice() {
        [first, .., last] if (last - first) as usize + 1 == all.len() => format!("devices {first} to {last}"),
        [only] => format!("device {only}"),
        _ => format!("devices {}", list(&all)),
    }
}

fn yes(b: bool) -> &'static str {
    if b {
        "yes"
    } else {
        "no"
    }
}

fn list(items: &[u32]) -> String {
    if items.is_empty() {
        "none".to_string()
    } else {
        items.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
    }
}
