//! The beginning of each head of each row, sorted by head: all rows of the first head, then those of the next. Products
//! of experts multiply them by a matrix for each head.

use super::extent::{Counts, Extent, f32s, forms};
use super::gather::starts;
use super::norm::OUT;
use super::route::check_experts;
use super::{F32, Forms, Indices, Op, operands, params};
use crate::OutputForms;
use crate::reference::Bound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadsApart {
    pub out: OutputForms,
}

params! {
    HeadsApartParams {
        heads: u32,
        /// Elements of a head in `x`.
        stride: u32,
        /// Of these the first ones that are wanted.
        dim: u32,
    }
}

operands! {
    HeadsApartOperands of HeadsApart as op {
        /// `[row][head][stride]`
        x: read F32,
        /// `[head][row][dim]`
        out: write Forms(op.out, OUT),
        /// Where the rows of each head begin, and where those of the last one end: `[heads + 1]`.
        starts: write Indices,
    }
}

impl Op for HeadsApart {
    type Params = HeadsApartParams;
    type Operands<T: Copy> = HeadsApartOperands<T>;

    fn name(self) -> String {
        format!("heads_apart{}", self.out.suffix())
    }

    fn extents(self, p: &HeadsApartParams, counts: &Counts) -> Result<HeadsApartOperands<Extent>, String> {
        check_experts(p.heads, p.heads)?;
        if p.dim == 0 || p.dim > p.stride {
            return Err(format!("{} elements of heads of {}", p.dim, p.stride));
        }
        Ok(HeadsApartOperands {
            x: f32s(counts.rows, u64::from(p.heads) * u64::from(p.stride)),
            out: forms(self.out, counts.rows * p.heads as usize, p.dim)?,
            starts: starts(p.heads),
        })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<HeadsApartParams>(), bound.operands(self));
        let (heads, stride, dim, rows) =
            (p.heads as usize, p.stride as usize, p.dim as usize, bound.live.rows);
        let places = (0..heads).flat_map(|head| (0..rows).map(move |row| (row * heads + head) * stride));
        let sorted: Vec<Vec<f32>> = places.map(|at| bound.f32s(o.x)[at..][..dim].to_vec()).collect();
        bound.write_forms(o.out, &sorted);
        let starts: Vec<u32> = (0..=heads).map(|head| (head * rows) as u32).collect();
        bound.write_indices(o.starts, &starts);
    }
}
