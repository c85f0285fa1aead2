//! The emulator's queue: submissions and copies run only when they are waited for, like on a discrete GPU that is far
//! behind its host.

use std::collections::VecDeque;

use akunu_gpu::Recording;
use akunu_plan::DeviceError;

use crate::device::{Code, Emulator, Shared};

/// A wait that does not cover later submissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// For command buffers up to the one with this number.
    Until(u64),
    ForAll,
}

#[derive(Debug)]
enum Asked {
    Commands(Recording<Code, Shared>),
    Write(Shared, usize, Vec<u8>),
    /// Marks the end of a submission's writes.
    Sent,
    Copy {
        from: Shared,
        to: Shared,
        bytes: usize,
    },
    Fetch(Shared, usize),
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    asked: VecDeque<Asked>,
    /// The number of command buffers so far.
    submitted: u64,
    ended: u64,
    /// The result of the last fetch.
    pub(crate) fetched: Vec<u8>,
    /// The most bytes that a submission sends.
    sendable: usize,
}

impl Queue {
    pub(crate) fn submit(&mut self, commands: Recording<Code, Shared>, followed: bool) -> Waiting {
        self.asked.push_back(Asked::Commands(commands));
        self.submitted += 1;
        if followed { Waiting::Until(self.submitted) } else { Waiting::ForAll }
    }

    pub(crate) fn write(&mut self, to: &Shared, offset: usize, bytes: &[u8]) {
        self.asked.push_back(Asked::Write(to.clone(), offset, bytes.to_vec()));
    }

    pub(crate) fn copy(&mut self, from: &Shared, to: &Shared, bytes: u64) {
        self.asked.push_back(Asked::Copy { from: from.clone(), to: to.clone(), bytes: bytes as usize });
    }

    /// The staging memory is reused by the next submission: no transfer from it may be pending.
    pub(crate) fn send(&mut self, writes: [(&Shared, usize, &[u8]); 3]) {
        let has_left = !self.asked.iter().any(|asked| matches!(asked, Asked::Sent));
        assert!(has_left, "a submission is sent before the last one has left");
        let sent: usize = writes.iter().map(|(.., bytes)| bytes.len()).sum();
        assert!(sent <= self.sendable, "{sent} bytes are sent where {} are reserved", self.sendable);
        for (to, offset, bytes) in writes {
            self.write(to, offset, bytes);
        }
        self.asked.push_back(Asked::Sent);
    }

    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.sendable = self.sendable.max(bytes);
    }

    pub(crate) fn fetch(&mut self, from: &Shared, bytes: usize) {
        self.asked.push_back(Asked::Fetch(from.clone(), bytes));
    }

    fn next(&mut self, waiting: Waiting) -> Option<Asked> {
        if let Waiting::Until(number) = waiting
            && self.ended >= number
        {
            return None;
        }
        let asked = self.asked.pop_front()?;
        self.ended += u64::from(matches!(asked, Asked::Commands(_)));
        Some(asked)
    }
}

impl Emulator {
    /// Runs what is being waited for.
    pub(crate) fn catch_up(&mut self, waiting: Waiting) -> Result<(), DeviceError> {
        while let Some(asked) = self.queue.next(waiting) {
            match asked {
                Asked::Commands(commands) => self.run(&commands.0)?,
                Asked::Write(to, offset, bytes) => {
                    to.borrow_mut().bytes_mut()[offset..offset + bytes.len()].copy_from_slice(&bytes);
                }
                Asked::Sent => {}
                Asked::Copy { from, to, bytes } => {
                    to.borrow_mut().bytes_mut()[..bytes].copy_from_slice(&from.borrow().bytes()[..bytes]);
                }
                Asked::Fetch(from, bytes) => self.queue.fetched = from.borrow().bytes()[..bytes].to_vec(),
            }
        }
        Ok(())
    }
}
