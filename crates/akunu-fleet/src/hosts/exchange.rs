//! The numbers that ranks exchange in the commands of a table: how many there have been before, how many numbers follow,
//! and the numbers.
//!
//! Workers are connected to the leader only, which passes on the part of each to the others. All ranks then have all parts,
//! and add them up in the same order.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use akunu_plan::ExchangeParts;

use super::frame::FrameError;
use super::link::{SAYING, Session, Watch};

const HEAD: usize = 16;
/// The leader sends a part of up to so many bytes before it has received any. Longer ones may not fit into the memory of
/// the connection while the other side still sends its own.
const EAGER_BYTES: usize = 16 << 10;

/// A connection for parts.
struct Line {
    /// The rank at the other end.
    rank: usize,
    stream: TcpStream,
    watch: Arc<Watch>,
}

/// What makes messages, and counts them.
#[derive(Default)]
struct Counted {
    number: u64,
    bytes: Vec<u8>,
}

impl Counted {
    fn send(&mut self, line: &Line, part: &[f32]) -> Result<(), FrameError> {
        self.bytes.clear();
        self.bytes.extend(self.number.to_le_bytes());
        self.bytes.extend((part.len() as u64).to_le_bytes());
        self.bytes.extend(bytemuck::cast_slice::<f32, u8>(part));
        Ok((&line.stream).write_all(&self.bytes)?)
    }

    /// All ranks run the same commands over the same rows, so the number of numbers is known.
    fn receive(&self, line: &Line, count: usize, part: &mut Vec<f32>) -> Result<(), FrameError> {
        let mut head = [0; HEAD];
        (&line.stream).read_exact(&mut head)?;
        let mut expected = [0; HEAD];
        expected[..8].copy_from_slice(&self.number.to_le_bytes());
        expected[8..].copy_from_slice(&(count as u64).to_le_bytes());
        if head != expected {
            return Err(FrameError::Malformed("it runs another command than this rank"));
        }
        part.resize(count, 0.0);
        Ok((&line.stream).read_exact(bytemuck::cast_slice_mut(part))?)
    }
}

impl Line {
    fn of(session: &Session, rank: usize) -> Result<Line, FrameError> {
        let stream = session.data.try_clone()?;
        stream.set_read_timeout(Some(session.timing.patience))?;
        stream.set_write_timeout(Some(session.timing.patience))?;
        Ok(Line { rank, stream, watch: Arc::clone(session.link.watch()) })
    }

    /// The reason is what the other side has said, if it has.
    fn failed(&self, error: &FrameError, ranks: usize, patience: Duration) -> String {
        let said =
            self.watch.reason_within(if matches!(error, FrameError::Late) { Duration::ZERO } else { SAYING });
        let why = match error {
            FrameError::Late => format!("it did not take part in an exchange for {patience:?}"),
            FrameError::Truncated => FrameError::Closed.to_string(),
            other => other.to_string(),
        };
        said.unwrap_or_else(|| format!("rank {} of {ranks} failed: {why}", self.rank))
    }
}

/// Closes the connections when the group breaks, so that nobody waits in an exchange.
pub(super) fn close(stream: &TcpStream) {
    // It may be closed already.
    let _ = stream.shutdown(Shutdown::Both);
}

/// The exchange of the leader with all workers, in the order of ranks.
pub(super) fn of_leader(sessions: &[Session]) -> Result<Box<ExchangeParts>, FrameError> {
    let lines =
        sessions.iter().map(|session| Line::of(session, session.rank)).collect::<Result<Vec<_>, _>>()?;
    let patience = sessions.first().map_or(Duration::ZERO, |session| session.timing.patience);
    let (ranks, mut counted) = (sessions.len() + 1, Counted::default());
    Ok(Box::new(move |own, parts| {
        let failed = |line: &Line| {
            let rank = line.rank;
            move |error: FrameError| (rank, error)
        };
        let mut all = || -> Result<(), (usize, FrameError)> {
            counted.number += 1;
            let is_eager = size_of_val(own) <= EAGER_BYTES;
            if is_eager {
                lines.iter().try_for_each(|line| counted.send(line, own).map_err(failed(line)))?;
            }
            for line in &lines {
                counted.receive(line, own.len(), &mut parts[line.rank]).map_err(failed(line))?;
            }
            for line in &lines {
                if !is_eager {
                    counted.send(line, own).map_err(failed(line))?;
                }
                for other in lines.iter().filter(|other| other.rank != line.rank) {
                    counted.send(line, &parts[other.rank]).map_err(failed(line))?;
                }
            }
            Ok(())
        };
        all().map_err(|(rank, error)| {
            lines.iter().for_each(|line| close(&line.stream));
            lines[rank - 1].failed(&error, ranks, patience)
        })
    }))
}

/// The exchange of a worker, with the leader.
pub(super) fn of_worker(session: &Session) -> Result<Box<ExchangeParts>, FrameError> {
    let line = Line::of(session, 0)?;
    let (rank, ranks, patience) = (session.rank, session.ranks, session.timing.patience);
    let mut counted = Counted::default();
    Ok(Box::new(move |own, parts| {
        let mut all = || {
            counted.number += 1;
            counted.send(&line, own)?;
            let others = parts.iter_mut().enumerate().filter(|(other, _)| *other != rank);
            others.map(|(_, part)| part).try_for_each(|part| counted.receive(&line, own.len(), part))
        };
        all().map_err(|error| line.failed(&error, ranks, patience))
    }))
}
