//! Hides the C functions of `llguidance`, which the library would otherwise export beside its own.
#![allow(clippy::print_stdout)]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let system = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if matches!(system.as_str(), "linux" | "android" | "freebsd") {
        // Dependencies are archives to the linker, and this crate is not.
        println!("cargo::rustc-link-arg-cdylib=-Wl,--exclude-libs,ALL");
    }
}
