//! Ctrl-C: the first asks the command to stop after what it is at, the second ends the process. While nobody listens, the
//! first ends it too.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Exit code of a process that Ctrl-C ended, as shells have it: 128 + SIGINT.
pub const EXIT_CODE: i32 = 130;

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
static LISTENERS: AtomicUsize = AtomicUsize::new(0);

/// From now on Ctrl-C sets the flag. Where no handler can be had, Ctrl-C just ends the process, as ever.
pub fn flag() -> Arc<AtomicBool> {
    LISTENERS.fetch_add(1, Ordering::SeqCst);
    let flag = FLAG.get_or_init(|| {
        let flag = Arc::new(AtomicBool::new(false));
        let handler = flag.clone();
        let _ = ctrlc::set_handler(move || {
            if LISTENERS.load(Ordering::SeqCst) == 0 || handler.swap(true, Ordering::SeqCst) {
                std::process::exit(EXIT_CODE);
            }
        });
        flag
    });
    flag.clone()
}

/// As [`flag`], until it is dropped.
pub fn listen() -> Listening {
    Listening(flag())
}

#[derive(Debug)]
pub struct Listening(Arc<AtomicBool>);

impl Listening {
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        LISTENERS.fetch_sub(1, Ordering::SeqCst);
    }
}
