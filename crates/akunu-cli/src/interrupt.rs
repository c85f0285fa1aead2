//! Ctrl-C: the first asks the command to stop after the token at hand, the second ends the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code of a process that Ctrl-C ended, as shells have it: 128 + SIGINT.
pub const EXIT_CODE: i32 = 130;

/// From now on Ctrl-C sets the flag. Where no handler can be had, Ctrl-C just ends the process, as ever.
pub fn flag() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    let handler = flag.clone();
    let _ = ctrlc::set_handler(move || {
        if handler.swap(true, Ordering::SeqCst) {
            std::process::exit(EXIT_CODE);
        }
    });
    flag
}
