//! The range that a command may access in each of its operands. Devices check it once, when a table is prepared, so
//! that kernels can use raw pointers.

use super::{
    Blocks, F16, F32, Forms, Indices, Input, Keys, Moves, Order, Q8, Rounding, RowSet, Rows, U32, Values,
    Weight,
};
use crate::{DType, EntryBounds, KvType, Move, OutputForms, RopeStyle, Row, eights, halves, q8};

/// The range that a command may access in one binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Number of bytes from the binding's offset on.
    pub bytes: u64,
    /// Elements per row; for a cache, elements per head.
    pub cols: u64,
}

/// The sizes of a pass that extents depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    pub rows: usize,
    pub logit_rows: usize,
    pub steps: usize,
    pub bounds: EntryBounds,
}

fn product(factors: &[u64]) -> u64 {
    factors.iter().fold(1, |a, b| a.saturating_mul(*b))
}

fn whole(cols: u64, block: usize, what: &str) -> Result<(), String> {
    match cols.is_multiple_of(block as u64) {
        true => Ok(()),
        false => Err(format!("{what} of {cols} elements are not whole blocks of {block}")),
    }
}

/// Contiguous rows of f32.
pub(super) fn f32s(rows: usize, cols: impl Into<u64>) -> F32<Extent> {
    let cols = cols.into();
    F32(Extent { bytes: product(&[rows as u64, cols, 4]), cols })
}

/// Rows of f32 at a distance of `stride`; the last one ends after its own elements.
pub(super) fn strided(rows: usize, cols: u32, stride: u32) -> Result<F32<Extent>, String> {
    if stride < cols {
        return Err(format!("the stride {stride} is too small for {cols} outputs"));
    }
    let elements = product(&[(rows as u64).saturating_sub(1), stride.into()]) + u64::from(cols);
    Ok(F32(Extent { bytes: product(&[elements, 4]), cols: cols.into() }))
}

pub(super) fn order(cols: u32) -> Order<Extent> {
    Order(Extent { bytes: product(&[cols.into(), 4]), cols: 1 })
}

/// Contiguous rows of indices.
pub(super) fn indices(rows: u64, cols: u32) -> Indices<Extent> {
    Indices(Extent { bytes: product(&[rows, cols.into(), 4]), cols: cols.into() })
}

pub(super) fn u32s(count: usize) -> U32<Extent> {
    U32(Extent { bytes: product(&[count as u64, 4]), cols: 1 })
}

pub(super) fn f16s(rows: u64, cols: impl Into<u64>) -> Result<F16<Extent>, String> {
    let cols = cols.into();
    whole(cols, halves::WHOLE, "f16 rows")?;
    Ok(F16(Extent { bytes: product(&[rows, cols, 2]), cols }))
}

/// Rows of E4M3.
pub(super) fn f8s(rows: u64, cols: u64) -> Result<F16<Extent>, String> {
    whole(cols, eights::WHOLE, "rows of FP8")?;
    Ok(F16(Extent { bytes: product(&[rows, cols]), cols }))
}

pub(super) fn q8s(rows: usize, cols: u64) -> Result<Q8<Extent>, String> {
    whole(cols, q8::BLOCK, "q8 rows")?;
    let row = cols.saturating_add(cols / q8::BLOCK as u64 * 8);
    Ok(Q8(Extent { bytes: product(&[rows as u64, row]), cols }))
}

pub(super) fn forms(out: OutputForms, rows: usize, cols: impl Into<u64>) -> Result<Forms<Extent>, String> {
    let cols = cols.into();
    if out.lanes() {
        whole(cols, halves::GROUP, "rows in the order of lanes")?;
    }
    let narrow = if out.eights() { f8s } else { f16s };
    Ok(Forms {
        f32: out.f32().then(|| f32s(rows, cols)),
        q8: out.q8().then(|| q8s(rows, cols)).transpose()?,
        f16: match out.f16() {
            true => Some((narrow(rows as u64, cols)?, f32s(rows, 1_u64))),
            false => None,
        },
        rounding: Rounding::of(out),
    })
}

pub(super) fn input(q8: bool, rows: usize, inputs: u32) -> Result<Input<Extent>, String> {
    Ok(match q8 {
        true => Input::Q8(q8s(rows, inputs.into())?),
        false => Input::F32(f32s(rows, inputs)),
    })
}

/// All planes of a matrix.
pub(super) fn weight(dtype: DType, inputs: u32, outputs: u32) -> Result<Weight<Extent>, String> {
    let planes = dtype.plane_bytes(inputs as usize).filter(|_| inputs > 0);
    let planes = planes.ok_or_else(|| format!("rows of {inputs} are not whole {dtype} blocks"))?;
    let of = |plane: usize| Extent {
        bytes: product(&[planes[plane] as u64, outputs.into()]),
        cols: inputs.into(),
    };
    let scales_offsets = [1, 2].map(|plane| (dtype.planes() > plane).then(|| of(plane)));
    Ok(Weight { quants: of(0), scales_offsets })
}

/// Sums of squares, one per block of 32 columns.
pub(super) fn squares(rows: usize, cols: u32) -> Result<F32<Extent>, String> {
    if cols == 0 || !cols.is_multiple_of(q8::BLOCK as u32) {
        return Err(format!("a norm of {cols} elements, not whole blocks, in a product"));
    }
    Ok(f32s(rows, cols / q8::BLOCK as u32))
}

/// Rejects the size of a block for a cache that is not in blocks, and none for one that is.
pub(super) fn check_paged(paged: bool, block: u32) -> Result<(), String> {
    if paged != (block > 0) {
        return Err(format!("blocks of {block} positions"));
    }
    Ok(())
}

/// Rejects head sizes that RoPE cannot be applied to.
pub(super) fn check_head(head_dim: u32, rope_dims: u32) -> Result<(), String> {
    if head_dim == 0 || rope_dims > head_dim || !rope_dims.is_multiple_of(2) {
        return Err(format!("RoPE over {rope_dims} dimensions of heads of {head_dim}"));
    }
    Ok(())
}

/// Also rejects RoPE over no dimensions, and dimensions without RoPE.
pub(super) fn check_rotation(head_dim: u32, style: Option<RopeStyle>, rope_dims: u32) -> Result<(), String> {
    check_head(head_dim, rope_dims)?;
    if style.is_some() != (rope_dims > 0) {
        return Err(format!("RoPE {style:?} over {rope_dims} dimensions"));
    }
    Ok(())
}

impl Counts {
    /// Number of rows that an op works on.
    pub fn of(&self, rows: RowSet) -> usize {
        if rows == RowSet::Logits { self.logit_rows } else { self.rows }
    }

    /// The rows of the pass.
    pub(super) fn rows(&self) -> Rows<Extent> {
        Rows(Extent { bytes: product(&[self.rows as u64, Row::BYTES as u64]), cols: 1 })
    }

    /// The single move of the pass.
    pub(super) fn moves(&self) -> Moves<Extent> {
        Moves(Extent { bytes: Move::BYTES as u64, cols: 1 })
    }

    /// The tokens produced by every step.
    pub(super) fn tokens(&self) -> U32<Extent> {
        U32(Extent { bytes: product(&[self.steps as u64 + 1, self.logit_rows as u64, 4]), cols: 1 })
    }

    /// The table of the slots of states, if they are kept.
    pub(super) fn state_blocks(
        &self,
        kept: bool,
        slots: u32,
        block: u32,
    ) -> Result<Option<Blocks<Extent>>, String> {
        check_paged(kept, block)?;
        if kept != (slots > 0) {
            return Err(format!("{slots} slots for states"));
        }
        let positions = slots.checked_mul(block);
        let positions = positions.ok_or_else(|| format!("{slots} slots for blocks of {block} positions"))?;
        kept.then(|| blocks(self.bounds.positions(), positions, block)).transpose()
    }

    /// Keys and values of one layer, and the table of its blocks if positions are found through one (`block` > 0).
    pub(super) fn cache(
        &self,
        kv: KvType,
        kv_heads: u32,
        head_dim: u32,
        [positions, block]: [u32; 2],
    ) -> Result<CacheExtents, String> {
        let all = self.bounds.positions();
        let blocks = match block {
            0 if all > positions => return Err(format!("{all} positions in a cache of {positions}")),
            0 => None,
            _ => Some(blocks(all, positions, block)?),
        };
        let (keys, values) = layer_cache(kv, kv_heads, head_dim, positions)?;
        Ok(CacheExtents { keys, values, blocks })
    }
}

/// The extents of a layer's cache.
pub(super) struct CacheExtents {
    pub keys: Keys<Extent>,
    pub values: Values<Extent>,
    pub blocks: Option<Blocks<Extent>>,
}

/// The table of blocks for `all` positions of sequences, in a cache of `positions`. Its columns are the positions of a
/// block.
fn blocks(all: u32, positions: u32, block: u32) -> Result<Blocks<Extent>, String> {
    if !block.is_power_of_two() || positions == 0 || !positions.is_multiple_of(block) {
        return Err(format!("a cache of {positions} positions in blocks of {block}"));
    }
    if !all.is_multiple_of(block) {
        return Err(format!("sequences of {all} positions are not whole blocks of {block}"));
    }
    Ok(Blocks(Extent { bytes: product(&[(all / block).into(), 4]), cols: block.into() }))
}

/// Keys and values of one layer.
pub(super) fn layer_cache(
    kv: KvType,
    kv_heads: u32,
    head_dim: u32,
    positions: u32,
) -> Result<(Keys<Extent>, Values<Extent>), String> {
    let row = kv.row_bytes(head_dim as usize);
    let row = row.ok_or_else(|| format!("heads of {head_dim} are not whole {} blocks", kv.name()))?;
    let bytes = product(&[kv_heads.into(), positions.into(), row as u64]);
    let extent = Extent { bytes, cols: head_dim.into() };
    Ok((Keys(extent), Values(extent)))
}
