//! The device on a discrete GPU that executes nothing: tests the calls that it receives, in order, with CUDA's
//! settings.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use akunu_arch::open_model;
use akunu_gpu::{
    Commands, During, Encoder, Gpu, Recording, Repack, TableDevice, Tuning, WORKSPACE_BYTES, Word,
};
use akunu_kernels::{Chip, Function, Pass};
use akunu_plan::{
    Capabilities, Device, DeviceError, Entries, InPlace, KeyOrder, KvType, Loaded, ModelPlan, PassKind,
    PlanOptions, Row, Submission, load, plan, unwatched,
};

const NAME: &str = "ledger";

#[derive(Debug)]
struct Memory {
    name: String,
    bytes: u64,
    /// Bytes that are allocated.
    held: Rc<Cell<u64>>,
    /// Only what the host reads back is kept.
    pass: RefCell<Pass>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.held.set(self.held.get() - self.bytes);
    }
}

type Handle = Rc<Memory>;

#[derive(Debug)]
struct Ledger {
    capabilities: Capabilities,
    tuning: Tuning,
    asked: Vec<String>,
    held: Rc<Cell<u64>>,
    most_held: u64,
    fails: bool,
}

impl Ledger {
    fn new() -> Ledger {
        Ledger {
            capabilities: Capabilities {
                name: NAME,
                detail: String::new(),
                folds: true,
                half_products: None,
                packed_products: None,
                eight_products: None,
                keys: KeyOrder::PositionMajor,
                block: 16,
                in_place: InPlace::Nothing,
                samples: true,
                chain: 64,
                prefill_rows: 64,
                workspace_bytes: WORKSPACE_BYTES,
                workspace_row_bytes: 0,
                streaming_bytes: 0,
                ranks: 1,
                host: None,
                stages: Vec::new(),
                available_bytes: None,
            },
            tuning: Tuning {
                chip: Chip::plain(132, 200 << 10),
                row_counts: &[16, 32, 64],
                part: 4,
                indirect: true,
                ahead: false,
                checked: false,
                repack: Repack::Back,
                queued_copies: true,
            },
            asked: Vec::new(),
            held: Rc::default(),
            most_held: 0,
            fails: false,
        }
    }
}

#[derive(Debug, Default)]
struct Written(Recording<Function, Handle>);

impl Encoder for Written {
    type Pipeline = Function;
    type Buffer = Handle;

    fn pipeline(&mut self, pipeline: &Function) {
        self.0.pipeline(pipeline);
    }

    fn buffers(&mut self, buffers: &[Handle], offsets: &[usize]) {
        self.0.buffers(buffers, offsets);
    }

    fn threadgroup(&mut self, bytes: u32) {
        self.0.threadgroup(bytes);
    }

    fn dispatch(&mut self, groups: [u32; 3], threads: u32) {
        self.0.dispatch(groups, threads);
    }

    fn barrier(&mut self) {
        self.0.barrier();
    }
}

impl Commands for Written {
    type Indirect = Written;

    fn run(&mut self, indirect: &Written, dispatches: Range<usize>) {
        self.0.run(&indirect.0, dispatches);
    }
}

impl Gpu for Ledger {
    type Buffer = Handle;
    type Pipeline = Function;
    type Commands = Written;
    type Indirect = Written;
    type Pending = ();

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<Handle, DeviceError> {
        self.held.set(self.held.get() + bytes);
        self.most_held = self.most_held.max(self.held.get());
        let (name, held) = (what.to_string(), Rc::clone(&self.held));
        Ok(Rc::new(Memory { name, bytes, held, pass: RefCell::new(bytemuck::Zeroable::zeroed()) }))
    }

    fn write(&mut self, buffer: &Handle, _: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        if buffer.name != "parameters" {
            self.asked.push(format!("write {} of {}", bytes.len(), buffer.name));
        }
        Ok(())
    }

    fn read(&mut self, buffer: &Handle, _: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.asked.push(format!("read {} of {}", bytes.len(), buffer.name));
        bytes.fill(0);
        Ok(())
    }

    fn peek(&mut self, buffer: &Handle, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.asked.push(format!("peek {}", buffer.name));
        bytes.copy_from_slice(&bytemuck::bytes_of(&*buffer.pass.borrow())[..bytes.len()]);
        Ok(())
    }

    fn send(&mut self, writes: [(&Handle, usize, &[u8]); 3]) -> Result<(), DeviceError> {
        let sent: Vec<usize> = writes.iter().map(|(.., bytes)| bytes.len()).collect();
        self.asked.push(format!("send {sent:?}"));
        let mut pass = writes[2].0.pass.borrow_mut();
        *pass = bytemuck::pod_read_unaligned(writes[2].2);
        Ok(())
    }

    fn fetch(&mut self, buffer: &Handle, bytes: usize) -> Result<(), DeviceError> {
        self.asked.push(format!("fetch {bytes} of {}", buffer.name));
        Ok(())
    }

    fn fetched(&mut self, buffer: &Handle, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.asked.push(format!("fetched {}", buffer.name));
        let pass = Pass { step: 1000, ..*buffer.pass.borrow() };
        bytes.copy_from_slice(bytemuck::bytes_of(&pass));
        Ok(())
    }

    fn copy(&mut self, from: &Handle, to: &Handle, bytes: u64) -> Result<(), DeviceError> {
        assert!(bytes <= from.bytes && bytes <= to.bytes);
        self.asked.push(format!("copy {} to {}", from.name, to.name));
        Ok(())
    }

    fn pipelines(&mut self, functions: &[&Function]) -> Result<Vec<Function>, DeviceError> {
        Ok(functions.iter().map(|function| (*function).clone()).collect())
    }

    fn indirect(&mut self, _: usize, _: usize) -> Result<Written, DeviceError> {
        Ok(Written::default())
    }

    fn seal(&mut self, _: &mut Written, table: &str) -> Result<(), DeviceError> {
        self.asked.push(format!("seal {table}"));
        Ok(())
    }

    fn begin(&mut self) -> Result<Written, DeviceError> {
        Ok(Written::default())
    }

    fn submit(&mut self, commands: Written, followed: bool) -> Result<(), DeviceError> {
        let steps = commands.0.0.iter().filter(|word| matches!(word, Word::Run(_))).count();
        let launched = commands.0.0.iter().find_map(|word| match word {
            Word::Pipeline(function) => Some(function.entry),
            _ => None,
        });
        let followed = if followed { ", followed" } else { "" };
        self.asked.push(match launched {
            Some(entry) => format!("submit {entry}{followed}"),
            None => format!("submit {steps} steps{followed}"),
        });
        Ok(())
    }

    fn finish(&mut self, (): ()) -> Result<u64, DeviceError> {
        self.asked.push("finish".into());
        if self.fails {
            return Err(DeviceError::Failed { device: NAME, message: "burnt".into() });
        }
        Ok(0)
    }

    fn settle(&mut self) {
        self.asked.push("settle".into());
    }

    fn context(&self, during: During<'_>) -> String {
        format!("{during:?}")
    }
}

struct Running {
    device: TableDevice<Ledger>,
    plan: ModelPlan,
    loaded: Loaded,
}

impl Running {
    fn new(ledger: Ledger) -> Running {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/gguf/mixed-k.gguf");
        let model = open_model(&path).unwrap();
        let mut device = TableDevice::on(ledger).unwrap();
        let options = PlanOptions {
            context: 64,
            slots: 1,
            kv: KvType::F16,
            kv_bytes: None,
            prefill_rows: 40,
            prefill_logit_rows: 1,
            chain: 24,
            windows: 1,
            beams: 1,
            word_times: false,
            fuse: true,
            keep_inputs: false,
            host: akunu_plan::OnHost::default(),
            stages: Vec::new(),
            stream_rows: None,
        };
        let plan = plan(&*model, device.capabilities(), &options).unwrap();
        let loaded = load(&plan, &*model, &mut device, &mut unwatched).unwrap();
        Running { device, plan, loaded }
    }

    fn asked(&mut self) -> Vec<String> {
        std::mem::take(&mut self.device.gpu_mut().asked)
    }

    fn chain(&mut self, steps: usize) -> Result<usize, DeviceError> {
        let rows = [Row::causal(5, 0, 0)];
        let submission =
            Submission { entries: Entries::Rows(&rows), logit_rows: &[0], steps, stop: &[], cancel: None };
        self.device.replay(*self.loaded.replays.decode(), submission)?;
        Ok(self.device.wait()?.steps)
    }
}

#[test]
fn weights_are_copied_away_and_written_back_one_after_the_other() {
    let mut running = Running::new(Ledger::new());
    let asked = running.asked();
    let copies: Vec<usize> = (0..asked.len()).filter(|&i| asked[i].starts_with("copy ")).collect();
    assert!(copies.len() > 5, "{asked:?}");
    for &at in &copies {
        assert_eq!(asked[at], "copy a weight to laying weights out anew");
        assert_eq!(asked[at + 1], "submit repack");
    }
    // Once per table, not per weight; nothing else waits for the GPU.
    let waits = asked.iter().filter(|asked| *asked == "finish").count();
    assert!(waits < copies.len() && waits <= 4, "{waits} of {}", copies.len());
    // The temporary copy is released. What is left is the plan's memory and 64 bytes of parameters per command.
    let ledger = running.device.gpu();
    let (held, planned) = (ledger.held.get(), running.plan.memory.allocated());
    assert!(held >= planned && held < planned + (1 << 20), "{held} of {planned}");
    assert!(ledger.most_held > held);
    assert_eq!(running.device.allocated_bytes(), planned);
}

#[test]
fn a_chain_is_looked_at_while_two_batches_are_on_their_way() {
    let mut running = Running::new(Ledger::new());
    running.asked();
    assert_eq!(running.chain(18).unwrap(), 18);
    let expected = [
        "send [16, 4, 128]",
        "submit 4 steps, followed",
        "submit 4 steps, followed",
        "finish",
        "peek pass",
        "submit 4 steps, followed",
        "finish",
        "peek pass",
        "submit 4 steps",
        "finish",
        "peek pass",
        "submit 2 steps",
        "fetch 128 of pass",
        "finish",
        "finish",
        "fetched pass",
    ];
    assert_eq!(running.asked(), expected);
    for (steps, submits) in [(1, 1), (4, 1), (5, 2), (8, 2)] {
        assert_eq!(running.chain(steps).unwrap(), steps);
        let asked = running.asked();
        assert_eq!(asked.iter().filter(|asked| asked.starts_with("submit ")).count(), submits);
        // There is no separate wait, but a single step can be waited for alone.
        let followed = asked.iter().filter(|asked| asked.contains("followed")).count();
        assert!(followed == usize::from(steps == 1), "{asked:?}");
        assert!(!asked.iter().any(|asked| asked.contains("peek")), "{asked:?}");
    }
}

#[test]
fn copies_take_their_turn_behind_a_submission_that_is_not_waited_for() {
    let mut running = Running::new(Ledger::new());
    let rows = [Row::causal(5, 0, 0)];
    let submission =
        Submission { entries: Entries::Rows(&rows), logit_rows: &[0], steps: 1, stop: &[], cancel: None };
    running.device.replay(*running.loaded.replays.decode(), submission).unwrap();
    running.asked();
    let some = *running.loaded.buffers.last().unwrap();
    running.device.download(some, 0, &mut [0; 4]).unwrap();
    assert!(running.asked().iter().all(|asked| asked.starts_with("read 4 of ")));
    // If host and GPU share memory, the device waits first.
    running.device.gpu_mut().tuning.queued_copies = false;
    running.device.download(some, 0, &mut [0; 4]).unwrap();
    assert_eq!(running.asked()[..2], ["finish", "fetched pass"]);
}

#[test]
fn a_table_that_follows_is_submitted_and_read_before_without_a_wait_for_it() {
    let mut running = Running::new(Ledger::new());
    let (tables, replays) = (running.plan.tables.clone(), running.loaded.replays.clone());
    let row = Row::causal(5, 0, 0);
    fn submission(row: &Row) -> Submission<'_> {
        let entries = Entries::Rows(std::slice::from_ref(row));
        Submission { entries, logit_rows: &[0], steps: 1, stop: &[], cancel: None }
    }
    let tokens = running.loaded.buffers[tables[PassKind::HeldPick].io.tokens.index()];
    running.device.replay(replays[PassKind::HeldDecode], submission(&row)).unwrap();
    running.asked();
    for _ in 0..2 {
        running.device.follow(replays[PassKind::HeldPick], submission(&row)).unwrap();
        running.device.follow(replays[PassKind::HeldDecode], submission(&row.next(0))).unwrap();
        running.device.peek(tokens, &mut [0; 8]).unwrap();
        let asked = running.asked();
        assert_eq!(asked[..3], ["submit 1 steps, followed", "submit 1 steps, followed", "finish"]);
        assert!(asked.len() == 4 && asked[3].starts_with("peek "), "{asked:?}");
    }
    assert_eq!(running.device.wait().unwrap().steps, 1);
    assert_eq!(running.asked(), ["finish", "fetched pass"]);
    let beyond = Row::causal(5, 1 << 20, 0);
    let refused = running.device.follow(replays[PassKind::HeldDecode], submission(&beyond));
    assert!(matches!(refused, Err(DeviceError::BadRow { .. })), "{refused:?}");
    assert!(running.asked().is_empty());
}

#[test]
fn a_submission_that_is_cancelled_at_once_leaves_nothing_on_its_way() {
    let mut running = Running::new(Ledger::new());
    running.asked();
    let (rows, cancel) = ([Row::causal(5, 0, 0)], std::sync::atomic::AtomicBool::new(true));
    let submission = Submission {
        entries: Entries::Rows(&rows),
        logit_rows: &[0],
        steps: 8,
        stop: &[],
        cancel: Some(&cancel),
    };
    running.device.replay(*running.loaded.replays.decode(), submission).unwrap();
    assert_eq!(running.device.wait().unwrap().steps, 0);
    assert_eq!(running.asked(), ["send [16, 4, 128]", "settle"]);
}

#[test]
fn errors_say_what_was_running() {
    let mut running = Running::new(Ledger::new());
    running.device.gpu_mut().fails = true;
    let told = running.chain(1).unwrap_err().to_string();
    assert_eq!(told, "ledger: Table { table: \"decode\" }: burnt");
    running.device.gpu_mut().tuning.checked = true;
    let told = running.chain(1).unwrap_err().to_string();
    assert!(told.starts_with("ledger: Command { label: \"embed"), "{told}");
}
