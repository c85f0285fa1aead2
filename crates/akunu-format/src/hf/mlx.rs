//! MLX's affine quantisation, as written by mlx-lm: `X.weight` contains packed quants, `X.scales` and `X.biases` the
//! scales and offsets. `quantization` in `config.json` states bits and group size, for all modules or for single ones
//! by their paths.

use safetensors::tensor::Dtype;
use serde_json::Value;

use super::json::Json;
use super::quantisation::{Files, info, plain, scale_type};
use super::tensors::Stored;
use crate::error::printable;
use crate::{Affine, DType, FormatError, TensorInfo};

/// The only supported mode.
const AFFINE: &str = "affine";

/// The quantisation settings in `config.json`.
#[derive(Debug)]
pub struct Settings<'a> {
    json: Json<'a>,
    all: Scheme,
}

#[derive(Clone, Debug)]
struct Scheme {
    mode: String,
    bits: usize,
    group: usize,
}

impl<'a> Settings<'a> {
    pub(super) fn of(json: Json<'a>) -> Result<Settings<'a>, FormatError> {
        let missing = |key: &str| FormatError::MissingKey { key: json.full(key), place: super::CONFIG };
        let all = Scheme {
            mode: json.str("mode")?.unwrap_or(AFFINE).to_string(),
            bits: json.usize("bits")?.ok_or_else(|| missing("bits"))?,
            group: json.usize("group_size")?.ok_or_else(|| missing("group_size"))?,
        };
        Ok(Settings { json, all })
    }

    /// The settings of one module; `None` if it is not quantised.
    fn module(&self, path: &str) -> Result<Option<Scheme>, FormatError> {
        match self.json.get(path) {
            Some(Value::Bool(false)) => Ok(None),
            None | Some(Value::Bool(true)) => Ok(Some(self.all.clone())),
            Some(_) => {
                let own = self.json.object(path)?;
                let Some(own) = own else { return Ok(None) };
                // MLX's own defaults; the global settings do not apply.
                Ok(Some(Scheme {
                    mode: own.str("mode")?.unwrap_or(AFFINE).to_string(),
                    bits: own.usize("bits")?.unwrap_or(4),
                    group: own.usize("group_size")?.unwrap_or(64),
                }))
            }
        }
    }

    /// Whether the configuration states explicitly that this module is quantised.
    fn states_quantised(&self, path: &str) -> bool {
        !matches!(self.json.get(path), None | Some(Value::Bool(false)))
    }
}

/// Combines weights with their scales and offsets. Names are still those of the file.
pub(super) fn join(files: &Files, settings: &Settings<'_>) -> Result<Vec<TensorInfo>, FormatError> {
    let mut tensors = Vec::with_capacity(files.stored.len());
    for tensor in &files.stored {
        let plane = tensor.name.strip_suffix(".scales").or(tensor.name.strip_suffix(".biases"));
        if let Some(path) = plane {
            // Handled together with the weight that it belongs to.
            files.required(path, "weight")?;
            continue;
        }
        let Some(path) = tensor.name.strip_suffix(".weight") else {
            tensors.push(plain(tensor)?);
            continue;
        };
        let [scales, biases] = ["scales", "biases"].map(|plane| files.find(path, plane));
        if tensor.dtype != Dtype::U32 && scales.or(biases).is_none() && !settings.states_quantised(path) {
            tensors.push(plain(tensor)?);
            continue;
        }
        let scheme = settings.module(path)?.ok_or_else(|| {
            let problem = "it is stored as quantised, but config.json says that it is not";
            FormatError::tensor(&tensor.name, problem)
        })?;
        let joined = affine(tensor, scales, biases, &scheme);
        tensors.push(joined.map_err(|problem| FormatError::tensor(&tensor.name, problem))?);
    }
    Ok(tensors)
}

/// Combines three tensors into one weight, or returns the reason why they are invalid.
fn affine(
    quants: &Stored,
    scales: Option<&Stored>,
    biases: Option<&Stored>,
    scheme: &Scheme,
) -> Result<TensorInfo, String> {
    let Scheme { mode, bits, group } = scheme;
    if mode != AFFINE {
        return Err(format!(
            "it is quantised in the mode {}, but only affine is supported: take a GGUF file of the model",
            printable(mode)
        ));
    }
    let [scales, biases] = [(scales, "scales"), (biases, "biases")]
        .map(|(plane, name)| plane.ok_or_else(|| format!("it is quantised, but its {name} are missing")));
    let (scales, biases) = (scales?, biases?);
    if quants.dtype != Dtype::U32 {
        return Err(format!("it has scales and biases, but is {:?}: packed weights are U32", quants.dtype));
    }
    let kind = scale_type(scales)?;
    if biases.dtype != scales.dtype {
        return Err(format!("its scales are {:?} and its biases {:?}", scales.dtype, biases.dtype));
    }
    let affine = Affine::new(*bits, *group, kind).ok_or_else(|| {
        format!("{bits} bits in groups of {group}: only 2, 3, 4, 5, 6 and 8 bits in groups of 32, 64 and 128 are supported")
    })?;
    let [rows, words] = quants.shape[..] else {
        return Err(format!("it should be a matrix, and its shape is {:?}", quants.shape));
    };
    let row_bits = words.checked_mul(32).ok_or("its rows are too long")?;
    let cols = row_bits / bits;
    if row_bits % bits != 0 || cols % group != 0 {
        return Err(format!("rows of {words} words are not whole groups of {group} weights of {bits} bits"));
    }
    let expected = [rows, cols / group];
    for (name, plane) in [("scales", scales), ("biases", biases)] {
        if plane.shape != expected {
            return Err(format!(
                "the shape of its {name} is {:?}, but should be {expected:?} for rows of {words} words at {bits} bits in \
                 groups of {group}",
                plane.shape
            ));
        }
    }
    Ok(info(quants, DType::Affine(affine), vec![rows, cols], [Some(scales.place), Some(biases.place)]))
}
