//! Operations and values, from which a [`Problem`](super::Problem) is derived.
//!
//! Operations run one per step, in the order of adding or in the one that [`Graph::set_order`]
//! states. *The end* is the first step after everything: after the last operation, the last stated
//! range and the last step that a value is extended to, and never 0. A value that *lives
//! throughout* lives in `[0, end)`.
//!
//! | value | lives |
//! |---|---|
//! | temporary | from the step of the operation that writes it to that of the last that reads or writes it |
//! | output | from the step of the operation that writes it to the end |
//! | input, parameter, constant | throughout; nothing needs to write it |
//! | added with its range | in that range; an operation that uses it at another step is an error |
//! | view | as its root does, which lives for all its views: [`Graph::view`] |
//! | written over another | as the slot does, which lives for both: [`Graph::in_place`] |
//! | shared with another plan | throughout, where it is in the other plan: [`Graph::share`] |
//!
//! A value that nothing writes or reads is never live and gets no slot. A value of no bytes follows
//! the same rules, but occupies nothing, and its offset has no meaning.
//!
//! Each statement is checked at once where possible, and an error leaves the graph as it was.
//! [`Graph::lower`] checks what depends on the execution order, on roots of views or on shared
//! names. It does not change the graph, which can then be changed and lowered again.

mod builder;
mod in_place;
mod keep;
mod lists;
mod lower;
mod lowered;
mod order;
mod resize;
mod share;
mod shared_slots;
mod shares;
mod slots;
mod uses;
mod value;
mod view;
mod views;

pub use builder::Graph;
pub use lowered::{Lowered, Placement};
pub use value::{OpId, Preset, Value, ValueId};
