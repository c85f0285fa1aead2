//! What the library has to say: the messages go to a callback of the program, and nowhere without one.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_void};
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, PoisonError, RwLock};

use akunu::Note;

use crate::boundary::{Failure, Status, check_not_in_callback, guard, in_callback};

/// How important a message is.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// A bug in Akunu: a panic, with its place in the source.
    Error = 1,
    /// What the user should know of, such as a GPU that is not used.
    Warning = 2,
    /// Decisions made while a model is loaded, and that it is loaded.
    Info = 3,
    /// Each generation, with its numbers of tokens and times.
    Debug = 4,
}

/// Called with each message; `level` is an akunu_log_level, and `message` a line of UTF-8 without a line break, valid
/// until the callback returns.
///
/// Most messages come on the thread whose call they are about, some on threads of the library, and several may come at
/// the same time. The callback may call functions that do not wait for a model; what these say is not logged. It must
/// not use longjmp, and an exception that leaves it ends the process.
pub type OnLog = Option<unsafe extern "C-unwind" fn(level: u32, message: *const c_char, user: *mut c_void)>;

struct Log {
    on_log: unsafe extern "C-unwind" fn(level: u32, message: *const c_char, user: *mut c_void),
    user: *mut c_void,
}

// SAFETY: a number to this library; that the callback may be called from any thread is part of its documentation.
unsafe impl Send for Log {}
// SAFETY: as above.
unsafe impl Sync for Log {}

static LOG: RwLock<Option<Log>> = RwLock::new(None);
/// The level up to which messages are wanted; 0 without a callback.
static LEVEL: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// A callback is running on this thread.
    static IS_LOGGING: Cell<bool> = const { Cell::new(false) };
}

/// Sets the callback for messages of all models up to `level`, an akunu_log_level, in place of an earlier one; a null
/// `on_log` removes it. Afterwards the earlier callback is not running and will not be called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_set_log(on_log: OnLog, user: *mut c_void, level: u32) -> Status {
    guard(|| {
        if !(LogLevel::Error as u32..=LogLevel::Debug as u32).contains(&level) && on_log.is_some() {
            return Err(Failure::argument(format!("{level} is not an akunu_log_level")));
        }
        // A callback would wait for itself.
        check_not_in_callback()?;
        static PANICS: Once = Once::new();
        PANICS.call_once(log_panics);
        let mut log = LOG.write().unwrap_or_else(PoisonError::into_inner);
        *log = on_log.map(|on_log| Log { on_log, user });
        LEVEL.store(if log.is_some() { level } else { 0 }, Ordering::Relaxed);
        Ok(())
    })
}

/// Messages of panics are logged instead of printed, while there is a callback.
fn log_panics() {
    let print = std::panic::take_hook();
    let hook = move |info: &PanicHookInfo<'_>| match LEVEL.load(Ordering::Relaxed) {
        0 => print(info),
        _ => log(LogLevel::Error, || info.to_string()),
    };
    std::panic::set_hook(Box::new(hook));
}

/// Logs a message that is made only if it is wanted.
pub(crate) fn log(level: LogLevel, message: impl FnOnce() -> String) {
    if level as u32 > LEVEL.load(Ordering::Relaxed) || IS_LOGGING.replace(true) {
        return;
    }
    struct Done;
    impl Drop for Done {
        fn drop(&mut self) {
            IS_LOGGING.set(false);
        }
    }
    let _done = Done;
    let line = message().replace(['\n', '\0'], " ");
    let log = LOG.read().unwrap_or_else(PoisonError::into_inner);
    if let (Some(log), Ok(line)) = (&*log, CString::new(line)) {
        // SAFETY: the caller's function, called as it is declared; the line outlives the call.
        in_callback(|| unsafe { (log.on_log)(level as u32, line.as_ptr(), log.user) });
    }
}

/// Logs the decisions made while a model was loaded.
pub(crate) fn log_notes(notes: &[Note]) {
    for note in notes {
        let level = match note {
            Note::UnusedGpu { .. }
            | Note::BeyondTraining { .. }
            | Note::AssumedPooling
            | Note::WeightsExceedMemory { .. }
            | Note::Split { .. }
            | Note::PagedExperts { .. }
            | Note::Tokenizer(_) => LogLevel::Warning,
            Note::AutoDevice { .. } | Note::DefaultContext { .. } | Note::GenerativeEmbedding { .. } => {
                LogLevel::Info
            }
        };
        log(level, || note.to_string());
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::sync::Mutex;

    use super::*;

    unsafe extern "C-unwind" fn keep(level: u32, message: *const c_char, user: *mut c_void) {
        // SAFETY: a text that ends, and the list of the test below.
        let (text, kept) = unsafe { (CStr::from_ptr(message), &*user.cast::<Mutex<Vec<(u32, String)>>>()) };
        log(LogLevel::Error, || "said while logging".into());
        kept.lock().unwrap().push((level, text.to_str().unwrap().into()));
        // SAFETY: no pointers.
        assert_eq!(unsafe { akunu_set_log(None, std::ptr::null_mut(), 0) }, Status::Busy);
    }

    #[test]
    fn messages_up_to_the_level_and_panics_are_logged() {
        let kept: Mutex<Vec<(u32, String)>> = Mutex::default();
        let user = (&raw const kept).cast_mut().cast();
        // SAFETY: the list outlives the callback.
        assert_eq!(unsafe { akunu_set_log(Some(keep), user, 9) }, Status::Argument);
        // SAFETY: as above.
        assert_eq!(unsafe { akunu_set_log(Some(keep), user, LogLevel::Info as u32) }, Status::Ok);
        // Other tests of this process may say something too.
        log(LogLevel::Debug, || "not wanted".into());
        log_notes(&[Note::AssumedPooling, Note::Tokenizer("two\nlines".into())]);
        assert_eq!(guard(|| panic!("on purpose, for the log")), Status::Internal);
        // SAFETY: no pointers.
        assert_eq!(unsafe { akunu_set_log(None, std::ptr::null_mut(), 0) }, Status::Ok);
        log(LogLevel::Error, || "nobody listens".into());
        let kept = kept.into_inner().unwrap();
        let has = |level: LogLevel, text: &str| {
            kept.iter().any(|(l, message)| *l == level as u32 && message.contains(text))
        };
        assert!(
            has(LogLevel::Warning, "the mean is used") && has(LogLevel::Warning, "two lines"),
            "{kept:?}"
        );
        assert!(
            has(LogLevel::Error, "on purpose, for the log") && has(LogLevel::Error, "log.rs"),
            "{kept:?}"
        );
        for text in ["not wanted", "while logging", "nobody"] {
            assert!(!kept.iter().any(|(_, message)| message.contains(text)), "{text}: {kept:?}");
        }
    }
}
