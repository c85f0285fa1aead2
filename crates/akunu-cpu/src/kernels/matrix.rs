//! Matrix products with their epilogues. Outputs are dealt out in groups that one worker computes for all rows.

use akunu_plan::params::{GluMatmulParams, MatmulParams, QkvParams};
use akunu_plan::{DType, Kernel, RowSet, q8};

use crate::command::{Command, Context};
use crate::groups::{Block, Group, SIDE};
use crate::isa::Lanes;
use crate::kernels::put_q8;
use crate::math;
use crate::planes::Planes;
use crate::tile::{Tile, TileKernel};

/// Outputs of one tile, unless rows are packed.
const GROUP: usize = 16;
/// From one row's sums to the next, before the epilogue.
const SUMS: usize = 32;
/// Fewer rows than this are not worth a group of sixteen.
pub(crate) const PACKED_ROWS: usize = 12;

/// The input of a product and where its sums go before the epilogue.
#[derive(Clone, Copy)]
struct Product {
    tile: TileKernel,
    x: *const u8,
    x_stride: usize,
    /// Rows in groups, or null.
    packed: *const Block,
    inputs: usize,
    weight_stride: usize,
    planes: Planes,
}

impl Product {
    #[inline(always)]
    fn new(
        (command, context): (&Command, &Context),
        weight: DType,
        q8: bool,
        inputs: usize,
        rows: usize,
    ) -> Product {
        let is_packed = command.packs && rows >= PACKED_ROWS;
        Product {
            tile: command.tile,
            x: command.bindings[0],
            x_stride: if q8 { q8::row_bytes(inputs) } else { inputs * 4 },
            packed: if is_packed { context.packed } else { std::ptr::null() },
            inputs,
            weight_stride: weight.plane_bytes(inputs).map_or(0, |planes| planes[0]),
            planes: Planes::of(weight, inputs),
        }
    }

    /// Outputs that are multiplied at once.
    #[inline(always)]
    fn group(&self) -> usize {
        if self.packed.is_null() { GROUP } else { self.tile.outputs }
    }

    /// Outputs `first .. first + outputs` of `rows` rows from `row` on, to `out` ([`SUMS`] apart). The weight is what binding
    /// `weight` and, of an affine type, the two after it hold.
    ///
    /// # Safety
    /// All of them are within the command's buffers.
    #[inline(always)]
    unsafe fn run(
        &self,
        (command, context): (&Command, &Context),
        weight: usize,
        (first, outputs): (usize, usize),
        (row, rows): (usize, usize),
        out: *mut f32,
    ) {
        // SAFETY: as the caller promises.
        unsafe {
            (self.tile.run)(&Tile {
                weights: command.bindings[weight].add(first * self.weight_stride),
                stride: self.weight_stride,
                // The kernel of a type without planes looks at neither.
                planes: self.planes.at(command.bindings[weight + 1], command.bindings[weight + 2], first),
                outputs,
                x: self.x.add(row * self.x_stride),
                x_stride: self.x_stride,
                // Row tiles are whole groups; null stays null.
                packed: self.packed.wrapping_add(if self.packed.is_null() {
                    0
                } else {
                    row / SIDE * (self.inputs / 32)
                }),
                rows,
                inputs: self.inputs,
                scratch: context.scratch,
                out,
                out_stride: SUMS,
            });
        }
    }
}

/// `rows` in tiles of at most `most`: (first, count).
#[inline(always)]
fn row_tiles(rows: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).step_by(most).map(move |first| (first, most.min(rows - first)))
}

/// Sixteen outputs of a row at a time: (row, first, count).
#[inline(always)]
fn pieces(rows: usize, outputs: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..rows).flat_map(move |r| {
        (0..outputs).step_by(GROUP).map(move |first| (r, first, GROUP.min(outputs - first)))
    })
}

/// Packs the rows of a product's input, before its command.
#[inline(always)]
pub(crate) unsafe fn pack(command: &Command, context: &Context) {
    let (Some(pack), Some((inputs, rows))) = (command.tile.pack, command.matrix_input()) else { return };
    let rows = if rows == RowSet::Logits { context.logit_rows } else { context.rows };
    if rows < PACKED_ROWS {
        return;
    }
    let x_stride = q8::row_bytes(inputs);
    for group in context.share(rows.div_ceil(SIDE)) {
        // SAFETY: rows of the command's input; the device's groups have room for all rows that are packed.
        unsafe {
            pack(&Group {
                x: command.bindings[0].add(group * SIDE * x_stride),
                x_stride,
                rows: SIDE.min(rows - group * SIDE),
                inputs,
                to: context.packed.add(group * (inputs / q8::BLOCK)),
                halves: false,
            });
        }
    }
}

#[inline(always)]
pub(crate) unsafe fn matmul<V: Lanes>(command: &Command, context: &Context) {
    let p: MatmulParams = command.params();
    let Kernel::Matmul { weight, q8, bias, residual, rows, .. } = command.kernel else { return };
    let total = if rows == RowSet::Logits { context.logit_rows } else { context.rows };
    let (outputs, stride) = (p.outputs as usize, p.out_stride as usize);
    let product = Product::new((command, context), weight, q8, p.inputs as usize, total);
    let group = product.group();
    let target = 1 + weight.planes();
    let residual = residual.then(|| command.f32s(target + 1 + usize::from(bias)));
    // SAFETY: the scratch is this worker's; groups stay within the outputs, rows within the table's.
    unsafe {
        let sums = (&raw mut (*context.scratch).tile).cast::<f32>();
        for unit in context.share(outputs.div_ceil(group)) {
            let first = unit * group;
            let n = group.min(outputs - first);
            for (row, count) in row_tiles(total, command.tile.rows) {
                product.run((command, context), 1, (first, n), (row, count), sums);
                for (r, half, n) in pieces(count, n) {
                    let first = first + half;
                    let mut v = V::load(sums.add(r * SUMS + half));
                    if bias {
                        v = v.add(V::load_n(command.f32s(target + 1).add(first), n));
                    }
                    let at = (row + r) * stride + first;
                    if let Some(residual) = residual {
                        v = v.add(V::load_n(residual.add(at), n));
                    }
                    if p.soft_cap != 0.0 {
                        v = math::soft_cap(p.soft_cap, v);
                    }
                    v.store_n(command.f32s(target).add(at), n);
                }
            }
        }
    }
}

#[inline(always)]
pub(crate) unsafe fn qkv<V: Lanes>(command: &Command, context: &Context) {
    let p: QkvParams = command.params();
    let Kernel::Qkv { weight, q8, bias, .. } = command.kernel else { return };
    let parts = [p.q as usize, p.k as usize, p.v as usize];
    let stride = parts[0] + parts[1] + parts[2];
    let product = Product::new((command, context), weight, q8, p.inputs as usize, context.rows);
    let size = product.group();
    let groups = parts.map(|n| n.div_ceil(size));
    let (planes, target) = (weight.planes(), 1 + 3 * weight.planes());
    // SAFETY: as in `matmul`.
    unsafe {
        let sums = (&raw mut (*context.scratch).tile).cast::<f32>();
        for unit in context.share(groups[0] + groups[1] + groups[2]) {
            let (mut part, mut group, mut start) = (0, unit, 0);
            while group >= groups[part] {
                group -= groups[part];
                start += parts[part];
                part += 1;
            }
            let first = group * size;
            let n = size.min(parts[part] - first);
            for (row, count) in row_tiles(context.rows, command.tile.rows) {
                product.run((command, context), 1 + part * planes, (first, n), (row, count), sums);
                for (r, half, n) in pieces(count, n) {
                    let first = first + half;
                    let mut v = V::load(sums.add(r * SUMS + half));
                    if bias {
                        v = v.add(V::load_n(command.f32s(target + 1 + part).add(first), n));
                    }
                    v.store_n(command.f32s(target).add((row + r) * stride + start + first), n);
                }
            }
        }
    }
}

#[inline(always)]
pub(crate) unsafe fn glu_matmul<V: Lanes>(command: &Command, context: &Context) {
    let p: GluMatmulParams = command.params();
    let Kernel::GluMatmul { weight, q8, activation, out, .. } = command.kernel else { return };
    let outputs = p.outputs as usize;
    let product = Product::new((command, context), weight, q8, p.inputs as usize, context.rows);
    let group = product.group();
    let (planes, target) = (weight.planes(), 1 + 2 * weight.planes());
    let q8_binding = target + usize::from(out.f32());
    // SAFETY: as in `matmul`; where q8 is written, outputs are whole blocks of 32, and a worker has whole blocks.
    unsafe {
        let gate = (&raw mut (*context.scratch).tile).cast::<f32>();
        let up = (&raw mut (*context.scratch).tile_up).cast::<f32>();
        for block in context.share(outputs.div_ceil(q8::BLOCK)) {
            for (row, count) in row_tiles(context.rows, command.tile.rows) {
                for at in (0..q8::BLOCK).step_by(group) {
                    let first = block * q8::BLOCK + at;
                    if first < outputs {
                        let (outputs, rows) = ((first, group.min(outputs - first)), (row, count));
                        product.run((command, context), 1, outputs, rows, gate.add(at));
                        product.run((command, context), 1 + planes, outputs, rows, up.add(at));
                    }
                }
                for r in 0..count {
                    let (g, u) = (gate.add(r * SUMS), up.add(r * SUMS));
                    for at in [0, GROUP] {
                        let first = block * q8::BLOCK + at;
                        if first >= outputs {
                            continue;
                        }
                        let v = math::activation(activation, V::load(g.add(at))).mul(V::load(u.add(at)));
                        v.store(g.add(at));
                        if out.f32() {
                            let to = command.f32s(target).add((row + r) * outputs + first);
                            v.store_n(to, GROUP.min(outputs - first));
                        }
                    }
                    if out.q8() {
                        let to = command.bindings[q8_binding].add((row + r) * q8::row_bytes(outputs));
                        put_q8::<V>(to, outputs, block, g);
                    }
                }
            }
        }
    }
}
