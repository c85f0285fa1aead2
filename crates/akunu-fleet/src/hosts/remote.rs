//! The device of a rank in another process.

use std::sync::Arc;
use std::time::Duration;

use akunu_arch::WeightProvider;
use akunu_format::Region;
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::{
    Capabilities, Cut, Device, DeviceBuffer, DeviceError, DispatchTable, Member, ModelPlan, Outcome,
    ReplayId, Strips, Submission,
};

use super::link::{Session, said};
use super::message::{Reply, Request, UPLOAD_BYTES, Work};
use super::{HostsError, digest, exchange};
use crate::is_cancelled;

const NAME: &str = "worker";
/// How long a worker may take to end.
const ENDING: Duration = Duration::from_secs(2);

/// Passes on to a worker what is asked of the device of its rank. What needs no answer is not waited for: an error ends
/// the connection, and the next call that has an answer says why.
#[derive(Debug)]
pub struct RemoteDevice {
    session: Session,
    capabilities: Capabilities,
    /// Between [`Device::begin_load`] and [`Device::end_load`].
    is_loading: bool,
    buffers: u32,
    replays: u32,
}

fn failed(message: String) -> DeviceError {
    DeviceError::Failed { device: NAME, message }
}

impl From<HostsError> for DeviceError {
    fn from(error: HostsError) -> DeviceError {
        failed(error.to_string())
    }
}

impl RemoteDevice {
    /// The members of the group of a leader and its workers, of which the first one is for the device of this process.
    pub fn members(sessions: &[Session], threads: usize) -> Result<Vec<Member>, HostsError> {
        let members = akunu_plan::Group::remote(sessions.len() + 1, threads, exchange::of_leader(sessions)?);
        for session in sessions {
            let member = members[0].clone();
            session.link.watch().on_lost(Box::new(move |reason| member.fail(reason.to_string())));
            let data = session.data.try_clone().map_err(super::FrameError::from)?;
            members[0].on_break(Box::new(move || exchange::close(&data)));
        }
        Ok(members)
    }

    pub fn new(session: Session) -> RemoteDevice {
        let capabilities = Capabilities {
            name: NAME,
            detail: format!("rank {} of {}", session.rank, session.ranks),
            ranks: session.ranks,
            ..ReferenceDevice::new().capabilities().clone()
        };
        RemoteDevice { session, capabilities, is_loading: false, buffers: 0, replays: 0 }
    }

    fn send(&self, request: &Request<'_>) -> Result<(), DeviceError> {
        Ok(self.session.link.send(&request.frame())?)
    }

    /// Sends a request, and reads its reply.
    fn ask<T>(
        &self,
        request: &Request<'_>,
        read: impl FnOnce(Reply<'_>) -> Option<Result<T, DeviceError>>,
    ) -> Result<T, DeviceError> {
        self.send(request)?;
        self.answer(read)
    }

    fn answer<T>(
        &self,
        read: impl FnOnce(Reply<'_>) -> Option<Result<T, DeviceError>>,
    ) -> Result<T, DeviceError> {
        let frame = self.session.link.receive()?;
        let unexpected = || failed("it gives an answer to another question".into());
        let reply = Reply::read(&frame).map_err(|error| failed(error.to_string()))?;
        read(reply).unwrap_or_else(|| Err(unexpected()))
    }

    /// A buffer that the worker's device has made too.
    fn next_buffer(&mut self) -> Result<DeviceBuffer, DeviceError> {
        if !self.is_loading {
            return Err(failed("it makes the buffers of a plan only".into()));
        }
        self.buffers += 1;
        Ok(DeviceBuffer(self.buffers - 1))
    }
}

fn done(reply: Reply<'_>) -> Option<Result<(), DeviceError>> {
    (reply == Reply::Done).then_some(Ok(()))
}

fn work(submission: &Submission<'_>) -> Work {
    Work::of(submission, is_cancelled(submission))
}

impl Device for RemoteDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn rank(&self) -> usize {
        self.session.rank
    }

    /// Returns when the worker has found that it has the same model and the same plan, and begins to load.
    fn begin_load(&mut self, plan: &ModelPlan, weights: &dyn WeightProvider) -> Result<(), DeviceError> {
        self.is_loading = true;
        let model = digest::model(weights);
        let request = Request::Load {
            options: plan.options.clone(),
            model: model.iter().map(|entry| entry.digest).collect(),
            plan: digest::plan(plan),
        };
        self.ask(&request, |reply| match reply {
            Reply::Done => Some(Ok(())),
            Reply::OtherModel { entry, found } => {
                let own = model.get(entry).map_or("nothing more", |entry| entry.text.as_str());
                let contents = if found == own { ", with other contents" } else { "" };
                let (own, found) = match entry {
                    digest::CONFIG => digest::differing_value(own, found),
                    _ => (own.to_string(), found.to_string()),
                };
                let found = said(&found);
                Some(Err(failed(format!(
                    "it has another model: where this process has {own}, it has {found}{contents}"
                ))))
            }
            _ => None,
        })
    }

    fn end_load(&mut self) -> Result<(), DeviceError> {
        self.is_loading = false;
        self.answer(done)
    }

    fn allocate(&mut self, _what: &str, _bytes: u64) -> Result<DeviceBuffer, DeviceError> {
        self.next_buffer()
    }

    fn import(
        &mut self,
        _region: &Region,
        _offset: usize,
        _bytes: usize,
    ) -> Result<DeviceBuffer, DeviceError> {
        self.next_buffer()
    }

    fn import_cut(
        &mut self,
        _region: &Region,
        _offset: usize,
        _bytes: usize,
        _cut: &Cut,
    ) -> Result<DeviceBuffer, DeviceError> {
        self.next_buffer()
    }

    fn upload(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.upload_parts(buffer, offset, bytes, false)
    }

    fn upload_cut(&mut self, buffer: DeviceBuffer, bytes: &[u8], cut: &Cut) -> Result<(), DeviceError> {
        match self.is_loading {
            true => Ok(()),
            false => self.upload(buffer, 0, &cut.part(self.rank(), bytes)),
        }
    }

    fn upload_beside(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.upload_parts(buffer, offset, bytes, true)
    }

    fn download(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let strips = Strips { first: offset, bytes: bytes.len(), pitch: bytes.len() as u64, count: 1 };
        self.download_strips(buffer, strips, bytes)
    }

    fn upload_strips(
        &mut self,
        buffer: DeviceBuffer,
        strips: Strips,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        self.send(&Request::UploadStrips { buffer: buffer.0, strips, bytes })
    }

    fn download_strips(
        &mut self,
        buffer: DeviceBuffer,
        strips: Strips,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        self.ask(&Request::DownloadStrips { buffer: buffer.0, strips }, |reply| match reply {
            Reply::Bytes(found) if found.len() == bytes.len() => {
                bytes.copy_from_slice(found);
                Some(Ok(()))
            }
            _ => None,
        })
    }

    fn prepare(
        &mut self,
        _table: &Arc<DispatchTable>,
        _buffers: &[DeviceBuffer],
    ) -> Result<ReplayId, DeviceError> {
        if !self.is_loading {
            return Err(failed("it prepares the tables of a plan only".into()));
        }
        self.replays += 1;
        Ok(ReplayId(self.replays - 1))
    }

    fn replay(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        self.send(&Request::Replay { replay: replay.0, work: work(&submission) })
    }

    fn follow(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        self.send(&Request::Follow { replay: replay.0, work: work(&submission) })
    }

    /// It comes as far; the bytes are not those of this rank.
    fn peek(&mut self, buffer: DeviceBuffer, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.send(&Request::Peek { buffer: buffer.0, bytes: bytes.len() })
    }

    fn wait(&mut self) -> Result<Outcome, DeviceError> {
        self.ask(&Request::Wait, |reply| match reply {
            Reply::Steps(steps) => Some(Ok(Outcome { steps })),
            _ => None,
        })
    }

    fn run_range(
        &mut self,
        replay: ReplayId,
        submission: Submission<'_>,
        first: usize,
        count: usize,
    ) -> Result<(), DeviceError> {
        let work = work(&submission);
        self.ask(&Request::RunRange { replay: replay.0, work, first, count }, done)
    }

    fn time_commands(
        &mut self,
        replay: ReplayId,
        submission: Submission<'_>,
        ns: &mut [u64],
    ) -> Result<(), DeviceError> {
        let (work, count) = (work(&submission), ns.len());
        self.ask(&Request::TimeCommands { replay: replay.0, work, count }, done)
    }

    fn allocated_bytes(&self) -> u64 {
        0
    }
}

impl RemoteDevice {
    fn upload_parts(
        &self,
        buffer: DeviceBuffer,
        offset: u64,
        bytes: &[u8],
        is_beside: bool,
    ) -> Result<(), DeviceError> {
        if self.is_loading {
            return Ok(());
        }
        let parts = bytes.chunks(UPLOAD_BYTES).zip((offset..).step_by(UPLOAD_BYTES));
        let mut requests =
            parts.map(|(bytes, offset)| Request::Upload { buffer: buffer.0, offset, is_beside, bytes });
        requests.try_for_each(|request| self.send(&request))
    }
}

impl Drop for RemoteDevice {
    fn drop(&mut self) {
        self.session.link.watch().forget();
        // If the connection is lost, the worker has ended by itself. Otherwise it closes the connection: closed from here,
        // it could be lost together with the request.
        if self.send(&Request::End).is_ok() {
            let _ = self.session.link.watch().reason_within(ENDING);
        }
    }
}
