//! A workload as a list of operations made beforehand, so that a timed loop draws no random number
//! and does no arithmetic.

use super::measure::{Clock, Sorted, Times};
use super::target::{free, malloc};
use crate::trace::{Kind, Op};
use gpumem::base::{size, Error, Result, StreamHandle};
use rand_mt::Mt64;
use std::time::{Duration, Instant};

/// The random numbers of C++'s `std::mt19937_64`, so that `bench/peers` draws the same.
pub struct Random(Mt64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(Mt64::new(seed))
    }

    pub fn number(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Below `n`, which is not 0. Its slight preference for small numbers does no harm here.
    pub fn below(&mut self, n: usize) -> usize {
        (self.number() % n.max(1) as u64) as usize
    }

    /// A size from 2^`low` to 2^`high` bytes, every power of two as likely as any other.
    pub fn size(&mut self, low: f64, high: f64) -> u64 {
        let share = self.number() as f64 / 2f64.powi(64);
        (low + share * (high - low)).exp2() as u64
    }
}

/// Builds a [`Script`]. Streams are indices into the player's list.
#[derive(Default)]
pub struct Builder {
    ops: Vec<Op>,
    slots: u32,
    free_slots: Vec<u32>,
    live: Vec<(u32, u64)>,
    live_bytes: u64,
    peak_live: u64,
}

impl Builder {
    /// Bytes live now.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Allocations live now.
    pub fn live(&self) -> usize {
        self.live.len()
    }

    pub fn allocate(&mut self, size: u64, stream: u16) {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        });
        self.live.push((slot, size));
        self.live_bytes += size;
        self.peak_live = self.peak_live.max(self.live_bytes);
        self.ops.push(Op { size, slot, stream, kind: Kind::Allocate });
    }

    /// Frees live allocation number `k`; the last allocation takes that number.
    pub fn free(&mut self, k: usize, stream: u16) {
        if k < self.live.len() {
            let (slot, size) = self.live.swap_remove(k);
            self.live_bytes -= size;
            self.free_slots.push(slot);
            self.ops.push(Op { size: 0, slot, stream, kind: Kind::Free });
        }
    }

    /// Gives live allocations new numbers, by Fisher and Yates.
    pub fn shuffle(&mut self, random: &mut Random) {
        for i in (1..self.live.len()).rev() {
            self.live.swap(i, random.below(i + 1));
        }
    }

    pub fn free_all(&mut self, stream: u16) {
        while self.live() > 0 {
            self.free(self.live() - 1, stream);
        }
    }

    pub fn finish(self) -> Script {
        Script { ops: self.ops, slots: self.slots as usize, peak_live: self.peak_live }
    }
}

/// Operations to play.
pub struct Script {
    pub ops: Vec<Op>,
    slots: usize,
    /// The largest sum of sizes live at once, bytes.
    pub peak_live: u64,
}

/// Plays a script over and over. Dropping it frees everything live.
pub struct Player<'a> {
    script: &'a Script,
    streams: &'a [StreamHandle],
    /// The pointer in each slot; 0 when nothing is live there.
    slots: Vec<u64>,
}

impl<'a> Player<'a> {
    pub fn new(script: &'a Script, streams: &'a [StreamHandle]) -> Player<'a> {
        Player { script, streams, slots: vec![0; script.slots] }
    }

    /// Plays the whole script with two looks at the clock.
    #[inline(never)]
    pub fn timed(&mut self) -> Result<Duration> {
        let start = Instant::now();
        for op in &self.script.ops {
            step(op, self.streams, &mut self.slots)?;
        }
        Ok(start.elapsed())
    }

    /// Plays the whole script, timing every call.
    #[inline(never)]
    pub fn each_timed(&mut self) -> Result<Sorted> {
        let mut times = Times::with_capacity(self.script.ops.len());
        for op in &self.script.ops {
            let start = Instant::now();
            step(op, self.streams, &mut self.slots)?;
            times.push(start.elapsed());
        }
        Ok(times.sorted())
    }

    /// Frees what the script left live.
    pub fn free_the_rest(&mut self) -> Result<()> {
        let stream = self.streams.first().copied().unwrap_or_default();
        for slot in &mut self.slots {
            free(std::mem::take(slot), stream)?;
        }
        Ok(())
    }
}

impl Drop for Player<'_> {
    fn drop(&mut self) {
        // An error here follows a failure that has been reported already.
        let _ = self.free_the_rest();
    }
}

#[inline(always)]
fn step(op: &Op, streams: &[StreamHandle], slots: &mut [u64]) -> Result<()> {
    let (Some(slot), Some(&stream)) = (slots.get_mut(op.slot as usize), streams.get(usize::from(op.stream))) else {
        return Err(no_such_slot());
    };
    match op.kind {
        Kind::Allocate => *slot = malloc(op.size, stream).map_err(|e| failed(op.size, e))?,
        Kind::Free => free(std::mem::take(slot), stream)?,
    }
    Ok(())
}

#[cold]
fn failed(bytes: u64, e: Error) -> Error {
    e.context(format!("allocating {} for the workload", size::human(bytes)))
}

#[cold]
fn no_such_slot() -> Error {
    Error::internal("the script names a slot or a stream that it does not have")
}

/// The figures of [`Player::each_timed`] that every workload shows alike.
pub fn with_quantiles(m: super::report::Measurement, times: &Sorted, clock: &Clock) -> super::report::Measurement {
    m.with("p50", times.quantile_us(0.5, clock), "us").with("p99", times.quantile_us(0.99, clock), "us").with(
        "max",
        times.max_us(clock),
        "us",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_random_numbers_are_those_of_cpp() {
        // [rand.predef] gives this value of std::mt19937_64: the 10000th number of the default
        // seed.
        let mut random = Random::new(5489);
        let last = (0..10_000).map(|_| random.number()).last();
        assert_eq!(last, Some(9_981_545_732_273_789_042));
    }

    #[test]
    fn a_script_frees_what_it_allocates_and_uses_slots_again() {
        let mut b = Builder::default();
        b.allocate(10, 0);
        b.allocate(20, 0);
        b.free(0, 1);
        b.allocate(5, 0);
        assert_eq!((b.live(), b.live_bytes()), (2, 25));
        b.free_all(0);
        b.free(7, 0);
        let script = b.finish();
        assert_eq!((script.ops.len(), script.slots, script.peak_live), (6, 2, 30));
        let live = script.ops.iter().fold([0i32; 2], |mut live, op| {
            live[op.slot as usize] += if op.kind == Kind::Allocate { 1 } else { -1 };
            assert!((0..=1).contains(&live[op.slot as usize]), "{op:?}");
            live
        });
        assert_eq!(live, [0, 0]);
    }

    #[test]
    fn sizes_stay_within_their_bounds() {
        let mut random = Random::new(1);
        assert!((0..10_000).map(|_| random.size(8.0, 28.0)).all(|n| (256..=1 << 28).contains(&n)));
    }
}
