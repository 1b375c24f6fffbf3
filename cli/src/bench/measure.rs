//! Times: the cost of a look at the clock, and statistics of single calls.

use std::time::{Duration, Instant};

/// Looks taken to learn what one costs.
const LOOKS: usize = 20_001;

/// The clock's own cost.
pub struct Clock {
    /// Median time between two looks with nothing in between, nanoseconds.
    pub cost_ns: f64,
}

impl Clock {
    /// Looks at the clock until its cost is known; takes about a millisecond.
    pub fn measure() -> Clock {
        let mut times = Times::with_capacity(LOOKS);
        for _ in 0..LOOKS {
            let start = Instant::now();
            times.push(start.elapsed());
        }
        Clock { cost_ns: times.sorted().quantile_ns(0.5) }
    }
}

/// Times of single calls. They are kept small, as they share the caches with the calls.
#[derive(Default)]
pub struct Times {
    /// 4.3 seconds stand for anything longer.
    ns: Vec<u32>,
}

impl Times {
    /// Room for `n`, written once, so that pushing between timed calls allocates nothing and clears
    /// no page.
    pub fn with_capacity(n: usize) -> Times {
        let mut ns = vec![u32::MAX; n];
        ns.clear();
        Times { ns }
    }

    /// Adds a time.
    #[inline]
    pub fn push(&mut self, time: Duration) {
        self.ns.push(u32::try_from(time.as_nanos()).unwrap_or(u32::MAX));
    }

    /// Sorts the times.
    pub fn sorted(mut self) -> Sorted {
        self.ns.sort_unstable();
        Sorted { ns: self.ns }
    }
}

/// Times in ascending order.
pub struct Sorted {
    ns: Vec<u32>,
}

impl Sorted {
    fn quantile_ns(&self, share: f64) -> f64 {
        let at = (self.ns.len() as f64 * share) as usize;
        self.ns.get(at.min(self.ns.len().saturating_sub(1))).map_or(0.0, |&ns| f64::from(ns))
    }

    /// The time that `share` of all calls do not exceed, microseconds, less the clock's cost.
    pub fn quantile_us(&self, share: f64, clock: &Clock) -> f64 {
        less(self.quantile_ns(share), clock)
    }

    /// The longest, microseconds, less the clock's cost.
    pub fn max_us(&self, clock: &Clock) -> f64 {
        less(self.quantile_ns(1.0), clock)
    }

    /// The mean, microseconds, less the clock's cost.
    pub fn mean_us(&self, clock: &Clock) -> f64 {
        let sum: f64 = self.ns.iter().map(|&ns| f64::from(ns)).sum();
        less(sum / self.ns.len().max(1) as f64, clock)
    }
}

fn less(ns: f64, clock: &Clock) -> f64 {
    (ns - clock.cost_ns).max(0.0) / 1e3
}

/// Microseconds for each of `count`.
pub fn us_each(time: Duration, count: u64) -> f64 {
    time.as_secs_f64() * 1e6 / count.max(1) as f64
}

/// The middle value; 0 if there is none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_sorted_times() {
        let mut times = Times::default();
        for ns in (1..=100u64).rev() {
            times.push(Duration::from_nanos(ns * 1000));
        }
        let (sorted, clock) = (times.sorted(), Clock { cost_ns: 500.0 });
        assert_eq!(sorted.quantile_us(0.5, &clock), 50.5);
        assert_eq!(sorted.quantile_us(0.99, &clock), 99.5);
        assert_eq!(sorted.max_us(&clock), 99.5);
        assert_eq!(sorted.mean_us(&clock), 50.0);
        assert_eq!(Times::default().sorted().max_us(&clock), 0.0);
    }
}
