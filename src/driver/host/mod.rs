//! A device made of ordinary memory.
