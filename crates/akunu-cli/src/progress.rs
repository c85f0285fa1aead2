//! A progress bar on stderr for operations that take longer than a second, if stderr is a terminal.

use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const DELAY: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// Shows the bar after a delay, even without progress. Dropping the sender cancels it.
    waiting: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    pub fn new(what: &'static str, total: u64) -> Progress {
        Progress::with_template(what, total, "{spinner} {msg} {wide_bar} {pos}/{len} {eta}")
    }

    pub fn bytes(what: &'static str, total: u64) -> Progress {
        Progress::with_template(what, total, "{spinner} {msg} {wide_bar} {bytes}/{total_bytes} {eta}")
    }

    pub fn with_template(what: &'static str, total: u64, template: &str) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden()).with_message(what);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> ").tick_chars("|/-\\ "));
        }
        let waiting = std::io::stderr().is_terminal().then(|| {
            let (sender, called_off) = channel();
            let bar = bar.clone();
            let thread = std::thread::spawn(move || {
                if called_off.recv_timeout(DELAY) == Err(RecvTimeoutError::Timeout) {
                    bar.set_draw_target(ProgressDrawTarget::stderr());
                    bar.enable_steady_tick(TICK);
                }
            });
            (sender, thread)
        });
        Progress { bar, waiting }
    }

    pub fn total(&mut self, total: u64) {
        self.bar.set_length(total);
    }

    /// Prints a line on stderr, above the bar.
    pub fn note(&self, line: &str) {
        self.bar.suspend(|| crate::output::note(line));
    }

    pub fn advance(&mut self) {
        self.bar.inc(1);
    }

    pub fn set(&mut self, done: u64) {
        self.bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.waiting.take() {
            drop(sender);
            // An error means that the thread panicked; then there is no bar to remove.
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}
