//! The reservations that C has handles to.

use crate::base::Result;
use crate::capi::call::handles::Handles;
use crate::capi::call::types::gpumem_reservation;
use crate::context::Context;
use crate::tier::Reservation;
use std::sync::Arc;

/// Every live reservation that C knows of.
pub(in crate::capi) static RESERVATIONS: Handles<Reservation> =
    Handles::ended_by(b'R', "gpumem_reservation", "released");

/// The live reservation of a handle.
pub(in crate::capi) fn reservation(r: gpumem_reservation) -> Result<Arc<Reservation>> {
    Context::global()?;
    RESERVATIONS.get(r as usize)
}

/// The reservation that options name, if they name one.
pub(in crate::capi) fn named(r: gpumem_reservation) -> Result<Option<Arc<Reservation>>> {
    match r.is_null() {
        true => Ok(None),
        false => reservation(r).map(Some),
    }
}
