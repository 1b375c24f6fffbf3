//! Exit codes.

/// Exit code when the command did its work and what it looked at is not well: a failed operation, a
/// failed check.
pub const UNWELL: u8 = 1;
/// Exit code when the command could not do its work: bad usage, bad input, no such device. clap
/// uses it too.
pub const INPUT: u8 = 2;
