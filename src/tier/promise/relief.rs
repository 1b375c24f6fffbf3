//! The relief, which makes room in a space that has too little: it moves idle memory out.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::lack::Lack;
use super::space::SpaceId;
use crate::base::sync::OnceLock;
use crate::base::Result;
use std::fmt;

/// What there is no memory for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// The space.
    pub space: SpaceId,
    /// What is lacking there.
    pub lack: Lack,
}

/// Makes room in a space: see [`Manager::set_relief`](super::Manager::set_relief).
pub type Relief = Box<dyn Fn(&Want) -> Result<bool> + Send + Sync>;

/// The relief, once there is one.
pub(super) struct ReliefCell(OnceLock<Relief>);

impl ReliefCell {
    pub(super) fn new() -> ReliefCell {
        ReliefCell(OnceLock::new())
    }

    pub(super) fn get(&self) -> Option<&Relief> {
        self.0.get()
    }

    /// Only the first one counts.
    pub(super) fn set(&self, relief: Relief) {
        let _ = self.0.set(relief);
    }
}

impl fmt::Debug for ReliefCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReliefCell").field(&self.0.get().is_some()).finish()
    }
}
