//! Exit codes.

/// Exit code if the command did its work but an operation or a check failed.
pub const UNWELL: u8 = 1;
/// Exit code if the command could not do its work: bad usage, bad input, no such device. clap uses
/// it too.
pub const INPUT: u8 = 2;
