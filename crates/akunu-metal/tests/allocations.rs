//! A replay does not allocate on the heap, apart from what Metal itself does.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::RefCell;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use akunu_arch::open_model;
use akunu_gpu::{Commands, Encoder, Gpu, TableDevice, Tuning};
use akunu_kernels::Function;
use akunu_metal::CHIPS;
use akunu_plan::{
    Capabilities, Device, DeviceError, Entries, InPlace, KvType, PlanOptions, Row, Submission, load, plan,
    unwatched,
};
use akunu_testing::{CountingAllocator, allocations};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// A GPU that counts the calls it receives.
#[derive(Debug)]
struct Tally {
    capabilities: Capabilities,
    tuning: Tuning,
    dispatches: usize,
}

#[derive(Debug, Default)]
struct Count {
    dispatches: usize,
    bound: usize,
}

impl Encoder for Count {
    type Pipeline = usize;
    type Buffer = Rc<RefCell<Vec<u8>>>;

    fn pipeline(&mut self, _: &usize) {}

    fn buffers(&mut self, buffers: &[Self::Buffer], offsets: &[usize]) {
        assert_eq!(buffers.len(), offsets.len());
        self.bound += buffers.len();
    }

    fn threadgroup(&mut self, _: u32) {}

    fn dispatch(&mut self, _: [u32; 3], _: u32) {
        self.dispatches += 1;
    }

    fn barrier(&mut self) {}
}

impl Commands for Count {
    type Indirect = Count;

    fn run(&mut self, indirect: &Count, dispatches: Range<usize>) {
        assert!(dispatches.end <= indirect.dispatches);
        self.dispatches += dispatches.len();
        self.bound += indirect.bound;
    }
}

impl Gpu for Tally {
    type Buffer = Rc<RefCell<Vec<u8>>>;
    type Pipeline = usize;
    type Commands = Count;
    type Indirect = Count;
    type Pending = usize;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    fn allocate(&mut self, _: &str, bytes: u64) -> Result<Self::Buffer, DeviceError> {
        Ok(Rc::new(RefCell::new(vec![0; bytes as usize])))
    }

    fn write(&mut self, buffer: &Self::Buffer, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        buffer.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, buffer: &Self::Buffer, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        bytes.copy_from_slice(&buffer.borrow()[offset..offset + bytes.len()]);
        Ok(())
    }

    fn copy(&mut self, _: &Self::Buffer, _: &Self::Buffer, _: u64) -> Result<(), DeviceError> {
        unreachable!("weights go elsewhere")
    }

    fn pipelines(&mut self, functions: &[&Function]) -> Result<Vec<usize>, DeviceError> {
        Ok((0..functions.len()).collect())
    }

    fn indirect(&mut self, _: usize, _: usize) -> Result<Count, DeviceError> {
        Ok(Count::default())
    }

    fn begin(&mut self) -> Result<Count, DeviceError> {
        Ok(Count::default())
    }

    fn submit(&mut self, commands: Count, _followed: bool) -> Result<usize, DeviceError> {
        assert!(commands.bound > 3 * commands.dispatches);
        Ok(commands.dispatches)
    }

    fn finish(&mut self, dispatches: usize) -> Result<u64, DeviceError> {
        self.dispatches += dispatches;
        Ok(0)
    }
}

fn main() {
    for indirect in [false, true] {
        replays_allocate_nothing(indirect);
    }
}

fn replays_allocate_nothing(indirect: bool) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let model = open_model(&root.join("crates/akunu/embedded/akunu-tales.gguf")).unwrap();
    let (_, chip) = CHIPS[0];
    let capabilities =
        Capabilities { name: "tally", in_place: InPlace::Nothing, ..chip.capabilities(String::new()) };
    let tally = Tally { capabilities, tuning: Tuning { indirect, ..chip.tuning() }, dispatches: 0 };
    let mut device = TableDevice::on(tally).unwrap();
    let options = PlanOptions {
        context: 128,
        slots: 1,
        kv: KvType::F16,
        kv_bytes: None,
        prefill_rows: 128,
        prefill_logit_rows: 1,
        chain: chip.row().chain,
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
    let rows: Vec<Row> = (0..100).map(|i| Row::causal(i, i, 0)).collect();
    let before = allocations();
    let dispatched = device.gpu().dispatches;
    for (replay, rows, steps) in [
        (*loaded.replays.prefill(), &rows[..], 1),
        (*loaded.replays.prefill(), &rows[..9], 1),
        (*loaded.replays.decode(), &rows[..1], 1),
        (*loaded.replays.decode(), &rows[..1], 2),
        (*loaded.replays.decode(), &rows[..1], 64),
        (*loaded.replays.decode(), &rows[..1], 64),
        (*loaded.replays.decode(), &rows[..1], 5),
    ] {
        let last = [rows.len() as u32 - 1];
        let submission = Submission {
            entries: Entries::Rows(rows),
            logit_rows: &last,
            steps,
            stop: &[0, 1],
            cancel: None,
        };
        device.replay(replay, submission).unwrap();
        device.wait().unwrap();
    }
    let allocated = allocations() - before;
    let steps = device.gpu().dispatches - dispatched;
    assert!(steps > 136 * plan.tables.decode().commands.len(), "{steps}");
    assert_eq!(allocated, 0, "replays allocate");
}
