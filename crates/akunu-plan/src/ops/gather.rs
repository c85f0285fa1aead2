//! Sorts the rows of a pass by expert: each row once for every expert that it was routed to. Rows of one expert are
//! adjacent and in the order of the pass.

use super::extent::{Counts, Extent, forms, indices};
use super::norm::OUT;
use super::route::check_experts;
use super::{FormNames, Forms, Indices, Op, operands, params};
use crate::OutputForms;
use crate::reference::Bound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gather {
    pub form: OutputForms,
}

params! {
    GatherParams { cols: u32, experts: u32, top: u32 }
}

const X: FormNames = ["x", "x_q8", "x_f16", "x_scales"];

operands! {
    GatherOperands of Gather as op {
        /// `[row][top]`
        picks: read Indices,
        x: read Forms(op.form, X),
        /// `rows · top` rows.
        out: write Forms(op.form, OUT),
        /// Where the rows of each expert begin, and where those of the last one end: `[experts + 1]`.
        starts: write Indices,
        /// Where each row is among the sorted ones: `[row][top]`.
        places: write Indices,
    }
}

impl Op for Gather {
    type Params = GatherParams;
    type Operands<T: Copy> = GatherOperands<T>;

    fn name(self) -> String {
        format!("gather{}", self.form.suffix())
    }

    fn extents(self, p: &GatherParams, counts: &Counts) -> Result<GatherOperands<Extent>, String> {
        check_experts(p.experts, p.top)?;
        let picks = indices(counts.rows as u64, p.top);
        Ok(GatherOperands {
            picks,
            x: forms(self.form, counts.rows, p.cols)?,
            out: forms(self.form, counts.rows * p.top as usize, p.cols)?,
            starts: starts(p.experts),
            places: picks,
        })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<GatherParams>(), bound.operands(self));
        let (top, picked) = (p.top as usize, bound.live.rows * p.top as usize);
        let expert = |pick: u32| pick.min(p.experts - 1);
        let picks: Vec<u32> = bound.indices(o.picks)[..picked].iter().map(|pick| expert(*pick)).collect();
        let mut sorted: Vec<usize> = (0..picked).collect();
        sorted.sort_by_key(|pick| picks[*pick]);
        let mut places = vec![0; picked];
        for (place, pick) in sorted.iter().enumerate() {
            places[*pick] = place as u32;
        }
        let before = |expert: u32| picks.iter().filter(|pick| **pick < expert).count() as u32;
        let starts: Vec<u32> = (0..=p.experts).map(before).collect();
        let rows: Vec<usize> = sorted.iter().map(|pick| pick / top).collect();
        bound.copy_forms(o.x, o.out, p.cols as usize, &rows);
        bound.write_indices(o.starts, &starts);
        bound.write_indices(o.places, &places);
    }
}

pub(super) fn starts(experts: u32) -> Indices<Extent> {
    indices(1, experts.saturating_add(1))
}
