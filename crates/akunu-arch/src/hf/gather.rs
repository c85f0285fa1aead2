//! Combines the vectors of heads, which Hugging Face files have apart, into one tensor per layer.

use std::collections::BTreeMap;

use akunu_format::{FormatError, Region, TensorInfo};

use crate::Card;

/// Replaces `…LIST.0.weight`, `…LIST.1.weight`, … by `…NAME.weight` with one row per head, for the lists on the card.
pub(super) fn gather_heads(
    tensors: &mut Vec<TensorInfo>,
    regions: &mut Vec<Region>,
    card: &Card,
) -> Result<(), FormatError> {
    let mut found: BTreeMap<String, BTreeMap<usize, TensorInfo>> = BTreeMap::new();
    tensors.retain(|tensor| {
        let Some((name, head)) = card.head_lists.iter().find_map(|(list, name)| {
            let (before, rest) = tensor.name.split_once(list)?;
            let head = rest.strip_prefix('.')?.strip_suffix(".weight")?.parse().ok()?;
            Some((format!("{before}{name}.weight"), head))
        }) else {
            return true;
        };
        found.entry(name).or_default().insert(head, tensor.clone());
        false
    });
    for (name, heads) in found {
        let rows: Vec<&TensorInfo> = heads.values().collect();
        let like = rows[0];
        let alike = rows.iter().all(|row| row.dtype == like.dtype && row.shape == like.shape);
        let complete = heads.keys().copied().eq(0..heads.len()) && like.shape.len() == 1;
        if !alike || !complete {
            return Err(FormatError::tensor(
                &name,
                "some of its heads are missing, or differ in shape or type",
            ));
        }
        let bytes: Vec<u8> = rows
            .iter()
            .flat_map(|row| &regions[row.region].bytes()[row.offset..row.offset + row.bytes])
            .copied()
            .collect();
        let whole = TensorInfo {
            name,
            shape: vec![rows.len(), like.cols()],
            region: regions.len(),
            offset: 0,
            bytes: bytes.len(),
            ..like.clone()
        };
        regions.push(Region::from_vec(bytes));
        tensors.push(whole);
    }
    Ok(())
}
