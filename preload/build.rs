//! Linker arguments of the preloaded library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgpumem_preload.so");
        // Programs keep addresses of what is in here.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
        // Addresses of its own functions are just that, whatever else exports the same names. So it
        // is in the real driver, and in the simulated one of the tests.
        println!("cargo:rustc-link-arg=-Wl,-Bsymbolic");
    }
}
