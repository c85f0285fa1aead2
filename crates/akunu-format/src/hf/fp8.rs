//! FP8 as compressed-tensors and transformers write it: `X.weight` contains E4M3 codes, and `X.weight_scale` (or
//! `X.weight_scale_inv`, which is a factor too) one scale for the tensor, one for each row, or one for each block of 128
//! rows and 128 columns. A weight is `scale · code`.
//!
//! Codes stay where the file has them. Scales are repeated for each row, as f32. Scales of activations and of the cache
//! are not used.

use safetensors::tensor::Dtype;
use serde_json::Value;

use super::compressed::Compressed;
use super::groups::{Part, in_parts};
use super::json::Json;
use super::packed::REMEDY;
use super::quantisation::{Files, info, plain};
use super::tensors::Stored;
use crate::blocks::scale;
use crate::error::printable;
use crate::{DType, FormatError, Fp8, Place, Region, ScaleType, TensorInfo};

/// Rows and columns that share a scale.
const BLOCK: usize = 128;

/// What the settings say beyond what the tensors show: which modules are packed, and how, follows from these.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Keys and values are to be FP8 too.
    pub(super) cache: bool,
    /// The rows that meet these weights are to be FP8 too.
    pub(super) activations: bool,
}

impl Settings {
    /// `quant_method: fp8`.
    pub(super) fn plain(json: &Json<'_>) -> Result<Settings, FormatError> {
        if let Some(other) = json.str("fmt")?.filter(|fmt| *fmt != "e4m3") {
            return Err(json.unsupported("fmt", format!("is {} (and not e4m3; {REMEDY})", printable(other))));
        }
        refuse_blocks(json, "weight_block_size")?;
        // An object, or the name of a scheme. This method has no form without FP8 activations.
        Ok(Settings { cache: json.get("kv_cache_scheme").is_some(), activations: true })
    }

    /// Of compressed-tensors: `weights` are the schemes of the groups of modules.
    pub(super) fn compressed(settings: &Compressed<'_>) -> Result<Settings, FormatError> {
        settings.weights.iter().try_for_each(refuse_scheme)?;
        let activations = settings.activations.iter().map(is_fp8).collect::<Result<Vec<bool>, _>>()?;
        // All groups with FP8 weights, or none: which modules belong to which group is not looked at.
        let all = activations.len() == settings.weights.len() && activations.into_iter().all(|is| is);
        Ok(Settings { cache: settings.cache, activations: all })
    }
}

fn missing(json: &Json<'_>, key: &str) -> FormatError {
    FormatError::MissingKey { key: json.full(key), place: super::CONFIG }
}

/// Whether a scheme is of FP8 numbers.
fn is_fp8(scheme: &Json<'_>) -> Result<bool, FormatError> {
    Ok(scheme.usize("num_bits")? == Some(8) && scheme.str("type")? == Some("float"))
}

fn refuse_scheme(weights: &Json<'_>) -> Result<(), FormatError> {
    let bits = weights.usize("num_bits")?.ok_or_else(|| missing(weights, "num_bits"))?;
    let kind = weights.str("type")?.unwrap_or("int");
    if bits != 8 || kind != "float" {
        let asks = format!("is {} of {bits} bits (and not float of 8; {REMEDY})", printable(kind));
        return Err(weights.unsupported("type", asks));
    }
    if weights.bool("symmetric")? == Some(false) {
        return Err(weights.unsupported("symmetric", format!("is false ({REMEDY})")));
    }
    match weights.str("strategy")? {
        None | Some("tensor" | "channel" | "block") => {}
        Some("group") if weights.usize("group_size")? == Some(BLOCK) => {}
        Some(other) => {
            let asks = format!("is {} (and not tensor, channel or block; {REMEDY})", printable(other));
            return Err(weights.unsupported("strategy", asks));
        }
    }
    refuse_blocks(weights, "block_structure")
}

/// Blocks are squares of 128, if there are any.
fn refuse_blocks(json: &Json<'_>, key: &str) -> Result<(), FormatError> {
    match json.get(key) {
        None => Ok(()),
        Some(Value::Array(sides)) if sides.iter().map(Value::as_u64).eq([Some(BLOCK as u64); 2]) => Ok(()),
        Some(other) => {
            let asks = format!("is {} (and not [128, 128]; {REMEDY})", printable(&other.to_string()));
            Err(json.unsupported(key, asks))
        }
    }
}

const SCALES: [&str; 2] = ["weight_scale", "weight_scale_inv"];

/// Scales of activations, and of keys and values.
pub(super) const UNUSED: [&str; 7] =
    ["input_scale", "output_scale", "activation_scale", "q_scale", "k_scale", "v_scale", "kv_scale"];

/// Combines codes with their scales, whose planes are added to `derived`.
pub(super) fn join(files: &Files, derived: &mut Vec<Region>) -> Result<Vec<TensorInfo>, FormatError> {
    let mut tensors = Vec::with_capacity(files.stored.len());
    for tensor in &files.stored {
        let (path, part) = tensor.name.rsplit_once('.').unwrap_or(("", &tensor.name));
        if UNUSED.contains(&part) {
            continue;
        }
        if SCALES.contains(&part) {
            let weight = files.required(path, "weight")?;
            if weight.dtype != Dtype::F8_E4M3 {
                let problem = format!("it belongs to a weight that is {:?}, not FP8: {REMEDY}", weight.dtype);
                return Err(FormatError::tensor(&tensor.name, problem));
            }
            continue;
        }
        if tensor.dtype != Dtype::F8_E4M3 {
            tensors.push(plain(tensor)?);
            continue;
        }
        let weight = weight(files, path, tensor, derived);
        tensors.push(weight.map_err(|problem| FormatError::tensor(&tensor.name, problem))?);
    }
    Ok(tensors)
}

fn weight(
    files: &Files,
    path: &str,
    codes: &Stored,
    derived: &mut Vec<Region>,
) -> Result<TensorInfo, String> {
    let [rows, cols] = codes.shape[..] else {
        return Err(format!("it is FP8 and should be a matrix, and its shape is {:?}", codes.shape));
    };
    let scales = match SCALES.map(|name| files.find(path, name)) {
        [Some(one), None] | [None, Some(one)] => one,
        [None, None] => return Err("its weight_scale is missing: download the folder again".to_string()),
        [Some(_), Some(_)] => return Err(format!("it has both weight_scale and weight_scale_inv: {REMEDY}")),
    };
    let (fp8, share) = spans(&scales.shape, rows, cols)?;
    let stored = StoredScales { kind: kind(scales)?, part: files.part(scales) };
    let count = scales.shape.iter().product();
    if let Some((index, value)) =
        (0..count).map(|at| (at, stored.at(at))).find(|(_, value)| !value.is_finite())
    {
        return Err(format!("its scale {index} is {value}: the file is damaged, download it again"));
    }
    let row = 4 * fp8.scales(cols);
    let place = Place { region: files.regions.len() + derived.len(), offset: 0, bytes: rows * row };
    derived.push(Region::derived(place.bytes, move |out| {
        in_parts(out, row, rows, |first, out| {
            for (index, out) in out.chunks_exact_mut(row).enumerate() {
                // A row of scales is for `share` rows of weights.
                let from = (first + index) / share * (row / 4);
                for (at, to) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    *to = stored.at(from + at).to_le_bytes();
                }
            }
        });
    }));
    Ok(info(codes, DType::Fp8(fp8), vec![rows, cols], [Some(place), None]))
}

/// How many weights of a row share a scale, and how many rows.
fn spans(shape: &[usize], rows: usize, cols: usize) -> Result<(Fp8, usize), String> {
    let (tall, wide) = (rows.div_ceil(BLOCK), cols.div_ceil(BLOCK));
    match *shape {
        [] | [1] | [1, 1] => Ok((Fp8::Row, rows)),
        [all] | [all, 1] if all == rows => Ok((Fp8::Row, 1)),
        [high, across] if (high, across) == (tall, wide) => Ok((Fp8::G128, BLOCK)),
        [high, across] if (high, across) == (rows, wide) => Ok((Fp8::G128, 1)),
        _ => Err(format!(
            "the shape of its scales is {shape:?}, but should be [1], [{rows}, 1] or [{tall}, {wide}]: only scales of \
             tensors, rows, and blocks of 128 by 128 are supported ({REMEDY})"
        )),
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Float(ScaleType),
    /// A power of two: the exponent plus 127.
    Exponent,
}

fn kind(scales: &Stored) -> Result<Kind, String> {
    match scales.dtype {
        Dtype::F8_E8M0 => Ok(Kind::Exponent),
        _ => super::quantisation::scale_type(scales).map(Kind::Float),
    }
}

/// The scales of a tensor as they are stored.
struct StoredScales {
    kind: Kind,
    part: Part,
}

impl StoredScales {
    fn at(&self, index: usize) -> f32 {
        match self.kind {
            Kind::Float(kind) => scale(kind, self.part.bytes(), index),
            Kind::Exponent => match self.part.bytes()[index] {
                0 => f32::MIN_POSITIVE / 2.0,
                255 => f32::NAN,
                exponent => f32::from_bits(u32::from(exponent) << 23),
            },
        }
    }
}
