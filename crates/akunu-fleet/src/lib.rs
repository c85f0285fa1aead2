//! Several devices that run a model together, and are one device to the engine: a [`Hybrid`] of devices that run some of
//! the commands each, such as a GPU and the host, and a [`Fleet`] of ranks.
//!
//! All ranks have the same plan ([`akunu_plan::Capabilities::ranks`]) and run the same tables at the same time, each with
//! its part of the weights and of the cache. They combine what they have computed in the commands of the tables, so the
//! fleet only passes on what it is asked: to every rank, or to the first one where all ranks have the same.
#![allow(unsafe_code, reason = "threads that outlive a call borrow what they are to do during the call")]

mod crew;
mod devices;
pub mod hosts;
mod hybrid;
mod runs;
mod stages;

pub use hybrid::Hybrid;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use akunu_arch::WeightProvider;
use akunu_format::Region;
use akunu_plan::device::check_submission;
use akunu_plan::{
    Capabilities, Cut, Device, DeviceBuffer, DeviceError, DispatchTable, DriverMemory, Health, Member,
    ModelPlan, Outcome, ReplayId, Strips, Submission,
};

use crew::Crew;

/// Opens the device of a member of a group, on the thread that will use it.
pub type OpenRank = dyn Fn(Member) -> Result<Box<dyn Device>, DeviceError> + Send + Sync;

#[derive(Debug)]
pub struct Fleet {
    capabilities: Capabilities,
    /// The device of the first rank.
    first: Box<dyn Device>,
    crew: Crew,
    members: Arc<[Member]>,
    tables: Vec<Arc<DispatchTable>>,
    /// Something was submitted that was not waited for.
    is_running: bool,
}

impl Fleet {
    /// Opens the devices of all members of a group.
    pub fn open(members: Vec<Member>, open: Arc<OpenRank>) -> Result<Fleet, DeviceError> {
        let members: Arc<[Member]> = members.into();
        // The others only say that they have waited for that rank.
        let first_error = Arc::new(Mutex::new(None::<DeviceError>));
        let of_rank = {
            let (members, first_error) = (Arc::clone(&members), Arc::clone(&first_error));
            move |rank: usize| {
                let member = &members[rank];
                let opened = catch_unwind(AssertUnwindSafe(|| open(member.clone()))).unwrap_or_else(|_| {
                    let message = format!("rank {rank} panicked while it was opened");
                    Err(DeviceError::Failed { device: "ranks", message })
                });
                opened.inspect_err(|error| {
                    if !member.is_broken() {
                        *first_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(copied(error));
                    }
                    member.break_up();
                })
            }
        };
        let of_rank: Arc<crew::Open> = Arc::new(of_rank);
        let opened = Crew::start(members.len(), &of_rank);
        let reason = first_error.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (crew, first) = match (opened, reason) {
            (Err(_), Some(reason)) => return Err(reason),
            (opened, _) => opened?,
        };
        let capabilities = first.capabilities().clone();
        Ok(Fleet { capabilities, first, crew, members, tables: Vec::new(), is_running: false })
    }

    fn name(&self) -> &'static str {
        self.capabilities.name
    }

    /// After a rank has failed, what the others have is no longer the same.
    fn check(&self) -> Result<(), DeviceError> {
        match self.health().reason() {
            None => Ok(()),
            Some(message) => {
                let message = format!("the model is no longer usable, because {message}; load it again");
                Err(DeviceError::Failed { device: self.name(), message })
            }
        }
    }

    /// Calls `work` on all ranks, and returns what it returns on the first one. After an error of any rank the fleet is of
    /// no further use, because the others have done what that one has not.
    fn each<T: Send>(
        &mut self,
        work: impl Fn(usize, &mut dyn Device) -> Result<T, DeviceError> + Sync,
    ) -> Result<T, DeviceError> {
        self.check()?;
        let (of_first, error) = (Mutex::new(None), Mutex::new(None::<(usize, DeviceError)>));
        let (name, members) = (self.name(), &self.members);
        self.crew.run(&mut *self.first, &|rank, device| {
            let result = catch_unwind(AssertUnwindSafe(|| work(rank, device)))
                .unwrap_or_else(|_| Err(DeviceError::Failed { device: name, message: "it panicked".into() }));
            match result {
                Ok(value) if rank == 0 => {
                    *of_first.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
                }
                Ok(_) => {}
                Err(failed) => {
                    // The first one is the reason, and those of ranks that waited for it follow.
                    let mut error = error.lock().unwrap_or_else(PoisonError::into_inner);
                    error.get_or_insert((rank, failed));
                    members[rank].break_up();
                }
            }
        });
        let error = error.into_inner().unwrap_or_else(PoisonError::into_inner);
        let value = of_first.into_inner().unwrap_or_else(PoisonError::into_inner);
        match (error, value) {
            (None, Some(value)) => Ok(value),
            (None, None) => Err(self.lost(0, &DeviceError::Cancelled)),
            (Some((rank, error)), _) => Err(self.lost(rank, &error)),
        }
    }

    fn lost(&mut self, rank: usize, error: &DeviceError) -> DeviceError {
        let health = self.health();
        // A rank in another process may have said it already, and others have failed because of that.
        health.fail(format!("rank {rank} of {} failed: {error}", self.members.len()));
        DeviceError::Failed { device: self.name(), message: health.reason().unwrap_or_default().to_string() }
    }

    fn finish(&mut self) -> Result<(), DeviceError> {
        match self.is_running {
            true => self.wait().map(drop),
            false => self.check(),
        }
    }

    /// The checks that all ranks would make with the same result.
    fn check_replay(&self, replay: ReplayId, submission: &Submission<'_>) -> Result<(), DeviceError> {
        self.check()?;
        match self.tables.get(replay.0 as usize) {
            Some(table) => check_submission(self.name(), table, submission),
            None => {
                let message = "that table was not prepared here".into();
                Err(DeviceError::Failed { device: self.name(), message })
            }
        }
    }
}

fn copied(error: &DeviceError) -> DeviceError {
    match error {
        DeviceError::Failed { device, message } => DeviceError::Failed { device, message: message.clone() },
        other => DeviceError::Failed { device: "ranks", message: other.to_string() },
    }
}

/// Ranks look at a flag at different times, and would no longer do the same.
fn uncancelled<'a>(submission: &Submission<'a>) -> Submission<'a> {
    Submission { cancel: None, ..*submission }
}

fn is_cancelled(submission: &Submission<'_>) -> bool {
    submission.cancel.is_some_and(|cancel: &AtomicBool| cancel.load(Ordering::Relaxed))
}

impl Device for Fleet {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn health(&self) -> Health {
        self.members[0].health().clone()
    }

    fn begin_load(&mut self, plan: &ModelPlan, weights: &dyn WeightProvider) -> Result<(), DeviceError> {
        self.each(|_, device| device.begin_load(plan, weights))
    }

    fn end_load(&mut self) -> Result<(), DeviceError> {
        self.each(|_, device| device.end_load())
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<DeviceBuffer, DeviceError> {
        self.each(|_, device| device.allocate(what, bytes))
    }

    fn import(&mut self, region: &Region, offset: usize, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        // Computed once for all ranks, if it has to be.
        let region = region.for_once();
        self.each(|_, device| device.import(&region, offset, bytes))
    }

    fn import_owned(&mut self, bytes: Vec<u8>) -> Result<DeviceBuffer, DeviceError> {
        self.each(|_, device| device.import_owned(bytes.clone()))
    }

    fn import_cut(
        &mut self,
        region: &Region,
        offset: usize,
        bytes: usize,
        cut: &Cut,
    ) -> Result<DeviceBuffer, DeviceError> {
        let region = region.for_once();
        self.each(|_, device| device.import_cut(&region, offset, bytes, cut))
    }

    fn upload(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.each(|_, device| device.upload(buffer, offset, bytes))
    }

    fn upload_cut(&mut self, buffer: DeviceBuffer, bytes: &[u8], cut: &Cut) -> Result<(), DeviceError> {
        self.each(|_, device| device.upload_cut(buffer, bytes, cut))
    }

    fn upload_beside(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.each(|_, device| device.upload_beside(buffer, offset, bytes))
    }

    /// From the first rank. What was submitted is over on all ranks first: a rank alone does not get to its end.
    fn download(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.finish()?;
        self.first.download(buffer, offset, bytes)
    }

    /// The parts of all ranks, one rank after the other.
    fn upload_strips(
        &mut self,
        buffer: DeviceBuffer,
        strips: Strips,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let of_rank = bytes.len() / self.members.len();
        self.each(|rank, device| device.upload_strips(buffer, strips, &bytes[rank * of_rank..][..of_rank]))
    }

    /// As for [`Fleet::upload_strips`].
    fn download_strips(
        &mut self,
        buffer: DeviceBuffer,
        strips: Strips,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        let of_rank = (bytes.len() / self.members.len()).max(1);
        let parts: Vec<Mutex<&mut [u8]>> = bytes.chunks_mut(of_rank).map(Mutex::new).collect();
        self.each(|rank, device| match parts.get(rank) {
            Some(part) => {
                let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
                device.download_strips(buffer, strips, &mut part)
            }
            None => Ok(()),
        })
    }

    /// A rank that fails meanwhile is found when it prepares the first table.
    fn expect(&mut self, tables: &[&Arc<DispatchTable>]) {
        let _ = self.each(|_, device| {
            device.expect(tables);
            Ok(())
        });
    }

    fn prepare(
        &mut self,
        table: &Arc<DispatchTable>,
        buffers: &[DeviceBuffer],
    ) -> Result<ReplayId, DeviceError> {
        let replay = self.each(|_, device| device.prepare(table, buffers))?;
        self.tables.push(Arc::clone(table));
        Ok(replay)
    }

    fn replay(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        self.check_replay(replay, &submission)?;
        // All ranks see the same: no step is run if it is set before the first one, and all are if it is set later.
        let cancelled = AtomicBool::new(true);
        let cancel = is_cancelled(&submission).then_some(&cancelled);
        let submission = Submission { cancel, ..submission };
        self.is_running = true;
        self.each(|_, device| device.replay(replay, submission))
    }

    fn follow(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        self.check_replay(replay, &submission)?;
        let submission = uncancelled(&submission);
        self.is_running = true;
        self.each(|_, device| device.follow(replay, submission))
    }

    /// From the first rank, but all of them come as far as it does.
    fn peek(&mut self, buffer: DeviceBuffer, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let count = bytes.len();
        let found = Mutex::new(bytes);
        self.each(|rank, device| match rank {
            0 => device.peek(buffer, &mut found.lock().unwrap_or_else(PoisonError::into_inner)),
            _ => device.peek(buffer, &mut vec![0; count]),
        })
    }

    fn on_threads(
        &mut self,
        buffer: DeviceBuffer,
        parts: usize,
        work: &(dyn Fn(usize, &[u8]) + Sync),
    ) -> Result<bool, DeviceError> {
        self.finish()?;
        self.first.on_threads(buffer, parts, work)
    }

    fn wait(&mut self) -> Result<Outcome, DeviceError> {
        self.is_running = false;
        self.each(|_, device| device.wait())
    }

    fn run_range(
        &mut self,
        replay: ReplayId,
        submission: Submission<'_>,
        first: usize,
        count: usize,
    ) -> Result<(), DeviceError> {
        self.check()?;
        let submission = uncancelled(&submission);
        self.each(|_, device| device.run_range(replay, submission, first, count))
    }

    /// Of each command, the time of the slowest rank.
    fn time_commands(
        &mut self,
        replay: ReplayId,
        submission: Submission<'_>,
        ns: &mut [u64],
    ) -> Result<(), DeviceError> {
        let count = ns.len();
        let submission = uncancelled(&submission);
        ns.fill(0);
        let slowest = Mutex::new(ns);
        self.each(|_, device| {
            let mut of_rank = vec![0; count];
            device.time_commands(replay, submission, &mut of_rank)?;
            let mut slowest = slowest.lock().unwrap_or_else(PoisonError::into_inner);
            slowest.iter_mut().zip(of_rank).for_each(|(ns, of_rank)| *ns = of_rank.max(*ns));
            Ok(())
        })
    }

    fn allocated_bytes(&self) -> u64 {
        self.first.allocated_bytes()
    }

    fn driver_memory(&self) -> Result<Option<DriverMemory>, DeviceError> {
        self.first.driver_memory()
    }
}
