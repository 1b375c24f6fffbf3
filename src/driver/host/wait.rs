//! Waiting for marks.

#![deny(unsafe_code)]

use super::clock::Clock;
use super::device::HostDriver;
use super::events::Mark;
use super::lanes::Lane;
use super::schedule::Guard;
use super::state::State;
use crate::base::Result;
use std::sync::Arc;

impl HostDriver {
    /// Waits for a mark and lets the host know what that orders.
    pub(super) fn wait_for<'a>(&'a self, mut st: Guard<'a>, mark: &Mark) -> Result<Guard<'a>> {
        for (lane, seq) in &mark.points {
            st = self.run_until(st, *lane, *seq)?;
        }
        st.observe(mark);
        Ok(st)
    }

    /// All the work of the lanes that `which` says, as a mark.
    pub(super) fn everything(st: &mut State, which: impl Fn(&Lane) -> bool) -> Mark {
        let (mut points, mut clock) = (Vec::new(), Clock::default());
        for (lane, l) in st.lanes.list.iter_mut().enumerate().filter(|(_, l)| which(l)) {
            if l.completed < l.submitted {
                points.push((lane, l.submitted));
            }
            l.add_unseen(lane, &st.host, &mut clock);
        }
        Mark { points, clock: Arc::new(clock) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::base::DeviceId;
    use crate::driver::host::{HostOptions, Kernel};
    use crate::driver::{Driver, EventHandle};

    const D: DeviceId = DeviceId(0);

    fn clock_of(d: &HostDriver, e: EventHandle) -> usize {
        d.look().events.mark(e).unwrap().unwrap().clock.len()
    }

    #[test]
    fn what_the_host_has_seen_complete_is_in_no_clock() {
        for options in [HostOptions::default(), HostOptions::simulation(1)] {
            let d = HostDriver::new(options).unwrap();
            let streams: Vec<_> = (0..40).map(|_| d.stream_create(D).unwrap()).collect();
            let e = d.event_create(D).unwrap();
            let mark_all = || {
                d.context_record(D, e).unwrap();
                let held: usize = d.look().lanes.list.iter().map(|l| l.clock.len()).sum();
                assert_eq!((held, clock_of(&d, e)), (0, 0));
            };
            for _ in 0..3 {
                streams.iter().for_each(|s| d.launch(D, *s, Kernel::new("work")).unwrap());
                d.device_sync(D).unwrap();
                mark_all();
            }
            streams.iter().for_each(|s| d.stream_destroy(D, *s).unwrap());
            let late = d.stream_create(D).unwrap();
            d.launch(D, late, Kernel::new("work")).unwrap();
            d.stream_sync(D, late).unwrap();
            mark_all();
        }
    }

    #[test]
    fn the_mark_of_one_stream_is_as_large_with_many_streams() {
        let d = HostDriver::new(HostOptions::default()).unwrap();
        for _ in 0..40 {
            let (s, e) = (d.stream_create(D).unwrap(), d.event_create(D).unwrap());
            d.event_record(D, e, s).unwrap();
            assert_eq!(clock_of(&d, e), 0);
        }
    }
}
