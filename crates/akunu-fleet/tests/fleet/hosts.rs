//! Ranks that are connected over TCP, as those of several processes are, here in threads of one.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use akunu_arch::{WeightProvider, open_model};
use akunu_device_testing::{FailingDevice, goldens};
use akunu_fleet::Fleet;
use akunu_fleet::hosts::{HostsError, Join, Leader, RemoteDevice, Session, Timing, join};
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::{Device, Entries, KvType, Member, OnHost, PassKind, PlanOptions, Row, Submission};

use crate::common::{cpu, cpus, references};

type Open = fn(Member) -> Box<dyn Device>;

fn reference(member: Member) -> Box<dyn Device> {
    Box::new(ReferenceDevice::new().in_group(member))
}

fn cpu_of_two(member: Member) -> Box<dyn Device> {
    Box::new(cpu(2).in_group(member))
}

fn model(name: &str) -> Box<dyn WeightProvider> {
    open_model(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name)).unwrap()
}

struct Hosts {
    fleet: Box<dyn Device>,
    workers: Vec<JoinHandle<Result<(), HostsError>>>,
}

/// A leader, and a worker for each of these devices, with the models of these names.
fn hosts(leader: (Open, usize), workers: &[(Open, &'static str)]) -> Hosts {
    let timing = Timing { beat: Duration::from_millis(50), ..Timing::default() };
    let ranks = workers.len() + 1;
    let listening = Leader::listen("127.0.0.1:0", ranks, None, timing).unwrap();
    let address = listening.address().to_string();
    let (open_own, threads) = leader;
    let start = |(rank, &(open, name)): (usize, &(Open, &'static str))| {
        let as_worker = Join { address: address.clone(), rank, ranks, secret: None, timing };
        std::thread::spawn(move || {
            let session = join(&as_worker)?;
            let member = session.member(threads)?;
            let mut device = open(member.clone());
            session.serve(&*model(name), &mut *device, &member, &|_, _| Ok(()))
        })
    };
    let started: Vec<_> = (1..).zip(workers).map(start).collect();
    let sessions = listening.wait(&[], &|_| {}).unwrap();
    let members = RemoteDevice::members(&sessions, threads).unwrap();
    let sessions: Mutex<Vec<Option<Session>>> = Mutex::new(sessions.into_iter().map(Some).collect());
    let open = move |member: Member| -> Result<Box<dyn Device>, _> {
        Ok(match member.rank() {
            0 => open_own(member),
            rank => {
                let session = sessions.lock().unwrap()[rank - 1].take().unwrap();
                Box::new(RemoteDevice::new(session))
            }
        })
    };
    Hosts { fleet: Box::new(Fleet::open(members, Arc::new(open)).unwrap()), workers: started }
}

impl Hosts {
    /// How each worker has ended, once the leader needs them no more.
    fn end(self) -> Vec<Result<(), String>> {
        drop(self.fleet);
        let ended = self.workers.into_iter().map(|worker| worker.join().unwrap());
        ended.map(|ended| ended.map_err(|error| error.to_string())).collect()
    }
}

fn logits(name: &str, device: &mut dyn Device) -> Vec<u32> {
    let ids: Vec<u32> = (1..24).collect();
    let pass = (7, KvType::F16, OnHost::default());
    let logits = goldens::logits(&*model(name), device, &ids, pass).unwrap().concat();
    logits.into_iter().map(f32::to_bits).collect()
}

#[test]
fn ranks_of_several_processes_compute_the_bits_of_ranks_in_one() {
    for (name, ranks) in [("llama-hd64-gqa2", 2), ("qwen2-moe-shared", 3)] {
        let kinds: [(Open, usize, Box<dyn Device>); 2] =
            [(reference, 1, references(ranks)), (cpu_of_two, 2, cpus(ranks, 2))];
        for (open, threads, mut together) in kinds {
            let mut hosts = hosts((open, threads), &vec![(open, name); ranks - 1]);
            assert!(logits(name, &mut *hosts.fleet) == logits(name, &mut *together), "{name}");
            assert!(hosts.fleet.health().reason().is_none());
            assert_eq!(hosts.end(), vec![Ok(()); ranks - 1]);
        }
    }
}

fn load(name: &str, device: &mut dyn Device) -> String {
    let options = PlanOptions { slots: 2, ..goldens::options(64, 8, KvType::F32, OnHost::default()) };
    let model = model(name);
    let plan = akunu_plan::plan(&*model, device.capabilities(), &options).unwrap();
    match akunu_plan::load(&plan, &*model, device, &mut akunu_plan::unwatched) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn another_model_or_device_of_a_worker_is_refused() {
    let name = "llama-hd64-gqa2";
    let mut other_model = hosts((reference, 1), &[(reference, "llama-hd80-mha-linear")]);
    let refused = load(name, &mut *other_model.fleet);
    assert!(refused.contains("rank 1 of 2 failed") && refused.contains("it has another model"), "{refused}");
    assert!(other_model.fleet.health().reason().is_some());
    let ended = other_model.end();
    assert!(ended[0].as_ref().unwrap_err().contains("the leader has another model"), "{ended:?}");

    let mut other_device = hosts((reference, 1), &[(cpu_of_two, name)]);
    let refused = load(name, &mut *other_device.fleet);
    assert!(refused.contains("rank 1 of 2 failed: its plan differs from the leader's in"), "{refused}");
    assert!(other_device.end()[0].is_err());
}

fn failing(member: Member) -> Box<dyn Device> {
    let device = FailingDevice::new(reference(member));
    device.failing().store(true, Ordering::Relaxed);
    Box::new(device)
}

fn panicking(member: Member) -> Box<dyn Device> {
    let device = FailingDevice::new(reference(member));
    device.panicking().store(true, Ordering::Relaxed);
    Box::new(device)
}

#[test]
fn a_worker_that_fails_ends_the_submission_with_its_reason() {
    let cases: [(Open, &str); 2] = [
        (failing, "rank 2 of 3 failed: reference: it failed on purpose"),
        (panicking, "rank 2 of 3 failed: it panicked"),
    ];
    for (open, expected) in cases {
        let name = "qwen2-moe-shared";
        let mut hosts = hosts((reference, 1), &[(reference, name), (open, name)]);
        let options = goldens::options(64, 8, KvType::F32, OnHost::default());
        let model = model(name);
        let plan = akunu_plan::plan(&*model, hosts.fleet.capabilities(), &options).unwrap();
        let loaded = akunu_plan::load(&plan, &*model, &mut *hosts.fleet, &mut akunu_plan::unwatched).unwrap();
        let rows = [Row::causal(1, 0, 0)];
        let entries = Entries::Rows(&rows);
        let submission = Submission { entries, logit_rows: &[0], steps: 1, stop: &[], cancel: None };
        let replay = loaded.replays[PassKind::Decode];
        let submitted = hosts.fleet.replay(replay, submission).and_then(|()| hosts.fleet.wait().map(drop));
        let failed = submitted.unwrap_err().to_string();
        assert_eq!(failed, format!("reference: {expected}"));
        assert_eq!(hosts.fleet.health().reason(), Some(expected));
        let later = hosts.fleet.replay(replay, submission).unwrap_err().to_string();
        assert!(later.contains("no longer usable, because") && later.contains(expected), "{later}");
        assert!(hosts.end().iter().all(Result::is_err));
    }
}
