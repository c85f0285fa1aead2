//! The scores of one head of attention, before softmax.

use akunu_plan::Kernel;
use akunu_plan::ops::{self, HeadScoresParams};

use super::cache::Cache;
use super::{OpKernel, for_lanes, store};
use crate::command::{Command, Context, f32s};
use crate::isa::target::Target;

/// `Σ q[e] · key[e]`, e in order, times the scale.
impl OpKernel for ops::HeadScores {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: HeadScoresParams = command.params();
        let Kernel::HeadScores(op) = command.kernel else { return };
        let o = command.operands(op);
        let cache = Cache::new(op.kv, p.head_dim, p.positions);
        let (dim, count, scale) = (p.head_dim as usize, p.count as usize, V::splat(p.scale));
        // SAFETY: sequences begin at multiples of 16 positions and the cache has whole groups of 16, so every group of
        // which a row sees a position is within it; q and out are within the operands' extents.
        unsafe {
            let rows = context.rows(o.rows);
            for r in context.units(context.rows) {
                let (start, seen) = (rows[r].start, p.seen(&rows[r]) as usize);
                let q = f32s(o.q).add((r * p.heads as usize + p.head as usize) * dim);
                let out = f32s(o.out).add(r * p.out_stride as usize);
                (seen..count).for_each(|position| *out.add(position) = 0.0);
                for_lanes!(seen, |at, n| {
                    let group = cache.offset(p.kv_head() as usize, start as usize + at);
                    let keys = o.k_cache.0.add(group);
                    let mut sum = V::zero();
                    for e in 0..dim {
                        sum = cache.key_lanes::<V>(keys, e).fma(V::splat(*q.add(e)), sum);
                    }
                    store(sum.mul(scale), out.add(at), n);
                });
            }
        }
    }
}
