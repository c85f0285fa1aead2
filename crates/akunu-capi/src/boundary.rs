//! The one place that every call from C goes through: no panic leaves it, and what went wrong is kept for the thread.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use akunu::Error;

/// What a call came to. Everything but AKUNU_STATUS_OK is an error, and akunu_get_error has its words.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Ok = 0,
    /// An argument that makes no sense: a null pointer, a text that is not UTF-8, a setting out of range.
    Argument = -1,
    /// A handle that was freed, or never was one.
    Handle = -2,
    /// A struct whose `size` is none that this library knows.
    StructSize = -3,
    /// The result is longer than its buffer. Nothing was written but the length that it needs.
    BufferTooSmall = -4,
    /// Called from within a callback, by a function that would have to wait for the callback's own call.
    Busy = -5,
    /// The model's file cannot be read, is damaged, or holds what Akunu does not run.
    Model = -6,
    /// The device is not there, or failed.
    Device = -7,
    /// The model does not fit into memory.
    Memory = -8,
    /// The text is longer than the context.
    Context = -9,
    /// All sessions that the model was loaded for are taken.
    NoSession = -10,
    /// The model has no vocabulary that can be used: it takes and gives token ids only.
    NoVocabulary = -11,
    /// The conversation, or the model's template for it, is no good.
    Template = -12,
    /// Logits that are not finite numbers, or of which none can be picked.
    Logits = -13,
    /// A bug in Akunu.
    Internal = -14,
}

/// A status that is an error, and its words.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Failure {
        Failure { status, message: message.into() }
    }

    pub(crate) fn argument(message: impl Into<String>) -> Failure {
        Failure::new(Status::Argument, message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let status = match &error {
            Error::Format(_) | Error::Plan(_) => Status::Model,
            Error::Device(_) | Error::UnknownDevice { .. } => Status::Device,
            Error::DoesNotFit { .. } => Status::Memory,
            Error::PromptTooLong { .. } | Error::ContextFull { .. } | Error::TextTooLong { .. } => {
                Status::Context
            }
            Error::NoFreeSlot { .. } => Status::NoSession,
            Error::NoTokenizer { .. } => Status::NoVocabulary,
            Error::Chat(_) | Error::Conversation { .. } | Error::NothingToAnswer => Status::Template,
            Error::NotFinite { .. } | Error::NothingToPick => Status::Logits,
            _ => Status::Argument,
        };
        Failure::new(status, error.to_string())
    }
}

thread_local! {
    static LAST_ERROR: RefCell<Option<CString>> = const { RefCell::new(None) };
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Runs the body of a call.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Failure>) -> Status {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Status::Ok,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::new(Status::Internal, format!("a bug in Akunu: {}", words(&*panic))),
    };
    remember(failure.message);
    failure.status
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no words")
}

fn remember(message: String) {
    let mut bytes = message.into_bytes();
    // A name from a file may hold any character.
    bytes.retain(|&byte| byte != 0);
    let message = CString::new(bytes).ok();
    // A thread that is at its end has nobody to tell.
    let _ = LAST_ERROR.try_with(|last| last.replace(message));
}

/// The words of this thread's latest error.
pub(crate) fn last_error() -> *const c_char {
    let pointer = |last: &RefCell<Option<CString>>| last.borrow().as_deref().map(CStr::as_ptr);
    LAST_ERROR.try_with(pointer).ok().flatten().unwrap_or(c"".as_ptr())
}

/// Runs a callback of the caller's, during which nothing may wait for an engine.
pub(crate) fn calling_back<T>(callback: impl FnOnce() -> T) -> T {
    let before = IN_CALLBACK.replace(true);
    let answer = callback();
    IN_CALLBACK.set(before);
    answer
}

pub(crate) fn check_not_in_callback() -> Result<(), Failure> {
    if !IN_CALLBACK.get() {
        return Ok(());
    }
    let message = "called from within a token callback, whose own call is not over: stop it by returning \
                   AKUNU_STOP, and call again when it has returned";
    Err(Failure::new(Status::Busy, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latest() -> String {
        // SAFETY: a text that ends, until this thread's next error.
        unsafe { CStr::from_ptr(last_error()) }.to_str().unwrap().to_string()
    }

    #[test]
    fn a_panic_goes_no_further_and_leaves_its_words() {
        let number = 3;
        assert_eq!(guard(|| panic!("three is {number}")), Status::Internal);
        assert!(latest().contains("three is 3"));
        assert_eq!(guard(|| Ok(())), Status::Ok);
        assert!(latest().contains("three is 3"), "words stay until the next error");
    }

    #[test]
    fn words_are_the_threads_own_and_whole() {
        assert_eq!(guard(|| Err(Failure::argument("a\0b"))), Status::Argument);
        assert_eq!(latest(), "ab");
        std::thread::spawn(|| assert_eq!(latest(), "")).join().unwrap();
    }

    #[test]
    fn within_a_callback_nothing_waits_also_after_one_within() {
        calling_back(|| {
            calling_back(|| ());
            assert_eq!(check_not_in_callback().unwrap_err().status, Status::Busy);
        });
        assert!(check_not_in_callback().is_ok());
    }
}
