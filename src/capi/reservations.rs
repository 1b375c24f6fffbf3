//! The reservations that C has handles to.

use super::handles::Handles;
use super::types::gpumem_reservation;
use crate::base::Result;
use crate::context::Context;
use crate::tier::Reservation;
use std::sync::Arc;

/// Every live reservation that C knows of.
pub(super) static RESERVATIONS: Handles<Reservation> = Handles::ended_by(b'R', "gpumem_reservation", "released");

/// The live reservation of a handle.
pub(super) fn reservation(r: gpumem_reservation) -> Result<Arc<Reservation>> {
    Context::global()?;
    RESERVATIONS.get(r as usize)
}

/// The reservation that options name, if they name one.
pub(super) fn named(r: gpumem_reservation) -> Result<Option<Arc<Reservation>>> {
    match r.is_null() {
        true => Ok(None),
        false => reservation(r).map(Some),
    }
}
