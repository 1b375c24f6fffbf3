//! Requests for a promise that room is made for.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::account::Account;
use super::hub::{Books, Hub};
use super::lack::Lack;
use super::queue::{self, Trigger};
use super::relief::Want;
use super::space::Space;
use super::strategy::Candidates;
use super::terms::Wait;
use crate::base::{Result, Status};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a request has room made for it, as others may take it first.
const ROOMS: u32 = 16;

impl Hub {
    /// Like [`Hub::request`]. If the bytes are not there, the relief makes room, a few times if
    /// others take it while the wait may last. The request then waits in turn. To be called with no
    /// lock held.
    pub(super) fn request_with_room(
        self: &Arc<Hub>,
        want: queue::Want,
        candidates: impl Fn(&Books) -> Result<Candidates>,
        wait: Wait,
        trigger: Option<Trigger>,
    ) -> Result<Arc<Account>> {
        let begun = Instant::now();
        let left = || match wait {
            Wait::For(time) => Wait::For(time.saturating_sub(begun.elapsed())),
            other => other,
        };
        let ask = |wait| self.request(want.clone(), &candidates, wait, trigger.clone());
        let mut answer = ask(Wait::No);
        for _ in 0..ROOMS {
            match &answer {
                Err(e) if e.status == Status::OutOfMemory && self.make_room(&want, &candidates)? => {
                    answer = ask(Wait::No);
                }
                _ => break,
            }
            if left() == Wait::For(Duration::ZERO) {
                break;
            }
        }
        match answer {
            Err(e) if e.status == Status::OutOfMemory && wait != Wait::No => ask(left()),
            other => other,
        }
    }

    /// Has the relief make room in the best of the candidates where it can. Returns whether it
    /// could in any.
    fn make_room(&self, want: &queue::Want, candidates: impl Fn(&Books) -> Result<Candidates>) -> Result<bool> {
        let Some(relief) = self.relief.get() else { return Ok(false) };
        let (spaces, ranks) = {
            let state = self.lock();
            (state.books.spaces.clone(), candidates(&state.books)?)
        };
        let lack = Lack::Promise { bytes: want.least(), above: 0, short: None };
        // Where nothing is used there is nothing to move out.
        let can = |space: &Space| want.fits(space.limit()) && space.usage().now() > 0;
        let mut ranked = ranks.iter().flatten().filter_map(|&i| spaces.get(i)).filter(|space| can(space));
        // Why nothing could be moved is not told: there is no room, and a wait may bring some.
        Ok(ranked.any(|space| relief(&Want { space: space.id, lack }).unwrap_or(false)))
    }
}
