//! The inverse of [`super::HeadsApart`]: rows with all heads side by side.

use super::extent::{Counts, Extent, f32s, forms};
use super::norm::OUT;
use super::route::check_experts;
use super::{F32, Forms, Op, operands, params};
use crate::OutputForms;
use crate::reference::Bound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadsTogether {
    pub out: OutputForms,
}

params! {
    HeadsTogetherParams { heads: u32, dim: u32 }
}

operands! {
    HeadsTogetherOperands of HeadsTogether as op {
        /// `[head][row][dim]`
        x: read F32,
        /// `[row][head][dim]`
        out: write Forms(op.out, OUT),
    }
}

impl Op for HeadsTogether {
    type Params = HeadsTogetherParams;
    type Operands<T: Copy> = HeadsTogetherOperands<T>;

    fn name(self) -> String {
        format!("heads_together{}", self.out.suffix())
    }

    fn extents(self, p: &HeadsTogetherParams, counts: &Counts) -> Result<HeadsTogetherOperands<Extent>, String> {
        check_experts(p.heads, p.heads)?;
        let cols = u64::from(p.heads) * u64::from(p.dim);
        Ok(HeadsTogetherOperands { x: f32s(counts.rows, cols), out: forms(self.out, counts.rows, cols)? })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<HeadsTogetherParams>(), bound.operands(self));
        let (heads, dim, rows) = (p.heads as usize, p.dim as usize, bound.live.rows);
        let row = |row: usize| {
            let of_head = |head: usize| &bound.f32s(o.x)[(head * rows + row) * dim..][..dim];
            (0..heads).flat_map(of_head).copied().collect()
        };
        let together: Vec<Vec<f32>> = (0..rows).map(row).collect();
        bound.write_forms(o.out, &together);
    }
}
