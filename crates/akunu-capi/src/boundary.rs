//! The boundary that every call from C passes: it catches panics, and stores error messages per thread.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use akunu::{DeviceError, Error};

/// The result of a call. All but AKUNU_STATUS_OK are errors, with a message in akunu_get_error.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Ok = 0,
    /// An invalid argument: a null pointer, a text that is not UTF-8, a setting out of range.
    Argument = -1,
    /// A handle that was freed or is not a handle, or any call in a child process after `fork`.
    Handle = -2,
    /// A struct whose `size` is not supported by this library.
    StructSize = -3,
    /// The result is longer than the buffer. Only the required length was written.
    BufferTooSmall = -4,
    /// Called from a callback, and the function would have to wait for an engine.
    Busy = -5,
    /// The model's files cannot be read, are damaged, or are not supported.
    Model = -6,
    /// The device is not available, or failed.
    Device = -7,
    /// The model does not fit into memory, or memory cannot be allocated.
    Memory = -8,
    /// The text is longer than the context.
    Context = -9,
    /// The model has no free session; load it with more.
    NoSession = -10,
    /// The model has no tokenizer, so only token ids can be used.
    NoVocabulary = -11,
    /// The conversation is invalid, or the model's chat template is missing or fails.
    Template = -12,
    /// The logits are not finite, or the biases exclude every token.
    Logits = -13,
    /// A bug in Akunu.
    Internal = -14,
    /// The loading of a model was cancelled by its progress callback.
    Cancelled = -15,
    /// As many requests are waiting as `queue` of akunu_load_options allows.
    QueueFull = -16,
}

/// An error: its status and message.
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
        Failure::new(status_of(&error), error.to_string())
    }
}

fn status_of(error: &Error) -> Status {
    match error {
        Error::Shared(error) => status_of(error),
        Error::Format(_) | Error::Plan(_) => Status::Model,
        error if error.is_out_of_memory() => Status::Memory,
        Error::CacheFull { .. } => Status::Memory,
        Error::Device(DeviceError::Cancelled) => Status::Cancelled,
        Error::Panicked { .. } => Status::Internal,
        Error::Device(_) | Error::UnknownDevice { .. } => Status::Device,
        Error::PromptTooLong { .. } | Error::ContextFull { .. } | Error::TextTooLong { .. } => {
            Status::Context
        }
        Error::NoFreeSlot { .. } => Status::NoSession,
        Error::NoTokenizer { .. } => Status::NoVocabulary,
        Error::Chat(_) | Error::Conversation { .. } | Error::NothingToAnswer => Status::Template,
        Error::NotFinite { .. } | Error::NothingToPick => Status::Logits,
        _ => Status::Argument,
    }
}

thread_local! {
    static LAST_ERROR: RefCell<Option<CString>> = const { RefCell::new(None) };
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Runs the body of a call.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Failure>) -> Status {
    let checked = || check_process().and_then(|()| body());
    let failure = match catch_unwind(AssertUnwindSafe(checked)) {
        Ok(Ok(())) => return Status::Ok,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::new(Status::Internal, format!("a bug in Akunu: {}", panic_message(&*panic))),
    };
    set_last_error(failure.message);
    failure.status
}

/// Fails in a child process that was forked after a call. It has no threads besides its own, so calls would wait forever
/// for an engine, or for a lock that another thread held.
fn check_process() -> Result<(), Failure> {
    static PROCESS: AtomicU32 = AtomicU32::new(0);
    let own = std::process::id();
    match PROCESS.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed) {
        Err(first) if first != own => {
            let message = "this process was forked after a call of Akunu: fork before the first call, or start the \
                           process with exec (in Python's multiprocessing: the start method spawn)";
            Err(Failure::new(Status::Handle, message))
        }
        _ => Ok(()),
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

fn set_last_error(message: String) {
    let mut bytes = message.into_bytes();
    // Names from files may contain null characters.
    bytes.retain(|&byte| byte != 0);
    let message = CString::new(bytes).ok();
    // Fails only while the thread's local storage is being destroyed.
    let _ = LAST_ERROR.try_with(|last| last.replace(message));
}

/// The message of this thread's latest error.
pub(crate) fn last_error() -> *const c_char {
    let pointer = |last: &RefCell<Option<CString>>| last.borrow().as_deref().map(CStr::as_ptr);
    LAST_ERROR.try_with(pointer).ok().flatten().unwrap_or(c"".as_ptr())
}

/// Runs a callback. Functions that wait for an engine fail while it runs.
pub(crate) fn in_callback<T>(callback: impl FnOnce() -> T) -> T {
    /// Restores the state, also after a panic of a callback in Rust.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IN_CALLBACK.set(self.0);
        }
    }
    let _restore = Restore(IN_CALLBACK.replace(true));
    callback()
}

pub(crate) fn check_not_in_callback() -> Result<(), Failure> {
    if !IN_CALLBACK.get() {
        return Ok(());
    }
    let message = "called from within a callback, whose own call is not over: call again when that has returned \
                   (a callback that returns AKUNU_STOP ends it)";
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
    fn a_panic_becomes_an_error_with_its_message() {
        let number = 3;
        assert_eq!(guard(|| panic!("three is {number}")), Status::Internal);
        assert!(latest().contains("three is 3"));
        assert_eq!(guard(|| Ok(())), Status::Ok);
        assert!(latest().contains("three is 3"), "the message is kept until the next error");
    }

    #[test]
    fn messages_are_per_thread_and_without_null_characters() {
        assert_eq!(guard(|| Err(Failure::argument("a\0b"))), Status::Argument);
        assert_eq!(latest(), "ab");
        std::thread::spawn(|| assert_eq!(latest(), "")).join().unwrap();
    }

    #[test]
    fn waiting_is_refused_in_a_callback_even_after_a_nested_one() {
        in_callback(|| {
            in_callback(|| ());
            assert_eq!(check_not_in_callback().unwrap_err().status, Status::Busy);
        });
        assert!(check_not_in_callback().is_ok());
        assert_eq!(guard(|| in_callback(|| panic!("a callback in Rust"))), Status::Internal);
        assert!(check_not_in_callback().is_ok());
    }
}
