//! One command with its buffers, which runs on any device.

use std::ops::Range;
use std::sync::Arc;

use akunu_plan::verify::head_dim;
use akunu_plan::{
    Access, BufferId, Content, Device, DeviceBuffer, DispatchCommand, DispatchTable, Entries, EntryBounds,
    Kernel, KvType, Move, MoveBounds, MoveKind, Row, RowBounds, Submission, TableIo,
};

pub const POISON: u8 = 0xff;

/// One command with all its buffers.
#[derive(Clone)]
pub struct Case {
    pub kernel: Kernel,
    pub table: Arc<DispatchTable>,
    /// The initial bytes of every buffer; the first four are those that every table has.
    pub buffers: Vec<Vec<u8>>,
    pub work: Work,
    pub asked: Vec<u32>,
    /// (buffer, type of contents) of each written binding.
    pub written: Vec<(usize, Content)>,
    /// The buffer of keys, in order of positions, with its type and head size.
    pub keys: Option<(usize, KvType, usize)>,
}

/// The rows or moves of a pass.
#[derive(Clone)]
pub enum Work {
    Rows(Vec<Row>),
    Move(Move),
}

impl Work {
    pub fn entries(&self) -> Entries<'_> {
        match self {
            Work::Rows(rows) => Entries::Rows(rows),
            Work::Move(moved) => Entries::Moves(std::slice::from_ref(moved)),
        }
    }
}

pub struct Shape {
    pub work: Work,
    pub asked: Vec<u32>,
    pub bounds: EntryBounds,
}

impl Shape {
    pub fn tokens(rows: Vec<Row>, vocab: u32, context: u32) -> Shape {
        Shape {
            work: Work::Rows(rows),
            asked: vec![],
            bounds: RowBounds::one_sequence(vocab, context).into(),
        }
    }

    /// Rows of sequences of at most `context` positions, which begin at multiples of `alignment` in a cache of
    /// `positions`.
    pub fn sequences(rows: Vec<Row>, context: u32, positions: u32, alignment: u32) -> Shape {
        let bounds = RowBounds { vocab: 1, positions, context, alignment };
        Shape { work: Work::Rows(rows), asked: vec![], bounds: bounds.into() }
    }

    /// A move within a cache of `positions`.
    pub fn moves(moved: Move, kind: MoveKind, positions: u32) -> Shape {
        let bounds = MoveBounds { kind, positions };
        Shape { work: Work::Move(moved), asked: vec![], bounds: bounds.into() }
    }

    /// Rows whose contents do not matter.
    pub fn rows(n: usize) -> Shape {
        Shape::tokens((0..n).map(|i| Row::causal(0, i as u32, 0)).collect(), 1, n as u32)
    }

    pub fn asking(mut self, asked: Vec<u32>) -> Shape {
        self.asked = asked;
        self
    }
}

impl Case {
    /// `data` are the bindings in order, without rows, logit rows and tokens.
    pub fn new<P: bytemuck::NoUninit>(kernel: Kernel, params: P, shape: Shape, data: Vec<Vec<u8>>) -> Case {
        let (rows, asked) = (shape.work.entries().len(), shape.asked.len().max(1));
        let poison = |n| vec![POISON; n];
        let mut buffers =
            vec![poison(rows * shape.bounds.entry_bytes()), poison(asked * 4), poison(asked * 8), vec![]];
        let mut bindings = vec![];
        let mut data = data.into_iter();
        let (mut written, mut keys, mut across) = (vec![], None, None);
        for slot in kernel.bindings() {
            let id = match slot.content {
                Content::Rows(_) if slot.access == Access::Write => {
                    buffers.push(poison(rows * Row::BYTES));
                    across = Some(BufferId(buffers.len() as u32 - 1));
                    buffers.len() - 1
                }
                Content::Rows(_) | Content::Moves(_) => 0,
                Content::U32 if slot.access == Access::Read => 1,
                Content::U32 => 2,
                _ => {
                    buffers.push(data.next().expect("a buffer for each binding"));
                    buffers.len() - 1
                }
            };
            if let Content::Keys(kv) = slot.content {
                keys = Some((id, kv));
            }
            if slot.access != Access::Read {
                written.push((id, slot.content));
            }
            bindings.push(BufferId(id as u32));
        }
        assert!(data.next().is_none());
        let command = DispatchCommand::new(kernel, bindings, params);
        let keys = keys.map(|(id, kv)| (id, kv, head_dim(&command)));
        let table = DispatchTable {
            name: "test",
            commands: vec![command],
            labels: vec!["test".into()],
            rows,
            logit_rows: asked,
            steps: 1,
            io: TableIo { across, ..TableIo::new([0, 1, 2, 3].map(BufferId)) },
            bounds: shape.bounds,
            streams: akunu_plan::Streams::default(),
        };
        Case { kernel, table: Arc::new(table), buffers, work: shape.work, asked: shape.asked, written, keys }
    }

    /// Uploads its buffers to a device, with keys in the device's order.
    pub fn load(&self, device: &mut dyn Device) -> Vec<DeviceBuffer> {
        let keys = device.capabilities().keys;
        let mut load = |(i, bytes): (usize, &Vec<u8>)| {
            let bytes = match self.keys {
                // If there is a partial group of sixteen, the table will be refused.
                Some((buffer, kv, dim)) if buffer == i => {
                    keys.from_positions(kv, dim, bytes).unwrap_or_else(|| bytes.clone())
                }
                _ => bytes.clone(),
            };
            let id = device.allocate("test", bytes.len() as u64).unwrap();
            device.upload(id, 0, &bytes).unwrap();
            id
        };
        self.buffers.iter().enumerate().map(&mut load).collect()
    }

    /// Runs on a device; returns every written buffer completely.
    pub fn run(&self, device: &mut dyn Device) -> Vec<Vec<u8>> {
        let ids = self.load(device);
        let replay = device.prepare(&self.table, &ids).unwrap();
        let entries = self.work.entries();
        let submission = Submission { entries, logit_rows: &self.asked, steps: 1, stop: &[], cancel: None };
        device.replay(replay, submission).unwrap();
        device.wait().unwrap();
        let order = device.capabilities().keys;
        let read = |&(buffer, _): &(usize, Content)| {
            let mut bytes = vec![0; self.buffers[buffer].len()];
            device.download(ids[buffer], 0, &mut bytes).unwrap();
            match self.keys {
                Some((keys, kv, dim)) if keys == buffer => order.to_positions(kv, dim, &bytes).unwrap(),
                _ => bytes,
            }
        };
        self.written.iter().map(read).collect()
    }
}

/// A case for any part of a pass's rows.
pub struct Spec {
    pub name: String,
    pub rows: usize,
    pub build: Box<dyn Fn(Range<usize>) -> Case>,
}

impl Spec {
    pub fn whole(&self) -> Case {
        (self.build)(0..self.rows)
    }
}

pub(crate) fn spec(name: String, rows: usize, build: impl Fn(Range<usize>) -> Case + 'static) -> Spec {
    Spec { name, rows, build: Box::new(build) }
}
