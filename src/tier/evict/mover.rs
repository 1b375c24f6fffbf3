//! The mover: a thread that empties spaces that are too full, between their thresholds.
//!
//! It sleeps until a space is found at its trigger. Then it moves items that may move
//! automatically, oldest use first, until no more than the stop is used. Below the trigger it does
//! nothing, so use that swings between the two moves nothing.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::shared::Shared;
use crate::base::{later, Error, Status};
use crate::driver::{exit, process};
use crate::tier::{Space, SpaceId, Tier};
use std::sync::{Arc, Weak};
use std::thread::{current, JoinHandle};
use std::time::Duration;

/// The thread's name, as `top -H` shows it.
const NAME: &str = "gpumem-mover";
/// How long to leave spaces alone when one could not be emptied.
const PATIENCE: Duration = Duration::from_millis(20);
/// The longest that this is doubled to, each time that there is an error and nothing has moved.
const MOST_PATIENCE: Duration = Duration::from_millis(1280);
/// The most bytes claimed at a time.
const PART: u64 = 256 << 20;

/// How the mover works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoverOptions {
    /// Whether there is a mover.
    pub enabled: bool,
    /// Whether to say on stderr what it cannot do.
    pub warn: bool,
}

/// The running mover. Dropping it cancels the present move, and waits for the copies in flight and
/// for the thread's end.
pub(super) struct Mover {
    shared: Weak<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The process it runs in: a forked child has no mover.
    process: u32,
}

impl Mover {
    pub(super) fn start(shared: &Arc<Shared>, options: MoverOptions) -> std::io::Result<Mover> {
        let weak = Arc::downgrade(shared);
        let all = shared.clone();
        // The thread holds what it needs even while it sleeps; it ends with the evictor.
        let thread = Some(exit::spawn(NAME, move || run(&all, options))?);
        Ok(Mover { shared: weak, thread, process: std::process::id() })
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.bell.end();
        }
        let thread =
            self.thread.take().filter(|t| self.process == std::process::id() && t.thread().id() != current().id());
        if let Some(thread) = thread {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, options: MoverOptions) {
    let (mut warned, mut patience) = (false, PATIENCE);
    while shared.bell.wait() {
        let Some(work) = exit::work() else { return };
        let (moved, emptied) = later::hold(|| shared.empty_all());
        drop(work);
        if moved || emptied.is_ok() {
            patience = PATIENCE;
        }
        match emptied {
            Ok(true) => warned = false,
            // Everything left is in use. The end of that use rings, and so do many other calls.
            Ok(false) => {
                if !shared.bell.pause(PATIENCE) {
                    return;
                }
            }
            Err((_, e)) if e.status == Status::ShuttingDown || shared.bell.has_ended() => return,
            Err((space, e)) => {
                if options.warn && !std::mem::replace(&mut warned, true) {
                    process::say(format_args!("{space} stays too full: {e}"));
                }
                if !shared.bell.pause(patience) {
                    return;
                }
                patience = MOST_PATIENCE.min(2 * patience);
            }
        }
    }
}

impl Shared {
    /// The spaces at their trigger that something can be moved out of.
    pub(super) fn too_full(&self) -> impl Iterator<Item = Arc<Space>> + '_ {
        // A disk is the only way out of the host.
        let way = |s: &Space| s.id().tier == Tier::Gpu || !self.parts.disks.is_empty();
        self.parts.gpu.iter().chain(&self.hosts).filter(move |s| s.should_downgrade() && way(s)).cloned()
    }

    /// Moves as much out of each space at its trigger as brings it down to its stop, if there is as
    /// much. Returns whether anything moved; and whether none stays too full, or the first space
    /// that could not be emptied, and why. The error itself may be about where the data was to go.
    fn empty_all(&self) -> (bool, Result<bool, (SpaceId, Error)>) {
        let (mut moved, mut outcome, mut emptied) = (false, Ok(()), true);
        // Each is looked at just before: its thresholds may have changed since the bell rang.
        for space in self.too_full() {
            loop {
                // In parts, so that no thread waits long for an item that stays after all.
                let most = space.amount_to_downgrade().min(PART);
                match self.empty(space.id(), most, None, false, &|| !self.bell.has_ended()) {
                    Ok(0) => {
                        emptied &= space.should_stop_downgrading();
                        break;
                    }
                    Ok(_) => moved = true,
                    Err(e) => {
                        outcome = outcome.and(Err((space.id(), e)));
                        break;
                    }
                }
            }
        }
        (moved, outcome.map(|()| emptied))
    }
}
