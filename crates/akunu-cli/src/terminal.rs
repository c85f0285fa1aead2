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
    use std::sync::{Mutex, MutexGuard, Once, PoisonError};
    use std::task::Poll;

    use rustix::termios::{InputModes, LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
    use tokio::signal::unix::{SignalKind, signal};

    use crate::environment;

    const PASTE_ON: &[u8] = b"\x1b[?2004h";
    const PASTE_OFF: &[u8] = b"\x1b[?2004l";

    /// The mode to restore.
    static MODE: Mutex<Option<Termios>> = Mutex::new(None);

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
            std::thread::spawn(end_on_signals);
        });
    }

    /// Typed characters are kept for the next line that is read. Pasted text stays recognisable as such.
    pub fn quiet() {
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

    /// Ends the program as these signals would, with the terminal restored.
    fn end_on_signals() {
        let kinds = [SignalKind::hangup(), SignalKind::quit(), SignalKind::terminate()];
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
        let received = runtime.block_on(async {
            let mut signals = Vec::new();
            for kind in kinds {
                signals.push((kind, signal(kind).ok()?));
            }
            poll_fn(|context| {
                let mut kinds = signals.iter_mut();
                let ready =
                    kinds.find_map(|(kind, signal)| signal.poll_recv(context).is_ready().then_some(*kind));
                ready.map_or(Poll::Pending, |kind| Poll::Ready(Some(kind)))
            })
            .await
        });
        if let Some(kind) = received {
            restore();
            akunu_file::remove_unfinished();
            std::process::exit(128 + kind.as_raw_value());
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
