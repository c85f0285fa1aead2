//! Matrix products with their epilogues. Work is divided by outputs, and a worker computes its outputs for all rows; many
//! rows of integers are divided too (`Product::work`).

use std::ops::Range;

use akunu_plan::ops::{self, GluMatmulParams, Input, MatmulParams, Q8, QkvParams, Weight};
use akunu_plan::{DType, Kernel, RowSet, q8};

use crate::command::{Command, Context, f32s, row_bytes};
use crate::groups::{Group, MOST_ROWS, SIDE};
use crate::isa::target::Target;
use crate::kernels::{OpKernel, experts, put_q8};
use crate::math;
use crate::panel::{BF16_OUTPUTS, TILE_ROWS, TILE_SUMS};
use crate::planes::Planes;
use crate::read_pattern::{MOST_PLACES, ReadPattern};
use crate::tile::{PackedKernel, Tile, TileKernel};

/// Outputs per tile.
pub(super) const GROUP: usize = 16;
/// The prefetch distance, in rows, of what the epilogue reads and writes.
const ROWS_AHEAD: usize = 8;
/// Bytes of weights that a worker takes at once for one row: few enough for the streams that it reads alternately to
/// be close together, enough for each to be long.
const WINDOW_BYTES: usize = 160 << 10;
/// Bytes of packed rows that stay in L2 beside the weights that pass through it: two thirds of the 1 MB of Zen 4 and 5.
const NEAR_BYTES: usize = 640 << 10;
/// The most outputs that a worker takes at once for one row.
const WINDOW: usize = 512;
/// Outputs that a worker takes at once for several rows; also the row stride of the sums before the epilogue.
pub(super) const SUMS: usize = BF16_OUTPUTS;
// What is activated is quantised in whole blocks.
const _: () =
    assert!(WINDOW.is_multiple_of(q8::BLOCK) && SUMS.is_multiple_of(q8::BLOCK) && WINDOW <= TILE_SUMS);

/// The input of a product and the destination of its sums before the epilogue.
#[derive(Clone, Copy)]
pub(super) struct Product {
    tile: TileKernel,
    x: *const u8,
    x_stride: usize,
    /// The packed rows and their kernel, if rows are packed.
    packed: Option<(PackedKernel, *const u8)>,
    /// All packed rows.
    packed_rows: *const u8,
    inputs: usize,
    weight_stride: usize,
    planes: Planes,
    read_pattern: ReadPattern,
}

impl Product {
    /// Of rows that are packed if there are enough of them.
    #[inline(always)]
    fn new(
        (command, context): (&Command, &Context),
        x: Input<*mut u8>,
        weight: DType,
        inputs: usize,
        rows: usize,
    ) -> Product {
        let packed = command.packed.filter(|kernel| rows >= kernel.least_rows);
        let product = Product::of((command, context), x, weight, inputs);
        product.of_rows(0, packed.map(|kernel| (kernel, 0)))
    }

    /// Of rows that are not packed.
    #[inline(always)]
    pub(super) fn of(
        (command, context): (&Command, &Context),
        x: Input<*mut u8>,
        weight: DType,
        inputs: usize,
    ) -> Product {
        Product {
            tile: command.tile,
            x: x.get(),
            x_stride: row_bytes(inputs, matches!(x, Input::Q8(_))),
            packed: None,
            packed_rows: context.packed,
            inputs,
            weight_stride: weight.plane_bytes(inputs).map_or(0, |planes| planes[0]),
            planes: Planes::of(weight, inputs),
            read_pattern: context.read_pattern,
        }
    }

    /// Of the rows from `first` on; with a kernel, of packed ones from that group on.
    #[inline(always)]
    pub(super) fn of_rows(&self, first: usize, packed: Option<(PackedKernel, usize)>) -> Product {
        let at = |(kernel, group): (PackedKernel, usize)| {
            (kernel, self.packed_rows.wrapping_add(group * group_bytes(self.inputs, &kernel)))
        };
        Product { x: self.x.wrapping_add(first * self.x_stride), packed: packed.map(at), ..*self }
    }

    /// Outputs per tile.
    #[inline(always)]
    fn group(&self) -> usize {
        self.packed.map_or(GROUP, |(kernel, _)| kernel.outputs)
    }

    /// `rows` in tiles: (first, count). Tiles of packed rows are whole groups.
    #[inline(always)]
    pub(super) fn row_tiles(&self, rows: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let most = if self.packed.is_some() { MOST_ROWS } else { TILE_ROWS };
        (0..rows).step_by(most).map(move |first| (first, most.min(rows - first)))
    }

    /// What a worker computes next: some units of `unit` outputs, of `units` in all, by the rows (first, count) of a
    /// tile.
    ///
    /// Rows of integers that fill more than one tile are dealt out together with the outputs. All outputs are then
    /// multiplied with a tile before the next one is begun, so that its rows stay in L2: they are read once for every
    /// sixteen outputs. Fewer rows are multiplied with each piece of the outputs in turn, so that weights, which come
    /// from further away, are read once; and so are rows of floats, whose weights take long to unpack.
    #[inline(always)]
    fn work(
        &self,
        context: &Context,
        (units, unit): (usize, usize),
        rows: usize,
    ) -> impl Iterator<Item = (Range<usize>, (usize, usize))> {
        let product = *self;
        let near = match self.packed {
            Some((kernel, _)) if rows > MOST_ROWS && kernel.outputs == GROUP => {
                let groups = (NEAR_BYTES / group_bytes(self.inputs, &kernel)).clamp(2, MOST_ROWS / SIDE);
                Some(groups / 2 * 2 * SIDE)
            }
            _ => None,
        };
        let times = near.map_or(1, |most| rows.div_ceil(most));
        context.pieces(units * times, self.at_once(rows) / unit).flat_map(move |piece| {
            let first = piece.start / units.max(1);
            (first..piece.end.div_ceil(units.max(1))).flat_map(move |time| {
                let of = |at: usize| at.clamp(time * units, (time + 1) * units) - time * units;
                let units = of(piece.start)..of(piece.end);
                let one = near.map(|most| (time * most, most.min(rows - time * most)));
                let all = product.row_tiles(if one.is_some() { 0 } else { rows });
                one.into_iter().chain(all).map(move |rows| (units.clone(), rows))
            })
        })
    }

    /// The tile of outputs `first .. first + outputs` and `rows` rows from `row` on, with sums to `out` ([`SUMS`]
    /// apart).
    #[inline(always)]
    fn tile(
        &self,
        context: &Context,
        weight: Weight<*mut u8>,
        (first, outputs): (usize, usize),
        (row, rows): (usize, usize),
        out: *mut f32,
    ) -> Tile {
        let packed = self.packed.map_or(std::ptr::null(), |(kernel, start)| {
            start.wrapping_add(row / SIDE * group_bytes(self.inputs, &kernel))
        });
        // Kernels use the planes that their type has.
        let [scales, offsets] = weight.scales_offsets.map(|plane| plane.unwrap_or(std::ptr::null_mut()));
        Tile {
            weights: weight.quants.wrapping_add(first * self.weight_stride),
            stride: self.weight_stride,
            planes: self.planes.at(scales, offsets, first),
            outputs,
            x: self.x.wrapping_add(row * self.x_stride),
            x_stride: self.x_stride,
            packed,
            rows,
            inputs: self.inputs,
            scratch: context.scratch,
            out,
            out_stride: SUMS,
            ahead: self.read_pattern.ahead,
            skip: 0,
        }
    }

    /// Outputs that a worker takes at once, in whole blocks.
    #[inline(always)]
    pub(super) fn at_once(&self, rows: usize) -> usize {
        match rows {
            1 => (WINDOW_BYTES / self.weight_stride.max(1) / q8::BLOCK * q8::BLOCK).clamp(SUMS, WINDOW),
            _ => SUMS,
        }
    }

    /// Computes the sums of W matrices, `outputs` of each from `first` on, to each of `out`: `[row][SUMS]`, or all
    /// outputs of a single row.
    ///
    /// # Safety
    /// Outputs and rows are within the command's buffers; there are at most [`Product::at_once`] outputs, and `out`
    /// has room for all sums.
    #[inline(always)]
    pub(super) unsafe fn sums<const W: usize>(
        &self,
        context: &Context,
        weights: [Weight<*mut u8>; W],
        (first, outputs): (usize, usize),
        rows: (usize, usize),
        out: [*mut f32; W],
    ) {
        let is_alone = rows.1 == 1 && self.packed.is_none();
        if is_alone && self.read_pattern.places == 1 {
            let tiles: [Tile; W] =
                std::array::from_fn(|w| self.tile(context, weights[w], (first, outputs), rows, out[w]));
            let bytes = outputs * self.weight_stride;
            for w in 0..W {
                // Reading continues at the next matrix, or at the first one's next window.
                let on = tiles.get(w + 1).map_or(tiles[0].weights.addr() + bytes, |next| next.weights.addr());
                let skip = on.wrapping_sub(tiles[w].weights.addr() + bytes);
                // SAFETY: the tiles are within the outputs and rows that the caller promises to be valid.
                unsafe { (self.tile.rows)(&Tile { skip, ..tiles[w] }) };
            }
            return;
        }
        let mut done = 0;
        if is_alone {
            // Divide the outputs into strips that are read alternately.
            let places = self.read_pattern.places;
            let strips = places / W;
            let at_once = MOST_PLACES / places;
            let strip = outputs / strips / at_once * at_once;
            if strip > 0 {
                let skip = (strips - 1) * strip * self.weight_stride;
                let tiles: [Tile; MOST_PLACES] = std::array::from_fn(|s| {
                    let (w, at) = (s % W, s / W * strip);
                    let to = out[w].wrapping_add(at);
                    Tile { skip, ..self.tile(context, weights[w], (first + at, strip), rows, to) }
                });
                // SAFETY: the tiles are within the outputs and rows that the caller promises to be valid.
                unsafe { (self.tile.streams)(&tiles[..places]) };
                done = strip * strips;
            }
        }
        while done < outputs {
            let count = self.group().min(outputs - done);
            for w in 0..W {
                let to = out[w].wrapping_add(done);
                let tile = self.tile(context, weights[w], (first + done, count), rows, to);
                // SAFETY: the tiles are within the outputs and rows that the caller promises to be valid.
                unsafe { self.packed.map_or(self.tile.rows, |(kernel, _)| kernel.run)(&tile) };
            }
            done += count;
        }
    }
}

/// The outputs of a range of units of `unit` outputs: (first, count).
#[inline(always)]
pub(super) fn outputs_of(units: &Range<usize>, unit: usize, outputs: usize) -> (usize, usize) {
    let first = units.start * unit;
    (first, (units.end * unit).min(outputs).saturating_sub(first))
}

/// Bytes of a group of sixteen packed rows.
#[inline(always)]
pub(crate) fn group_bytes(inputs: usize, kernel: &PackedKernel) -> usize {
    inputs / q8::BLOCK * kernel.block_bytes
}

/// The sums of all rows, sixteen outputs at a time: (row, first, count).
#[inline(always)]
pub(super) fn pieces(rows: usize, outputs: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..rows).flat_map(move |r| {
        (0..outputs).step_by(GROUP).map(move |first| (r, first, GROUP.min(outputs - first)))
    })
}

/// Packs the rows of a product's input, before the product's command runs.
///
/// # Safety
/// As for [`Run`](crate::command::Run).
#[inline(always)]
pub(crate) unsafe fn pack(command: &Command, context: &Context) {
    let Some(kernel) = command.packed else { return };
    let Some((x, inputs, x_stride, rows)) = command.matrix_input() else {
        // SAFETY: as the caller promises.
        return unsafe { experts::pack(command, context, &kernel) };
    };
    let rows = if rows == RowSet::Logits { context.logit_rows } else { context.rows };
    if rows < kernel.least_rows {
        return;
    }
    for group in context.units(rows.div_ceil(SIDE)) {
        // SAFETY: the rows are within the command's input; the device reserved groups for all rows that are packed,
        // and each group is written by one worker.
        unsafe {
            (kernel.pack)(&Group {
                x: x.add(group * SIDE * x_stride),
                x_stride,
                rows: SIDE.min(rows - group * SIDE),
                inputs,
                to: context.packed.add(group * group_bytes(inputs, &kernel)),
            });
        }
    }
}

/// Quantises outputs (first, count), which are whole blocks, of rows (first, count): `values` is `[row][SUMS]`.
///
/// # Safety
/// The values can be read, and rows of `outputs` written.
#[inline(always)]
pub(super) unsafe fn put_q8_rows<V: Target>(
    Q8(out): Q8<*mut u8>,
    outputs: usize,
    (first, n): (usize, usize),
    (row, count): (usize, usize),
    values: *const f32,
) {
    for r in 0..count {
        for block in 0..n / q8::BLOCK {
            // SAFETY: as the caller promises.
            unsafe {
                let to = out.add((row + r) * q8::row_bytes(outputs));
                put_q8::<V>(to, outputs, first / q8::BLOCK + block, values.add(r * SUMS + block * q8::BLOCK));
            }
        }
    }
}

impl OpKernel for ops::Matmul {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: MatmulParams = command.params();
        let Kernel::Matmul(op) = command.kernel else { return };
        let o = command.operands(op);
        let total = if op.rows == RowSet::Logits { context.logit_rows } else { context.rows };
        let (outputs, stride) = (p.outputs as usize, p.out_stride as usize);
        let product = Product::new((command, context), o.x, op.weight, p.inputs as usize, total);
        let (out, bias, residual) = (o.out.f32.map(f32s), o.bias.map(f32s), o.residual.map(f32s));
        let unit = if o.out.q8.is_some() { q8::BLOCK } else { GROUP };
        // SAFETY: the scratch is used by this worker only; outputs are within the command's, rows within the table's,
        // and each output is written by one worker. If q8 is written, outputs are whole blocks of 32, and a worker has
        // whole blocks.
        unsafe {
            let sums = (&raw mut (*context.scratch).tile).cast::<f32>();
            for (units, (row, count)) in product.work(context, (outputs.div_ceil(unit), unit), total) {
                let (start, n) = outputs_of(&units, unit, outputs);
                product.sums(context, [o.weight], (start, n), (row, count), [sums]);
                for (r, half, n) in pieces(count, n) {
                    let first = start + half;
                    let mut v = V::load(sums.add(r * SUMS + half));
                    if let Some(bias) = bias {
                        v = v.add(V::load_n(bias.add(first), n));
                    }
                    let at = (row + r) * stride + first;
                    let next = at + ROWS_AHEAD * stride;
                    if let Some(residual) = residual {
                        V::prefetch(residual.wrapping_add(next).cast());
                        v = v.add(V::load_n(residual.add(at), n));
                    }
                    if p.soft_cap != 0.0 {
                        v = math::soft_cap(p.soft_cap, v);
                    }
                    if let Some(kind) = op.activation {
                        v = math::activation(kind, v);
                    }
                    if let Some(out) = out {
                        V::prefetch(out.wrapping_add(next).cast());
                        v.store_n(out.add(at), n);
                    }
                    if o.out.q8.is_some() {
                        v.store(sums.add(r * SUMS + half));
                    }
                }
                if let Some(out) = o.out.q8 {
                    put_q8_rows::<V>(out, outputs, (start, n), (row, count), sums);
                }
            }
        }
    }
}

impl OpKernel for ops::Qkv {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: QkvParams = command.params();
        let Kernel::Qkv(op) = command.kernel else { return };
        let o = command.operands(op);
        let parts = [p.q as usize, p.k as usize, p.v as usize];
        let stride = parts[0] + parts[1] + parts[2];
        let product = Product::new((command, context), o.x, op.weight, p.inputs as usize, context.rows);
        let groups = parts.map(|n| n.div_ceil(GROUP));
        let starts = [0, groups[0], groups[0] + groups[1], groups[0] + groups[1] + groups[2]];
        let weights = [o.q_weight, o.k_weight, o.v_weight];
        let biases = [o.q_bias, o.k_bias, o.v_bias].map(|bias| bias.map(f32s));
        let out = f32s(o.out);
        // SAFETY: the scratch is used by this worker only; outputs are within Q, K or V, rows within the table's, and
        // each output is written by one worker.
        unsafe {
            let sums = (&raw mut (*context.scratch).tile).cast::<f32>();
            for (units, (row, count)) in product.work(context, (starts[3], GROUP), context.rows) {
                for part in 0..3 {
                    let (before, start) = (starts[part], parts[..part].iter().sum::<usize>());
                    let [from, to] =
                        [units.start, units.end].map(|unit| unit.clamp(before, starts[part + 1]) - before);
                    let (first, n) = outputs_of(&(from..to), GROUP, parts[part]);
                    if n == 0 {
                        continue;
                    }
                    product.sums(context, [weights[part]], (first, n), (row, count), [sums]);
                    for (r, half, n) in pieces(count, n) {
                        let first = first + half;
                        let mut v = V::load(sums.add(r * SUMS + half));
                        if let Some(bias) = biases[part] {
                            v = v.add(V::load_n(bias.add(first), n));
                        }
                        let at = (row + r) * stride + start + first;
                        V::prefetch(out.wrapping_add(at + ROWS_AHEAD * stride).cast());
                        v.store_n(out.add(at), n);
                    }
                }
            }
        }
    }
}

impl OpKernel for ops::GluMatmul {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: GluMatmulParams = command.params();
        let Kernel::GluMatmul(op) = command.kernel else { return };
        let o = command.operands(op);
        let outputs = p.outputs as usize;
        let product = Product::new((command, context), o.x, op.weight, p.inputs as usize, context.rows);
        // SAFETY: the scratch is used by this worker only; outputs are within the command's, rows within the table's,
        // and each output is written by one worker. If q8 is written, outputs are whole blocks of 32, and a worker has
        // whole blocks.
        unsafe {
            let gate = (&raw mut (*context.scratch).tile).cast::<f32>();
            let up = (&raw mut (*context.scratch).tile_up).cast::<f32>();
            let units = outputs.div_ceil(q8::BLOCK);
            for (units, (row, count)) in product.work(context, (units, q8::BLOCK), context.rows) {
                let (first, n) = outputs_of(&units, q8::BLOCK, outputs);
                let weights = [o.gate_weight, o.up_weight];
                product.sums(context, weights, (first, n), (row, count), [gate, up]);
                for (r, half, n) in pieces(count, n) {
                    let at = r * SUMS + half;
                    let v = math::activation(op.activation, V::load(gate.add(at))).mul(V::load(up.add(at)));
                    v.store(gate.add(at));
                    if let Some(out) = o.out.f32 {
                        v.store_n(f32s(out).add((row + r) * outputs + first + half), n);
                    }
                }
                if let Some(out) = o.out.q8 {
                    put_q8_rows::<V>(out, outputs, (first, n), (row, count), gate);
                }
            }
        }
    }
}
