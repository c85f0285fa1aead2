//! The CPU computes routed experts while the device computes what does not need them.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use akunu_arch::open_model;
use akunu_device_testing::goldens;
use akunu_fixtures::Dequantised;
use akunu_fleet::Hybrid;
use akunu_format::Region;
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::{
    Capabilities, Device, DeviceBuffer, DeviceError, DispatchTable, Entries, KvType, OnHost, Outcome,
    ReplayId, Row, Submission,
};

use crate::common::cpu;

/// How long a side waits for the other one.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where both sides meet: each goes on when the other one is at work, too.
#[derive(Debug, Default)]
struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The device has work that was not waited for, and is at it.
    is_submitted: bool,
    is_running: bool,
    /// How often the host has begun beside it.
    met: usize,
}

impl Meeting {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    /// False: it did not come to that in time.
    fn wait_until(&self, is_so: impl Fn(&State) -> bool) -> bool {
        let state = self.state.lock().unwrap();
        let waited = self.changed.wait_timeout_while(state, PATIENCE, |state| !is_so(state));
        is_so(&waited.unwrap().0)
    }
}

#[derive(Debug)]
enum Part {
    /// What follows a submission runs on a thread of its own, which ends only when the host has begun, too. Its results are
    /// there when it is waited for.
    Device {
        running: Option<Running>,
    },
    Host,
}

#[derive(Debug)]
struct Running {
    replay: ReplayId,
    rows: Vec<Row>,
    logit_rows: Vec<u32>,
    thread: JoinHandle<bool>,
}

/// A side of a divided model.
#[derive(Debug)]
struct SideDevice {
    inner: Box<dyn Device>,
    part: Part,
    meeting: Arc<Meeting>,
    takes: Duration,
}

impl SideDevice {
    fn new(inner: Box<dyn Device>, part: Part, meeting: &Arc<Meeting>, takes: Duration) -> Box<SideDevice> {
        Box::new(SideDevice { inner, part, meeting: Arc::clone(meeting), takes })
    }

    fn finish(&mut self) -> Result<(), DeviceError> {
        let Part::Device { running } = &mut self.part else { return Ok(()) };
        let Some(Running { replay, rows, logit_rows, thread }) = running.take() else { return Ok(()) };
        if !thread.join().unwrap() {
            let message = "the host has not begun beside it".into();
            return Err(DeviceError::Failed { device: "side", message });
        }
        let entries = Entries::Rows(&rows);
        let submission = Submission { entries, logit_rows: &logit_rows, steps: 1, stop: &[], cancel: None };
        self.inner.follow(replay, submission)
    }
}

impl Device for SideDevice {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<DeviceBuffer, DeviceError> {
        self.inner.allocate(what, bytes)
    }

    fn import(&mut self, region: &Region, offset: usize, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        self.inner.import(region, offset, bytes)
    }

    fn upload(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.finish()?;
        self.inner.upload(buffer, offset, bytes)
    }

    fn download(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.finish()?;
        self.inner.download(buffer, offset, bytes)
    }

    fn peek(&mut self, buffer: DeviceBuffer, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.download(buffer, 0, bytes)
    }

    fn prepare(
        &mut self,
        table: &Arc<DispatchTable>,
        buffers: &[DeviceBuffer],
    ) -> Result<ReplayId, DeviceError> {
        self.inner.prepare(table, buffers)
    }

    fn replay(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        self.finish()?;
        let is_beside = self.meeting.state.lock().unwrap().is_submitted;
        if matches!(self.part, Part::Host) && is_beside {
            if !self.meeting.wait_until(|state| state.is_running) {
                let message = "the device has not begun beside it".into();
                return Err(DeviceError::Failed { device: "side", message });
            }
            self.meeting.change(|state| state.met += 1);
            std::thread::sleep(self.takes);
        }
        self.inner.replay(replay, submission)
    }

    fn follow(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        self.finish()?;
        let Entries::Rows(rows) = submission.entries else { unreachable!() };
        let (meeting, takes) = (Arc::clone(&self.meeting), self.takes);
        let before = meeting.state.lock().unwrap().met;
        meeting.change(|state| (state.is_submitted, state.is_running) = (true, false));
        let thread = std::thread::spawn(move || {
            meeting.change(|state| state.is_running = true);
            std::thread::sleep(takes);
            let has_met = meeting.wait_until(|state| state.met > before);
            meeting.change(|state| state.is_submitted = false);
            has_met
        });
        let Part::Device { running } = &mut self.part else { unreachable!() };
        *running =
            Some(Running { replay, rows: rows.to_vec(), logit_rows: submission.logit_rows.to_vec(), thread });
        Ok(())
    }

    fn wait(&mut self) -> Result<Outcome, DeviceError> {
        self.finish()?;
        self.inner.wait()
    }

    fn run_range(
        &mut self,
        replay: ReplayId,
        submission: Submission<'_>,
        first: usize,
        count: usize,
    ) -> Result<(), DeviceError> {
        self.finish()?;
        self.inner.run_range(replay, submission, first, count)
    }

    fn allocated_bytes(&self) -> u64 {
        self.inner.allocated_bytes()
    }
}

fn sides(meeting: &Arc<Meeting>, takes: Duration) -> Hybrid {
    let device = Part::Device { running: None };
    let device = SideDevice::new(Box::new(ReferenceDevice::new()), device, meeting, takes);
    Hybrid::new(device, SideDevice::new(Box::new(cpu(1)), Part::Host, meeting, takes))
}

/// Logits of all positions with all experts on the host.
fn logits(name: &str, device: &mut dyn Device, chunk: usize) -> Vec<f32> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name);
    let model = Dequantised::as_stored(&*open_model(&folder).unwrap());
    let ids: Vec<u32> = (1..9).collect();
    let layers = akunu_arch::WeightProvider::config(&model).layer_count;
    let host = OnHost { layers: 0, experts: layers };
    goldens::logits(&model, device, &ids, (chunk, KvType::F32, host)).unwrap().concat()
}

/// Each side goes on only when the other one is at work. Without shared experts, nothing can be computed beside the others; nor
/// for one row, whose experts' last command adds the shared one.
#[test]
fn shared_experts_are_computed_while_the_cpu_computes_the_others() {
    let cases = [
        ("qwen2-moe-shared", true),
        ("deepseek-v3-hd32", true),
        ("glm4-moe", true),
        ("llama4-hd32", true),
        ("hunyuan-moe", true),
        ("ernie4-5-moe", true),
        ("granite-moe-shared", true),
        ("gpt-oss", false),
        ("mixtral", false),
    ];
    for (name, is_shared) in cases {
        for chunk in [1, 2, 4] {
            let is_shared = is_shared && chunk > 1;
            let plain = &mut Hybrid::new(Box::new(ReferenceDevice::new()), Box::new(cpu(1)));
            let expected = logits(name, plain, chunk);
            let meeting = Arc::new(Meeting::default());
            let found = logits(name, &mut sides(&meeting, Duration::ZERO), chunk);
            let same = expected.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same && expected.len() == found.len(), "{name}, {chunk} rows");
            let met = meeting.state.lock().unwrap().met;
            assert_eq!(met >= 8 / chunk, is_shared, "{name}, {chunk} rows: {met} times");
            assert_eq!(met > 0, is_shared, "{name}, {chunk} rows: {met} times");
        }
    }
}

/// Known times on both sides: a pass takes that of the longer one for each layer, and not their sum.
#[test]
fn what_overlaps_takes_the_time_of_one_side() {
    let takes = Duration::from_millis(40);
    let meeting = Arc::new(Meeting::default());
    let start = Instant::now();
    logits("qwen2-moe-shared", &mut sides(&meeting, takes), 2);
    let (took, met) = (start.elapsed(), meeting.state.lock().unwrap().met as u32);
    println!("{met} times {takes:?} on both sides took {took:?}");
    assert!(met > 0 && took < 2 * takes * met, "{met} times {takes:?} on both sides took {took:?}");
}
