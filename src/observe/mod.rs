//! Seeing what happens: events, recordings of them, and their readers.
//!
//! A [`Recorder`] takes [`Event`]s from every thread and hands them to one thread of its own, which
//! writes them to a file ([`format`](mod@format)) and keeps the last of them
//! ([`Recorder::last_events`]).
//! [`Recording`] reads such a file, one that ends early too; [`History`] follows it allocation by
//! allocation. docs/spec/recording.md has the format.

pub mod event;
pub mod format;
pub mod history;
pub mod page;
mod recorder;
pub mod recording;
mod session;
mod stacks;
mod writer;

pub use event::{Event, Kind};
pub use history::History;
pub use recorder::{Callback, Options, Recorder, StackSource, Summary};
pub use recording::Recording;
