//! Ctrl-C handling: the first one asks the command to stop, the second one ends the process. If no listener is
//! registered, the first one ends the process too.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Exit code of a process that Ctrl-C ended, as in shells: 128 + SIGINT.
pub const EXIT_CODE: i32 = 130;

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
static LISTENERS: AtomicUsize = AtomicUsize::new(0);

/// A flag that the first Ctrl-C sets.
pub fn flag() -> Arc<AtomicBool> {
    LISTENERS.fetch_add(1, Ordering::SeqCst);
    install()
}

/// Ctrl-C ends the process as without this handler, but removes files that are not complete. If the handler cannot be
/// installed, Ctrl-C ends the process as usual.
pub fn remove_unfinished_files() {
    install();
}

fn install() -> Arc<AtomicBool> {
    let flag = FLAG.get_or_init(|| {
        let flag = Arc::new(AtomicBool::new(false));
        let handler = flag.clone();
        let _ = ctrlc::set_handler(move || {
            if LISTENERS.load(Ordering::SeqCst) == 0 || handler.swap(true, Ordering::SeqCst) {
                akunu_file::remove_unfinished();
                crate::terminal::restore();
                std::process::exit(EXIT_CODE);
            }
        });
        flag
    });
    flag.clone()
}

/// Forgets a Ctrl-C that was answered.
pub fn reset() {
    install().store(false, Ordering::SeqCst);
}

/// As [`flag`], until the result is dropped.
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
