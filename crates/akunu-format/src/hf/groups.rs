//! Weights of GPTQ, AWQ and compressed-tensors' integers, rearranged as devices read them: outputs in rows, with planes
//! of scales and offsets.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};

use crate::blocks::{quant, scale};
use crate::{Affine, Region, ScaleType};

/// Inputs that are rearranged at once: their quants fill as many words as they have bits.
const BLOCK: usize = 32;
/// Outputs that are rearranged at once: a cache line of words.
const TILE: usize = 16;

/// How quants are packed into words of 32 bits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Layout {
    /// Inputs are a stream of bits down a column of words; zero points one along a row. Lowest bits first.
    Gptq { bits: usize },
    /// A word has the quants of one input for eight outputs, in the order of [`AWQ_PLACES`], and so have zero points.
    Awq,
    /// Outputs are in rows already. Scales are `[output][group]`; the zero points of a group are a stream of bits down a
    /// column of words.
    Rows { bits: usize },
}

/// Where AWQ stores output `i` of eight in a word: even ones first.
const AWQ_PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

impl Layout {
    pub(super) fn bits(self) -> usize {
        match self {
            Layout::Gptq { bits } | Layout::Rows { bits } => bits,
            Layout::Awq => 4,
        }
    }
}

/// The group of each block of 32 inputs, after inputs of the same group have been brought together.
#[derive(Clone, Debug)]
pub(super) struct Grouping {
    /// The stored input that follows at each place; `None`: all are in order.
    order: Option<Arc<[u32]>>,
    blocks: Vec<u32>,
    /// Inputs that share a scale on devices: 32, 64 or 128.
    size: usize,
}

impl Grouping {
    /// Groups of `size` inputs in order. `None` if they are not whole blocks.
    pub(super) fn consecutive(inputs: usize, size: usize) -> Option<Grouping> {
        if !size.is_multiple_of(BLOCK) && size < inputs {
            return None;
        }
        let blocks = (0..inputs).step_by(BLOCK).map(|first| (first / size) as u32).collect();
        Some(Grouping::sized(None, blocks))
    }

    /// From the group of each input. `None` if a group is not whole blocks.
    pub(super) fn of(group_of: &[u32]) -> Option<Grouping> {
        let mut order: Vec<u32> = (0..group_of.len() as u32).collect();
        order.sort_by_key(|&input| group_of[input as usize]);
        let group = |input: &u32| group_of[*input as usize];
        let mut blocks = Vec::with_capacity(order.len() / BLOCK);
        for block in order.chunks(BLOCK) {
            let first = group(&block[0]);
            if block.iter().any(|input| group(input) != first) {
                return None;
            }
            blocks.push(first);
        }
        let in_order = order.iter().enumerate().all(|(place, &input)| place == input as usize);
        Some(Grouping::sized((!in_order).then(|| order.into()), blocks))
    }

    fn sized(order: Option<Arc<[u32]>>, blocks: Vec<u32>) -> Grouping {
        let suits = |size: &usize| {
            let count = size / BLOCK;
            let alike =
                |blocks: &[u32]| blocks.len() == count && blocks.iter().all(|group| *group == blocks[0]);
            blocks.chunks(count).all(alike)
        };
        let size = Affine::GROUPS.into_iter().rev().find(suits).unwrap_or(BLOCK);
        Grouping { order, blocks, size }
    }

    pub(super) fn order(&self) -> Option<Arc<[u32]>> {
        self.order.clone()
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }
}

/// A range of a region.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) region: Region,
    pub(super) offset: usize,
    pub(super) len: usize,
}

impl Part {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.region.bytes()[self.offset..self.offset + self.len]
    }
}

/// The parts of a weight as they are stored, with shapes that have been checked.
#[derive(Clone, Debug)]
pub(super) struct Packing {
    pub(super) layout: Layout,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    /// Zero points are stored minus one.
    pub(super) minus_one: bool,
    pub(super) scale_type: ScaleType,
    pub(super) quants: Part,
    /// Groups of inputs as they are stored.
    pub(super) groups: usize,
    /// `None`: half of the range of quants, everywhere.
    pub(super) zeros: Option<Part>,
    /// `[group][output]`, except in [`Layout::Rows`]; zero points too.
    pub(super) scales: Part,
    pub(super) grouping: Grouping,
}

/// The bytes of scales and zero points, for reading many of them.
struct Numbers<'a> {
    of: &'a Packing,
    scales: &'a [u8],
    zeros: Option<&'a [u8]>,
}

impl Numbers<'_> {
    fn scale(&self, group: usize, output: usize) -> f32 {
        let at = match self.of.layout {
            Layout::Rows { .. } => output * self.of.groups + group,
            _ => group * self.of.outputs + output,
        };
        scale(self.of.scale_type, self.scales, at)
    }

    /// The zero point as it is stored.
    fn stored_zero(&self, group: usize, output: usize) -> u8 {
        let bits = self.of.layout.bits();
        let Some(zeros) = self.zeros else { return 1 << (bits - 1) };
        let row = self.of.outputs * bits / 8;
        match self.of.layout {
            Layout::Gptq { .. } => quant(bits, &zeros[group * row..][..row], output),
            Layout::Awq => quant(4, &zeros[group * row..][..row], output / 8 * 8 + AWQ_PLACES[output % 8]),
            Layout::Rows { .. } => {
                // Bits that divide 32 do not reach into the next word.
                let word = &zeros[(output * bits / 32 * self.of.groups + group) * 4..][..4];
                quant(bits, word, output % (32 / bits))
            }
        }
    }

    fn zero(&self, group: usize, output: usize) -> f32 {
        f32::from(u16::from(self.stored_zero(group, output)) + u16::from(self.of.minus_one))
    }
}

/// What a thread found in some of the outputs.
#[derive(Debug)]
struct Checked {
    exact: bool,
    /// The first group with an output that is wrong.
    wrong: Option<(usize, usize)>,
}

impl Packing {
    fn numbers(&self) -> Numbers<'_> {
        Numbers { of: self, scales: self.scales.bytes(), zeros: self.zeros.as_ref().map(Part::bytes) }
    }

    /// Rejects scales that are no numbers, and zero points that are read differently by different tools. Otherwise:
    /// whether each `zero · scale` is exact in the type of the scales. All of them are read, by several threads.
    pub(super) fn check(&self) -> Result<bool, String> {
        /// Scales for which a thread is started.
        const WORTH: usize = 1 << 18;
        let threads = threads(self.groups * self.outputs / WORTH).min(self.outputs.max(1));
        let part = self.outputs.div_ceil(threads);
        let checked: Vec<Checked> = std::thread::scope(|scope| {
            let outputs = |index: usize| index * part..self.outputs.min((index + 1) * part);
            let others: Vec<_> =
                (1..threads).map(|index| scope.spawn(move || self.check_outputs(outputs(index)))).collect();
            let own = self.check_outputs(outputs(0));
            let joined = |other: std::thread::ScopedJoinHandle<'_, Checked>| match other.join() {
                Ok(checked) => checked,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            std::iter::once(own).chain(others.into_iter().map(joined)).collect()
        });
        // The first one in the file, however many threads there are.
        let wrong = checked.iter().filter_map(|checked| checked.wrong).min();
        match wrong {
            Some((group, output)) => Err(self.problem(group, output)),
            None => Ok(checked.iter().all(|checked| checked.exact)),
        }
    }

    fn check_outputs(&self, outputs: Range<usize>) -> Checked {
        let numbers = self.numbers();
        let mut exact = true;
        for group in 0..self.groups {
            for output in outputs.clone() {
                let scale = numbers.scale(group, output);
                let offset = scale * numbers.zero(group, output);
                if !offset.is_finite() || self.is_unclear(&numbers, group, output) {
                    return Checked { exact, wrong: Some((group, output)) };
                }
                exact = exact && is_exact(self.scale_type, offset);
            }
        }
        Checked { exact, wrong: None }
    }

    /// A zero point of 0, less one: it became the largest number, and writers differ in what became of its neighbours.
    fn is_unclear(&self, numbers: &Numbers<'_>, group: usize, output: usize) -> bool {
        let largest = (1 << self.layout.bits()) - 1;
        self.minus_one && u16::from(numbers.stored_zero(group, output)) == largest
    }

    fn problem(&self, group: usize, output: usize) -> String {
        let numbers = self.numbers();
        let scale = numbers.scale(group, output);
        if !(scale * numbers.zero(group, output)).is_finite() {
            return format!(
                "the scale of output {output} in group {group} is {scale}: the file is damaged, download it again"
            );
        }
        let zero = numbers.stored_zero(group, output);
        format!(
            "the zero point of output {output} in group {group} is stored as {zero}, which tools read as 0 or as {}: take a \
             file in the format gptq_v2, the original, or a GGUF file",
            u16::from(zero) + 1
        )
    }

    /// The planes of the weight, computed when they are first read; the first one where quants have to be transposed.
    pub(super) fn regions(self, affine: Affine) -> (Option<Region>, [Region; 2]) {
        let [quants, scales, offsets] =
            affine.group_bytes().map(|bytes| bytes * (self.inputs / affine.group()) * self.outputs);
        let this = Arc::new(self);
        let (first, second, third) = (this.clone(), this.clone(), this);
        let in_rows = matches!(first.layout, Layout::Rows { .. });
        (
            (!in_rows).then(|| Region::derived(quants, move |out| first.transpose(out))),
            [
                Region::derived(scales, move |out| second.plane(affine.scales(), false, out)),
                Region::derived(offsets, move |out| third.plane(affine.scales(), true, out)),
            ],
        )
    }

    /// Writes the quants with outputs in rows.
    fn transpose(&self, out: &mut [u8]) {
        let row = out.len() / self.outputs;
        let words = self.quants.bytes();
        in_parts(out, row, self.outputs, |first, out| {
            for (tile, out) in out.chunks_mut(TILE * row).enumerate() {
                self.tile(words, first + tile * TILE, row, out);
            }
        });
    }

    /// Up to [`TILE`] outputs from `first` on.
    fn tile(&self, words: &[u8], first: usize, row: usize, out: &mut [u8]) {
        let bits = self.layout.bits();
        let count = out.len() / row;
        for block in 0..self.inputs / BLOCK {
            let mut packed = [[0_u32; TILE]; 8];
            for i in 0..BLOCK {
                let place = block * BLOCK + i;
                let input = self.grouping.order.as_ref().map_or(place, |order| order[place] as usize);
                let quants = self.quants(words, input, first, count);
                let (word, shift) = (i * bits / 32, i * bits % 32);
                for (packed, quant) in packed[word].iter_mut().zip(quants) {
                    *packed |= quant << shift;
                }
                if shift + bits > 32 {
                    for (packed, quant) in packed[word + 1].iter_mut().zip(quants) {
                        *packed |= quant >> (32 - shift);
                    }
                }
            }
            for (output, out) in out.chunks_exact_mut(row).enumerate() {
                let out = &mut out[block * 4 * bits..][..4 * bits];
                for (word, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    *out = packed[word][output].to_le_bytes();
                }
            }
        }
    }

    /// The quants of one input for `count` outputs from `first`, a multiple of [`TILE`], on.
    #[inline(always)]
    fn quants(&self, words: &[u8], input: usize, first: usize, count: usize) -> [u32; TILE] {
        let mut quants = [0; TILE];
        let mask = (1_u32 << self.layout.bits()) - 1;
        match self.layout {
            Layout::Gptq { bits } => {
                let (word, shift) = (input * bits / 32, input * bits % 32);
                let line = |word: usize| {
                    let from = (word * self.outputs + first) * 4;
                    words[from..from + count * 4].as_chunks::<4>().0
                };
                for (quant, word) in quants.iter_mut().zip(line(word)) {
                    *quant = u32::from_le_bytes(*word) >> shift & mask;
                }
                if shift + bits > 32 {
                    for (quant, word) in quants.iter_mut().zip(line(word + 1)) {
                        *quant |= u32::from_le_bytes(*word) << (32 - shift) & mask;
                    }
                }
            }
            // These are not transposed.
            Layout::Rows { .. } => {}
            Layout::Awq => {
                let from = (input * self.outputs + first) / 2;
                let line = words[from..from + count / 2].as_chunks::<4>().0;
                for (quants, word) in quants.as_chunks_mut::<8>().0.iter_mut().zip(line) {
                    let word = u32::from_le_bytes(*word);
                    for (quant, place) in quants.iter_mut().zip(AWQ_PLACES) {
                        *quant = word >> (4 * place) & mask;
                    }
                }
            }
        }
        quants
    }

    /// Writes the scales, or the offsets, with outputs in rows.
    fn plane(&self, kind: ScaleType, offsets: bool, out: &mut [u8]) {
        let row = out.len() / self.outputs;
        let numbers = self.numbers();
        let step = self.grouping.size / BLOCK;
        in_parts(out, row, self.outputs, |first, out| {
            for (output, out) in out.chunks_exact_mut(row).enumerate() {
                let output = first + output;
                let groups = self.grouping.blocks.iter().step_by(step);
                for (group, out) in groups.zip(out.chunks_exact_mut(kind.bytes())) {
                    let group = *group as usize;
                    let mut value = numbers.scale(group, output);
                    if offsets {
                        value *= -numbers.zero(group, output);
                    }
                    put(kind, value, out);
                }
            }
        });
    }
}

fn is_exact(kind: ScaleType, value: f32) -> bool {
    match kind {
        ScaleType::F16 => f16::from_f32(value).to_f32() == value,
        ScaleType::BF16 => bf16::from_f32(value).to_f32() == value,
        ScaleType::F32 => true,
    }
}

fn put(kind: ScaleType, value: f32, out: &mut [u8]) {
    match kind {
        ScaleType::F16 => out.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        ScaleType::BF16 => out.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        ScaleType::F32 => out.copy_from_slice(&value.to_le_bytes()),
    }
}

/// Threads for work that is worth so many beside the caller's.
fn threads(worth: usize) -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(worth + 1)
}

/// Divides rows among threads: `run` gets the first row of a part, a multiple of 16, and its bytes.
pub fn in_parts(out: &mut [u8], row: usize, rows: usize, run: impl Fn(usize, &mut [u8]) + Sync) {
    /// Bytes for which a thread is started.
    const WORTH: usize = 1 << 20;
    let threads = threads(out.len() / WORTH);
    let part = rows.div_ceil(threads).next_multiple_of(TILE);
    std::thread::scope(|scope| {
        let mut parts = out.chunks_mut(part * row).enumerate();
        let own = parts.next();
        let run = &run;
        for (index, out) in parts {
            scope.spawn(move || run(index * part, out));
        }
        if let Some((_, out)) = own {
            run(0, out);
        }
    });
}
