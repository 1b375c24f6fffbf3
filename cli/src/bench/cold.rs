//! `cold`: the first allocation of 1 GiB, with nothing mapped.

use super::measure::{median, us_each};
use super::report::Measurement;
use super::target::{free, malloc};
use super::workbench::Bench;
use gpumem::base::size::{self, GIB, MIB};
use gpumem::base::Result;
use std::time::Instant;

/// How often the allocation is repeated after everything was given back.
const AGAIN: usize = 20;

/// The first allocation in this process, and repeats once the driver has done it before.
pub fn run(b: &mut Bench) -> Result<()> {
    let mut bytes = GIB;
    while bytes > b.target.budget() && bytes > MIB {
        bytes /= 2;
    }
    if bytes < GIB {
        b.scaled(format!("cold: {} in place of 1 GiB", size::human(bytes)));
    }
    let stream = b.target.stream();
    let pool = b.target.ctx().config().pool;

    let calls = b.target.calls();
    let start = Instant::now();
    if pool {
        b.target.ctx().pool(b.target.device())?;
    }
    let made = Instant::now();
    let ptr = malloc(bytes, stream)?;
    let done = Instant::now();
    let calls = b.target.calls_since(&calls);
    free(ptr, stream)?;
    let m = Measurement::new("cold", "first in the process", 1, calls)
        .with("making the pool", us_each(made - start, 1), "us")
        .with("malloc", us_each(done - made, 1), "us")
        .with("both", us_each(done - start, 1), "us");
    b.add(m);
    if !pool {
        // Nothing here gives memory back.
        return Ok(());
    }

    let mut times = Vec::with_capacity(AGAIN);
    let mut calls = b.target.calls();
    for _ in 0..AGAIN {
        b.target.ctx().driver().stream_sync(b.target.device(), stream)?;
        b.target.ctx().trim(0)?;
        calls = b.target.calls();
        let start = Instant::now();
        let ptr = malloc(bytes, stream)?;
        times.push(us_each(start.elapsed(), 1));
        free(ptr, stream)?;
    }
    let calls = b.target.calls_since(&calls);
    let m = Measurement::new("cold", format!("again, median of {AGAIN}"), 2, calls).with("malloc", median(times), "us");
    b.add(m);
    Ok(())
}
