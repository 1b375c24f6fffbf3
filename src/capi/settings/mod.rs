//! Starting, and with which settings.

mod apply;
pub mod context_options;
pub mod init;
