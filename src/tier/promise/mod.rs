//! Promises of bytes: spaces, reservations of their bytes, and requests that wait for one.

mod account;
mod attach;
mod cancel;
mod draw;
mod drawn;
mod hub;
mod lack;
mod live;
pub mod manager;
mod overdraw;
pub mod policy;
mod queue;
pub mod request;
pub mod reservation;
mod settled;
pub mod space;
mod strategy;
mod terms;
pub mod thresholds;
pub mod usage;

pub use cancel::Cancel;
pub(in crate::tier) use drawn::NO_STREAM;
pub use drawn::{Drawn, Source};
pub use lack::{Lack, Short};
pub use live::LiveCounter;
pub use manager::{DrawFrom, Manager, Want};
pub use policy::{Decision, Factor, LimitPolicy, OutOfMemoryPolicy, Overdraw, Shortage};
pub use request::Request;
pub use reservation::{Released, Reservation, Turn};
pub use settled::settled;
pub use space::{Space, SpaceId, SpaceOptions, SpaceUsage, Tier};
pub use strategy::Strategy;
pub use terms::{Amount, Wait};
pub use thresholds::{Fraction, Thresholds};
pub use usage::Usage;
