//! When a space is too full, and when it is empty enough again.
//!
//! Fractions are whole millionths and byte counts are rounded so that the comparisons are exact:
//! `used >= trigger x limit` is `used >= trigger_bytes`, and `used <= stop x limit` is `used <=
//! stop_bytes`.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::{Error, Result};
use std::fmt;

const MILLION: u32 = 1_000_000;

/// A part of a limit, from nothing to all of it, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fraction(u32);

impl Fraction {
    /// The nearest fraction to a number from 0 to 1.
    pub fn new(part: f64) -> Result<Fraction> {
        if (0.0..=1.0).contains(&part) {
            return Ok(Fraction((part * f64::from(MILLION)).round() as u32));
        }
        Err(Error::invalid(format!("{part} is no part of a limit; give a number from 0 to 1, such as 0.85")))
    }

    /// This part of `bytes`, rounded down.
    pub fn floor(self, bytes: u64) -> u64 {
        (u128::from(bytes) * u128::from(self.0) / u128::from(MILLION)) as u64
    }

    /// This part of `bytes`, rounded up.
    pub fn ceil(self, bytes: u64) -> u64 {
        (u128::from(bytes) * u128::from(self.0)).div_ceil(u128::from(MILLION)) as u64
    }
}

/// The use of its limit at which a space wants data moved out, and the use to move it down to. The
/// limit is never above the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    trigger: Fraction,
    stop: Fraction,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds { trigger: Fraction(850_000), stop: Fraction(650_000) }
    }
}

impl Thresholds {
    /// Moving starts at `trigger` of the limit and ends at `stop`, which must not be above it. Both
    /// from 0 to 1.
    pub fn new(trigger: f64, stop: f64) -> Result<Thresholds> {
        let both = Thresholds { trigger: Fraction::new(trigger)?, stop: Fraction::new(stop)? };
        if both.stop > both.trigger {
            return Err(Error::invalid(format!(
                "moving cannot start at {trigger} of the limit and stop at {stop}; the stop must not be above the trigger"
            )));
        }
        Ok(both)
    }

    /// Both, from 0 to 1.
    pub fn parts(&self) -> (f64, f64) {
        let part = |part: Fraction| f64::from(part.0) / f64::from(MILLION);
        (part(self.trigger), part(self.stop))
    }

    /// The least use, in bytes, that starts moving.
    pub fn trigger_bytes(self, limit: u64) -> u64 {
        self.trigger.ceil(limit)
    }

    /// The most use, in bytes, at which moving stops.
    pub fn stop_bytes(self, limit: u64) -> u64 {
        self.stop.floor(limit)
    }
}

/// As `GPUMEM_DOWNGRADE` spells it.
impl fmt::Display for Thresholds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trigger, stop) = self.parts();
        write!(f, "{trigger},{stop}")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn bytes(trigger: f64, stop: f64, limit: u64) -> Option<(u64, u64)> {
        let t = Thresholds::new(trigger, stop).ok()?;
        Some((t.trigger_bytes(limit), t.stop_bytes(limit)))
    }

    #[test]
    fn rounding_never_triggers_early_or_stops_early() {
        assert_eq!(bytes(0.85, 0.65, 100), Some((85, 65)));
        // 0.85 x 7 = 5.95 and 0.65 x 7 = 4.55: 5 is below the trigger, 5 is above the stop.
        assert_eq!(bytes(0.85, 0.65, 7), Some((6, 4)));
        assert_eq!(bytes(1.0, 0.0, u64::MAX), Some((u64::MAX, 0)));
        assert_eq!(bytes(0.5, 0.5, u64::MAX), Some(((1 << 63), (1 << 63) - 1)));
        let t = Thresholds::default();
        assert_eq!((t.trigger_bytes(1_000_000), t.stop_bytes(1_000_000)), (850_000, 650_000));
    }

    #[test]
    fn fractions_that_are_none_are_refused() {
        for bad in [-0.1, 1.000_001, f64::NAN, f64::INFINITY] {
            assert!(Thresholds::new(bad, 0.0).is_err() && Thresholds::new(1.0, bad).is_err(), "{bad}");
        }
        assert!(Thresholds::new(0.6, 0.7).is_err_and(|e| e.message.contains("0.7")));
        assert_eq!(Thresholds::new(0.85, 0.65).ok(), Some(Thresholds::default()));
    }
}
