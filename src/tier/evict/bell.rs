//! The bell that wakes the mover.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::sync::{lock, Condvar, Mutex};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// What wakes the mover.
#[derive(Default)]
pub(super) struct Bell {
    rung: Mutex<Rung>,
    heard: Condvar,
}

#[derive(Default)]
struct Rung {
    now: bool,
    ended: bool,
}

impl Bell {
    pub(super) fn ring(&self) {
        // Rung already: it will be heard.
        if !std::mem::replace(&mut lock(&self.rung).now, true) {
            self.heard.notify_one();
        }
    }

    /// Whether [`Self::end`] was called.
    pub(super) fn has_ended(&self) -> bool {
        lock(&self.rung).ended
    }

    pub(super) fn end(&self) {
        lock(&self.rung).ended = true;
        self.heard.notify_one();
    }

    /// Waits to be rung; `false` once it has ended.
    pub(super) fn wait(&self) -> bool {
        let mut rung = lock(&self.rung);
        loop {
            if rung.ended {
                return false;
            }
            if std::mem::take(&mut rung.now) {
                return true;
            }
            rung = self.heard.wait(rung).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits some time; `false` once it has ended.
    pub(super) fn pause(&self, time: Duration) -> bool {
        let start = Instant::now();
        let mut rung = lock(&self.rung);
        loop {
            let left = time.saturating_sub(start.elapsed());
            if rung.ended || left.is_zero() {
                return !rung.ended;
            }
            rung = self.heard.wait_timeout(rung, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
