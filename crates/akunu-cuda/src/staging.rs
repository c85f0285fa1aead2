//! Copies between pageable host memory and the card, in pieces through page-locked memory.

use std::rc::Rc;

use crate::CudaError;
use crate::context::Context;
use crate::driver::Address;
use crate::memory::Pinned;
use crate::stream::{Event, Stream};

const PIECE: usize = 8 << 20;

/// Threads that copy a large piece: one has a fraction of the memory's bandwidth.
const THREADS: usize = 4;
/// Less is copied by one.
const SHARED: usize = 2 << 20;

fn copy(to: &mut [u8], from: &[u8]) {
    if from.len() < SHARED {
        return to.copy_from_slice(from);
    }
    let share = from.len().div_ceil(THREADS);
    // Those for which there was no thread.
    let left: Vec<usize> = std::thread::scope(|scope| {
        let shares = to.chunks_mut(share).zip(from.chunks(share)).enumerate();
        let spawned = shares.map(|(index, (to, from))| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, || to.copy_from_slice(from));
            (index, thread.is_ok())
        });
        spawned.filter(|(_, is_ok)| !is_ok).map(|(index, _)| index).collect()
    });
    for index in left {
        let part = index * share..from.len().min((index + 1) * share);
        to[part.clone()].copy_from_slice(&from[part]);
    }
}

/// Two pieces (double buffering): one is filled while the other is transferred.
#[derive(Debug)]
pub(crate) struct Staging {
    pieces: [Pinned; 2],
    /// Recorded when the transfer of a piece is complete.
    free: [Event; 2],
    next: usize,
}

impl Staging {
    pub(crate) fn new(context: &Rc<Context>) -> Result<Staging, CudaError> {
        Ok(Staging {
            pieces: [Pinned::new(context, PIECE)?, Pinned::new(context, PIECE)?],
            free: [Event::new(context)?, Event::new(context)?],
            next: 0,
        })
    }

    /// When this returns, `bytes` has been read; later operations on the stream see the copy.
    pub(crate) fn upload(&mut self, stream: &Stream, to: Address, bytes: &[u8]) -> Result<(), CudaError> {
        for (index, part) in bytes.chunks(PIECE).enumerate() {
            let turn = self.next;
            self.free[turn].synchronise()?;
            copy(&mut self.pieces[turn].bytes_mut()[..part.len()], part);
            stream.upload(to + (index * PIECE) as u64, &self.pieces[turn], 0, part.len())?;
            stream.record(&self.free[turn])?;
            self.next = 1 - turn;
        }
        Ok(())
    }

    /// Waits for all earlier operations of the stream.
    pub(crate) fn download(
        &mut self,
        stream: &Stream,
        from: Address,
        bytes: &mut [u8],
    ) -> Result<(), CudaError> {
        for (index, part) in bytes.chunks_mut(PIECE).enumerate() {
            let piece = &mut self.pieces[self.next];
            stream.download(piece, 0, from + (index * PIECE) as u64, part.len())?;
            stream.synchronise()?;
            copy(part, &piece.bytes()[..part.len()]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::copy;

    #[test]
    fn shares_of_a_copy_are_all_of_it() {
        for bytes in [7, super::SHARED, super::SHARED + 5] {
            let from: Vec<u8> = (0..bytes).map(|index| (index % 251) as u8).collect();
            let mut to = vec![0; bytes];
            copy(&mut to, &from);
            assert_eq!(to, from);
        }
    }
}
