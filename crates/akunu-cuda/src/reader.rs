//! Copies bytes of mapped files to the card while the device's thread does something else: several threads fill page-locked
//! memory, each with a stream of its own. One thread alone reads a file's pages at a part of what the bus transfers.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use akunu_format::Region;
use akunu_gpu::Part;

use crate::CudaError;
use crate::context::{Card, Context};
use crate::driver::{Address, Driver};
use crate::memory::Pinned;
use crate::stream::{Event, Stream};

/// Bytes that a thread copies at once.
const PIECE: usize = 4 << 20;
/// The most threads: they copy 50 GB/s over a bus of 55 (docs/measurements/cpu-and-gpu.md).
const THREADS: usize = 8;
/// Pieces of a thread: one is filled while the other one is transferred.
const PIECES: usize = 2;
/// Page-locked memory of all threads.
pub(crate) const BYTES: u64 = (THREADS * PIECES * PIECE) as u64;

#[derive(Debug)]
pub(crate) struct Reader {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
    /// What was begun and not waited for, by where it goes.
    begun: Vec<(Address, Arc<Copy>)>,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    pieces: VecDeque<Piece>,
    is_closed: bool,
}

#[derive(Debug)]
struct Piece {
    region: Region,
    offset: usize,
    len: usize,
    to: Address,
    share: Share,
}

/// One piece of a copy. Dropped by a thread that panics, it ends with an error, so that nobody waits for it.
#[derive(Debug)]
struct Share(Option<Arc<Copy>>);

impl Share {
    fn end(mut self, ended: Result<(), CudaError>) {
        if let Some(copy) = self.0.take() {
            copy.end_piece(ended);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(copy) = self.0.take() {
            copy.end_piece(Err(CudaError::ReaderEnded));
        }
    }
}

/// A part of a file on its way.
#[derive(Debug)]
struct Copy {
    state: Mutex<Left>,
    changed: Condvar,
}

#[derive(Debug)]
struct Left {
    pieces: usize,
    failed: Option<CudaError>,
}

/// A thread that panicked leaves counts that are valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Copy {
    fn end_piece(&self, ended: Result<(), CudaError>) {
        let mut left = lock(&self.state);
        left.pieces -= 1;
        left.failed = left.failed.take().or(ended.err());
        self.changed.notify_all();
    }

    fn wait(&self) -> Result<(), CudaError> {
        let mut left = lock(&self.state);
        while left.pieces > 0 {
            left = self.changed.wait(left).unwrap_or_else(PoisonError::into_inner);
        }
        left.failed.clone().map_or(Ok(()), Err)
    }
}

impl Queue {
    fn push(&self, pieces: impl Iterator<Item = Piece>) {
        lock(&self.state).pieces.extend(pieces);
        self.changed.notify_all();
    }

    fn try_next(&self) -> Option<Piece> {
        lock(&self.state).pieces.pop_front()
    }

    /// Waits for a piece; `None`: there will be no more.
    fn next(&self) -> Option<Piece> {
        let mut state = lock(&self.state);
        loop {
            match state.pieces.pop_front() {
                Some(piece) => return Some(piece),
                None if state.is_closed => return None,
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl Reader {
    pub(crate) fn start(driver: &'static Driver, card: &Card) -> Result<Reader, CudaError> {
        let queue = Arc::new(Queue::default());
        let mut reader = Reader { queue, threads: Vec::new(), begun: Vec::new() };
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        for _ in 0..cores.min(THREADS) {
            let (queue, card) = (Arc::clone(&reader.queue), card.clone());
            let run = move || serve(&queue, || Hand::new(driver, card).map(|mut hand| hand.run(&queue)));
            let thread = std::thread::Builder::new().name("akunu-reader".into()).spawn(run);
            reader.threads.push(thread.map_err(|error| CudaError::Thread { message: error.to_string() })?);
        }
        Ok(reader)
    }

    pub(crate) fn begin(&mut self, to: Address, part: Part<'_>) -> Result<(), CudaError> {
        // Only if an earlier pass has failed, and then its error is known.
        let _ = self.finish(to);
        let pieces = part.len.div_ceil(PIECE);
        let state = Mutex::new(Left { pieces, failed: None });
        let copy = Arc::new(Copy { state, changed: Condvar::new() });
        self.begun.push((to, Arc::clone(&copy)));
        self.queue.push((0..pieces).map(|piece| {
            let start = piece * PIECE;
            Piece {
                region: part.region.clone(),
                offset: part.offset + start,
                len: PIECE.min(part.len - start),
                to: to + start as u64,
                share: Share(Some(Arc::clone(&copy))),
            }
        }));
        Ok(())
    }

    /// Waits for what was begun for an address.
    pub(crate) fn finish(&mut self, to: Address) -> Result<(), CudaError> {
        match self.begun.iter().position(|(address, _)| *address == to) {
            Some(index) => self.begun.swap_remove(index).1.wait(),
            None => Ok(()),
        }
    }

    pub(crate) fn finish_all(&mut self) {
        for (_, copy) in self.begun.drain(..) {
            // Nobody needs the bytes any more.
            let _ = copy.wait();
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        lock(&self.queue.state).is_closed = true;
        self.queue.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has ended, too.
            let _ = thread.join();
        }
    }
}

/// Does the work of a thread. One that cannot begin or panics ends all further pieces with an error.
fn serve(queue: &Queue, work: impl FnOnce() -> Result<(), CudaError>) {
    let ended = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(CudaError::ReaderEnded));
    let Err(error) = ended else { return };
    while let Some(piece) = queue.next() {
        piece.share.end(Err(error.clone()));
    }
}

/// What a thread copies with: one piece is filled while the other is transferred.
struct Hand {
    pieces: [Pinned; 2],
    events: [Event; 2],
    /// The copies that the pieces are on their way for.
    transferring: [Option<Share>; 2],
    stream: Stream,
}

impl Hand {
    fn new(driver: &'static Driver, card: Card) -> Result<Hand, CudaError> {
        let context = Context::new(driver, card)?;
        Ok(Hand {
            pieces: [Pinned::new(&context, PIECE)?, Pinned::new(&context, PIECE)?],
            events: [Event::new(&context)?, Event::new(&context)?],
            transferring: [None, None],
            stream: Stream::new(&context)?,
        })
    }

    fn run(&mut self, queue: &Queue) {
        let mut turn = 0;
        loop {
            let piece = match queue.try_next() {
                Some(piece) => piece,
                None => {
                    self.land(turn);
                    self.land(1 - turn);
                    let Some(piece) = queue.next() else { return };
                    piece
                }
            };
            self.land(turn);
            match self.transfer(turn, &piece) {
                Ok(()) => self.transferring[turn] = Some(piece.share),
                Err(error) => piece.share.end(Err(error)),
            }
            turn = 1 - turn;
        }
    }

    /// Waits until a piece has been transferred.
    fn land(&mut self, turn: usize) {
        if let Some(share) = self.transferring[turn].take() {
            share.end(self.events[turn].synchronise());
        }
    }

    fn transfer(&mut self, turn: usize, piece: &Piece) -> Result<(), CudaError> {
        let Piece { region, offset, len, to, .. } = piece;
        self.pieces[turn].bytes_mut()[..*len].copy_from_slice(&region.bytes()[*offset..*offset + *len]);
        self.stream.upload(*to, &self.pieces[turn], 0, *len)?;
        self.stream.record(&self.events[turn])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_a_thread_that_panicked() {
        let queue = Arc::new(Queue::default());
        let mut reader = Reader { queue: Arc::clone(&queue), threads: Vec::new(), begun: Vec::new() };
        let region = Region::from_vec(vec![0; 3 * PIECE]);
        let part = Part { region: &region, offset: 0, len: region.len() };
        reader.begin(4096, part).unwrap();
        let panics = || {
            let _piece = queue.next();
            std::panic::resume_unwind(Box::new("on purpose"))
        };
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&queue, panics));
            assert_eq!(reader.finish(4096), Err(CudaError::ReaderEnded));
            // An error of an earlier pass is not that of the next one.
            reader.begin(4096, part).unwrap();
            reader.begin(4096, part).unwrap();
            assert_eq!(reader.finish(4096), Err(CudaError::ReaderEnded));
            drop(reader);
        });
    }
}
