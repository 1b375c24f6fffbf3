//! `gpumem doctor`: what the library finds on this machine, and whether it works.

use crate::limits::{self, Limit};
use crate::report;
use crate::self_test::{self, Check};
use crate::session::{self, Backend};
use crate::settings::{self, Setting};
use gpumem::base::{size, DeviceId, Result};
use gpumem::context::{self, Context};
use serde::Serialize;
use std::io;

/// Command line of `doctor`.
#[derive(clap::Args)]
pub struct Args {
    /// Device kind to look at, in place of what GPUMEM_BACKEND says.
    #[arg(long, value_enum)]
    backend: Option<Backend>,
    /// One JSON object on stdout instead of tables.
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
    /// What was tried on each device.
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
    /// Why this one.
    pub why: String,
}

/// One device.
#[derive(Debug, Serialize)]
pub struct DeviceReport {
    /// Its number, as `cudaSetDevice` counts.
    pub ordinal: u32,
    /// Product name.
    pub name: String,
    /// Bytes not in use by anyone.
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
    match session::config(backend) {
        Ok(config) => {
            report.settings = settings::describe(&config, backend.is_some());
            report.limits = limits::read(config.va_size);
            match session::open(config) {
                Ok(ctx) => look_at(ctx, &mut report),
                Err(e) => report.problems.push(format!("no backend: {e}")),
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

fn look_at(ctx: &Context, report: &mut Report) {
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
    for d in &r.devices {
        t.heading(format!("Device {}", d.ordinal));
        t.row("name", &d.name);
        t.row("memory", format!("{} free of {}", size::human(d.free_bytes), size::human(d.total_bytes)));
        t.row("granularity", size::human(d.granularity));
        t.row("compute capability", d.compute_capability.as_deref().unwrap_or("none (host device)"));
        t.row("virtual memory management", yes(d.vmm));
        t.row("export as POSIX fd", yes(d.posix_fd));
        t.row("GPUDirect RDMA", yes(d.rdma));
        t.row("peers", list(&d.peers));
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
        t.heading("Settings");
    }
    for s in &r.settings {
        t.row(s.name, format!("{} ({})", s.value, s.source));
    }
    t.heading("Self-test");
    for c in &r.self_test {
        let verdict = if c.passed { "pass" } else { "FAIL" };
        t.row(
            format!("device {}: {}", c.device, c.check),
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
    t.print(&mut io::stdout().lock())
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
