//! Linker arguments of the shared library. Nothing is generated here: a plain build needs only the
//! compiler.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        // Not `rustc-cdylib-link-arg`, which cargo passes on to the shared libraries of packages
        // that use this one. Executables take no notice of either. The name programs record, which
        // changes with the ABI.
        println!("cargo:rustc-link-arg=-Wl,-soname,libgpumem.so.0");
        // Work in flight, thread-locals and CUDA's own tables outlive a dlclose.
        println!("cargo:rustc-link-arg=-Wl,-z,nodelete");
        // The symbol version GPUMEM_0 needs a version script of our own, and rustc passes one that
        // cannot be combined with it: lld keeps the symbols that rustc's script names unversioned,
        // GNU ld refuses the pair. So the installed library is linked by mk/install.mk, from a
        // static one.
    }
}
