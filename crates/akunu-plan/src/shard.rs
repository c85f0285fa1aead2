//! The shares of ranks: which part of each tensor a rank has, so that all ranks together compute what one device would.
//!
//! All ranks have the same plan, of a model with a part of the heads and of the feed-forward's columns. They differ in
//! what their weights contain. Products that end in such columns are cut by outputs, those that begin with them by
//! inputs, and the sums of the latter are added up over the ranks ([`crate::ops::AllReduce`]). So are the squares of queries
//! and keys that are normalised with those of all heads together.

use akunu_arch::{ModelConfig, WeightProvider};
use akunu_format::{DType, Metadata, Region, TensorInfo};

use crate::plan::PlanError;
use crate::q8;

/// The part of a buffer's source that a rank has. The source is entries of equal length, and a rank has the same range
/// of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub entries: usize,
    /// Bytes of an entry.
    pub bytes: usize,
    /// Bytes of each rank's range of it. Where the ranges are more than the entry, the last ones are filled with zeros.
    pub share: usize,
    /// So many ranks, one after the other, have the same range.
    pub same: usize,
    pub ranks: usize,
}

impl Cut {
    /// Bytes of what a rank has.
    pub fn share_bytes(&self) -> usize {
        self.entries * self.share
    }

    /// Where in an entry the range of a rank begins, and how many of its bytes exist.
    fn range(&self, rank: usize) -> (usize, usize) {
        let start = (rank / self.same * self.share).min(self.bytes);
        (start, self.share.min(self.bytes - start))
    }

    /// Whether what each rank has lies in the source in one piece.
    pub fn is_in_one_piece(&self) -> bool {
        self.entries == 1 && self.bytes * self.same == self.share * self.ranks
    }

    /// Where that piece begins.
    pub fn offset(&self, rank: usize) -> usize {
        self.range(rank).0
    }

    /// Which part a rank has, in words: `2/4` is the second of four. `zeros`: nothing, and `whole`: all of it.
    pub fn part_name(&self, rank: usize) -> String {
        match self.range(rank).1 {
            0 => "zeros".into(),
            exist if exist == self.bytes => "whole".into(),
            _ => format!("{}/{}", rank / self.same + 1, self.ranks / self.same),
        }
    }

    /// What a rank has of a source.
    pub fn part(&self, rank: usize, source: &[u8]) -> Vec<u8> {
        let (start, exist) = self.range(rank);
        let mut part = vec![0; self.share_bytes()];
        for (to, from) in part.chunks_exact_mut(self.share).zip(source.chunks_exact(self.bytes)) {
            to[..exist].copy_from_slice(&from[start..][..exist]);
        }
        part
    }
}

/// What the units of a dimension are that ranks share out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Units {
    Heads,
    KvHeads,
    /// Columns of feed-forward parts.
    Columns,
    Tokens,
}

/// How a tensor is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Along {
    /// By its first dimension, or the second where experts have a matrix each.
    Outputs(Units),
    /// By its last dimension.
    Inputs(Units),
    /// The first rank has it, and the others zeros: it is added to a sum over ranks.
    Once,
}

/// What models that cannot be cut so can be.
const INSTEAD: &str = "; --pipeline-parallel gives each device whole layers instead";

/// How tensors are cut, by their name without the layer. Each rank has all other tensors whole.
const RULES: &[(&str, Along)] = &[
    ("token_embd.weight", Along::Outputs(Units::Tokens)),
    ("output.weight", Along::Outputs(Units::Tokens)),
    ("output.bias", Along::Outputs(Units::Tokens)),
    ("attn_q.weight", Along::Outputs(Units::Heads)),
    ("attn_q.bias", Along::Outputs(Units::Heads)),
    ("attn_q_norm.weight", Along::Outputs(Units::Heads)),
    ("attn_q_b.weight", Along::Outputs(Units::Heads)),
    ("attn_k_b.weight", Along::Outputs(Units::Heads)),
    ("attn_v_b.weight", Along::Outputs(Units::Heads)),
    ("attn_sinks.weight", Along::Outputs(Units::Heads)),
    ("attn_k.weight", Along::Outputs(Units::KvHeads)),
    ("attn_k.bias", Along::Outputs(Units::KvHeads)),
    ("attn_k_norm.weight", Along::Outputs(Units::KvHeads)),
    ("attn_v.weight", Along::Outputs(Units::KvHeads)),
    ("attn_v.bias", Along::Outputs(Units::KvHeads)),
    ("attn_output.weight", Along::Inputs(Units::Heads)),
    ("attn_output.bias", Along::Once),
    ("ffn_gate.weight", Along::Outputs(Units::Columns)),
    ("ffn_gate.bias", Along::Outputs(Units::Columns)),
    ("ffn_up.weight", Along::Outputs(Units::Columns)),
    ("ffn_up.bias", Along::Outputs(Units::Columns)),
    ("ffn_down.weight", Along::Inputs(Units::Columns)),
    ("ffn_down.bias", Along::Once),
    ("ffn_gate_shexp.weight", Along::Outputs(Units::Columns)),
    ("ffn_up_shexp.weight", Along::Outputs(Units::Columns)),
    ("ffn_down_shexp.weight", Along::Inputs(Units::Columns)),
    ("ffn_gate_exps.weight", Along::Outputs(Units::Columns)),
    ("ffn_up_exps.weight", Along::Outputs(Units::Columns)),
    ("ffn_gate_exps.bias", Along::Inputs(Units::Columns)),
    ("ffn_up_exps.bias", Along::Inputs(Units::Columns)),
    ("ffn_down_exps.weight", Along::Inputs(Units::Columns)),
    ("ffn_down_exps.bias", Along::Once),
];

/// The size of a rank's share of a dimension, and how many ranks have the same share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Division {
    share: usize,
    same: usize,
    ranks: usize,
}

/// How the weights of a model are cut: by shape for the lowering, and in bytes for loading.
#[derive(Clone, Debug)]
pub(crate) struct TensorCut {
    /// Of what a rank has.
    pub shape: Vec<usize>,
    axis: usize,
    division: Division,
}

impl TensorCut {
    /// The cut of a plane of a tensor; `None`: each rank has all of it.
    pub fn of_plane(&self, tensor: &TensorInfo, plane: usize) -> Result<Option<Cut>, PlanError> {
        let Division { share, same, ranks } = self.division;
        let (whole, local) = (tensor.cols(), *self.shape.last().unwrap_or(&1));
        let sizes = |cols| tensor.dtype.plane_bytes(cols).map(|planes| planes[plane]);
        let (Some(row), Some(local_row)) = (sizes(whole), sizes(local)) else {
            let (name, dtype, block) = (&tensor.name, tensor.dtype, tensor.dtype.block_len());
            return Err(PlanError::Unsupported(format!(
                "{name} cannot be cut between these ranks: a rank's {local} columns are not whole blocks of {dtype}, \
                 of {block}; use fewer ranks, or weights in another type"
            )));
        };
        let outer = tensor.shape[..self.axis].iter().product::<usize>();
        if self.axis + 1 == tensor.shape.len() {
            // A scale for a whole row is that of each part of it.
            let cut = Cut { entries: outer, bytes: row, share: local_row, same, ranks };
            return Ok((row != local_row).then_some(cut));
        }
        let inner = tensor.shape[self.axis + 1..tensor.shape.len() - 1].iter().product::<usize>() * row;
        let bytes = tensor.shape[self.axis] * inner;
        Ok(Some(Cut { entries: outer, bytes, share: share * inner, same, ranks }))
    }

    /// The cut of the tensor as f32 numbers.
    pub fn of_f32s(&self, tensor: &TensorInfo) -> Cut {
        let Division { share, same, ranks } = self.division;
        let entries = tensor.shape[..self.axis].iter().product::<usize>();
        let inner = tensor.shape[self.axis + 1..].iter().product::<usize>() * size_of::<f32>();
        Cut { entries, bytes: tensor.shape[self.axis] * inner, share: share * inner, same, ranks }
    }
}

/// A model as each of several ranks sees it.
#[derive(Debug)]
pub(crate) struct Sharded<'a> {
    inner: &'a dyn WeightProvider,
    ranks: usize,
    /// Columns of feed-forward parts are shared out in multiples of this, so that they are whole blocks.
    columns: usize,
    /// With the heads and columns of one rank. The vocabulary is the whole one.
    config: ModelConfig,
}

impl<'a> Sharded<'a> {
    pub fn new(inner: &'a dyn WeightProvider, ranks: usize) -> Result<Sharded<'a>, PlanError> {
        let full = inner.config();
        check(inner, ranks)?;
        let columns = column_block(inner);
        let share = |whole: usize| share_of(whole, ranks, columns);
        let experts = full.experts.map(|experts| akunu_arch::ExpertFacts {
            ffn_size: share(experts.ffn_size),
            shared_ffn_size: experts.shared_ffn_size.map(share),
            ..experts
        });
        let config = ModelConfig {
            head_count: full.head_count / ranks,
            kv_head_count: kv_heads(full.kv_head_count, ranks),
            ffn_size: share(full.ffn_size),
            experts,
            ..full.clone()
        };
        Ok(Sharded { inner, ranks, columns, config })
    }

    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Tokens of the vocabulary that a rank has.
    pub fn tokens(&self) -> usize {
        share_of(self.config.vocab_size, self.ranks, q8::BLOCK)
    }

    /// How a tensor is cut; `None`: it is not.
    pub fn cut(&self, tensor: &TensorInfo) -> Result<Option<TensorCut>, PlanError> {
        let part = part_of(&tensor.name);
        let Some((_, along)) = RULES.iter().find(|(name, _)| *name == part) else { return Ok(None) };
        // The norm of each head's queries and keys by the same weights.
        if part.ends_with("_norm.weight") && tensor.shape == [self.config.head_dim] {
            return Ok(None);
        }
        if tensor.order.is_some() && matches!(along, Along::Inputs(_)) {
            let name = &tensor.name;
            return Err(PlanError::Unsupported(format!(
                "{name} stores its inputs in another order (desc_act), so it cannot be cut between ranks{INSTEAD}"
            )));
        }
        let last = tensor.shape.len() - 1;
        let (axis, units) = match along {
            Along::Outputs(_) if part.ends_with("_exps.weight") => (1, along),
            Along::Outputs(_) | Along::Once => (0, along),
            Along::Inputs(_) => (last, along),
        };
        let whole = tensor.shape[axis];
        let division = match units {
            Along::Once => Division { share: whole, same: 1, ranks: self.ranks },
            Along::Outputs(units) | Along::Inputs(units) => self.divide(*units, whole),
        };
        let mut shape = tensor.shape.clone();
        shape[axis] = division.share;
        Ok(Some(TensorCut { shape, axis, division }))
    }

    fn divide(&self, units: Units, whole: usize) -> Division {
        let ranks = self.ranks;
        match units {
            Units::Heads => Division { share: whole / ranks, same: 1, ranks },
            Units::KvHeads => {
                let all = self.inner.config().kv_head_count;
                let share = whole / all * kv_heads(all, ranks);
                Division { share, same: (ranks / all).max(1), ranks }
            }
            Units::Columns => Division { share: share_of(whole, ranks, self.columns), same: 1, ranks },
            Units::Tokens => Division { share: share_of(whole, ranks, q8::BLOCK), same: 1, ranks },
        }
    }
}

impl WeightProvider for Sharded<'_> {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.inner.tensors()
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.inner.tensor(name)
    }

    fn regions(&self) -> &[Region] {
        self.inner.regions()
    }

    fn metadata(&self) -> Option<&Metadata> {
        self.inner.metadata()
    }
}

/// The name without the layer.
fn part_of(name: &str) -> &str {
    name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map_or(name, |(_, part)| part)
}

/// The largest share of a rank, in whole blocks.
fn share_of(whole: usize, ranks: usize, block: usize) -> usize {
    match whole.is_multiple_of(ranks * block) {
        true => whole / ranks,
        false => whole.div_ceil(ranks).next_multiple_of(block),
    }
}

/// KV heads of a rank: where there are more ranks than KV heads, several ranks have the same one.
pub(crate) fn kv_heads(all: usize, ranks: usize) -> usize {
    (all / ranks).max(1)
}

/// Columns that every matrix of a feed-forward part can be cut at.
fn column_block(provider: &dyn WeightProvider) -> usize {
    let cut_by_columns = |name: &str| {
        let part = part_of(name);
        RULES.iter().any(|(rule, along)| *rule == part && *along == Along::Inputs(Units::Columns))
    };
    let blocks = provider.tensors().iter().filter(|tensor| cut_by_columns(&tensor.name));
    blocks.map(|tensor| block_of(tensor.dtype)).max().unwrap_or(1).max(q8::BLOCK)
}

fn block_of(dtype: DType) -> usize {
    match dtype {
        DType::Fp8(_) => 128,
        other => other.block_len(),
    }
}

/// Rejects models that cannot be shared out between so many ranks.
fn check(provider: &dyn WeightProvider, ranks: usize) -> Result<(), PlanError> {
    let config = provider.config();
    let refuse = |reason: String| Err(PlanError::Unsupported(reason));
    if config.encoder.is_some() || config.bidirectional {
        return refuse("only models that generate text can be shared out between ranks".into());
    }
    let (heads, kv) = (config.head_count, config.kv_head_count.max(1));
    if !heads.is_multiple_of(ranks) {
        return refuse(format!("{ranks} ranks cannot share the model's {heads} heads equally{INSTEAD}"));
    }
    if !kv.is_multiple_of(ranks) && !ranks.is_multiple_of(kv) {
        return refuse(format!(
            "{ranks} ranks and the model's {kv} KV heads do not divide each other{INSTEAD}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_entries_are_cut_out_and_filled_up() {
        let source: Vec<u8> = (0..12).collect();
        let by_rows = Cut { entries: 1, bytes: 12, share: 6, same: 1, ranks: 2 };
        assert!(by_rows.is_in_one_piece());
        assert_eq!((by_rows.offset(1), by_rows.part(1, &source)), (6, vec![6, 7, 8, 9, 10, 11]));
        let by_columns = Cut { entries: 3, bytes: 4, share: 2, same: 1, ranks: 2 };
        assert!(!by_columns.is_in_one_piece());
        assert_eq!(by_columns.part(1, &source), [2, 3, 6, 7, 10, 11]);
        let repeated = Cut { entries: 1, bytes: 12, share: 6, same: 2, ranks: 4 };
        assert_eq!([0, 1, 2, 3].map(|rank| repeated.offset(rank)), [0, 0, 6, 6]);
        let filled = Cut { entries: 2, bytes: 6, share: 4, same: 1, ranks: 3 };
        assert!(!filled.is_in_one_piece());
        assert_eq!(filled.part(1, &source), [4, 5, 0, 0, 10, 11, 0, 0]);
        assert_eq!(filled.part(2, &source), [0; 8]);
        // What is added to a sum: the first rank's.
        let once = Cut { entries: 1, bytes: 12, share: 12, same: 1, ranks: 4 };
        assert!(!once.is_in_one_piece());
        assert_eq!((once.part(0, &source), once.part(3, &source)), (source.clone(), vec![0; 12]));
    }

    #[test]
    fn shares_are_whole_blocks() {
        assert_eq!(share_of(4864, 2, 256), 2560);
        assert_eq!(share_of(4864, 2, 32), 2432);
        assert_eq!(share_of(32_000, 8, 32), 4000);
        assert_eq!(share_of(32_003, 8, 32), 4032);
        assert_eq!([kv_heads(8, 2), kv_heads(2, 4), kv_heads(1, 8)], [4, 1, 1]);
    }
}
