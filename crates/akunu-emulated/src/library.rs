//! Functions compiled for this machine: shared libraries, cached beside the program that uses them.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use akunu_kernels::{Function, Launch, emulated_text};

use crate::memory::Memory;

const EMULATOR: &str = include_str!("../emulator/emulator.h");
/// Additional headers for functions that use the source of that name.
const SPECIAL: [(&str, &str); 4] = [
    ("cuda/copies.h", include_str!("../emulator/copies.h")),
    ("cuda/tensor.h", include_str!("../emulator/tensor.h")),
    ("cuda/warpgroup.h", include_str!("../emulator/warpgroup.h")),
    ("metal/tiles.h", include_str!("../emulator/tiles.h")),
];
const OPTIONS: [&str; 11] = [
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-shared",
    // Without C++'s library: searching it takes half of the link time.
    "-nostdlib",
    "-w",
    "-fno-exceptions",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-DOFFSET_OF=__builtin_offsetof",
];
/// For how long an unused library is kept.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Three cache lines more than a power of two: otherwise the ends of all stacks, which are what fibres use the most, would
/// compete for the same few places in the processor's caches.
const STACK_BYTES: usize = (64 << 10) + 192;
const MOST_THREADS: usize = 1024;

/// `Call` in emulator.h.
#[repr(C)]
struct Call {
    arguments: *const *mut c_void,
    constants: *const u32,
    groups: [u32; 3],
    threads: u32,
    shared: *mut u8,
    shared_bytes: u32,
    stack_bytes: u32,
    stacks: *mut u8,
    backwards: u32,
    message_bytes: u32,
    message: *mut c_char,
}

type Entry = unsafe extern "C" fn(*const Call) -> c_int;

/// The compiled library of one text. It has global state, so only one launch runs at a time, unless each thread has its
/// own.
#[derive(Debug)]
pub(crate) struct Library {
    entry: Entry,
    running: Option<Mutex<()>>,
}

/// The stacks of the fibres; one per device.
#[derive(Debug)]
pub(crate) struct Stacks(Memory);

impl Stacks {
    pub(crate) fn new() -> Option<Stacks> {
        Memory::zeroed(MOST_THREADS * STACK_BYTES).map(Stacks)
    }
}

/// The C++ compiler to use; `None` if there is none.
pub fn compiler() -> Option<&'static Path> {
    static COMPILER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let path = std::env::var_os("CXX").map_or_else(|| PathBuf::from("c++"), PathBuf::from);
        let asked = Command::new(&path).arg("--version").output().ok()?;
        asked.status.success().then_some(path)
    };
    COMPILER.get_or_init(find).as_deref()
}

/// Whether tests have to be skipped because there is no compiler; says so visibly.
#[allow(clippy::print_stderr, reason = "what was not tested has to be seen")]
pub fn skipped() -> bool {
    if compiler().is_some() {
        return false;
    }
    eprintln!("SKIPPED: no C++ compiler: install one (c++), or set CXX; GPU kernels were not tested");
    true
}

type Place = Arc<OnceLock<Result<Arc<Library>, String>>>;

/// The library of a function's text, compiled if necessary.
pub(crate) fn library(function: &Function) -> Result<Arc<Library>, String> {
    static LOADED: Mutex<Option<HashMap<u64, Place>>> = Mutex::new(None);
    let uses = |name: &str| function.sources.iter().any(|source| source.name == name);
    let special: String = SPECIAL.iter().filter(|(name, _)| uses(name)).map(|(_, text)| *text).collect();
    // Ranks run such a function at the same time, and wait for each other in it.
    let meets = uses("ranks.h");
    let state = if meets { "#define STATE static thread_local\n" } else { "#define STATE static\n" };
    let text = [state, EMULATOR, &special, &emulated_text(function)].concat();
    let mut hasher = DefaultHasher::new();
    (&text, OPTIONS, compiler()).hash(&mut hasher);
    let key = hasher.finish();
    // Other threads may compile other texts meanwhile, but not the same one.
    let place = {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(loaded.get_or_insert_default().entry(key).or_default())
    };
    place.get_or_init(|| open(&text, key, &function.name, meets)).clone()
}

fn open(text: &str, key: u64, name: &str, meets: bool) -> Result<Arc<Library>, String> {
    static PRUNED: Once = Once::new();
    let folder = folder().map_err(not_kept)?;
    PRUNED.call_once(|| prune(&folder, KEPT));
    let path = build(&folder, text, key, name)?;
    match load(&path, meets) {
        // Another process may have pruned it just before it was marked as used.
        Err(_) if !path.exists() => load(&build(&folder, text, key, name)?, meets),
        loaded => loaded,
    }
}

/// The cache folder: beside the program, so that it is removed with the target folder.
fn folder() -> io::Result<PathBuf> {
    let folder = std::env::current_exe()?.with_file_name("akunu-emulated");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn not_kept(error: io::Error) -> String {
    format!("cannot keep compiled kernels: {error}")
}

/// Removes what has not been used for that long: libraries of outdated texts, and leftovers of killed processes.
fn prune(folder: &Path, kept: Duration) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let used = entry.metadata().and_then(|metadata| metadata.modified());
        if used.is_ok_and(|used| used.elapsed().is_ok_and(|idle| idle > kept)) {
            // Another process may have removed it already.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn build(folder: &Path, text: &str, key: u64, name: &str) -> Result<PathBuf, String> {
    let library = folder.join(format!("{key:016x}.so"));
    if let Ok(file) = File::open(&library) {
        // Marks it as used for `prune`.
        file.set_modified(SystemTime::now()).map_err(not_kept)?;
        return Ok(library);
    }
    let compiler = compiler().ok_or("no C++ compiler: install one (c++), or set CXX")?;
    // Other processes may do the same: each writes its own file, and the last rename wins.
    let own = folder.join(format!("{key:016x}-{}", std::process::id()));
    let (source, unfinished) = (own.with_extension("cpp"), own.with_extension("part"));
    std::fs::write(&source, text).map_err(not_kept)?;
    let output = Command::new(compiler)
        .args(OPTIONS)
        .arg(&source)
        .arg("-o")
        .arg(&unfinished)
        .args(["-lm", "-lc"])
        .output()
        .map_err(|error| format!("{}: {error}", compiler.display()))?;
    if !output.status.success() {
        return Err(format!("{name} does not compile:\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    std::fs::remove_file(&source).map_err(not_kept)?;
    std::fs::rename(&unfinished, &library).map_err(not_kept)?;
    Ok(library)
}

fn load(path: &Path, meets: bool) -> Result<Arc<Library>, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: the library was built by `build`; its initialisers do nothing.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(format!("cannot load {}", path.display()));
    }
    // SAFETY: the handle is valid, and the name is NUL-terminated.
    let entry = unsafe { libc::dlsym(handle, c"emulated_launch".as_ptr()) };
    if entry.is_null() {
        return Err(format!("{} has no entry", path.display()));
    }
    // SAFETY: emulator.h defines the function with this type, and the library is never closed.
    let entry = unsafe { std::mem::transmute::<*mut c_void, Entry>(entry) };
    Ok(Arc::new(Library { entry, running: (!meets).then(Mutex::default) }))
}

impl Library {
    /// Runs a launch with `arguments`, in ascending or descending order of threads; the error is what the emulator
    /// detected.
    pub(crate) fn run(
        &self,
        launch: &Launch,
        arguments: &[*mut u8],
        stacks: &mut Stacks,
        backwards: bool,
    ) -> Result<(), String> {
        if launch.threads as usize > MOST_THREADS || !launch.threads.is_multiple_of(32) || launch.threads == 0
        {
            return Err(format!("{}: groups of {} threads", launch.function.name, launch.threads));
        }
        let constants: Vec<u32> = launch.function.constants.iter().map(|c| c.1).collect();
        let shared = Memory::zeroed(launch.shared_bytes as usize).ok_or("no memory for a threadgroup's")?;
        let mut message = [0_u8; 256];
        let call = Call {
            arguments: arguments.as_ptr().cast(),
            constants: constants.as_ptr(),
            groups: launch.groups,
            threads: launch.threads,
            shared: shared.start(),
            shared_bytes: launch.shared_bytes,
            stack_bytes: STACK_BYTES as u32,
            stacks: stacks.0.bytes_mut().as_mut_ptr(),
            backwards: u32::from(backwards),
            message_bytes: message.len() as u32,
            message: message.as_mut_ptr().cast(),
        };
        let running =
            self.running.as_ref().map(|running| running.lock().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: everything that the call points to outlives it, and no other launch runs in the library with its state. The
        // kernel's own accesses depend on its arguments and arithmetic, which is what is being tested; `Memory` ends
        // at pages that fault.
        let failed = unsafe { (self.entry)(&raw const call) };
        drop(running);
        if failed == 0 {
            return Ok(());
        }
        let end = message.iter().position(|byte| *byte == 0).unwrap_or(message.len());
        Err(format!("{}: {}", launch.function.name, String::from_utf8_lossy(&message[..end])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_used_for_long_is_removed_and_the_rest_stays() {
        let folder = folder().unwrap().join("prune");
        std::fs::create_dir_all(&folder).unwrap();
        let [old, new, used] = [1, 2, 3].map(|key| folder.join(format!("{key:016x}.so")));
        for (path, days) in [(&old, 8), (&new, 6), (&used, 8)] {
            let last = SystemTime::now() - Duration::from_secs(days * 24 * 60 * 60);
            File::create(path).unwrap().set_modified(last).unwrap();
        }
        // It exists, so nothing is compiled.
        assert_eq!(build(&folder, "no C++", 3, "used"), Ok(used.clone()));
        prune(&folder, KEPT);
        assert_eq!([&old, &new, &used].map(|path| path.exists()), [false, true, true]);
    }
}
