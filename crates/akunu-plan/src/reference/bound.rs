//! A command on the reference device, and common operations on its operands.

use akunu_format::DType;

use super::Live;
use super::memory::Memory;
use crate::ops::{Blocks, F32, Forms, Indices, Input, Moves, Op, Order, Rounding, RowSet, Rows, U32, Weight};
use crate::table::Binding;
use crate::{DeviceBuffer, DispatchCommand, Member, Move, Row, eights, halves, q8};

/// A command with access to its buffers. An output is taken out of the memory while it is written, since no op reads
/// what it writes.
#[derive(Debug)]
pub struct Bound<'a> {
    command: &'a DispatchCommand,
    memory: &'a mut [Memory],
    /// By `BufferId`.
    buffers: &'a [DeviceBuffer],
    pub(crate) live: Live,
    member: Option<&'a Member>,
}

impl<'a> Bound<'a> {
    pub(super) fn new(
        command: &'a DispatchCommand,
        memory: &'a mut [Memory],
        buffers: &'a [DeviceBuffer],
        live: Live,
        member: Option<&'a Member>,
    ) -> Bound<'a> {
        Bound { command, memory, buffers, live, member }
    }
}

impl Bound<'_> {
    pub(crate) fn params<P: bytemuck::AnyBitPattern>(&self) -> P {
        self.command.params()
    }

    pub(crate) fn operands<O: Op>(&self, op: O) -> O::Operands<Binding> {
        op.operands(self.command.bindings())
    }

    /// Number of rows of the pass that the command works on.
    pub(crate) fn live_rows(&self) -> usize {
        match self.command.kernel.row_set() {
            Some(RowSet::Logits) => self.live.logit_rows,
            _ => self.live.rows,
        }
    }

    /// The rank of this device, if it is one of several.
    pub(crate) fn rank(&self) -> usize {
        self.member.map_or(0, Member::rank)
    }

    /// The first `count` numbers of an operand on all ranks.
    pub(crate) fn exchange(&self, operand: F32<Binding>, count: usize) -> Vec<Vec<f32>> {
        let own = &self.f32s(operand)[..count];
        match self.member {
            None => vec![own.to_vec()],
            // The device reports that the group is broken.
            Some(member) => member.exchange(own).unwrap_or_else(|_| vec![own.to_vec(); member.ranks()]),
        }
    }

    fn place(&self, binding: Binding) -> (usize, usize) {
        (self.buffers[binding.buffer.index()].0 as usize, binding.offset as usize)
    }

    pub(crate) fn bytes(&self, binding: Binding) -> &[u8] {
        let (index, offset) = self.place(binding);
        &self.memory[index].bytes()[offset..]
    }

    pub(crate) fn f32s(&self, operand: F32<Binding>) -> &[f32] {
        bytemuck::cast_slice(self.bytes(operand.0))
    }

    pub(crate) fn u32s(&self, operand: U32<Binding>) -> &[u32] {
        bytemuck::cast_slice(self.bytes(operand.0))
    }

    pub(crate) fn order(&self, operand: Order<Binding>) -> &[u32] {
        bytemuck::cast_slice(self.bytes(operand.0))
    }

    pub(crate) fn indices(&self, operand: Indices<Binding>) -> &[u32] {
        bytemuck::cast_slice(self.bytes(operand.0))
    }

    pub(crate) fn rows(&self, operand: Rows<Binding>) -> &[Row] {
        &bytemuck::cast_slice(self.bytes(operand.0))[..self.live.rows]
    }

    /// The table of the slots of states; empty if they are not kept.
    pub(crate) fn state_table(&self, blocks: Option<Blocks<Binding>>) -> &[u32] {
        blocks.map_or(&[], |blocks| bytemuck::cast_slice(self.bytes(blocks.0)))
    }

    /// The single move of the pass.
    pub(crate) fn moved(&self, operand: Moves<Binding>) -> Move {
        bytemuck::pod_read_unaligned(&self.bytes(operand.0)[..Move::BYTES])
    }

    /// Runs `write` on the bytes of a binding while the others stay readable.
    pub(crate) fn write(&mut self, binding: Binding, write: impl FnOnce(&Self, &mut [u8])) {
        let (index, offset) = self.place(binding);
        let mut taken = std::mem::take(&mut self.memory[index]);
        write(self, &mut taken.bytes_mut()[offset..]);
        self.memory[index] = taken;
    }

    pub(crate) fn write_f32s(&mut self, operand: F32<Binding>, write: impl FnOnce(&Self, &mut [f32])) {
        self.write(operand.0, |bound, bytes| write(bound, bytemuck::cast_slice_mut(bytes)));
    }

    pub(crate) fn write_indices(&mut self, operand: Indices<Binding>, values: &[u32]) {
        self.write(operand.0, |_, bytes| {
            bytes[..values.len() * 4].copy_from_slice(bytemuck::cast_slice(values));
        });
    }

    /// Copies rows of `cols` elements, in all forms that both operands have.
    pub(crate) fn copy_forms(
        &mut self,
        from: Forms<Binding>,
        to: Forms<Binding>,
        cols: usize,
        rows: &[usize],
    ) {
        let bindings = |forms: Forms<Binding>| {
            let f16 = forms.f16.map(|(numbers, scales)| [(numbers.0, cols * 2), (scales.0, 4)]);
            let others =
                [forms.f32.map(|f32| (f32.0, cols * 4)), forms.q8.map(|q8| (q8.0, q8::row_bytes(cols)))];
            others.into_iter().flatten().chain(f16.into_iter().flatten()).collect::<Vec<_>>()
        };
        for ((from, size), (to, _)) in bindings(from).into_iter().zip(bindings(to)) {
            self.write(to, |bound, bytes| {
                for (to, row) in bytes.chunks_exact_mut(size).zip(rows) {
                    to.copy_from_slice(&bound.bytes(from)[row * size..][..size]);
                }
            });
        }
    }

    /// Writes rows in the requested forms.
    pub(crate) fn write_forms(&mut self, out: Forms<Binding>, rows: &[Vec<f32>]) {
        self.write_forms_scaled(out, rows, halves::scale_of);
    }

    /// `scale`: of a row in f16.
    pub(crate) fn write_forms_scaled(
        &mut self,
        out: Forms<Binding>,
        rows: &[Vec<f32>],
        scale: impl Fn(&[f32]) -> f32,
    ) {
        if let Some(f32) = out.f32 {
            self.write_f32s(f32, |_, to| {
                for (row, values) in rows.iter().enumerate() {
                    to[row * values.len()..][..values.len()].copy_from_slice(values);
                }
            });
        }
        if let Some(q8) = out.q8 {
            self.write(q8.0, |_, to| {
                for (row, values) in rows.iter().enumerate() {
                    let bytes = q8::row_bytes(values.len());
                    quantise_row(values, &mut to[row * bytes..][..bytes]);
                }
            });
        }
        if let Some((numbers, scales)) = out.f16 {
            self.write(numbers.0, |_, to| {
                for (row, values) in rows.iter().enumerate() {
                    let eight = out.rounding == Rounding::F8;
                    let bytes = values.len() * if eight { 1 } else { 2 };
                    let to = &mut to[row * bytes..][..bytes];
                    match out.rounding {
                        Rounding::F16 => halves::store(values, scale(values), to),
                        Rounding::F16Lanes => halves::store(&halves::in_lanes(values), scale(values), to),
                        Rounding::F8 => eights::store(values, eights::scale_of(values), to),
                    }
                }
            });
            self.write_f32s(scales, |_, to| {
                let scale = |values: &[f32]| match out.rounding {
                    Rounding::F8 => eights::scale_of(values),
                    Rounding::F16 | Rounding::F16Lanes => scale(values),
                };
                to.iter_mut().zip(rows).for_each(|(to, values)| *to = scale(values));
            });
        }
    }

    /// Input row `row` of `n` elements as f64, from either form.
    pub(crate) fn input_row(&self, input: Input<Binding>, row: usize, n: usize) -> Vec<f64> {
        match input {
            Input::F32(x) => self.f32s(x)[row * n..][..n].iter().map(|&v| f64::from(v)).collect(),
            Input::Q8(x) => {
                let bytes = &self.bytes(x.0)[row * q8::row_bytes(n)..];
                (0..n).map(|i| f64::from(q8::scale(bytes, n, i)) * f64::from(bytes[i] as i8)).collect()
            }
        }
    }

    /// Row `row` of a matrix whose rows have `n` elements.
    pub(crate) fn weight_row(&self, weight: Weight<Binding>, dtype: DType, row: usize, n: usize) -> Vec<f32> {
        let mut planes: [&[u8]; 3] = [&[]; 3];
        for (plane, binding) in planes.iter_mut().zip(weight.planes()) {
            *plane = self.bytes(binding);
        }
        let mut values = vec![0.0; n];
        if akunu_format::blocks::dequantize_nth(dtype, planes, row, &mut values).is_err() {
            values.fill(f32::NAN);
        }
        values
    }

    /// The factor of a row's products: 1, or 1 / rms if the norm of the input is deferred to them.
    fn scale(&self, squares: Option<F32<Binding>>, row: usize, inputs: usize) -> f64 {
        let Some(squares) = squares else { return 1.0 };
        let blocks = inputs / q8::BLOCK;
        let squares = &self.f32s(squares)[row * blocks..][..blocks];
        1.0 / (squares.iter().map(|&s| f64::from(s)).sum::<f64>() / inputs as f64).sqrt()
    }

    /// `outputs` rows of `x · Wᵀ`, scaled: `[input row][output]`.
    pub(crate) fn products(
        &self,
        x: Input<Binding>,
        (weight, dtype): (Weight<Binding>, DType),
        squares: Option<F32<Binding>>,
        [inputs, outputs]: [usize; 2],
    ) -> Vec<Vec<f64>> {
        let rows = self.live_rows();
        let xs: Vec<Vec<f64>> = (0..rows).map(|row| self.input_row(x, row, inputs)).collect();
        let scales: Vec<f64> = (0..rows).map(|row| self.scale(squares, row, inputs)).collect();
        let mut out = vec![vec![0.0; outputs]; rows];
        for o in 0..outputs {
            let w = self.weight_row(weight, dtype, o, inputs);
            for ((x, scale), out) in xs.iter().zip(&scales).zip(&mut out) {
                out[o] = x.iter().zip(&w).map(|(x, w)| x * f64::from(*w)).sum::<f64>() * scale;
            }
        }
        out
    }

    /// Writes the tokens of a step, and advances their rows.
    pub(crate) fn write_found(
        &mut self,
        (tokens, rows, logit_rows): (U32<Binding>, Rows<Binding>, U32<Binding>),
        best: &[u32],
        advance: bool,
    ) {
        let live = self.live;
        self.write(tokens.0, |_, bytes| {
            let tokens: &mut [u32] = bytemuck::cast_slice_mut(bytes);
            tokens[(live.step + 1) * live.logit_capacity..][..best.len()].copy_from_slice(best);
        });
        if advance {
            let asking = self.u32s(logit_rows)[..best.len()].to_vec();
            self.write(rows.0, |_, bytes| {
                let rows: &mut [Row] = bytemuck::cast_slice_mut(bytes);
                for (&row, &token) in asking.iter().zip(best).filter(|(_, token)| **token != u32::MAX) {
                    rows[row as usize] = rows[row as usize].next(token);
                }
            });
        }
    }
}

fn quantise_row(values: &[f32], to: &mut [u8]) {
    let n = values.len();
    for (i, block) in values.chunks_exact(q8::BLOCK).enumerate() {
        let mut quants = [0i8; q8::BLOCK];
        let (scale, sum) = q8::quantise_block(block, &mut quants);
        to[i * q8::BLOCK..][..q8::BLOCK].copy_from_slice(bytemuck::cast_slice(&quants));
        to[q8::scales_offset(n) + i * 4..][..4].copy_from_slice(&scale.to_le_bytes());
        to[q8::sums_offset(n) + i * 4..][..4].copy_from_slice(&sum.to_le_bytes());
    }
}
