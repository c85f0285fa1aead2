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

use super::frame::{FrameError, Paced};
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
    patience: Duration,
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
        Ok(line.paced().write_all(&self.bytes)?)
    }

    /// All ranks run the same commands over the same rows, so the number of numbers is known.
    fn receive(&self, line: &Line, count: usize, part: &mut Vec<f32>) -> Result<(), FrameError> {
        let (mut head, mut from) = ([0; HEAD], line.paced());
        from.read_exact(&mut head)?;
        let mut expected = [0; HEAD];
        expected[..8].copy_from_slice(&self.number.to_le_bytes());
        expected[8..].copy_from_slice(&(count as u64).to_le_bytes());
        if head != expected {
            return Err(FrameError::Malformed("it runs another command than this rank"));
        }
        part.resize(count, 0.0);
        Ok(from.read_exact(bytemuck::cast_slice_mut(part))?)
    }
}

impl Line {
    fn of(session: &Session, rank: usize) -> Result<Line, FrameError> {
        let stream = session.data.try_clone()?;
        let patience = session.timing.patience;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Line { rank, stream, patience, watch: Arc::clone(session.link.watch()) })
    }

    fn paced(&self) -> Paced<'_> {
        Paced::new(&self.stream, self.patience)
    }

    /// The reason is what the other side has said, if it has.
    fn failed(&self, error: &FrameError, ranks: usize, patience: Duration) -> String {
        let said =
            self.watch.reason_within(if matches!(error, FrameError::Late) { Duration::ZERO } else { SAYING });
        let why = match error {
            FrameError::Late => {
                format!("it did not take part in an exchange for {patience:?}, or too slowly")
            }
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

#[cfg(test)]
mod tests {
    use super::super::testing::{USUAL, joined, patient};
    use super::*;

    fn own(rank: usize, count: usize) -> Vec<f32> {
        (0..count).map(|index| (rank * 1_000_000 + index) as f32).collect()
    }

    /// What a rank has received after each exchange.
    fn all(
        mut exchange: Box<ExchangeParts>,
        rank: usize,
        ranks: usize,
        counts: &[usize],
    ) -> Vec<Vec<Vec<f32>>> {
        let mut parts = vec![Vec::new(); ranks];
        let each = counts.iter().map(|count| {
            exchange(&own(rank, *count), &mut parts).unwrap();
            parts.clone()
        });
        each.collect()
    }

    /// Parts that the leader sends first, and longer ones than a connection has memory for.
    #[test]
    fn all_ranks_receive_the_parts_of_all_others() {
        let counts = [1, 0, 7, EAGER_BYTES / 4, EAGER_BYTES / 4 + 1, 2_000_000, 3];
        let (leader, workers) = joined(3, patient(USUAL), patient(USUAL));
        let exchange = of_leader(&leader).unwrap();
        let others = workers.iter().map(|worker| (worker.rank, of_worker(worker).unwrap()));
        let others: Vec<_> = others
            .map(|(rank, exchange)| std::thread::spawn(move || all(exchange, rank, 3, &counts)))
            .collect();
        let mut found = vec![all(exchange, 0, 3, &counts)];
        found.extend(others.into_iter().map(|thread| thread.join().unwrap()));
        for (rank, found) in found.iter().enumerate() {
            for (parts, count) in found.iter().zip(counts) {
                for other in (0..3).filter(|other| *other != rank) {
                    assert!(parts[other] == own(other, count), "{count} numbers of rank {other} on {rank}");
                }
            }
        }
    }

    #[test]
    fn a_rank_that_is_late_or_runs_something_else_is_named() {
        let (leader, workers) = joined(2, patient(Duration::from_millis(300)), patient(USUAL));
        // It says that it is there, but does not take part.
        let mut exchange = of_leader(&leader).unwrap();
        let late = exchange(&[1.0], &mut [Vec::new(), Vec::new()]).unwrap_err();
        assert!(late.contains("rank 1 of 2 failed") && late.contains("300ms"), "{late}");
        drop(workers);
        let (leader, workers) = joined(2, patient(USUAL), patient(USUAL));
        let mut other = of_worker(&workers[0]).unwrap();
        let worker = std::thread::spawn(move || other(&[1.0, 2.0], &mut [Vec::new(), Vec::new()]));
        let mut exchange = of_leader(&leader).unwrap();
        let different = exchange(&[1.0], &mut [Vec::new(), Vec::new()]).unwrap_err();
        assert_eq!(
            different,
            "rank 1 of 2 failed: a message is malformed: it runs another command than this rank"
        );
        assert!(worker.join().unwrap().is_err());
    }

    #[test]
    fn a_rank_that_has_ended_is_named_with_what_it_said() {
        let (leader, workers) = joined(2, patient(USUAL), patient(USUAL));
        let mut exchange = of_leader(&leader).unwrap();
        drop(workers);
        let closed = exchange(&[1.0], &mut [Vec::new(), Vec::new()]).unwrap_err();
        assert_eq!(closed, "rank 1 of 2 failed: the connection was closed");
        let (leader, workers) = joined(2, patient(USUAL), patient(USUAL));
        let mut exchange = of_leader(&leader).unwrap();
        workers[0].fail("its memory is full");
        drop(workers);
        let said = exchange(&[1.0], &mut [Vec::new(), Vec::new()]).unwrap_err();
        assert_eq!(said, "rank 1 of 2 failed: its memory is full");
    }
}
