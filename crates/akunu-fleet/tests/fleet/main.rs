#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod beside;
mod common;
#[cfg(all(unix, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod emulated;
mod hosts;
mod hybrid;
#[cfg(all(unix, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod kernels;
mod models;
mod stages;
