//! A worker: does what the leader asks of the device of its rank.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;

use akunu_arch::WeightProvider;
use akunu_plan::{
    Capabilities, Device, DeviceBuffer, DeviceError, Group, Loaded, Member, ModelPlan, PlanOptions, ReplayId,
    Submission, unwatched,
};

use super::digest::{self, Entry};
use super::frame::Frame;
use super::link::Session;
use super::message::{Digests, Reply, Request};
use super::{HostsError, exchange};

/// Checks that a plan can be loaded on a device, and says why not.
pub type LoadPlan = dyn Fn(&ModelPlan, &dyn Device) -> Result<(), String>;

/// What follows a request.
enum Then {
    Next,
    End,
    /// The leader knows why, and ends the connection.
    Refuse(String),
}

struct Worker<'a> {
    session: &'a Session,
    weights: &'a dyn WeightProvider,
    device: &'a mut dyn Device,
    check: &'a LoadPlan,
    model: Vec<Entry>,
    loaded: Option<Loaded>,
}

impl Session {
    /// The place of this worker's device, which works on a command with so many threads.
    pub fn member(&self, threads: usize) -> Result<Member, HostsError> {
        let members = Group::remote(self.ranks, threads, exchange::of_worker(self)?);
        let member = members[self.rank].clone();
        let of_lost = member.clone();
        self.link.watch().on_lost(Box::new(move |reason| of_lost.fail(reason.to_string())));
        let data = self.data.try_clone().map_err(super::FrameError::from)?;
        member.on_break(Box::new(move || exchange::close(&data)));
        Ok(member)
    }

    /// Tells the leader that this worker ends, and why.
    pub fn fail(&self, reason: &str) {
        // If the leader has gone, nobody has to know.
        let _ = self.link.send(&Reply::Failed(reason).frame());
    }

    /// Does what the leader asks until it needs the worker no more. The device is that of the worker's member.
    pub fn serve(
        &self,
        weights: &dyn WeightProvider,
        device: &mut dyn Device,
        member: &Member,
        check: &LoadPlan,
    ) -> Result<(), HostsError> {
        let model = digest::model(weights);
        let mut worker = Worker { session: self, weights, device, check, model, loaded: None };
        loop {
            let frame = self.link.receive()?;
            let done = catch_unwind(AssertUnwindSafe(|| worker.answer(&frame)))
                .unwrap_or_else(|_| Err("it panicked".into()));
            match done {
                Ok(Then::Next) => {}
                Ok(Then::End) => return Ok(()),
                Ok(Then::Refuse(reason)) => {
                    // Whatever comes, or that nothing does: the leader has read the answer then.
                    let _ = self.link.receive();
                    return Err(HostsError::Lost(reason));
                }
                Err(reason) => {
                    // If another rank has failed first, that is the reason.
                    let reason = member.health().reason().unwrap_or(&reason).to_string();
                    self.fail(&reason);
                    member.fail(reason.clone());
                    return Err(HostsError::Lost(reason));
                }
            }
        }
    }
}

fn text(error: DeviceError) -> String {
    error.to_string()
}

impl Worker<'_> {
    fn reply(&self, reply: &Reply<'_>) -> Result<Then, String> {
        self.session.link.send(&reply.frame()).map_err(|error| error.to_string())?;
        Ok(Then::Next)
    }

    fn answer(&mut self, frame: &Frame) -> Result<Then, String> {
        let request = Request::read(frame).map_err(|error| error.to_string())?;
        let ready = |loaded: &Option<Loaded>| {
            loaded.is_some().then_some(()).ok_or_else(|| "no plan was loaded".to_string())
        };
        if !matches!(request, Request::Load { .. } | Request::End) {
            ready(&self.loaded)?;
        }
        let device = &mut *self.device;
        let cancelled = AtomicBool::new(true);
        let next = |()| Then::Next;
        match request {
            Request::Load { options, model, plan } => return self.load(&options, &model, &plan),
            Request::Upload { buffer, offset, is_beside, bytes } => match is_beside {
                true => device.upload_beside(DeviceBuffer(buffer), offset, bytes),
                false => device.upload(DeviceBuffer(buffer), offset, bytes),
            },
            Request::UploadStrips { buffer, strips, bytes } => {
                device.upload_strips(DeviceBuffer(buffer), strips, bytes)
            }
            Request::DownloadStrips { buffer, strips } => {
                let mut bytes = vec![0; strips.all()];
                device.download_strips(DeviceBuffer(buffer), strips, &mut bytes).map_err(text)?;
                return self.reply(&Reply::Bytes(&bytes));
            }
            Request::Replay { replay, work } => {
                let cancel = work.is_cancelled.then_some(&cancelled);
                device.replay(ReplayId(replay), Submission { cancel, ..work.submission() })
            }
            Request::Follow { replay, work } => device.follow(ReplayId(replay), work.submission()),
            Request::Peek { buffer, bytes } => device.peek(DeviceBuffer(buffer), &mut vec![0; bytes]),
            Request::Wait => {
                let steps = device.wait().map_err(text)?.steps;
                return self.reply(&Reply::Steps(steps));
            }
            Request::RunRange { replay, work, first, count } => {
                device.run_range(ReplayId(replay), work.submission(), first, count).map_err(text)?;
                return self.reply(&Reply::Done);
            }
            Request::TimeCommands { replay, work, count } => {
                let mut ns = vec![0; count];
                device.time_commands(ReplayId(replay), work.submission(), &mut ns).map_err(text)?;
                return self.reply(&Reply::Done);
            }
            Request::End => return Ok(Then::End),
        }
        .map(next)
        .map_err(text)
    }

    fn load(&mut self, options: &PlanOptions, model: &[u64], leaders: &Digests) -> Result<Then, String> {
        if self.loaded.is_some() {
            return Err("a plan was loaded already".into());
        }
        if let Some(entry) = digest::first_difference(&self.model, model) {
            let found = self.model.get(entry).map_or("nothing more", |entry| entry.text.as_str());
            self.reply(&Reply::OtherModel { entry, found })?;
            let what = if entry == digest::CONFIG { "its configuration" } else { found };
            return Ok(Then::Refuse(format!("the leader has another model, which differs in {what}")));
        }
        let plan = akunu_plan::plan(self.weights, self.device.capabilities(), options);
        let plan = plan.map_err(|error| error.to_string())?;
        if let Some(part) = digest::differing_part(&digest::plan(&plan), leaders) {
            let Capabilities { name, detail, .. } = self.device.capabilities();
            return Err(format!(
                "its plan differs from the leader's in {part}: it has {name} ({detail}), and all ranks need \
                 devices of one kind"
            ));
        }
        (self.check)(&plan, self.device)?;
        self.reply(&Reply::Done)?;
        self.loaded = Some(akunu_plan::load(&plan, self.weights, self.device, &mut unwatched).map_err(text)?);
        self.reply(&Reply::Done)
    }
}
