//! Several processes that share out a model between them, each with one device.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use akunu_cpu::physical_cores;
use akunu_fleet::Fleet;
use akunu_fleet::hosts::{Join, Leader, RemoteDevice, Secret, Session, Timing, join};
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::{Device, DeviceError, Member, ModelPlan, PlanError};

use super::ranks::boxed;
use super::{DeviceChoice, check_device, cpu};
use crate::engine::check_fits;
use crate::{BackendOptions, Error, Model};

/// The processes that share out a model, of which this one is the leader.
#[derive(Clone, Debug)]
pub struct Hosts {
    /// Including this one.
    pub ranks: usize,
    /// The address at which workers join.
    pub listen: String,
    /// Not needed on a loopback address.
    pub secret: Option<Secret>,
    pub timing: Timing,
    /// Called once workers can join, with the address.
    pub listening: fn(SocketAddr),
    /// Called when a worker that has joined ends while others are waited for, with the reason.
    pub lost: fn(&str),
}

impl PartialEq for Hosts {
    fn eq(&self, other: &Hosts) -> bool {
        let Hosts { ranks, listen, secret, timing, listening: _, lost: _ } = self;
        (ranks, listen, secret, timing) == (&other.ranks, &other.listen, &other.secret, &other.timing)
    }
}

impl Eq for Hosts {}

/// Threads of a process that work on a command and meet.
fn threads_of(choice: DeviceChoice, threads: Option<usize>) -> usize {
    match choice {
        DeviceChoice::Auto | DeviceChoice::Cpu => threads.unwrap_or_else(physical_cores).max(1),
        _ => 1,
    }
}

/// Refuses to wait for workers, which could not run the model.
pub(crate) fn refuse(backends: &BackendOptions) -> Result<(), Error> {
    let reason = "only models that generate text can be shared out between processes";
    match backends.hosts {
        None => Ok(()),
        Some(_) => Err(PlanError::Unsupported(reason.into()).into()),
    }
}

/// Waits for the workers, and opens this process's device and theirs as one.
pub(super) fn open(
    choice: DeviceChoice,
    hosts: &Hosts,
    threads: Option<usize>,
    backends: &BackendOptions,
) -> Result<Box<dyn Device>, Error> {
    check_device(choice, backends)?;
    let token = token(choice, backends)?;
    let leader = Leader::listen(&hosts.listen, hosts.ranks, hosts.secret.as_ref(), hosts.timing)?;
    (hosts.listening)(leader.address());
    let sessions = leader.wait(&token, &hosts.lost)?;
    let members = RemoteDevice::members(&sessions, threads_of(choice, threads))?;
    let sessions: Mutex<Vec<Option<Session>>> = Mutex::new(sessions.into_iter().map(Some).collect());
    let backends = backends.clone();
    let open = move |member: Member| {
        let Some(index) = member.rank().checked_sub(1) else {
            return open_rank(choice, threads, &backends, member, &token);
        };
        let session = sessions.lock().unwrap_or_else(PoisonError::into_inner)[index].take();
        let session = session.ok_or(DeviceError::Cancelled)?;
        boxed(Ok(RemoteDevice::new(session)))
    };
    Ok(Box::new(Fleet::open(members, Arc::new(open))?))
}

/// What the leader gives to all workers before their devices are opened.
fn token(
    choice: DeviceChoice,
    #[cfg_attr(target_vendor = "apple", allow(unused_variables, reason = "nothing here has them"))]
    backends: &BackendOptions,
) -> Result<Vec<u8>, DeviceError> {
    match choice {
        #[cfg(not(target_vendor = "apple"))]
        DeviceChoice::Cuda => Ok(akunu_cuda::rank_token(&backends.cuda)?),
        _ => Ok(Vec::new()),
    }
}

/// The device of this process as one rank.
fn open_rank(
    choice: DeviceChoice,
    threads: Option<usize>,
    backends: &BackendOptions,
    member: Member,
    #[cfg_attr(target_vendor = "apple", allow(unused_variables, reason = "no device here needs it"))]
    token: &[u8],
) -> Result<Box<dyn Device>, DeviceError> {
    match choice {
        DeviceChoice::Reference => boxed(Ok(ReferenceDevice::new().in_group(member))),
        DeviceChoice::Auto | DeviceChoice::Cpu => {
            boxed(cpu(Some(threads_of(choice, threads)), backends).map(|cpu| cpu.in_group(member)))
        }
        #[cfg(not(target_vendor = "apple"))]
        DeviceChoice::Cuda => {
            let card = backends.cards.first().copied().unwrap_or(0);
            boxed(akunu_cuda::open_remote(backends.cuda.clone(), card, &member, token))
        }
        #[cfg(target_vendor = "apple")]
        DeviceChoice::Metal => {
            let message = "several processes cannot share out a model on Apple GPUs".into();
            Err(DeviceError::Failed { device: "metal", message })
        }
    }
}

/// A process that has one of the ranks of another process's model.
#[derive(Debug)]
pub struct Worker {
    session: Session,
    choice: DeviceChoice,
    threads: Option<usize>,
    backends: BackendOptions,
}

impl Worker {
    /// Joins the leader, and waits until it is there.
    pub fn join(
        as_worker: &Join,
        choice: DeviceChoice,
        threads: Option<usize>,
        backends: &BackendOptions,
    ) -> Result<Worker, Error> {
        let choice = choice.resolve(backends);
        check_device(choice, backends)?;
        #[cfg(not(target_vendor = "apple"))]
        if choice == DeviceChoice::Cuda {
            akunu_cuda::probe_remote(&backends.cuda.folders).map_err(DeviceError::from)?;
        }
        Ok(Worker { session: join(as_worker)?, choice, threads, backends: backends.clone() })
    }

    /// Loads this rank's part of the model when the leader asks for it, and computes until the leader needs it no more.
    pub fn work(self, model: &Model) -> Result<(), Error> {
        let Worker { session, choice, threads, backends } = self;
        let member = session.member(threads_of(choice, threads))?;
        let opened = open_rank(choice, threads, &backends, member.clone(), session.token());
        let mut device = opened.inspect_err(|error| session.fail(&error.to_string()))?;
        let check = |plan: &ModelPlan, device: &dyn Device| {
            check_fits(plan, device.capabilities()).map_err(|error| error.to_string())
        };
        Ok(session.serve(model.weights(), &mut *device, &member, &check)?)
    }
}
