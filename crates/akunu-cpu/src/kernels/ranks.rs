//! Kernels that combine what the ranks of a model have computed. All workers of all ranks meet twice: when every part has
//! been written, and when every part has been read. If the other ranks are in other processes, those of this one meet, and
//! a copy of each part is read.

use akunu_plan::ops::{self, AllGatherParams, NormParams};
use akunu_plan::{Kernel, Member};

use super::rows::parts_of_rows;
use super::{OpKernel, for_lanes, load, store};
use crate::command::{Command, Context, f32s};
use crate::isa::target::Target;

/// The first meeting: `part` is what this rank contributes. `None`: another rank has failed, which is found out after
/// the submission.
///
/// # Safety
/// `part` has `count` numbers, which were written before this command, and are only read during it.
unsafe fn meet<'a>(context: &Context<'a>, part: *mut f32, count: usize) -> Option<&'a Member> {
    let member = context.member?;
    if context.part == 0 {
        // SAFETY: as promised by the caller. Other workers of this rank do not read parts before the meeting below.
        let sent = member.send_part(unsafe { std::slice::from_raw_parts_mut(part, count) });
        // An error has broken the group, so the meeting fails.
        if sent == Ok(false) {
            member.publish(part.cast());
        }
    }
    member.meet().is_ok().then_some(member)
}

impl OpKernel for ops::AllReduce {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: NormParams = command.params();
        let Kernel::AllReduce(op) = command.kernel else { return };
        let o = command.operands(op);
        let cols = p.cols as usize;
        // SAFETY: `x` has as many rows as the pass, and all stages before this one are over.
        let Some(member) = (unsafe { meet(context, f32s(o.x), context.rows * cols) }) else { return };
        for (r, range) in parts_of_rows(context, context.rows, cols) {
            let first = r * cols + range.start;
            // SAFETY: all ranks run the same command, so each part has as many rows as this rank's, which are within the
            // table's, and they are not written before the second meeting.
            unsafe {
                for_lanes!(range.len(), |at, n| {
                    let mut sum = match o.residual {
                        Some(residual) => load::<V>(f32s(residual).add(first + at), n),
                        None => V::splat(0.0),
                    };
                    for part in member.parts() {
                        sum = sum.add(load::<V>(part.cast::<f32>().add(first + at), n));
                    }
                    store(sum, f32s(o.out).add(first + at), n);
                });
            }
        }
        let _ = member.meet();
    }
}

impl OpKernel for ops::AllGather {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: AllGatherParams = command.params();
        let o = command.operands(ops::AllGather);
        let (cols, total) = (p.cols as usize, p.total as usize);
        // SAFETY: `x` has a row for each row with logits, and all stages before this one are over.
        let Some(member) = (unsafe { meet(context, f32s(o.x), context.logit_rows * cols) }) else { return };
        for (r, range) in parts_of_rows(context, context.logit_rows, total) {
            for (rank, part) in member.parts().enumerate() {
                let (start, end) = (range.start.max(rank * cols), range.end.min((rank + 1) * cols));
                if start < end {
                    // SAFETY: as for sums; `start .. end` are columns of this rank's part and of the row of `out`.
                    unsafe {
                        let from = part.cast::<f32>().add(r * cols + start - rank * cols);
                        from.copy_to_nonoverlapping(f32s(o.out).add(r * total + start), end - start);
                    }
                }
            }
        }
        let _ = member.meet();
    }
}
