//! Runs a device and the reference over the same tables, command by command, and compares every buffer written.
//!
//! After each command the reference's outputs are copied to the device, so that differences do not accumulate and each
//! belongs to a single command.

use akunu_arch::WeightProvider;

use crate::load::{load, load_buffers, unwatched};
use crate::ops::{Access, Content, Counts, Extent, Slot};
use crate::plan::{EncodePlan, ModelPlan};
use crate::reference::{ReferenceDevice, kv_load};
use crate::{
    BufferSpec, Capabilities, Device, DeviceBuffer, DeviceError, DispatchCommand, DispatchTable, Entries,
    Kernel, KvType, PassKind, ReplayId, Row, RowBounds, Side, Strips, Submission, TextPass, eights, halves,
    q8,
};

/// Allowed difference of f32 from the reference, as a fraction of the largest value in the buffer.
const F32_TOLERANCE: f64 = 1e-4;
/// Rounded forms may differ by one code: one step of the largest magnitude, and a margin.
const Q8_TOLERANCE: f64 = 1.01 / 127.0;
const F16_TOLERANCE: f64 = 1.5e-3;
const F8_TOLERANCE: f64 = 1.01 * 32.0 / 448.0;
/// Products of FP8: tensor cores add up to 128 of them before they round to f32, with 13 bits below the largest (measured
/// on an H200: 1.3e-4 on the average, and up to 2e-4).
const EIGHTS_TOLERANCE: f64 = 1e-3;

/// A buffer written by a command.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    pub table: &'static str,
    pub command: usize,
    pub label: String,
    pub kernel: String,
    pub output: &'static str,
    /// Largest difference over the largest magnitude; infinite if only one of the two has a NaN.
    pub relative: f64,
    pub tolerance: f64,
}

impl Difference {
    pub fn exceeds(&self) -> bool {
        // Also true for NaN.
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

/// Processes `tokens` as one prefill pass (and the first of them as a small one and for the times of words, if there are
/// such tables), then decodes one more, on both devices. The plan is the device's.
pub fn verify(
    plan: &ModelPlan,
    weights: &dyn WeightProvider,
    device: &mut dyn Device,
    tokens: &[u32],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Report, DeviceError> {
    let mut reference = ReferenceDevice::like(device.capabilities());
    verify_against(plan, weights, [&mut reference, device], tokens, progress)
}

/// The same, with the reference that is compared with: for several ranks, as many reference devices as one.
pub fn verify_against(
    plan: &ModelPlan,
    weights: &dyn WeightProvider,
    [reference, device]: [&mut dyn Device; 2],
    tokens: &[u32],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Report, DeviceError> {
    // The reference reads experts where they are in the file.
    let unpaged = ModelPlan { paging: None, ..plan.clone() };
    let ours = load(&unpaged, weights, reference, &mut unwatched)?;
    let theirs = load(plan, weights, device, &mut unwatched)?;
    let split = tokens.len().saturating_sub(1).min(plan.tables.prefill().rows);
    let row = |i: usize| Row::causal(tokens[i], i as u32, 0);
    let prompt: Vec<Row> = (0..split).map(row).collect();
    let pass = |kind: PassKind| {
        let table = plan.tables.get(kind)?;
        let rows = match kind {
            PassKind::Decode => vec![row(split)],
            PassKind::Encode => plan.window_rows(0).collect(),
            _ => prompt[..split.min(table.rows)].to_vec(),
        };
        let asking = vec![rows.len().saturating_sub(1) as u32];
        Some(Pass { table, replays: [ours.replays[kind], theirs.replays[kind]], rows, asking })
    };
    let kinds = [
        PassKind::Encode,
        PassKind::SmallPrefill,
        PassKind::MiddlePrefill,
        PassKind::Prefill,
        PassKind::StreamedPrefill,
        PassKind::Align,
        PassKind::Decode,
    ];
    let passes: Vec<Pass<'_>> = kinds.into_iter().filter_map(pass).collect();
    if let Some(frames) = plan.tables.get(PassKind::Encode).and_then(|table| table.io.frames) {
        let values = some_frames(plan.buffers[frames.index()].bytes as usize / 4);
        reference.upload(ours.buffers[frames.index()], 0, bytemuck::cast_slice(&values))?;
        device.upload(theirs.buffers[frames.index()], 0, bytemuck::cast_slice(&values))?;
    }
    let (ours, theirs) = (&ours.buffers[..], &theirs.buffers[..]);
    Sides { reference, device, ours, theirs, specs: &plan.buffers }.compare_all(&passes, progress)
}

/// Frames as of some sound: from −1 to 1.
fn some_frames(count: usize) -> Vec<f32> {
    (0..count as u64)
        .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 23) as f32 - 1.0)
        .collect()
}

/// Runs the texts of one pass on both devices. The plan is the device's.
pub fn verify_encoder(
    plan: &EncodePlan,
    weights: &dyn WeightProvider,
    device: &mut dyn Device,
    texts: &TextPass,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Report, DeviceError> {
    let mut reference = ReferenceDevice::like(device.capabilities());
    let ours = load_buffers(&plan.buffers, weights, &mut reference, &mut unwatched)?;
    let theirs = load_buffers(&plan.buffers, weights, device, &mut unwatched)?;
    let replays = [reference.prepare(&plan.table, &ours)?, device.prepare(&plan.table, &theirs)?];
    if let Some(segments) = plan.table.io.segments {
        let kinds = bytemuck::cast_slice(&texts.segments);
        reference.upload(ours[segments.index()], 0, kinds)?;
        device.upload(theirs[segments.index()], 0, kinds)?;
    }
    let (rows, asking) = (texts.rows.clone(), texts.asking.clone());
    let pass = Pass { table: &plan.table, replays, rows, asking };
    let specs = &plan.buffers;
    Sides { reference: &mut reference, device, ours: &ours, theirs: &theirs, specs }
        .compare_all(&[pass], progress)
}

/// A table, prepared on both devices, and its input.
struct Pass<'a> {
    table: &'a DispatchTable,
    replays: [ReplayId; 2],
    rows: Vec<Row>,
    asking: Vec<u32>,
}

struct Sides<'a> {
    reference: &'a mut dyn Device,
    device: &'a mut dyn Device,
    ours: &'a [DeviceBuffer],
    theirs: &'a [DeviceBuffer],
    specs: &'a [BufferSpec],
}

impl Sides<'_> {
    fn compare_all(
        mut self,
        passes: &[Pass<'_>],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Report, DeviceError> {
        let passes = || passes.iter().filter(|pass| !pass.rows.is_empty());
        let total = passes().map(|pass| pass.table.commands.len()).sum();
        let mut report = Report::default();
        let mut done = 0;
        for pass in passes() {
            for command in 0..pass.table.commands.len() {
                self.step(pass, command, &mut report)?;
                done += 1;
                progress(done, total);
            }
        }
        Ok(report)
    }

    fn step(&mut self, pass: &Pass<'_>, index: usize, report: &mut Report) -> Result<(), DeviceError> {
        let Pass { table, replays: [ours, theirs], rows, asking } = pass;
        let submission = Submission {
            entries: Entries::Rows(rows),
            logit_rows: asking,
            steps: 1,
            stop: &[],
            cancel: None,
        };
        self.reference.run_range(*ours, submission, index, 1)?;
        self.device.run_range(*theirs, submission, index, 1)?;

        let command = &table.commands[index];
        let live = Counts { rows: rows.len(), logit_rows: asking.len(), ..table.counts() };
        let extents = command.extents(&live).map_err(|message| failed(command, &message))?;
        let slots = command.kernel.bindings().into_iter().zip(extents);
        for ((slot, extent), binding) in slots.zip(command.bindings()) {
            if slot.access == Access::Read || matches!(slot.content, Content::Rows(_)) {
                continue;
            }
            let buffer = binding.buffer.index();
            // The buffers of all ranks, one after the other.
            let size = self.specs[buffer].bytes as usize;
            let whole = Strips { first: 0, bytes: size, pitch: size as u64, count: 1 };
            let Capabilities { keys, ranks, host, .. } = self.device.capabilities();
            let on_host = host.as_ref().filter(|_| command.side == Side::Host);
            let (keys, ranks) = (on_host.map_or(*keys, |host| host.keys), *ranks);
            let mut expected = vec![0; size * ranks];
            let mut found = vec![0; size * ranks];
            self.reference.download_strips(self.ours[buffer], whole, &mut expected)?;
            self.device.download_strips(self.theirs[buffer], whole, &mut found)?;
            let found = reordered(command, slot, found, |kv, dim, all| keys.to_positions(kv, dim, all))?;
            let dead = command.kernel.dead_rows(&command.params, rows.len());
            let part = compared(slot, extent, dead, binding.offset as usize, size);
            let (mut relative, mut tolerance) = (0.0f64, 0.0);
            for (expected, found) in expected.chunks_exact(size).zip(found.chunks_exact(size)) {
                let (of_rank, allowed) =
                    compare(command, slot, &expected[part.clone()], &found[part.clone()]);
                (relative, tolerance) = (relative.max(of_rank), allowed);
            }
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
            self.device.upload_strips(self.theirs[buffer], whole, &expected)?;
        }
        Ok(())
    }
}

/// A buffer with its keys in another order, if it contains keys.
fn reordered(
    command: &DispatchCommand,
    slot: Slot,
    bytes: Vec<u8>,
    reorder: impl Fn(KvType, usize, &[u8]) -> Option<Vec<u8>>,
) -> Result<Vec<u8>, DeviceError> {
    let Content::Keys(kv) = slot.content else { return Ok(bytes) };
    reorder(kv, head_dim(command), &bytes)
        .ok_or_else(|| failed(command, "the keys are not whole groups of 16 positions"))
}

fn failed(command: &DispatchCommand, message: &str) -> DeviceError {
    DeviceError::Failed { device: "verify", message: format!("{}: {message}", command.kernel.name()) }
}

/// Elements in a row of a binding of the command; for a cache, elements of a head.
fn columns(command: &DispatchCommand, wanted: impl Fn(Slot) -> bool) -> usize {
    // The columns do not depend on the number of rows.
    let bounds = RowBounds::one_sequence(0, 0).into();
    let extents = command.extents(&Counts { rows: 1, logit_rows: 1, steps: 1, bounds }).unwrap_or_default();
    let mut bound = command.kernel.bindings().into_iter().zip(extents);
    bound.find(|(slot, _)| wanted(*slot)).map_or(0, |(_, extent)| extent.cols as usize)
}

/// The head size of a command that binds the cache.
pub fn head_dim(command: &DispatchCommand) -> usize {
    columns(command, |slot| matches!(slot.content, Content::Keys(_)))
}

/// The bytes of a buffer that are compared: everything from the binding on, so that a write beyond the command's part
/// is detected. `dead` is the offset of rows with unspecified contents. Rounded rows are compared with this command's
/// row width, which may differ from that of other commands that use the buffer.
fn compared(
    slot: Slot,
    extent: Extent,
    dead: Option<u64>,
    offset: usize,
    len: usize,
) -> std::ops::Range<usize> {
    let bytes = match slot.content {
        Content::Q8 | Content::F16 | Content::F8 => Some(extent.bytes),
        Content::F32 => dead,
        _ => None,
    };
    offset..bytes.map_or(len, |bytes| (offset + bytes as usize).min(len))
}

/// The difference between a binding's contents and the reference (largest difference over largest magnitude), and the
/// allowed difference.
pub fn compare(command: &DispatchCommand, slot: Slot, expected: &[u8], found: &[u8]) -> (f64, f64) {
    match slot.content {
        Content::Q8 => {
            let n = columns(command, |other| other == slot);
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
            (relative(&kv_load(kv, expected), &kv_load(kv, found)), tolerance)
        }
        Content::F16 => (relative(&halves::load(expected), &halves::load(found)), F16_TOLERANCE),
        Content::F8 => (relative(&eights::load(expected), &eights::load(found)), F8_TOLERANCE),
        Content::F32 if matches!(command.kernel, Kernel::EightMatmul(_)) => {
            (relative(&floats(expected), &floats(found)), EIGHTS_TOLERANCE)
        }
        Content::U32 | Content::Sampling | Content::Indices => {
            (if expected == found { 0.0 } else { f64::INFINITY }, 0.0)
        }
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
