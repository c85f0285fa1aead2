//! Limits of the CPU kernels, checked when a table is prepared.

use akunu_plan::ops::{
    self, AttentionParams, ExpertParams, GluMatmulParams, HeadScoresParams, KvMoveParams,
    LatentAttentionParams, LatentKvParams, MatmulParams, QkvParams, RopeKvParams, StateScanParams,
};
use akunu_plan::{DType, DispatchCommand, DispatchTable, EntryBounds, Kernel, KeyOrder, q8};

use crate::kernels::state::MAX_STATE;
use crate::panel::{KV_TILE, MAX_HEAD, MAX_LATENT, MAX_ROW};

pub(crate) fn check(table: &DispatchTable, command: &DispatchCommand) -> Result<(), String> {
    let in_halves = match command.kernel {
        Kernel::Norm(ops::Norm { out, .. })
        | Kernel::Matmul(ops::Matmul { out, .. })
        | Kernel::GluMatmul(ops::GluMatmul { out, .. })
        | Kernel::Glu(ops::Glu { out, .. })
        | Kernel::ExpertGlu(ops::ExpertGlu { out, .. })
        | Kernel::Gather(ops::Gather { form: out })
        | Kernel::Round(ops::Round { out, .. })
        | Kernel::HeadsApart(ops::HeadsApart { out })
        | Kernel::HeadsTogether(ops::HeadsTogether { out })
        | Kernel::LatentAttention(ops::LatentAttention { out, .. })
        | Kernel::Attention(ops::Attention { out, .. }) => out.f16(),
        Kernel::Activate(ops::Activate { input, out, .. }) => input.f16() || out.f16(),
        Kernel::RopeKv(ops::RopeKv { input, .. }) => input.f16(),
        Kernel::Unpack(_)
        | Kernel::HalfMatmul(_)
        | Kernel::HalfQkv(_)
        | Kernel::HalfExpertMatmul(_)
        | Kernel::HalfExpertGlu(_)
        | Kernel::EightMatmul(_) => true,
        _ => false,
    };
    if in_halves {
        return Err("products of f16 are for other devices".into());
    }
    match command.kernel {
        Kernel::Matmul(ops::Matmul { weight, q8, .. }) => {
            input(weight, q8, command.params::<MatmulParams>().inputs)
        }
        Kernel::Qkv(ops::Qkv { weight, q8, .. }) => input(weight, q8, command.params::<QkvParams>().inputs),
        Kernel::GluMatmul(ops::GluMatmul { weight, q8, .. }) => {
            input(weight, q8, command.params::<GluMatmulParams>().inputs)
        }
        Kernel::ExpertMatmul(ops::ExpertMatmul { weight, q8, .. })
        | Kernel::ExpertSum(ops::ExpertSum { weight, q8, .. })
        | Kernel::ExpertGlu(ops::ExpertGlu { weight, q8, .. }) => {
            input(weight, q8, command.params::<ExpertParams>().inputs)
        }
        Kernel::RopeKv(_) => {
            let p: RopeKvParams = command.params();
            head(p.head_dim).and_then(|()| keys(table, p.positions, p.block))
        }
        Kernel::LatentKv(_) => {
            let p: LatentKvParams = command.params();
            latent(p.latent, p.rope_dims)
        }
        Kernel::LatentAttention(_) => {
            let p: LatentAttentionParams = command.params();
            latent(p.latent, p.rope_dims)
        }
        Kernel::KvShift(ops::KvShift { latent: true, .. })
        | Kernel::KvCopy(ops::KvCopy { latent: true, .. }) => {
            let p: KvMoveParams = command.params();
            head(p.rope_dims).and_then(|()| latent(p.head_dim, 0))
        }
        Kernel::KvShift(_) | Kernel::KvCopy(_) => {
            let p: KvMoveParams = command.params();
            head(p.head_dim).and_then(|()| keys(table, p.positions, p.block))
        }
        Kernel::Attention(ops::Attention { out, .. }) => {
            let p: AttentionParams = command.params();
            let group = u64::from(p.heads / p.kv_heads) * u64::from(p.head_dim);
            if out.q8() && !group.is_multiple_of(q8::BLOCK as u64) {
                return Err(format!("a group of heads of {group} is not whole q8 blocks"));
            }
            // A tile is in one block.
            let in_one = p.block == 0 || table.bounds.context() <= p.block;
            if !in_one && !p.block.is_multiple_of(KV_TILE as u32) {
                return Err(format!("blocks of {} positions; multiples of {KV_TILE} are supported", p.block));
            }
            head(p.head_dim).and_then(|()| keys(table, p.positions, p.block))
        }
        Kernel::StateScan(_) => {
            let p: StateScanParams = command.params();
            match p.state_size as usize > MAX_STATE {
                true => Err(format!("states of {}; at most {MAX_STATE} are supported", p.state_size)),
                false => Ok(()),
            }
        }
        Kernel::HeadScores(_) => keys(table, command.params::<HeadScoresParams>().positions, 0),
        _ => Ok(()),
    }
}

/// Takes part in a deferred norm or a fused rotation: planned only for devices that support these, which the CPU does
/// not.
pub(crate) fn is_folded(kernel: Kernel) -> bool {
    match kernel {
        Kernel::Matmul(ops::Matmul { scaled, norm, .. }) => scaled || norm.is_some(),
        Kernel::AllReduce(ops::AllReduce { norm, .. }) => norm.is_some(),
        Kernel::Qkv(ops::Qkv { scaled, .. }) | Kernel::GluMatmul(ops::GluMatmul { scaled, .. }) => scaled,
        Kernel::Attention(ops::Attention { rope, .. }) => rope.is_some(),
        _ => false,
    }
}

fn input(weight: DType, q8: bool, inputs: u32) -> Result<(), String> {
    if inputs as usize > MAX_ROW {
        return Err(format!("rows of {inputs}; at most {MAX_ROW} are supported"));
    }
    if q8 != weight.is_quantised() {
        let input = if q8 { "q8" } else { "f32" };
        return Err(format!("{weight} weights do not take {input} activations here"));
    }
    Ok(())
}

fn head(head_dim: u32) -> Result<(), String> {
    if head_dim as usize > MAX_HEAD {
        return Err(format!("heads of {head_dim}; at most {MAX_HEAD} are supported"));
    }
    Ok(())
}

fn latent(size: u32, rope_dims: u32) -> Result<(), String> {
    if size as usize + rope_dims as usize > MAX_LATENT {
        return Err(format!("latent rows of {size} and {rope_dims}; at most {MAX_LATENT} are supported"));
    }
    Ok(())
}

/// Keys are interleaved in groups of 16 positions, and a group must belong to one sequence and one block.
fn keys(table: &DispatchTable, positions: u32, block: u32) -> Result<(), String> {
    let alignment = KeyOrder::GroupsOf16.alignment() as u32;
    if !block.is_multiple_of(alignment) {
        return Err(format!("blocks of {block} positions; multiples of {alignment} are supported"));
    }
    if !positions.is_multiple_of(alignment) {
        return Err(format!("a cache of {positions} positions; multiples of {alignment} are supported"));
    }
    match table.bounds {
        EntryBounds::Rows(bounds) if !bounds.alignment.is_multiple_of(alignment) => {
            let begins = bounds.alignment;
            Err(format!("sequences that begin at multiples of {begins}; {alignment} is supported"))
        }
        _ => Ok(()),
    }
}
