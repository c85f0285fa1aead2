//! The pool under stress: many short submissions, more threads than cores, chains, cancelling, idling.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::cpu;
use akunu_cpu::{CpuDevice, CpuOptions, Isa};
use akunu_device_testing::f32s;
use akunu_plan::ops::{self, ArgmaxParams, EmbedParams, MatmulParams};
use akunu_plan::{
    BufferId, DType, Device, DeviceBuffer, DeviceError, DispatchCommand, DispatchTable, Entries, Kernel,
    MatmulForm, Outcome, ReplayId, Row, RowBounds, Submission, TableIo,
};

const VOCAB: usize = 40;
const STEPS: usize = 32;

/// Token t is followed by t + 1: an embedding that is the identity, and an output that shifts by one.
struct Counter {
    device: CpuDevice,
    replay: ReplayId,
    buffers: Vec<DeviceBuffer>,
}

impl Counter {
    fn new(threads: usize) -> Counter {
        let mut device = cpu(*Isa::available().last().unwrap(), threads);
        let one = |from: usize, to: usize| if from == to { 1.0 } else { 0.0 };
        let square = |shift: usize| -> Vec<f32> {
            let cells = (0..VOCAB).flat_map(|o| (0..VOCAB).map(move |i| one((i + shift) % VOCAB, o)));
            cells.collect()
        };
        let contents = [
            vec![0; Row::BYTES],
            vec![0; 4],
            vec![0; (STEPS + 1) * 4],
            vec![0; VOCAB * 4],
            f32s(&square(0)),
            vec![0; VOCAB * 4],
            f32s(&square(1)),
        ];
        let mut buffers = vec![];
        for bytes in contents {
            let id = device.allocate("test", bytes.len() as u64).unwrap();
            device.upload(id, 0, &bytes).unwrap();
            buffers.push(id);
        }
        let vocab = VOCAB as u32;
        let matmul = Kernel::Matmul(ops::Matmul::plain(DType::F32, MatmulForm::Gemv));
        let params =
            MatmulParams { inputs: vocab, outputs: vocab, out_stride: vocab, soft_cap: 0.0, epsilon: 0.0 };
        let commands = vec![
            DispatchCommand::new(
                Kernel::Embed(ops::Embed { weight: DType::F32, part: false }),
                [4, 0, 5].map(BufferId),
                EmbedParams { cols: vocab, vocab, scale: 1.0 },
            ),
            DispatchCommand::new(matmul, [5, 6, 3].map(BufferId), params),
            DispatchCommand::new(
                Kernel::Argmax(ops::Argmax),
                [3, 2, 0, 1].map(BufferId),
                ArgmaxParams { vocab, advance: 1 },
            ),
        ];
        let table = DispatchTable {
            name: "counter",
            labels: vec!["c".into(); commands.len()],
            commands,
            rows: 1,
            logit_rows: 1,
            steps: STEPS,
            io: TableIo::new([0, 1, 2, 3].map(BufferId)),
            bounds: RowBounds::one_sequence(vocab, 1000).into(),
            streams: akunu_plan::Streams::default(),
        };
        let replay = device.prepare(&Arc::new(table), &buffers).unwrap();
        Counter { device, replay, buffers }
    }

    fn submit(&mut self, token: u32, steps: usize, stop: &[u32], cancel: Option<&AtomicBool>) -> Outcome {
        let rows = [Row::causal(token, 3, 0)];
        let submission = Submission { entries: Entries::Rows(&rows), logit_rows: &[0], steps, stop, cancel };
        self.device.replay(self.replay, submission).unwrap();
        self.device.wait().unwrap()
    }

    fn tokens(&mut self, steps: usize) -> Vec<u32> {
        let mut bytes = vec![0; (STEPS + 1) * 4];
        self.device.download(self.buffers[2], 0, &mut bytes).unwrap();
        bytes[4..4 + steps * 4].chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

#[test]
fn chains_follow_their_own_tokens_stop_and_cancel() {
    for threads in [1, 2, 5] {
        let mut counter = Counter::new(threads);
        assert_eq!(counter.submit(7, 5, &[], None), Outcome { steps: 5 });
        assert_eq!(counter.tokens(5), [8, 9, 10, 11, 12]);
        assert_eq!(counter.submit(7, 32, &[99, 10], None), Outcome { steps: 3 });
        assert_eq!(counter.submit(38, 4, &[], None).steps, 4);
        assert_eq!(counter.tokens(4), [39, 0, 1, 2]);
        let cancelled = AtomicBool::new(true);
        assert_eq!(counter.submit(1, 4, &[], Some(&cancelled)), Outcome { steps: 0 });
    }
}

#[test]
fn a_nan_ends_the_chain_and_is_reported() {
    let mut counter = Counter::new(2);
    // Token 5's embedding.
    let (buffer, at) = (counter.buffers[4], (5 * VOCAB + 2) as u64 * 4);
    counter.device.upload(buffer, at, &f32::NAN.to_le_bytes()).unwrap();
    assert_eq!(counter.submit(3, 10, &[], None), Outcome { steps: 3 });
    assert_eq!(counter.tokens(3), [4, 5, u32::MAX]);
    // The row stays where it was.
    let mut row = [0; Row::BYTES];
    let rows = counter.buffers[0];
    counter.device.download(rows, 0, &mut row).unwrap();
    assert_eq!(u32::from_le_bytes(row[..4].try_into().unwrap()), 5);
}

#[test]
fn thousands_of_submissions_with_any_number_of_threads() {
    for threads in [1, 2, 3, 8, 17] {
        let mut counter = Counter::new(threads);
        let start = Instant::now();
        for i in 0..3000 {
            let token = i % 30;
            let steps = 1 + i as usize % 3;
            assert_eq!(counter.submit(token, steps, &[], None).steps, steps);
            assert_eq!(counter.tokens(1), [token + 1]);
            if start.elapsed() > Duration::from_secs(20) {
                break;
            }
        }
    }
}

/// The CPU time of this process in seconds.
#[cfg(target_os = "linux")]
fn processor_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

/// In a separate process, because the CPU time of the whole process is measured.
#[test]
#[cfg(target_os = "linux")]
fn an_idle_pool_uses_no_processor() {
    if std::env::var_os("AKUNU_IDLE_TEST").is_some() {
        let mut counters: Vec<Counter> = (0..4).map(|_| Counter::new(4)).collect();
        counters.iter_mut().for_each(|c| assert_eq!(c.submit(1, 2, &[], None).steps, 2));
        std::thread::sleep(Duration::from_millis(100));
        let before = processor_time();
        std::thread::sleep(Duration::from_millis(500));
        assert!(processor_time() - before < 0.05);
        return;
    }
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["pool::an_idle_pool_uses_no_processor", "--exact"])
        .env("AKUNU_IDLE_TEST", "1")
        .stdout(std::process::Stdio::null())
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn what_a_submission_may_not_say_is_refused() {
    let mut counter = Counter::new(2);
    let mut refused = |rows: &[Row], asked: &[u32], steps: usize| {
        let submission =
            Submission { entries: Entries::Rows(rows), logit_rows: asked, steps, stop: &[], cancel: None };
        counter.device.replay(counter.replay, submission).unwrap_err()
    };
    let row = Row::causal(1, 3, 0);
    for (bad, steps) in [
        (Row { token: VOCAB as u32, ..row }, 1),
        (Row { start: 997, ..row }, 1),
        (Row::causal(1, 1000, 0), 1),
        (Row::causal(1, 990, 0), 11),
        (Row { kv_len: 0, ..row }, 1),
    ] {
        assert!(matches!(refused(&[bad], &[0], steps), DeviceError::BadRow { .. }), "{bad:?}");
    }
    for (rows, asked, steps) in [
        (&[row, row][..], &[0_u32][..], 1),
        (&[row], &[1], 1),
        (&[row], &[0, 0], 1),
        (&[row], &[0], 0),
        (&[row], &[0], STEPS + 1),
    ] {
        assert!(matches!(refused(rows, asked, steps), DeviceError::BadSubmission { .. }));
    }
    assert_eq!(counter.submit(1, 1, &[], None).steps, 1);
}

#[test]
fn options_out_of_range_are_refused() {
    for threads in [0, 100_000] {
        let error =
            CpuDevice::new(CpuOptions { threads: Some(threads), ..CpuOptions::default() }).unwrap_err();
        assert!(error.to_string().contains("threads"), "{error}");
    }
    for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
        let error = CpuDevice::new(CpuOptions { threads: Some(1), isa: Some(isa), ..CpuOptions::default() })
            .unwrap_err();
        assert!(error.to_string().contains(isa.name()), "{error}");
    }
}

#[test]
fn allocated_bytes_are_the_workspace_and_the_buffers() {
    let mut device = cpu(Isa::Scalar, 3);
    let workspace = device.capabilities().workspace_bytes;
    assert_eq!(device.allocated_bytes(), workspace);
    device.allocate("test", 1001).unwrap();
    let region = akunu_format::Region::from_vec(vec![0; 64]);
    device.import(&region, 10, 50).unwrap();
    assert_eq!(device.allocated_bytes(), workspace + 1001);
    assert!(matches!(device.import(&region, 10, 55), Err(DeviceError::OutOfBounds { .. })));
}

#[test]
fn work_of_the_host_runs_once_for_each_part() {
    for threads in [1, 3] {
        let mut device = cpu(*Isa::available().last().unwrap(), threads);
        let bytes: Vec<u8> = (0..=255).collect();
        let id = device.allocate("test", 256).unwrap();
        device.upload(id, 0, &bytes).unwrap();
        let found: Vec<AtomicU32> = (0..100).map(|_| AtomicU32::new(0)).collect();
        let work = |part: usize, all: &[u8]| {
            assert_eq!(all, bytes);
            found[part].fetch_add(u32::from(all[part]) + 1, Ordering::Relaxed);
        };
        assert!(device.on_threads(id, 100, &work).unwrap());
        let found = found.iter().map(|found| found.load(Ordering::Relaxed));
        assert!(found.eq(1..=100), "{threads} threads");
        assert!(device.on_threads(id, 0, &|_, _| panic!("there is no part")).unwrap());
        let panicked = device.on_threads(id, 10, &|part, _| assert!(part != 7));
        assert!(matches!(panicked, Err(DeviceError::Failed { .. })), "{panicked:?}");
        assert!(device.on_threads(id, 10, &|_, _| {}).unwrap());
        assert!(device.on_threads(DeviceBuffer(9), 1, &|_, _| {}).is_err());
    }
}

/// Large copies are made on all threads, of which none may take another's bytes.
#[test]
fn copies_of_any_size_arrive_whole() {
    for threads in [1, 3] {
        let mut device = cpu(*Isa::available().last().unwrap(), threads);
        let all = (5 << 20) + 7;
        let buffer = device.allocate("test", all as u64).unwrap();
        for (offset, len) in [(0, all), (3, (1 << 20) - 1), (11, 1 << 20), (64, (2 << 20) + 5)] {
            let sent: Vec<u8> = (0..len).map(|i| (i * 31 + i / 251 + offset) as u8).collect();
            device.upload(buffer, offset as u64, &sent).unwrap();
            let mut found = vec![0; len];
            device.download(buffer, offset as u64, &mut found).unwrap();
            assert!(found == sent, "{len} bytes at {offset} with {threads} threads");
        }
        assert!(device.upload(buffer, 8, &vec![0; all]).is_err());
    }
}
