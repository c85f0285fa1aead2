//! Reorders fused tensors that Hugging Face files store in groups: Q, K and V by KV head, gate and up by expert.

use akunu_format::{FormatError, Place, Region, TensorInfo};

use crate::tensors::FusedLayout;
use crate::{Card, ModelConfig};

/// Copies each such tensor into a region of its own, with all rows of its first part, then of the next.
pub(super) fn ungroup(
    tensors: &mut [TensorInfo],
    regions: &mut Vec<Region>,
    card: &Card,
    config: &ModelConfig,
) -> Result<(), FormatError> {
    let rule_of = |name: &str, layout: FusedLayout| {
        let part = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map(|(_, part)| part);
        let stack = part.and_then(|part| part.rsplit_once('.')).map(|(stack, _)| stack);
        card.fused.iter().find(|rule| rule.layout == layout && Some(rule.name) == stack)
    };
    for tensor in tensors.iter_mut() {
        if let Some(rule) = rule_of(&tensor.name, FusedLayout::Experts) {
            ungroup_experts(tensor, regions, rule.parts.len(), config)?;
        }
    }
    let grouped = |name: &str| rule_of(name, FusedLayout::KvHeads).is_some();
    let (groups, head_dim) = (config.kv_head_count, config.head_dim);
    // With one KV head, the order is the same already.
    if groups < 2 {
        return Ok(());
    }
    let queries = config.head_count / groups;
    for tensor in tensors.iter_mut().filter(|tensor| grouped(&tensor.name)) {
        let rows = tensor.shape.first().copied().unwrap_or(0);
        let wanted = groups * (queries + 2) * head_dim;
        if rows != wanted || tensor.shape.len() == 1 && tensor.dtype.is_quantised() {
            let problem =
                format!("it has {rows} rows, but {groups} groups of {queries} query heads need {wanted}");
            return Err(FormatError::tensor(&tensor.name, problem));
        }
        let mut copy = |place: Place| {
            let from = &regions[place.region].bytes()[place.offset..place.offset + place.bytes];
            let bytes = reorder(from, place.bytes / rows * head_dim, groups, queries);
            regions.push(Region::from_vec(bytes));
            Place { region: regions.len() - 1, offset: 0, bytes: place.bytes }
        };
        let first = copy(tensor.place());
        let others = tensor.scales_offsets.map(|plane| plane.map(&mut copy));
        (tensor.region, tensor.offset, tensor.scales_offsets) = (first.region, first.offset, others);
    }
    Ok(())
}

/// From `[experts][parts][rows]` to `[parts][experts][rows]`.
fn ungroup_experts(
    tensor: &mut TensorInfo,
    regions: &mut Vec<Region>,
    parts: usize,
    config: &ModelConfig,
) -> Result<(), FormatError> {
    let count = config.experts.map_or(0, |experts| experts.count);
    let &[experts, rows, cols] = &tensor.shape[..] else {
        return Err(FormatError::tensor(
            &tensor.name,
            format!("{:?} is not a matrix of each expert", tensor.shape),
        ));
    };
    if experts != count || experts == 0 || rows == 0 || !rows.is_multiple_of(parts) {
        let problem = format!("{:?} is not a matrix of each of {count} experts", tensor.shape);
        return Err(FormatError::tensor(&tensor.name, problem));
    }
    let mut copy = |place: Place| {
        let from = &regions[place.region].bytes()[place.offset..place.offset + place.bytes];
        let part = |part: usize| from.chunks_exact(place.bytes / (experts * parts)).skip(part).step_by(parts);
        let mut bytes = Vec::with_capacity(place.bytes);
        (0..parts).flat_map(part).for_each(|chunk| bytes.extend_from_slice(chunk));
        regions.push(Region::from_vec(bytes));
        Place { region: regions.len() - 1, offset: 0, bytes: place.bytes }
    };
    let first = copy(tensor.place());
    let others = tensor.scales_offsets.map(|plane| plane.map(&mut copy));
    (tensor.region, tensor.offset, tensor.scales_offsets) = (first.region, first.offset, others);
    tensor.shape = vec![parts * experts, rows / parts, cols];
    Ok(())
}

/// Reorders heads of `head_bytes` each from `[group][queries…, key, value]` to all queries, all keys, all values.
fn reorder(from: &[u8], head_bytes: usize, groups: usize, queries: usize) -> Vec<u8> {
    let head = |group: usize, at: usize| &from[(group * (queries + 2) + at) * head_bytes..][..head_bytes];
    let q = (0..groups).flat_map(|group| (0..queries).map(move |at| (group, at)));
    let k = (0..groups).map(|group| (group, queries));
    let v = (0..groups).map(|group| (group, queries + 1));
    q.chain(k).chain(v).flat_map(|(group, at)| head(group, at)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grouped_heads_are_reordered() {
        // Two groups of two queries: q0 q1 k0 v0, q2 q3 k1 v1.
        let grouped = [0, 1, 10, 20, 2, 3, 11, 21];
        assert_eq!(reorder(&grouped, 1, 2, 2), [0, 1, 2, 3, 10, 11, 20, 21]);
        let wide: Vec<u8> = grouped.iter().flat_map(|head| [*head, *head]).collect();
        assert_eq!(reorder(&wide, 2, 2, 2)[..4], [0, 0, 1, 1]);
    }
}
