//! Combines the vectors of heads and the matrices of experts, which Hugging Face files have apart, into one tensor per
//! layer.

use std::collections::BTreeMap;

use akunu_format::{FormatError, Place, Region, TensorInfo};

use crate::Card;
use crate::tensors::Kind;

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

/// Replaces `….experts.0.NAME`, `….experts.1.NAME`, … by `….experts.NAME` with the matrices of all experts, for the names on
/// the card.
pub(super) fn gather_experts(
    tensors: &mut Vec<TensorInfo>,
    regions: &mut Vec<Region>,
    card: &Card,
) -> Result<(), FormatError> {
    let is_stack = |name: &str| {
        let module = name.rsplit_once('.').map_or(name, |(module, _)| module);
        let mut rules = card.tensor_rules();
        rules.any(|rule| {
            matches!(rule.kind, Kind::Experts | Kind::ResidualExperts)
                && rule.hf.is_some_and(|hf| module.ends_with(hf))
        })
    };
    let mut found: BTreeMap<String, BTreeMap<usize, TensorInfo>> = BTreeMap::new();
    tensors.retain(|tensor| match numbered_expert(&tensor.name) {
        Some((name, expert)) if is_stack(&name) => {
            found.entry(name).or_default().insert(expert, tensor.clone());
            false
        }
        _ => true,
    });
    for (name, experts) in found {
        let all: Vec<&TensorInfo> = experts.values().collect();
        let like = all[0];
        let alike =
            all.iter().all(|one| one.dtype == like.dtype && one.shape == like.shape && one.order.is_none());
        if !alike || !experts.keys().copied().eq(0..experts.len()) {
            let problem = "some of its experts are missing, or differ in shape or type";
            return Err(FormatError::tensor(&name, problem));
        }
        let mut stacked = |places: Vec<Place>| {
            let bytes: Vec<u8> = places
                .iter()
                .flat_map(|place| &regions[place.region].bytes()[place.offset..place.offset + place.bytes])
                .copied()
                .collect();
            let whole = Place { region: regions.len(), offset: 0, bytes: bytes.len() };
            regions.push(Region::from_vec(bytes));
            whole
        };
        let values = stacked(all.iter().map(|one| one.place()).collect());
        let mut planes = [None; 2];
        for (which, plane) in planes.iter_mut().enumerate() {
            let places: Option<Vec<Place>> = all.iter().map(|one| one.scales_offsets[which]).collect();
            *plane = places.map(&mut stacked);
        }
        let shape = [&[all.len()], &like.shape[..]].concat();
        let Place { region, offset, bytes } = values;
        tensors.push(TensorInfo {
            name,
            shape,
            region,
            offset,
            bytes,
            scales_offsets: planes,
            ..like.clone()
        });
    }
    Ok(())
}

/// The name without the number of an expert, and the number.
fn numbered_expert(name: &str) -> Option<(String, usize)> {
    const EXPERTS: &str = ".experts.";
    let (before, rest) = name.split_once(EXPERTS)?;
    let (number, part) = rest.split_once('.')?;
    let is_plain =
        number.bytes().all(|digit| digit.is_ascii_digit()) && (number == "0" || !number.starts_with('0'));
    let number = number.parse().ok().filter(|_| is_plain)?;
    Some((format!("{before}{EXPERTS}{part}"), number))
}

#[cfg(test)]
mod tests {
    use super::numbered_expert;

    #[test]
    fn numbers_of_experts_are_plain() {
        let stacked = |name: &str| numbered_expert(name);
        let whole = "model.layers.2.mlp.experts.gate_proj.weight".to_string();
        assert_eq!(stacked("model.layers.2.mlp.experts.17.gate_proj.weight"), Some((whole, 17)));
        for name in
            ["a.experts.gate_proj.weight", "a.experts.01.w1.weight", "a.experts.+1.w1.weight", "a.experts.1"]
        {
            assert_eq!(stacked(name), None, "{name}");
        }
    }
}
