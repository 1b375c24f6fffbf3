//! Waiting for marks.

#![deny(unsafe_code)]

use super::clock::Clock;
use super::device::HostDriver;
use super::events::Mark;
use super::schedule::Guard;
use super::state::State;
use crate::base::{DeviceId, Result};

impl HostDriver {
    /// Waits for a mark and lets the host know what that orders.
    pub(super) fn wait_for<'a>(
        &'a self,
        mut st: Guard<'a>,
        points: &[(usize, u64)],
        clock: &Clock,
    ) -> Result<Guard<'a>> {
        for (lane, seq) in points {
            st = self.run_until(st, *lane, *seq)?;
        }
        st.observe(clock);
        Ok(st)
    }

    /// Every lane of a device that has ever had work, as a mark.
    pub(super) fn everything(st: &State, dev: DeviceId) -> Mark {
        let mut mark = Mark { points: Vec::new(), clock: Clock::default() };
        for (lane, l) in st.lanes.list.iter().enumerate().filter(|(_, l)| l.dev == dev) {
            if l.completed < l.submitted {
                mark.points.push((lane, l.submitted));
            }
            mark.clock.join(&l.clock);
            mark.clock.advance(lane, l.submitted);
        }
        mark
    }
}
