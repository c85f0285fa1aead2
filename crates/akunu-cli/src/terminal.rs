//! The terminal's mode during a conversation: typed characters are not echoed, except by the line editor, and every way
//! out of the program restores the mode.

/// Restores the terminal when it is dropped.
#[derive(Debug)]
pub struct Guard(());

impl Guard {
    /// Remembers the terminal's mode, to be restored by [`restore`] at the latest when the program ends: by a return, a
    /// panic, or SIGTERM, SIGHUP or SIGQUIT. SIGINT is handled in [`crate::interrupt`].
    pub fn new() -> Guard {
        system::remember();
        Guard(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        restore();
    }
}

pub use system::{for_lines, quiet, restore};

#[cfg(unix)]
mod system {
    use std::future::poll_fn;
    use std::io::{IsTerminal, stdin, stdout};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Mutex, MutexGuard, Once, PoisonError};
    use std::task::Poll;

    use rustix::process::Signal;
    use rustix::termios::{InputModes, LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
    use tokio::signal::unix::{SignalKind, signal};

    use crate::environment;

    const PASTE_ON: &[u8] = b"\x1b[?2004h";
    const PASTE_OFF: &[u8] = b"\x1b[?2004l";

    /// The mode to restore.
    static MODE: Mutex<Option<Termios>> = Mutex::new(None);
    /// The line editor has the terminal.
    static IS_READING: AtomicBool = AtomicBool::new(false);

    fn mode() -> MutexGuard<'static, Option<Termios>> {
        MODE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn remember() {
        static INSTALLED: Once = Once::new();
        *mode() = tcgetattr(stdin()).ok();
        INSTALLED.call_once(|| {
            let report = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                report(panic);
            }));
            std::thread::spawn(follow_signals);
        });
    }

    /// Typed characters are kept for the next line that is read. Pasted text stays recognisable as such.
    pub fn quiet() {
        IS_READING.store(false, Ordering::SeqCst);
        let Some(mut quiet) = mode().clone() else { return };
        quiet.local_modes.remove(LocalModes::ECHO);
        if environment::has_line_editor() {
            quiet.local_modes.remove(LocalModes::ICANON | LocalModes::IEXTEN);
            quiet.input_modes.remove(InputModes::ICRNL);
            write(PASTE_ON);
        }
        let _ = tcsetattr(stdin(), OptionalActions::Now, &quiet);
    }

    /// Before a line is read: a terminal without the line editor has to echo it.
    pub fn for_lines() {
        IS_READING.store(true, Ordering::SeqCst);
        if !environment::has_line_editor() {
            set_mode();
        }
    }

    pub fn restore() {
        if set_mode() && environment::has_line_editor() {
            write(PASTE_OFF);
        }
    }

    fn set_mode() -> bool {
        let mode = mode();
        mode.as_ref().is_some_and(|mode| tcsetattr(stdin(), OptionalActions::Now, mode).is_ok())
    }

    fn write(sequence: &[u8]) {
        // Not through the standard output's lock, which the conversation holds.
        let output = stdout();
        if output.is_terminal() {
            let _ = rustix::io::write(&output, sequence);
        }
    }

    /// Ends the program as signals would, with the terminal restored. A program that goes on after it was stopped finds
    /// the terminal as the shell left it.
    fn follow_signals() {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
        let goes_on = SignalKind::from_raw(Signal::CONT.as_raw());
        let kinds = [SignalKind::hangup(), SignalKind::quit(), SignalKind::terminate(), goes_on];
        let _guard = runtime.enter();
        let Ok(mut signals) = kinds.map(signal).into_iter().collect::<Result<Vec<_>, _>>() else { return };
        loop {
            let received = runtime.block_on(poll_fn(|context| {
                let place = signals.iter_mut().position(|signal| signal.poll_recv(context).is_ready());
                place.map_or(Poll::Pending, Poll::Ready)
            }));
            let kind = kinds[received];
            if kind != goes_on {
                restore();
                akunu_file::remove_unfinished();
                std::process::exit(128 + kind.as_raw_value());
            }
            if !IS_READING.load(Ordering::SeqCst) {
                quiet();
            }
        }
    }
}

#[cfg(not(unix))]
mod system {
    // A console echoes only while a line is read.
    pub fn remember() {}
    pub fn quiet() {}
    pub fn for_lines() {}
    pub fn restore() {}
}
