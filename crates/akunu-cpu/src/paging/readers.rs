//! Threads that read parts of files into memory.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use akunu_format::Region;

/// Disks read several places at once sooner than one after the other.
const THREADS: usize = 8;
/// Bytes of a read. Smaller ones cost more calls, and larger ones leave threads without work at the end.
pub(super) const PIECE: usize = 1 << 20;

/// How many pieces a read of so many bytes consists of.
pub(super) fn pieces(bytes: u64) -> usize {
    (bytes as usize).div_ceil(PIECE)
}

/// Bytes of a file for a place in memory.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) region: Region,
    pub(super) offset: usize,
    pub(super) to: *mut u8,
    pub(super) bytes: usize,
}

// SAFETY: the reader of a piece is the only one that uses its memory, until it has been waited for.
unsafe impl Send for Read {}

/// Reads that are waited for together have the same number.
#[derive(Debug)]
pub(super) struct Readers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// There is something to read, or threads are to end.
    work: Condvar,
    /// A piece was read, or a thread has begun.
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    reads: VecDeque<(usize, Read)>,
    /// Threads that have begun.
    started: usize,
    /// By number, how many pieces are not read yet.
    left: Vec<usize>,
    error: Option<String>,
    quit: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Readers {
    /// For reads with numbers below `numbers`, of which up to `reads` wait at once.
    pub(super) fn new(numbers: usize, reads: usize) -> std::io::Result<Readers> {
        let state =
            State { reads: VecDeque::with_capacity(reads), left: vec![0; numbers], ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), ..Shared::default() });
        // If a thread cannot be started, dropping the others makes them end.
        let mut readers = Readers { shared, threads: Vec::with_capacity(THREADS) };
        for number in 0..THREADS {
            let shared = Arc::clone(&readers.shared);
            let thread = std::thread::Builder::new().name(format!("akunu-read-{number}"));
            readers.threads.push(thread.spawn(move || serve(&shared))?);
        }
        // What the start of a thread allocates is not allocated in a pass.
        let _ = readers.wait_until(|state| state.started == THREADS);
        Ok(readers)
    }

    /// Begins to read.
    ///
    /// # Safety
    /// The memory is valid, and nothing else uses it until the number was waited for, or everything.
    pub(super) unsafe fn begin(&self, number: usize, read: &Read) {
        let mut state = self.shared.lock();
        for at in (0..read.bytes).step_by(PIECE) {
            let bytes = PIECE.min(read.bytes - at);
            let (offset, to) = (read.offset + at, read.to.wrapping_add(at));
            state.reads.push_back((number, Read { region: read.region.clone(), offset, to, bytes }));
            state.left[number] += 1;
        }
        drop(state);
        self.shared.work.notify_all();
    }

    /// Waits for all reads with a number. An error is that of any of the reads that were begun.
    pub(super) fn wait(&self, number: usize) -> Result<(), String> {
        self.wait_until(|state| state.left[number] == 0)
    }

    /// Waits for all reads, and forgets an error.
    pub(super) fn wait_for_all(&self) {
        // What is forgotten here has been reported by a `wait` before, or belongs to a pass that ended early.
        let _ = self.wait_until(|state| state.left.iter().all(|left| *left == 0));
        self.shared.lock().error = None;
    }

    fn wait_until(&self, is_done: impl Fn(&State) -> bool) -> Result<(), String> {
        let waiting = self.shared.done.wait_while(self.shared.lock(), |state| !is_done(state));
        let state = waiting.unwrap_or_else(PoisonError::into_inner);
        state.error.clone().map_or(Ok(()), Err)
    }
}

fn serve(shared: &Shared) {
    shared.lock().started += 1;
    shared.done.notify_all();
    loop {
        let waiting = shared.work.wait_while(shared.lock(), |state| state.reads.is_empty() && !state.quit);
        let mut state = waiting.unwrap_or_else(PoisonError::into_inner);
        let Some((number, read)) = state.reads.pop_front() else { return };
        let is_wanted = state.error.is_none() && !state.quit;
        drop(state);
        let result = if is_wanted { fill(&read) } else { Ok(()) };
        let mut state = shared.lock();
        state.left[number] -= 1;
        if let Err(error) = result {
            state.error.get_or_insert(error);
        }
        drop(state);
        shared.done.notify_all();
    }
}

fn fill(read: &Read) -> Result<(), String> {
    // SAFETY: as the caller of `begin` promises. Memory of slots is initialised.
    let to = unsafe { std::slice::from_raw_parts_mut(read.to, read.bytes) };
    read.region.read_at(read.offset, to).map_err(|error| {
        let path = read.region.file().map(|file| file.path.display().to_string()).unwrap_or_default();
        match error.kind() {
            std::io::ErrorKind::UnexpectedEof => format!(
                "{path} has become shorter since it was opened: replace a model's file by renaming another one"
            ),
            _ => format!("cannot read experts from {path}: {error}"),
        }
    })
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.shared.lock().quit = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // They do not panic: what they call returns errors.
            let _ = thread.join();
        }
    }
}
