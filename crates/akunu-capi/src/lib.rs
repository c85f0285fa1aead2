//! Akunu for C, and for whatever calls C. `include/akunu.h` is made from this crate; `docs/capi.md` has the rules.
//!
//! ```text
//! C ─guard─▶ arguments ─▶ registry ─▶ a model's post ─job─▶ the engine's thread
//! ```
//!
//! Read `boundary` first: every call goes through its `guard`. `arguments` is the one place where pointers are read and written,
//! `worker` the thread that owns an engine.

// One safety section would stand at every function: pointers are null or good for what the function says of them.
#![allow(unsafe_code, clippy::missing_safety_doc)]

mod arguments;
mod boundary;
mod environment;
mod registry;
mod structs;
mod worker;

// In the header's order.
mod model;

mod session;

mod generate;

mod chat;

mod embed;

mod profile;

use std::ffi::{CStr, c_char};

pub use arguments::AKUNU_TO_NULL;
pub use boundary::Status;
pub use chat::*;
pub use embed::*;
pub use generate::*;
pub use model::*;
pub use profile::*;
pub use session::*;
pub use structs::*;

/// Grows with every change after which programs have to be compiled anew.
pub const AKUNU_ABI_VERSION: u32 = 1;

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

/// This library's AKUNU_ABI_VERSION: a program compares it with its header's.
#[unsafe(no_mangle)]
pub extern "C" fn akunu_abi_version() -> u32 {
    AKUNU_ABI_VERSION
}

/// This library's version: "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn akunu_version() -> *const c_char {
    VERSION.as_ptr()
}

/// The words of the latest error on this thread; empty if there was none. They stay until this thread's next error.
#[unsafe(no_mangle)]
pub extern "C" fn akunu_get_error() -> *const c_char {
    boundary::last_error()
}
