//! The matrix of keys and values of latent attention, which files may have as one: taken apart when they are first read.
//!
//! For each head it has the rows of the head's keys, then those of its values. Attention multiplies queries by the
//! transposed part of the keys, so that part is transposed here. FP8 stays FP8 where a row of the result has one scale; other
//! types with scales become F32.

use akunu_format::blocks::dequantize_nth;
use akunu_format::hf::in_parts;
use akunu_format::{DType, FormatError, Fp8, Place, Region, TensorInfo};

use crate::tensors::Kind;
use crate::{Card, LatentFacts, ModelConfig};

/// Replaces each matrix of keys and values by that of keys and that of values.
pub(crate) fn take_apart(
    tensors: &mut Vec<TensorInfo>,
    regions: &mut Vec<Region>,
    card: &Card,
    config: &ModelConfig,
) -> Result<(), FormatError> {
    let (Some(latent), Some(name)) = (config.latent, keys_values(card)) else { return Ok(()) };
    let mut all = Vec::with_capacity(tensors.len());
    for tensor in tensors.drain(..) {
        let Some(layer) = tensor.name.strip_suffix(".weight").and_then(|whole| whole.strip_suffix(name))
        else {
            all.push(tensor);
            continue;
        };
        let both = Both { tensor: &tensor, latent, heads: config.head_count };
        both.check()?;
        let (keys, made) = both.keys(layer, regions.len(), regions);
        regions.extend(made);
        let (values, planes) = both.values(layer, regions.len(), regions);
        regions.extend(planes);
        all.extend([keys, values]);
    }
    *tensors = all;
    Ok(())
}

/// What the name of the card's matrix of keys and values ends with.
fn keys_values(card: &Card) -> Option<&'static str> {
    card.tensor_rules().find(|rule| rule.kind == Kind::KeysValues).map(|rule| rule.name)
}

/// The matrix of keys and values of a layer.
struct Both<'a> {
    tensor: &'a TensorInfo,
    latent: LatentFacts,
    heads: usize,
}

/// Bytes of a file.
struct Source {
    region: Region,
    place: Place,
}

impl Source {
    fn of(regions: &[Region], place: Place) -> Source {
        Source { region: regions[place.region].clone(), place }
    }

    fn bytes(&self) -> &[u8] {
        &self.region.bytes()[self.place.offset..self.place.offset + self.place.bytes]
    }
}

impl Both<'_> {
    fn check(&self) -> Result<(), FormatError> {
        let LatentFacts { size, plain, values, .. } = self.latent;
        let wanted = [self.heads * (plain + values), size];
        if self.tensor.shape[..] != wanted {
            let problem =
                format!("its shape is {:?}, but {} heads need {wanted:?}", self.tensor.shape, self.heads);
            return Err(FormatError::tensor(&self.tensor.name, problem));
        }
        if self.tensor.order.is_some() {
            let problem = "it stores its inputs in another order (desc_act), which is not supported here";
            return Err(FormatError::tensor(&self.tensor.name, problem));
        }
        Ok(())
    }

    /// `[head][latent][plain]`, in regions from `to` on.
    fn keys(&self, layer: &str, to: usize, regions: &[Region]) -> (TensorInfo, Vec<Region>) {
        let LatentFacts { size, plain, values, .. } = self.latent;
        let from = self.tensor.dtype;
        let planes: Vec<Source> = self.tensor.places().map(|place| Source::of(regions, place)).collect();
        let of_head = plain + values;
        let scales = match (from, planes.get(1)) {
            (DType::Fp8(fp8), Some(plane)) => self.scales_of_heads(fp8, plane.bytes()),
            _ => None,
        };
        let dtype = match from {
            DType::F16 | DType::BF16 => from,
            _ if scales.is_some() => DType::Fp8(Fp8::Row),
            _ => DType::F32,
        };
        let wide = dtype.block_bytes();
        let (row, rows) = (plain * wide, self.heads * size);
        let transposed = Region::derived(rows * row, move |out| {
            let mut bytes: [&[u8]; 3] = [&[]; 3];
            bytes.iter_mut().zip(&planes).for_each(|(to, plane)| *to = plane.bytes());
            let head_bytes = size * row;
            in_parts(out, head_bytes, rows / size, |first, out| {
                let mut line = vec![0.0; size];
                for (head, out) in out.chunks_exact_mut(head_bytes).enumerate() {
                    for key in 0..plain {
                        let from_row = (first + head) * of_head + key;
                        let stored = || &bytes[0][from_row * size * wide..][..size * wide];
                        match wide {
                            1 => to_column::<1>(stored(), key, plain, out),
                            2 => to_column::<2>(stored(), key, plain, out),
                            _ if dequantize_nth(from, bytes, from_row, &mut line).is_ok() => {
                                let values: Vec<u8> =
                                    line.iter().flat_map(|value| value.to_le_bytes()).collect();
                                to_column::<4>(&values, key, plain, out);
                            }
                            _ => {}
                        }
                    }
                }
            });
        });
        let scale_place = Place { region: to + 1, offset: 0, bytes: 4 * rows };
        let info = TensorInfo {
            name: format!("{layer}attn_k_b.weight"),
            dtype,
            shape: vec![self.heads, size, plain],
            region: to,
            offset: 0,
            bytes: rows * row,
            scales_offsets: [scales.is_some().then_some(scale_place), None],
            order: None,
        };
        (info, std::iter::once(transposed).chain(scales.map(Region::from_vec)).collect())
    }

    /// A scale for each row of the transposed keys. `None`: those of the keys of a head differ for an input, as with blocks
    /// that do not begin with heads.
    fn scales_of_heads(&self, fp8: Fp8, plane: &[u8]) -> Option<Vec<u8>> {
        let LatentFacts { size, plain, values, .. } = self.latent;
        let line = 4 * fp8.scales(size);
        let mut scales = Vec::with_capacity(4 * self.heads * size);
        for head in plane.chunks_exact(line * (plain + values)) {
            let first = &head[..line];
            if head.chunks_exact(line).take(plain).any(|other| other != first) {
                return None;
            }
            let groups = first.chunks_exact(4).flat_map(|scale| std::iter::repeat_n(scale, fp8.group(size)));
            groups.take(size).for_each(|scale| scales.extend_from_slice(scale));
        }
        Some(scales)
    }

    /// `[head][values][latent]`, in regions from `to` on.
    fn values(&self, layer: &str, to: usize, regions: &[Region]) -> (TensorInfo, Vec<Region>) {
        let LatentFacts { size, plain, values, .. } = self.latent;
        let (heads, of_head) = (self.heads, plain + values);
        let mut made = Vec::new();
        let mut copied = |place: Place| {
            let row = place.bytes / (heads * of_head);
            let source = Source::of(regions, place);
            let bytes = heads * values * row;
            made.push(Region::derived(bytes, move |out| {
                let heads = source.bytes().chunks_exact(of_head * row);
                for (from, out) in heads.zip(out.chunks_exact_mut(values * row)) {
                    out.copy_from_slice(&from[plain * row..]);
                }
            }));
            Place { region: to + made.len() - 1, offset: 0, bytes }
        };
        let first = copied(self.tensor.place());
        let scales_offsets = self.tensor.scales_offsets.map(|plane| plane.map(&mut copied));
        let info = TensorInfo {
            name: format!("{layer}attn_v_b.weight"),
            dtype: self.tensor.dtype,
            shape: vec![heads, values, size],
            region: first.region,
            offset: 0,
            bytes: first.bytes,
            scales_offsets,
            order: None,
        };
        (info, made)
    }
}

/// Writes a row of elements of `SIZE` bytes as column `column` of rows of `columns`.
fn to_column<const SIZE: usize>(row: &[u8], column: usize, columns: usize, out: &mut [u8]) {
    let out = out.as_chunks_mut::<SIZE>().0.iter_mut().skip(column).step_by(columns);
    out.zip(row.as_chunks::<SIZE>().0).for_each(|(to, value)| *to = *value);
}
