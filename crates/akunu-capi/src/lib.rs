//! The C API of Akunu. `include/akunu.h` is generated from this crate; `docs/capi.md` has the conventions.
//!
//! ```text
//! C ─guard─▶ arguments ─▶ registry ─▶ a model's queue ─job─▶ the engine's thread
//! ```
//!
//! Start with `boundary`: every call goes through its `guard`. Only `arguments` reads and writes the caller's pointers.
//! `worker` is the thread that owns an engine, `requests` one that is shared by many requests.

// The safety section would be the same for every function: each pointer is null, or valid for what the documentation says.
#![allow(unsafe_code, clippy::missing_safety_doc)]

mod arguments;
mod boundary;
mod environment;
mod loading;
mod registry;
mod structs;
mod worker;

// In the header's order.
mod log;

mod model;

mod session;

mod generate;

mod chat;

mod answer;

mod requests;

mod embed;

mod transcribe;

mod profile;

use std::ffi::{CStr, c_char};

pub use answer::*;
pub use arguments::AKUNU_TO_NULL;
pub use boundary::Status;
pub use chat::*;
pub use embed::*;
pub use generate::*;
pub use log::{LogLevel, OnLog, akunu_set_log};
pub use model::*;
pub use profile::*;
pub use requests::{
    AKUNU_FOREVER, akunu_batch_counts, akunu_cancel_request, akunu_free_request, akunu_next_piece,
    akunu_ready_request, akunu_request_stats, akunu_submit,
};
pub use session::*;
pub use structs::*;
pub use transcribe::*;

/// Increases with every change that requires programs to be recompiled.
pub const AKUNU_ABI_VERSION: u32 = 2;

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

/// The AKUNU_ABI_VERSION of this library, to be compared with that of the header.
#[unsafe(no_mangle)]
pub extern "C" fn akunu_abi_version() -> u32 {
    AKUNU_ABI_VERSION
}

/// The version of this library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn akunu_version() -> *const c_char {
    VERSION.as_ptr()
}

/// The message of the latest error on this thread; empty if there was none. Valid until the next error on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn akunu_get_error() -> *const c_char {
    boundary::last_error()
}
