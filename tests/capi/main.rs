//! The C ABI: headers, symbols, layouts, programs in C and C++, the installed package and the
//! bindings.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod abi;
mod bindings;
mod c_abi;
mod cc;
mod examples;
mod header;
mod header_cxx;
mod install;
mod nvtx;
mod statuses;
