//! The tiers in use: started by the first call about any of them, or by the first pool with
//! `GPUMEM_TIERS=on`.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::tiers::Tiers;
use super::Context;
use crate::base::sync::lock;
use crate::base::{Result, Status, StreamHandle};

impl Context {
    /// The tiers, started if they are not.
    pub fn tiers(&self) -> Result<&Tiers> {
        match self.tiers.get() {
            Some(tiers) => Ok(tiers),
            None => self.start_tiers(),
        }
    }

    /// Removes the files of disk spaces, as the process exits: no other process can read them.
    /// Touches nothing else, as the driver may be gone, and waits for nothing.
    pub fn leave_disks(&self) {
        if let Some(tiers) = self.tiers.get() {
            tiers.disks().leave();
        }
    }

    /// Forgets a stream that is gone, and what was attached to it: the driver gives its handle to
    /// another one.
    pub fn forget_stream(&self, stream: StreamHandle) {
        if let Some(tiers) = self.tiers.get() {
            tiers.manager().forget_stream(stream.0 as u64);
        }
    }

    /// Detaches every reservation from a stream, which goes to another user.
    pub fn detach_stream(&self, stream: StreamHandle) -> Result<()> {
        let Some(tiers) = self.tiers.get() else { return Ok(()) };
        for space in tiers.manager().spaces() {
            match tiers.manager().detach_stream(&space, stream.0 as u64) {
                // There was none.
                Err(e) if e.status == Status::Invalid => {}
                other => other?,
            }
        }
        Ok(())
    }

    #[cold]
    fn start_tiers(&self) -> Result<&Tiers> {
        self.want_pool("spaces and reservations need")?;
        let _making = lock(&self.making);
        self.tiers_making()
    }

    /// Like [`Self::tiers`], under `making`.
    pub(super) fn tiers_making(&self) -> Result<&Tiers> {
        if let Some(tiers) = self.tiers.get() {
            return Ok(tiers);
        }
        let watched = (self.interest.clone(), self.recorder.clone());
        let tiers = Tiers::start(&self.driver, &self.config, &self.pools, self.detector().cloned(), watched)
            .map_err(|e| e.context("starting the tiers"))?;
        // Nothing is promised before all that lives is counted. What is allocated until the tiers
        // are there is counted by the pool itself, outside of any reservation.
        self.pools().try_for_each(|pool| tiers.count(pool))?;
        // Before others see them: who reserves finds its allocations counted.
        self.interest.start_tiers();
        Ok(self.tiers.get_or_init(|| tiers))
    }
}
