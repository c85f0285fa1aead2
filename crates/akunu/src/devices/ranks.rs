//! Several devices that share out a model between them.

use std::sync::Arc;

use akunu_cpu::physical_cores;
use akunu_fleet::{Fleet, Hybrid};
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::{Capabilities, Device, DeviceError, Group, Member};

use super::{DeviceChoice, cpu};
use crate::{BackendOptions, Error};

/// The most ranks of a model.
const MOST_RANKS: usize = 16;

/// How many devices share out a model: as many as there are cards, if these are stated.
pub(super) fn count(backends: &BackendOptions) -> Result<usize, Error> {
    let cards = backends.cards.len();
    let stated = backends.stages.or(backends.ranks);
    if backends.stages.is_some() && backends.ranks.is_some() {
        let (name, value) = ("the number of stages", "given beside a number of ranks".into());
        return Err(Error::Setting { name, value, expected: "one of both" });
    }
    let one_each = stated.is_none() && cards < 2;
    if let Some(hosts) = &backends.hosts {
        let value = || stated.unwrap_or(cards).to_string();
        let refused = || Error::Setting {
            name: "the number of devices of a process",
            value: value(),
            expected: "1, if several processes share out a model",
        };
        return one_each.then_some(hosts.ranks).ok_or_else(refused);
    }
    let mut numbered = backends.cards.iter().enumerate();
    if numbered.any(|(place, card)| backends.cards[..place].contains(card)) {
        let value = backends.cards.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        return Err(Error::Setting { name: "the list of GPUs", value, expected: "of different ones" });
    }
    let ranks = stated.unwrap_or(cards.max(1));
    let name = if backends.stages.is_some() { "the number of stages" } else { "the number of ranks" };
    let refuse = |value, expected| Err(Error::Setting { name, value, expected });
    if !(1..=MOST_RANKS).contains(&ranks) {
        return refuse(ranks.to_string(), "from 1 to 16");
    }
    if cards > 0 && cards != ranks {
        return refuse(format!("{ranks} for {cards} cards"), "one for each card");
    }
    Ok(ranks)
}

/// The card of each rank in this process.
#[cfg(not(target_vendor = "apple"))]
pub(super) fn cards(ranks: usize, backends: &BackendOptions) -> Vec<u32> {
    match backends.cards.is_empty() {
        true => (0..ranks as u32).collect(),
        false => backends.cards.clone(),
    }
}

/// Opens `ranks` devices of one kind as one. CPU threads are those of all ranks together.
pub(super) fn open(
    choice: DeviceChoice,
    ranks: usize,
    threads: Option<usize>,
    backends: &BackendOptions,
) -> Result<Box<dyn Device>, Error> {
    let fleet = match choice {
        DeviceChoice::Reference => Fleet::open(
            Group::members(ranks, 1),
            Arc::new(|member| boxed(Ok(ReferenceDevice::new().in_group(member)))),
        ),
        #[cfg(not(target_vendor = "apple"))]
        DeviceChoice::Cuda => {
            let cards = cards(ranks, backends);
            let options = backends.cuda.clone();
            let open = move |member: Member| boxed(akunu_cuda::open_rank(options.clone(), &cards, &member));
            Fleet::open(Group::members(ranks, 1), Arc::new(open))
        }
        #[cfg(target_vendor = "apple")]
        DeviceChoice::Metal => {
            let message = "one Apple GPU is one device: it cannot be several ranks".into();
            Err(DeviceError::Failed { device: "metal", message })
        }
        DeviceChoice::Auto | DeviceChoice::Cpu => {
            let threads = (threads.unwrap_or_else(physical_cores) / ranks).max(1);
            let backends = backends.clone();
            let open =
                move |member: Member| boxed(cpu(Some(threads), &backends).map(|cpu| cpu.in_group(member)));
            Fleet::open(Group::members(ranks, threads), Arc::new(open))
        }
    };
    Ok(Box::new(fleet?))
}

/// Opens `count` devices of one kind, which have some of the layers each, as one. They take turns, so that each of several
/// CPU devices has all threads.
pub(super) fn open_stages(
    choice: DeviceChoice,
    count: usize,
    threads: Option<usize>,
    backends: &BackendOptions,
) -> Result<Box<dyn Device>, Error> {
    let stages = match choice {
        DeviceChoice::Reference => Hybrid::stages(count, |_| boxed(Ok(ReferenceDevice::new()))),
        #[cfg(not(target_vendor = "apple"))]
        DeviceChoice::Cuda => {
            let (cards, options) = (cards(count, backends), backends.cuda.clone());
            Hybrid::stages(count, move |stage| boxed(akunu_cuda::open(options.clone(), cards[stage])))
        }
        #[cfg(target_vendor = "apple")]
        DeviceChoice::Metal => {
            let message = "one Apple GPU is one device: it cannot be several stages".into();
            Err(DeviceError::Failed { device: "metal", message })
        }
        DeviceChoice::Auto | DeviceChoice::Cpu => {
            let backends = backends.clone();
            Hybrid::stages(count, move |_| boxed(cpu(threads, &backends)))
        }
    };
    Ok(Box::new(stages?))
}

pub(super) fn reference_for(capabilities: &Capabilities) -> Result<Box<dyn Device>, Error> {
    if capabilities.ranks == 1 {
        return Ok(Box::new(ReferenceDevice::like(capabilities)));
    }
    let like = capabilities.clone();
    let open = move |member: Member| boxed(Ok(ReferenceDevice::like(&like).in_group(member)));
    Ok(Box::new(Fleet::open(Group::members(capabilities.ranks, 1), Arc::new(open))?))
}

pub(super) fn boxed<D: Device + 'static>(
    device: Result<D, DeviceError>,
) -> Result<Box<dyn Device>, DeviceError> {
    device.map(|device| Box::new(device) as Box<dyn Device>)
}
