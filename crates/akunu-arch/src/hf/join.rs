//! The matrices of experts that Hugging Face files have in a tensor each: joined into one tensor per layer and matrix when
//! they are first read.

use std::collections::BTreeMap;

use akunu_format::blocks::widen_scales;
use akunu_format::hf::in_parts;
use akunu_format::{Affine, DType, FormatError, Place, Region, ScaleType, TensorInfo};

use crate::Card;
use crate::tensors::Kind;

/// Before the number of an expert in the name of a tensor.
const EXPERTS: &str = ".experts.";

/// Replaces `….experts.0.NAME`, `….experts.1.NAME`, … by `….experts.NAME` with the matrices of all experts, for the names on
/// the card.
pub(super) fn join(
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
    let mut stacks: Vec<(String, Vec<TensorInfo>, DType)> = Vec::new();
    for (name, experts) in found {
        if let Some(missing) = (0..experts.len()).find(|expert| !experts.contains_key(expert)) {
            let problem = format!("that of expert {missing} is missing: download the folder again");
            return Err(FormatError::tensor(&name, problem));
        }
        let all: Vec<TensorInfo> = experts.into_values().collect();
        let dtype = common_type(&all)?;
        stacks.push((name, all, dtype));
    }
    // Gate and up have to be alike.
    let types: Vec<(String, DType)> =
        stacks.iter().map(|(name, _, dtype)| (layer_of(name).to_string(), *dtype)).collect();
    for (name, all, dtype) in stacks {
        let of_layer = types.iter().filter(|(layer, _)| layer == layer_of(&name));
        let dtype = of_layer.fold(dtype, |dtype, (_, other)| wider(dtype, *other).unwrap_or(dtype));
        tensors.push(whole(name, &all, dtype, regions)?);
    }
    Ok(())
}

/// What the names of a layer's experts have in common.
fn layer_of(name: &str) -> &str {
    name.split_once(EXPERTS).map_or(name, |(layer, _)| layer)
}

/// The tensor of all experts, in regions that are added.
fn whole(
    name: String,
    all: &[TensorInfo],
    dtype: DType,
    regions: &mut Vec<Region>,
) -> Result<TensorInfo, FormatError> {
    let like = &all[0];
    let mut plane = |place_of: &dyn Fn(&TensorInfo) -> Option<Place>, is_scale: bool| {
        let part = |one: &TensorInfo| {
            let Place { region, offset, bytes } = place_of(one)?;
            let narrow = match one.dtype {
                DType::Affine(affine) if is_scale && one.dtype != dtype => affine.scales(),
                _ => ScaleType::F32,
            };
            Some(Part { region: regions[region].clone(), offset, bytes, narrow })
        };
        let parts = all.iter().map(part).collect::<Option<Vec<Part>>>()?;
        let size = parts[0].size();
        let place = Place { region: regions.len(), offset: 0, bytes: size * parts.len() };
        regions.push(Region::derived(place.bytes, move |out| {
            parts.iter().zip(out.chunks_exact_mut(size)).for_each(|(part, out)| part.write(out));
        }));
        Some(place)
    };
    let values = plane(&|one| Some(one.place()), false).unwrap_or(like.place());
    let scales_offsets = [0, 1].map(|which| plane(&|one| one.scales_offsets[which], true));
    let Place { region, offset, bytes } = values;
    let shape = [&[all.len()], &like.shape[..]].concat();
    Ok(TensorInfo { name, dtype, shape, region, offset, bytes, scales_offsets, order: None })
}

/// The type of all experts of a matrix. Where the scales of some are of a narrower type than those of others, all become F32.
fn common_type(all: &[TensorInfo]) -> Result<DType, FormatError> {
    let like = &all[0];
    let mut dtype = like.dtype;
    for one in all {
        if one.order.is_some() {
            let problem = "it stores its inputs in another order (desc_act), which is not supported for experts: take \
                           the original, or a GGUF file";
            return Err(FormatError::tensor(&one.name, problem));
        }
        let common = wider(dtype, one.dtype).filter(|_| one.shape == like.shape);
        dtype = common.ok_or_else(|| {
            let problem = format!(
                "it is {} of the shape {:?}, and that of the first expert {} of {:?}: all experts have to be alike",
                one.dtype, one.shape, like.dtype, like.shape
            );
            FormatError::tensor(&one.name, problem)
        })?;
    }
    Ok(dtype)
}

fn wider(one: DType, other: DType) -> Option<DType> {
    match (one, other) {
        _ if one == other => Some(one),
        (DType::Affine(one), DType::Affine(other))
            if (one.bits(), one.group()) == (other.bits(), other.group()) =>
        {
            Affine::new(one.bits(), one.group(), ScaleType::F32).map(DType::Affine)
        }
        _ => None,
    }
}

/// A plane of one expert.
struct Part {
    region: Region,
    offset: usize,
    bytes: usize,
    /// The type of scales that become F32; F32 for all others.
    narrow: ScaleType,
}

impl Part {
    /// Bytes that it has in the plane of all experts.
    fn size(&self) -> usize {
        self.bytes * ScaleType::F32.bytes() / self.narrow.bytes()
    }

    fn write(&self, out: &mut [u8]) {
        /// Bytes that are copied by one thread.
        const PIECE: usize = 1 << 16;
        if self.narrow != ScaleType::F32 {
            let region = self.region.for_once();
            widen_scales(self.narrow, &region.bytes()[self.offset..][..self.bytes], out);
        } else if self.region.file().is_some() {
            let pieces = out.len().div_ceil(PIECE);
            in_parts(out, PIECE, pieces, |first, out| self.region.copy_to(self.offset + first * PIECE, out));
        } else {
            self.region.copy_to(self.offset, out);
        }
    }
}

/// The name without the number of an expert, and the number.
fn numbered_expert(name: &str) -> Option<(String, usize)> {
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
