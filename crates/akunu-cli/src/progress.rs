//! A progress bar on stderr for what takes longer than a second, where stderr is a terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
    shown: bool,
}

impl Progress {
    pub fn new(what: &'static str, total: u64) -> Progress {
        Progress::with_template(what, total, "{msg} {wide_bar} {pos}/{len} {eta}")
    }

    pub fn bytes(what: &'static str, total: u64) -> Progress {
        Progress::with_template(what, total, "{msg} {wide_bar} {bytes}/{total_bytes} {eta}")
    }

    fn with_template(what: &'static str, total: u64, template: &str) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden()).with_message(what);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Progress { bar, started: Instant::now(), shown: false }
    }

    pub fn total(&mut self, total: u64) {
        self.bar.set_length(total);
    }

    pub fn advance(&mut self) {
        self.set(self.bar.position() + 1);
    }

    pub fn set(&mut self, done: u64) {
        if !self.shown && self.started.elapsed() > PATIENCE {
            // Draws nothing where stderr is no terminal.
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.shown = true;
        }
        self.bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
