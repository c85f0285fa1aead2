//! Runs a device and the reference over the same tables, command by command, and compares every buffer written.
//!
//! After each command the reference's outputs are copied to the device, so that a difference is one command's own and
//! does not grow along the way.

use akunu_arch::WeightProvider;

use crate::kernel::{Access, Content, Slot};
use crate::load::{Loaded, load};
use crate::plan::ModelPlan;
use crate::reference::{ReferenceDevice, kv_values};
use crate::{
    Device, DeviceError, DispatchCommand, DispatchTable, Kernel, KvType, ReplayId, Row, Submission, halves,
    params, q8,
};

/// How far an f32 may be from the reference's, as a fraction of the largest value in its buffer.
const F32_TOLERANCE: f64 = 1e-4;
/// Rounded forms may fall to the next code: one step of the largest magnitude's, and a little.
const Q8_TOLERANCE: f64 = 1.01 / 127.0;
const F16_TOLERANCE: f64 = 1.5e-3;

/// One written buffer of one command.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    pub table: &'static str,
    pub command: usize,
    pub label: String,
    pub kernel: String,
    pub output: &'static str,
    /// Largest difference over the largest magnitude; infinite where one has a NaN that the other lacks.
    pub relative: f64,
    pub tolerance: f64,
}

impl Difference {
    pub fn exceeds(&self) -> bool {
        // A NaN exceeds too.
        self.relative.partial_cmp(&self.tolerance).is_none_or(|order| order.is_gt())
    }
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Every written buffer, in the order of the commands.
    pub differences: Vec<Difference>,
}

impl Report {
    pub fn first_bad(&self) -> Option<&Difference> {
        self.differences.iter().find(|d| d.exceeds())
    }

    /// The worst difference of each kernel, worst first.
    pub fn worst_by_kernel(&self) -> Vec<&Difference> {
        let mut worst: Vec<&Difference> = Vec::new();
        for d in &self.differences {
            match worst.iter_mut().find(|w| w.kernel == d.kernel) {
                Some(w) if d.relative / d.tolerance > w.relative / w.tolerance => *w = d,
                Some(_) => {}
                None => worst.push(d),
            }
        }
        worst.sort_by(|a, b| (b.relative / b.tolerance).total_cmp(&(a.relative / a.tolerance)));
        worst
    }
}

/// Feeds `tokens` as one prefill pass (and the first of them by the table for few rows), then decodes one more, on both devices. The plan is the device's.
pub fn verify(
    plan: &ModelPlan,
    weights: &dyn WeightProvider,
    device: &mut dyn Device,
    tokens: &[u32],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Report, DeviceError> {
    let mut reference = ReferenceDevice::like(device.capabilities());
    let ours = load(plan, weights, &mut reference)?;
    let theirs = load(plan, weights, device)?;
    let split = tokens.len().saturating_sub(1).min(plan.tables.prefill.rows);
    let row = |i: usize| Row::causal(tokens[i], i as u32, 0);
    let prompt: Vec<Row> = (0..split).map(row).collect();
    let few = plan.tables.few.as_ref().zip(ours.few.zip(theirs.few));
    let few = few.map(|(few, (ours, theirs))| (few, [ours, theirs], prompt[..split.min(few.rows)].to_vec()));
    let all = [
        (&plan.tables.prefill, [ours.prefill, theirs.prefill], prompt),
        (&plan.tables.decode, [ours.decode, theirs.decode], vec![row(split)]),
    ];
    let passes: Vec<_> = few.into_iter().chain(all).collect();
    let total = passes.iter().filter(|p| !p.2.is_empty()).map(|p| p.0.commands.len()).sum();
    let mut sides = Sides { reference: &mut reference, device, ours: &ours, theirs: &theirs };
    let mut report = Report::default();
    let mut done = 0;
    for (table, replays, rows) in passes.iter().filter(|p| !p.2.is_empty()) {
        for command in 0..table.commands.len() {
            sides.step(table, *replays, rows, command, &mut report)?;
            done += 1;
            progress(done, total);
        }
    }
    Ok(report)
}

struct Sides<'a> {
    reference: &'a mut ReferenceDevice,
    device: &'a mut dyn Device,
    ours: &'a Loaded,
    theirs: &'a Loaded,
}

impl Sides<'_> {
    fn step(
        &mut self,
        table: &DispatchTable,
        [ours, theirs]: [ReplayId; 2],
        rows: &[Row],
        index: usize,
        report: &mut Report,
    ) -> Result<(), DeviceError> {
        let last = [rows.len() as u32 - 1];
        let submission = Submission { rows, logit_rows: &last, steps: 1, stop: &[], cancel: None };
        self.reference.run_range(ours, submission, index, 1)?;
        self.device.run_range(theirs, submission, index, 1)?;

        let command = &table.commands[index];
        for (slot, binding) in command.kernel.bindings().into_iter().zip(command.bindings()) {
            if slot.access == Access::Read || slot.content == Content::Rows {
                continue;
            }
            let buffer = binding.buffer.index();
            let mut expected = vec![0; self.reference.buffer_bytes(self.ours.buffers[buffer])];
            let mut found = vec![0; expected.len()];
            self.reference.download(self.ours.buffers[buffer], 0, &mut expected)?;
            self.device.download(self.theirs.buffers[buffer], 0, &mut found)?;
            let keys = self.device.capabilities().keys;
            let found = reordered(command, slot, found, |kv, dim, all| keys.to_positions(kv, dim, all))?;
            let live =
                written(command, slot, rows.len(), last.len(), binding.offset as usize, expected.len());
            let (relative, tolerance) = compare(command, slot, &expected[live.clone()], &found[live]);
            report.differences.push(Difference {
                table: table.name,
                command: index,
                label: table.labels[index].clone(),
                kernel: command.kernel.name(),
                output: slot.name,
                relative,
                tolerance,
            });
            let expected =
                reordered(command, slot, expected, |kv, dim, all| keys.from_positions(kv, dim, all))?;
            self.device.upload(self.theirs.buffers[buffer], 0, &expected)?;
        }
        Ok(())
    }
}

/// A whole buffer with its keys in another order, if it is one of keys.
fn reordered(
    command: &DispatchCommand,
    slot: Slot,
    bytes: Vec<u8>,
    reorder: impl Fn(KvType, usize, &[u8]) -> Option<Vec<u8>>,
) -> Result<Vec<u8>, DeviceError> {
    let Content::Keys(kv) = slot.content else { return Ok(bytes) };
    reorder(kv, head_dim(command), &bytes).ok_or_else(|| DeviceError::Failed {
        device: "verify",
        message: format!("{}: the keys are no whole sixteens", command.kernel.name()),
    })
}

/// Elements of a head of the cache, of a command that binds one.
pub fn head_dim(command: &DispatchCommand) -> usize {
    let dim = match command.kernel {
        Kernel::RopeKv { .. } => command.params::<params::RopeKvParams>().head_dim,
        Kernel::Attention { .. } => command.params::<params::AttentionParams>().head_dim,
        Kernel::KvShift { .. } | Kernel::KvCopy { .. } => command.params::<params::KvMoveParams>().head_dim,
        _ => 0,
    };
    dim as usize
}

/// The bytes of a buffer that a command may have written.
fn written(
    command: &DispatchCommand,
    slot: Slot,
    rows: usize,
    logit_rows: usize,
    offset: usize,
    len: usize,
) -> std::ops::Range<usize> {
    let live = crate::reference::live_rows_of(command.kernel, rows, logit_rows);
    match slot.content {
        Content::Q8 => offset..(offset + live * q8::row_bytes(columns(command))).min(len),
        Content::F16 => match command.kernel {
            Kernel::Unpack { .. } => offset..offset + unpacked_bytes(command),
            _ => offset..offset + live * columns(command) * 2,
        },
        Content::F32 if matches!(command.kernel, Kernel::HalfMatmul { .. }) => {
            // A product of a fixed number of rows leaves something in those that are not live.
            let p: params::MatmulParams = command.params();
            offset..(offset + live * p.out_stride as usize * 4).min(len)
        }
        _ => offset..len,
    }
}

fn unpacked_bytes(command: &DispatchCommand) -> usize {
    let p: params::UnpackParams = command.params();
    p.inputs as usize * p.outputs as usize * 2
}

/// Elements of a row that a command writes in int8 blocks or f16.
fn columns(command: &DispatchCommand) -> usize {
    let columns = match command.kernel {
        Kernel::RmsNorm { .. } => command.params::<params::NormParams>().cols,
        Kernel::Glu { .. } | Kernel::Quantise | Kernel::Halve => {
            command.params::<params::ElementParams>().cols
        }
        Kernel::Matmul { .. } => command.params::<params::MatmulParams>().outputs,
        Kernel::GluMatmul { .. } => command.params::<params::GluMatmulParams>().outputs,
        Kernel::Attention { .. } => {
            let p: params::AttentionParams = command.params();
            p.heads * p.head_dim
        }
        _ => 0,
    };
    columns as usize
}

/// How far what a command wrote to a binding is from the reference's (largest difference over largest magnitude), and how far it may be.
pub fn compare(command: &DispatchCommand, slot: Slot, expected: &[u8], found: &[u8]) -> (f64, f64) {
    match slot.content {
        Content::Q8 => {
            let n = columns(command);
            let values = |bytes: &[u8]| -> Vec<f32> {
                bytes.chunks_exact(q8::row_bytes(n)).flat_map(|row| q8::dequantise_row(row, n)).collect()
            };
            (relative(&values(expected), &values(found)), Q8_TOLERANCE)
        }
        Content::Keys(kv) | Content::Values(kv) => {
            let tolerance = match kv {
                KvType::F32 => F32_TOLERANCE,
                KvType::F16 => F16_TOLERANCE,
                KvType::Q8_0 => Q8_TOLERANCE * 1.01,
            };
            (relative(&kv_values(kv, expected), &kv_values(kv, found)), tolerance)
        }
        Content::F16 => (relative(&halves::load(expected), &halves::load(found)), F16_TOLERANCE),
        Content::U32 | Content::Sampling => (if expected == found { 0.0 } else { f64::INFINITY }, 0.0),
        _ => (relative(&floats(expected), &floats(found)), F32_TOLERANCE),
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn relative(expected: &[f32], found: &[f32]) -> f64 {
    let largest = expected.iter().filter(|v| v.is_finite()).fold(0.0f64, |m, v| m.max(f64::from(v.abs())));
    let differ = |(a, b): (&f32, &f32)| match (a.is_nan(), b.is_nan()) {
        (true, true) => 0.0,
        (false, false) if a == b => 0.0,
        (false, false) => (f64::from(*a) - f64::from(*b)).abs(),
        _ => f64::INFINITY,
    };
    let most = expected.iter().zip(found).map(differ).fold(0.0, f64::max);
    if most == 0.0 { 0.0 } else { most / largest.max(f64::MIN_POSITIVE) }
}
