//! Checking books that other threads go on writing.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::Result;
use std::time::{Duration, Instant};

/// How long to look again: longer than a thread rests between two steps.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long to wait between two looks.
const PAUSE: Duration = Duration::from_micros(50);

/// Runs a check of books that other threads may be changing, in several steps without a common
/// lock. What does not add up is checked again for a while.
pub fn settled(check: impl Fn() -> Result<()>) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        match check() {
            Err(_) if Instant::now() < end => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
}
