//! The real driver, loaded at run time.
