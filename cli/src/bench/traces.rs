//! `replay`: recorded allocation logs, pass by pass, by the code of `gpumem replay`.

use super::measure::us_each;
use super::report::Measurement;
use super::workbench::Bench;
use crate::replay::{Replay, Streams};
use crate::report;
use crate::trace::{self, Trace, TraceError};
use gpumem::base::Result;

/// Replays every file once all are read. Each begins with what the one before left, free memory
/// given back. The outer error is about the files, the inner one the allocator's.
pub fn run(b: &mut Bench) -> std::result::Result<Result<()>, TraceError> {
    let read = |file: std::path::PathBuf| {
        let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
        trace::read(&file).map(|trace| (name, trace))
    };
    let traces = std::mem::take(&mut b.files).into_iter().map(read).collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(replay(b, &traces))
}

fn replay(b: &mut Bench, traces: &[(String, Trace)]) -> Result<()> {
    let ctx = b.target.ctx();
    for (name, trace) in traces {
        if ctx.config().pool {
            ctx.driver().device_sync(b.target.device())?;
            ctx.trim(0)?;
        }
        let streams = Streams::create(ctx, b.target.device(), &trace.streams)?;
        let mut replay = Replay::new(ctx, b.target.device(), trace, &streams.handles);
        let ops = trace.ops.len() as u64;
        for pass in 1..=b.repeat {
            b.step(&format!("replay of {name}, pass {pass} of {}", b.repeat));
            let calls = b.target.calls();
            let done = replay.pass(&b.bar)?;
            // They include those that free what the log left live.
            let calls = b.target.calls_since(&calls);
            let mut m = Measurement::new("replay", format!("{name}, pass {pass}"), ops, calls)
                .with("mean", us_each(done.time, ops), "us")
                .with_gib("peak live", trace.peak_live_bytes)
                .with_gib("device used", done.peak_mapped);
            if done.peak_mapped > 0 && done.failures == 0 {
                m = m.with("utilisation", trace.peak_live_bytes as f64 / done.peak_mapped as f64, "1");
            }
            b.add(m.with("failures", done.failures as f64, "1"));
        }
        if let Some(first) = replay.first_failure() {
            report::say(format_args!("{name}: {first}"));
        }
    }
    Ok(())
}
