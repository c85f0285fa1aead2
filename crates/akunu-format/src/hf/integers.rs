//! Integers of compressed-tensors (`pack-quantized`): `X.weight_packed` contains packed quants with the outputs in rows,
//! `X.weight_scale` a scale for each group of inputs, `X.weight_zero_point`, if there is one, a zero point, and
//! `X.weight_shape` the shape. Integers are signed, and stored plus half of their range, zero points too.
//!
//! Rows are as devices read them, so quants stay where the file has them.

use safetensors::tensor::Dtype;

use super::fp8::UNUSED;
use super::groups::{Grouping, Layout, Packing};
use super::json::Json;
use super::packed::{REMEDY, affine};
use super::quantisation::{Files, plain, scale_type};
use super::tensors::Stored;
use crate::error::printable;
use crate::{FormatError, Region, TensorInfo};

/// The settings of all packed modules; which ones are packed follows from the tensors.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    bits: usize,
    /// Keys and values are to be quantised too.
    pub(super) cache: bool,
}

impl Settings {
    /// `schemes`: those of the groups of modules, which must have one number of bits.
    pub(super) fn of(schemes: &[Json<'_>], cache: bool) -> Result<Settings, FormatError> {
        let mut bits = None;
        for weights in schemes {
            let own = Settings::bits(weights)?;
            if bits.is_some_and(|bits| bits != own) {
                let asks = format!("is {own}, and other modules have other numbers of bits ({REMEDY})");
                return Err(weights.unsupported("num_bits", asks));
            }
            bits = Some(own);
        }
        // Without weights in any group nothing is packed.
        Ok(Settings { bits: bits.unwrap_or(4), cache })
    }

    fn bits(weights: &Json<'_>) -> Result<usize, FormatError> {
        let missing = |key: &str| FormatError::MissingKey { key: weights.full(key), place: super::CONFIG };
        let bits = weights.usize("num_bits")?.ok_or_else(|| missing("num_bits"))?;
        let kind = weights.str("type")?.unwrap_or("int");
        if kind != "int" || ![2, 4, 8].contains(&bits) {
            let asks = format!("is {} of {bits} bits (and not int of 2, 4 or 8; {REMEDY})", printable(kind));
            return Err(weights.unsupported("type", asks));
        }
        match weights.str("strategy")? {
            None | Some("group" | "channel") => Ok(bits),
            Some(other) => {
                let asks = format!("is {} (and not group or channel; {REMEDY})", printable(other));
                Err(weights.unsupported("strategy", asks))
            }
        }
    }
}

const PARTS: [&str; 4] = ["weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"];

/// Combines the parts of each weight. Planes of scales and offsets are added to `derived`.
pub(super) fn join(
    files: &Files,
    settings: &Settings,
    derived: &mut Vec<Region>,
) -> Result<Vec<TensorInfo>, FormatError> {
    let mut tensors = Vec::with_capacity(files.stored.len());
    for tensor in &files.stored {
        let (path, part) = tensor.name.rsplit_once('.').unwrap_or(("", &tensor.name));
        if UNUSED.contains(&part) {
            continue;
        }
        if PARTS.contains(&part) {
            files.required(path, "weight_packed")?;
        } else if part == "weight_packed" {
            let weight = weight(files, path, tensor, settings, derived);
            tensors.push(weight.map_err(|problem| FormatError::tensor(&tensor.name, problem))?);
        } else {
            tensors.push(plain(tensor)?);
        }
    }
    Ok(tensors)
}

fn weight(
    files: &Files,
    path: &str,
    packed: &Stored,
    settings: &Settings,
    derived: &mut Vec<Region>,
) -> Result<TensorInfo, String> {
    let bits = settings.bits;
    if files.find(path, "weight_g_idx").is_some() {
        return Err(format!("its inputs are in another order than the model's (weight_g_idx): {REMEDY}"));
    }
    let scales = files
        .find(path, "weight_scale")
        .ok_or_else(|| "its weight_scale is missing: download the folder again".to_string())?;
    if packed.dtype != Dtype::I32 {
        return Err(format!("it should be packed in I32, and is {:?}: {REMEDY}", packed.dtype));
    }
    let [outputs, words] = packed.shape[..] else {
        return Err(format!("it should be a matrix, and its shape is {:?}", packed.shape));
    };
    let inputs = words.checked_mul(32).ok_or("its rows are too long")? / bits;
    let stated = shape(files, path)?;
    if stated.is_some_and(|stated| stated != [outputs, inputs]) || !inputs.is_multiple_of(32) {
        let stated = stated.unwrap_or([outputs, inputs]);
        return Err(format!(
            "it has {outputs} rows of {words} words, for weights of the shape {stated:?} at {bits} bits: only rows of a \
             multiple of 32 weights, all of one number of bits, are supported ({REMEDY})"
        ));
    }
    let groups = match scales.shape[..] {
        [rows, groups] if rows == outputs && inputs.is_multiple_of(groups) => groups,
        _ => {
            return Err(format!(
                "the shape of its scales is {:?}, which are no groups of {outputs} rows of {inputs} weights: {REMEDY}",
                scales.shape
            ));
        }
    };
    let zeros = files.find(path, "weight_zero_point");
    if let Some(zeros) = zeros {
        let expected = [(outputs * bits).div_ceil(32), groups];
        if zeros.dtype != Dtype::I32 || zeros.shape != expected {
            return Err(format!(
                "its weight_zero_point is {:?} of the shape {:?}, but should be I32 of the shape {expected:?}: {REMEDY}",
                zeros.dtype, zeros.shape
            ));
        }
    }
    let grouping = Grouping::consecutive(inputs, inputs / groups).ok_or_else(|| {
        format!(
            "its groups of {} inputs are not whole blocks of 32, which is not supported: {REMEDY}",
            inputs / groups
        )
    })?;
    let packing = Packing {
        layout: Layout::Rows { bits },
        inputs,
        outputs,
        minus_one: false,
        scale_type: scale_type(scales)?,
        groups,
        quants: files.part(packed),
        zeros: zeros.map(|zeros| files.part(zeros)),
        scales: files.part(scales),
        grouping,
    };
    affine(format!("{path}.weight"), packing, packed.place, files.regions.len(), derived)
}

/// The shape that the file states.
fn shape(files: &Files, path: &str) -> Result<Option<[usize; 2]>, String> {
    let Some(stated) = files.find(path, "weight_shape") else { return Ok(None) };
    if stated.shape != [2] {
        return Err(format!("its weight_shape has the shape {:?}, and not [2]: {REMEDY}", stated.shape));
    }
    let bytes = files.bytes(stated.place);
    let sides: Vec<i64> = match stated.dtype {
        Dtype::I64 => bytes.as_chunks::<8>().0.iter().map(|side| i64::from_le_bytes(*side)).collect(),
        Dtype::I32 => bytes.as_chunks::<4>().0.iter().map(|side| i32::from_le_bytes(*side).into()).collect(),
        other => return Err(format!("its weight_shape is {other:?}, and not I64: {REMEDY}")),
    };
    match sides.iter().map(|&side| usize::try_from(side)).collect::<Result<Vec<_>, _>>().as_deref() {
        Ok(&[rows, cols]) => Ok(Some([rows, cols])),
        _ => Err(format!("its weight_shape is {sides:?}, which is no matrix: {REMEDY}")),
    }
}
