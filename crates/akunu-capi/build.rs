//! Names the shared library, and hides the C functions of `llguidance`, which it would otherwise export beside its own.
#![allow(clippy::print_stdout)]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/lib.rs");
    let system = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    let link = |argument: &str| println!("cargo::rustc-link-arg-cdylib=-Wl,{argument}");
    let abi = abi_version();
    match system.as_str() {
        "linux" | "freebsd" => link(&format!("-soname,libakunu.so.{abi}")),
        // It has no links to libraries, so their names have no versions.
        "android" => link("-soname,libakunu.so"),
        "macos" | "ios" => link(&format!("-install_name,@rpath/libakunu.{abi}.dylib")),
        _ => {}
    }
    if matches!(system.as_str(), "linux" | "android" | "freebsd") {
        // Dependencies are archives to the linker, and this crate is not.
        link("--exclude-libs,ALL");
    }
}

/// `AKUNU_ABI_VERSION`, which programs that were linked with the library find it by.
fn abi_version() -> String {
    let source = include_str!("src/lib.rs");
    let (_, rest) = source.split_once("pub const AKUNU_ABI_VERSION: u32 = ").unwrap_or_default();
    let version = rest.split(';').next().unwrap_or_default();
    assert!(version.parse::<u32>().is_ok(), "src/lib.rs has no AKUNU_ABI_VERSION");
    version.to_string()
}
