//! Version
//!
//! The macros give the version a program was compiled against, the functions the one it runs with.

use std::ffi::c_char;

/// Raised when programs must be changed.
pub const GPUMEM_VERSION_MAJOR: u32 = 0;
/// Raised when something is added.
pub const GPUMEM_VERSION_MINOR: u32 = 1;
/// Raised when something is fixed.
pub const GPUMEM_VERSION_PATCH: u32 = 0;

/// The library's version as major * 10000 + minor * 100 + patch. Needs no device, cannot fail.
#[no_mangle]
pub extern "C" fn gpumem_version() -> u32 {
    GPUMEM_VERSION_MAJOR * 10_000 + GPUMEM_VERSION_MINOR * 100 + GPUMEM_VERSION_PATCH
}

/// The library's version as text, such as "0.1.0". Static, never NULL. Needs no device, cannot
/// fail.
#[no_mangle]
pub extern "C" fn gpumem_version_string() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_and_the_package_agree() {
        let header = format!("{GPUMEM_VERSION_MAJOR}.{GPUMEM_VERSION_MINOR}.{GPUMEM_VERSION_PATCH}");
        assert_eq!(header, env!("CARGO_PKG_VERSION"), "change src/capi/everyday/version.rs together with Cargo.toml");
    }
}
