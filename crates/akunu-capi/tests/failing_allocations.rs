//! A large allocation or mapping that fails while a model is loaded and used is an error, after which the library works.
//!
//! A separate program, because the allocator is that of the whole process. It starts itself once for each allocation,
//! since Rust's collections end the process if they cannot grow.
#![allow(unsafe_code, clippy::unwrap_used, clippy::print_stdout)]

use std::ffi::{CStr, CString};
use std::process::Command;
use std::ptr::{null, null_mut};

use akunu::{Sampler, Sampling};
use akunu_capi::{
    AKUNU_TO_NULL, GenerateSettings, ModelHandle, SessionHandle, Status, akunu_create_session, akunu_encode,
    akunu_free_model, akunu_generate, akunu_get_error, akunu_load_model,
};
use akunu_testing::{FailingAllocator, allow_allocations, fail_allocations};

#[global_allocator]
static ALLOCATOR: FailingAllocator = FailingAllocator;

/// What is large, in bytes: weights, the KV cache, activations and tables of the vocabulary are.
const LARGE: usize = 64 << 10;
/// The number of the allocation that fails, and whether all that follow fail too.
const FAILS: &str = "AKUNU_TEST_FAILS";

/// Mappings count as allocations: this definition comes before the C library's.
#[cfg(target_os = "linux")]
mod mappings {
    use std::ffi::{c_int, c_void};

    #[unsafe(no_mangle)]
    unsafe extern "C" fn mmap(
        at: *mut c_void,
        bytes: usize,
        protection: c_int,
        flags: c_int,
        file: c_int,
        offset: i64,
    ) -> *mut c_void {
        if akunu_testing::allocation_fails(bytes) {
            // SAFETY: the place of this thread's `errno`.
            unsafe { *libc::__errno_location() = libc::ENOMEM };
            return libc::MAP_FAILED;
        }
        // SAFETY: the caller's arguments, unchanged.
        let at = unsafe { libc::syscall(libc::SYS_mmap, at, bytes, protection, flags, file, offset) };
        at as *mut c_void
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn mmap64(
        at: *mut c_void,
        bytes: usize,
        protection: c_int,
        flags: c_int,
        file: c_int,
        offset: i64,
    ) -> *mut c_void {
        // SAFETY: the caller's arguments, unchanged.
        unsafe { mmap(at, bytes, protection, flags, file, offset) }
    }
}

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../akunu/embedded/akunu-tales.gguf");

/// Loads a model from its file, and generates with it.
fn calls() -> Status {
    let path = CString::new(MODEL).unwrap();
    let mut model: *mut ModelHandle = null_mut();
    let mut session: *mut SessionHandle = null_mut();
    let mut tokens = [0; 16];
    let mut count = 0;
    let settings = settings();
    // SAFETY: null, texts, or places of the types that the functions read and write.
    unsafe {
        let mut status = akunu_load_model(path.as_ptr(), null(), &raw mut model);
        if status == Status::Ok {
            status = akunu_create_session(model, &raw mut session);
        }
        if status == Status::Ok {
            let text = c"Once upon a time".as_ptr();
            let (buffer, capacity) = (tokens.as_mut_ptr(), tokens.len());
            status = akunu_encode(model, text, AKUNU_TO_NULL, 0, buffer, capacity, &raw mut count);
        }
        if status == Status::Ok {
            let prompt = tokens.as_ptr();
            let settings = &raw const settings;
            status = akunu_generate(session, prompt, count, settings, None, null_mut(), null_mut());
        }
        assert_eq!(akunu_free_model(model), Status::Ok);
        status
    }
}

fn settings() -> GenerateSettings {
    GenerateSettings { max_tokens: 8, ignore_end: 1, ..GenerateSettings::default() }
}

/// The child's side: the calls with the failure, and then without.
fn child(first: usize, all: bool) {
    fail_allocations(LARGE, first, all);
    let status = calls();
    let count = allow_allocations();
    // SAFETY: a text that ends, until this thread's next error.
    let message = unsafe { CStr::from_ptr(akunu_get_error()) }.to_str().unwrap();
    println!("{count} {status:?} {message}");
    assert_eq!(calls(), Status::Ok, "after the failure");
}

/// The number of large allocations, and what the calls returned.
fn spawn(first: usize, all: bool) -> (usize, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let done = command.env(FAILS, format!("{first} {all}")).output().unwrap();
    let (said, stderr) = (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap());
    assert!(done.status.success(), "{first}, {all}: {}, {said}{stderr}", done.status);
    let (count, status) = said.strip_suffix("\n").unwrap().split_once(' ').unwrap();
    (count.parse().unwrap(), status.to_string())
}

/// The embedded model's vocabulary is small, so the memory of a sampler is tested with a larger one.
fn samplers() {
    const VOCABULARY: usize = 1 << 18;
    let sampling = Sampling { temperature: 1.0, top_k: 40, repeat_penalty: 1.1, ..Sampling::default() };
    for (first, works) in [(0, false), (1, false), (2, false), (3, true)] {
        fail_allocations(LARGE, first, false);
        let sampler = Sampler::new(&sampling, VOCABULARY);
        let count = allow_allocations();
        assert_eq!(count, if works { 3 } else { first + 1 });
        match sampler {
            Ok(_) => assert!(works, "{first}"),
            Err(error) => {
                assert!(!works && error.is_out_of_memory(), "{error}");
                let message = error.to_string();
                assert!(message.contains("the sampler's working memory"), "{message}");
            }
        }
    }
}

/// DRY's tables grow with the text. Without memory for them a token is an error, and the next ones are as they would
/// have been.
fn repetitions() {
    const IDS: usize = 8;
    let sampling = Sampling { dry_multiplier: 0.1, ..Sampling::default() };
    let text: Vec<u32> = (0..20_000u32).map(|i| i.wrapping_mul(i).wrapping_mul(0x9e37_79b1) >> 29).collect();
    let picked = |first| {
        let mut sampler = Sampler::new(&sampling, IDS).unwrap();
        fail_allocations(LARGE, first, false);
        let lengths = text.len() - 8..text.len();
        let found: Vec<_> = lengths.map(|length| sampler.pick(&[0.0; IDS], &text[..length])).collect();
        (found, allow_allocations())
    };
    let (expected, count) = picked(usize::MAX);
    let expected: Vec<u32> = expected.into_iter().map(Result::unwrap).collect();
    assert!(count > 4 && expected.iter().any(|id| *id != expected[0]), "{count}: {expected:?}");
    for first in 0..count {
        let (found, _) = picked(first);
        assert_eq!(found.iter().filter(|found| found.is_err()).count(), 1, "{first}");
        for (found, expected) in found.into_iter().zip(&expected) {
            match found {
                Ok(id) => assert_eq!(id, *expected),
                Err(error) => assert!(error.is_out_of_memory(), "{error}"),
            }
        }
    }
}

fn main() {
    if let Ok(fails) = std::env::var(FAILS) {
        let (first, all) = fails.split_once(' ').unwrap();
        return child(first.parse().unwrap(), all == "true");
    }
    samplers();
    repetitions();
    let (count, status) = spawn(usize::MAX, false);
    assert_eq!(status.trim_end(), "Ok");
    assert!(count >= if cfg!(target_os = "linux") { 10 } else { 1 }, "{count} large allocations");
    let mut refused = 0;
    for first in 0..count {
        for all in [false, true] {
            let (_, status) = spawn(first, all);
            match status.split_once(' ') {
                Some(("Memory", why)) => assert!(why.contains("cannot allocate"), "{why}"),
                Some(("Model", why)) => assert!(why.contains("cannot map it"), "{why}"),
                // What only makes it faster.
                _ => assert_eq!(status, "Ok ", "{first}"),
            }
            refused += usize::from(status != "Ok ");
        }
    }
    if cfg!(target_os = "linux") {
        assert!(refused >= count, "{refused} of {count}");
    }
    println!("{count} large allocations failed, one at a time and all from one on");
}
