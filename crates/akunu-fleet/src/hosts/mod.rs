//! Ranks in several processes, which may be on several machines: the leader has the first rank and listens, and each
//! worker has one of the others and joins.
//!
//! Each worker has two connections. The first one carries what the leader's [`crate::Fleet`] asks of the rank
//! ([`RemoteDevice`] to [`Session::serve`]), the second one the numbers that ranks exchange in the commands of a table. A worker
//! opens the same model and makes the same plan, so that neither weights nor tables are sent.

mod digest;
mod exchange;
mod frame;
mod join;
mod link;
mod message;
mod remote;
mod secret;
mod serve;

use std::time::Duration;

pub use frame::FrameError;
pub use join::{Join, Leader, join};
pub use link::Session;
pub use remote::RemoteDevice;
pub use secret::{Secret, SecretError};
pub use serve::LoadPlan;

/// Fuzzing: reads a stream of frames as a leader or a worker does, and returns what each message is written as again.
#[cfg(any(fuzzing, test))]
pub use message::read_all;

/// How long ranks wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A rank of which nothing is heard for so long has failed.
    pub patience: Duration,
    /// How often a rank says that it is there. A fraction of the patience.
    pub beat: Duration,
    /// How long the leader waits for all ranks to join, and a worker for the leader.
    pub joining: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            // As long as ranks on GPUs of one machine wait (kernels/ranks.h).
            patience: Duration::from_secs(20),
            beat: Duration::from_secs(4),
            joining: Duration::from_secs(600),
        }
    }
}

/// Why ranks in several processes cannot work together.
#[derive(Debug, thiserror::Error)]
pub enum HostsError {
    #[error("cannot listen on {address}: {reason}")]
    Listen { address: String, reason: String },
    #[error("cannot reach the leader at {address}: {reason}")]
    Connect { address: String, reason: String },
    #[error(
        "{address} can be reached from other machines, so workers have to prove that they know a secret; \
         set AKUNU_WORKER_SECRET or --secret-file, or use a loopback address"
    )]
    NoSecret { address: String },
    #[error("a world of {ranks} was asked for; it must be from 2 to {most}")]
    Ranks { ranks: usize, most: usize },
    #[error("rank {rank} was asked for; the ranks of workers are 1 to {last}")]
    Rank { rank: usize, last: usize },
    #[error("the leader at {address} refuses this worker: {reason}")]
    Refused { address: String, reason: String },
    #[error("{address} does not answer as a leader: {reason}")]
    NoLeader { address: String, reason: String },
    #[error("{address} does not know the secret, so it is not the leader of this worker")]
    Impostor { address: String },
    #[error("after {seconds} seconds, rank {missing} of {ranks} has not joined; start the other workers too")]
    Missing { missing: usize, ranks: usize, seconds: u64 },
    #[error("{0}")]
    Lost(String),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// The most ranks of a model.
pub const MOST_RANKS: usize = 16;

#[cfg(test)]
mod testing {
    use std::time::Duration;

    use super::{Join, Leader, Secret, Session, Timing, join};

    pub(crate) const SECRET: &str = "a secret of these tests";

    /// Of ranks that wait for so long.
    pub(crate) fn patient(patience: Duration) -> Timing {
        Timing { patience, beat: patience / 4, joining: Duration::from_secs(20) }
    }

    pub(crate) const USUAL: Duration = Duration::from_secs(20);

    pub(crate) fn as_worker(leader: &Leader, rank: usize, ranks: usize, timing: Timing) -> Join {
        let secret = Some(Secret::new(SECRET));
        Join { address: leader.address().to_string(), rank, ranks, secret, timing }
    }

    pub(crate) fn listen(ranks: usize, timing: Timing) -> Leader {
        Leader::listen("127.0.0.1:0", ranks, Some(&Secret::new(SECRET)), timing).unwrap()
    }

    /// The sessions of a leader, and those of its workers.
    pub(crate) fn joined(ranks: usize, leader: Timing, worker: Timing) -> (Vec<Session>, Vec<Session>) {
        let listening = listen(ranks, leader);
        let workers = (1..ranks).map(|rank| {
            let as_worker = as_worker(&listening, rank, ranks, worker);
            std::thread::spawn(move || join(&as_worker).unwrap())
        });
        let workers: Vec<_> = workers.collect();
        let sessions = listening.wait(b"for all", &|_| {}).unwrap();
        (sessions, workers.into_iter().map(|worker| worker.join().unwrap()).collect())
    }
}
