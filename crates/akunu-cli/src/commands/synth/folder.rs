//! Synthetic models as folders: `config.json` and one SafeTensors file with the planes of all weights.

use std::fs;
use std::io::{self, BufWriter, IntoInnerError, Write};
use std::path::Path;

use akunu_arch::facts::Fact;
use akunu_arch::tensors::Kind;
use akunu_arch::{Card, RopeScaling};
use akunu_file::{Existing, NewFile};
use akunu_format::{Affine, DType, Fp8, ScaleType};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::{Map, Value, json};

use super::Maker;
use super::presets::{Preset, Tensor};
use crate::failure::Failure;

/// Weights that share a scale, the default of mlx-lm.
const GROUP: usize = 64;

/// How the weights of a folder are quantised.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    /// MLX's, of so many bits.
    Mlx(usize),
    /// FP8 with a scale for each row, and FP8 activations, in compressed-tensors' form.
    Fp8,
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Form::Mlx(bits) => write!(f, "MLX's {bits} bits"),
            Form::Fp8 => f.write_str("FP8"),
        }
    }
}

/// The bit widths that MLX supports.
pub(super) fn bits() -> impl TypedValueParser<Value = usize> {
    PossibleValuesParser::new(["2", "3", "4", "5", "6", "8"]).try_map(|bits| bits.parse::<usize>())
}

/// The same type for every matrix, and BF16 for the vocabulary of FP8 folders; norms in f32.
pub(super) fn dtypes(tensors: &[Tensor], preset: &Preset, form: Form) -> Result<Vec<DType>, Failure> {
    // Folders store norm weights that get an offset without it.
    let plain = preset.shape.encoder.is_none() && preset.card.norm_weight_offset == 0.0;
    if !plain || !tensors.iter().all(|tensor| has_a_place(preset.card, tensor)) {
        return Err(Failure::usage(format!("{} cannot be made as a folder", preset.shape.name))
            .hint("choose a dense decoder without biases, such as llama-1b, or omit --mlx and --fp8"));
    }
    let matrix = match form {
        Form::Mlx(bits) => Affine::new(bits, GROUP, ScaleType::BF16)
            .map(DType::Affine)
            .ok_or_else(|| Failure::usage(format!("MLX does not support weights of {bits} bits")))?,
        Form::Fp8 => DType::Fp8(Fp8::Row),
    };
    let dtype = |tensor: &Tensor| match tensor.kind {
        Kind::Norm | Kind::RopeFactors => DType::F32,
        _ if matches!(form, Form::Fp8) && !tensor.name.starts_with("blk.") => DType::BF16,
        _ => matrix,
    };
    Ok(tensors.iter().map(dtype).collect())
}

/// Whether a folder has a tensor under a name of its own: no biases, and no matrices of all experts together, whose number
/// the configuration that is written here does not state either.
fn has_a_place(card: &Card, tensor: &Tensor) -> bool {
    let named = || tensor.name.ends_with(".weight") && card.hf_name(&tensor.name).is_some();
    tensor.kind == Kind::RopeFactors || (tensor.shape.len() <= 2 && named())
}

/// Writes the folder. Its configuration is written last, so that an incomplete folder is not a model.
pub(super) fn write(
    folder: &Path,
    tensors: &[Tensor],
    dtypes: &[DType],
    form: Form,
    maker: &mut Maker<'_>,
) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|error| Failure::io("make", folder, &error))?;
    let config_file = folder.join("config.json");
    if config_file.exists() {
        fs::remove_file(&config_file).map_err(|error| Failure::io("replace", &config_file, &error))?;
    }
    let file = folder.join("model.safetensors");
    let written = NewFile::create(&file).and_then(|new| {
        let out = weights(BufWriter::new(new), tensors, dtypes, maker)?;
        out.into_inner().map_err(IntoInnerError::into_error)?.commit(Existing::Replace)
    });
    written.map_err(|error| Failure::io("write", &file, &error))?;
    let config = config(maker.preset, form).to_string();
    akunu_file::write(&config_file, config.as_bytes(), Existing::Replace)
        .map_err(|error| Failure::io("write", &config_file, &error))
}

fn weights<W: Write>(
    mut out: W,
    tensors: &[Tensor],
    dtypes: &[DType],
    maker: &mut Maker<'_>,
) -> io::Result<W> {
    let stored = || {
        let all = tensors.iter().zip(dtypes).enumerate();
        // RoPE frequencies are stated in the configuration.
        all.filter(|(_, (tensor, _))| tensor.kind != Kind::RopeFactors)
    };
    let card = maker.preset.card;
    let header = padded(header(card, stored().map(|(_, pair)| pair))?.to_string());
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    let mut bytes = Vec::new();
    for (index, (tensor, &dtype)) in stored() {
        bytes.clear();
        maker.tensor(index, tensor, dtype, &mut bytes)?;
        let sizes = planes(dtype, tensor.cols())?;
        let mut start = 0;
        for size in sizes {
            for row in bytes.chunks_exact(sizes.iter().sum()) {
                out.write_all(&row[start..start + size])?;
            }
            start += size;
        }
    }
    Ok(out)
}

/// Pads the header so that the data begins at a multiple of eight.
fn padded(mut header: String) -> String {
    let spaces = header.len().next_multiple_of(8) - header.len();
    header.extend(std::iter::repeat_n(' ', spaces));
    header
}

/// Bytes of a row in each plane: one plane for floats, three for an affine type.
fn planes(dtype: DType, cols: usize) -> io::Result<[usize; 3]> {
    dtype.plane_bytes(cols).ok_or_else(|| io::Error::other("rows are not whole groups"))
}

/// The SafeTensors header with the offsets of all tensors.
fn header<'a>(card: &Card, tensors: impl Iterator<Item = (&'a Tensor, &'a DType)>) -> io::Result<Value> {
    let mut entries = Map::new();
    let mut at = 0;
    let mut add = |name: String, kind: &str, shape: &[usize], bytes: usize| {
        entries.insert(name, json!({ "dtype": kind, "shape": shape, "data_offsets": [at, at + bytes] }));
        at += bytes;
    };
    for (tensor, &dtype) in tensors {
        let (module, cols) = (module(card, &tensor.name)?, tensor.cols());
        let rows = tensor.elements() as usize / cols;
        let [quants, scales, biases] = planes(dtype, cols)?;
        let weight = format!("{module}.weight");
        match dtype {
            DType::F32 => add(weight, "F32", &tensor.shape, rows * quants),
            DType::BF16 => add(weight, "BF16", &tensor.shape, rows * quants),
            DType::Fp8(_) => {
                add(weight, "F8_E4M3", &tensor.shape, rows * quants);
                add(format!("{module}.weight_scale"), "F32", &[rows, 1], rows * scales);
            }
            _ => {
                add(weight, "U32", &[rows, quants / 4], rows * quants);
                add(format!("{module}.scales"), "BF16", &[rows, cols / GROUP], rows * scales);
                add(format!("{module}.biases"), "BF16", &[rows, cols / GROUP], rows * biases);
            }
        }
    }
    Ok(Value::Object(entries))
}

/// `blk.3.attn_q.weight`: `model.layers.3.self_attn.q_proj`.
fn module(card: &Card, name: &str) -> io::Result<String> {
    let theirs = card.hf_name(name).ok_or_else(|| io::Error::other(format!("{name} has no other name")))?;
    Ok(theirs.strip_suffix(".weight").unwrap_or(&theirs).to_string())
}

fn config(preset: &Preset, form: Form) -> Value {
    let (card, shape) = (preset.card, &preset.shape);
    let mut config = json!({
        "model_type": card.hf.first().map(|kind| kind.model_type),
        "vocab_size": shape.vocab,
        card.hf_key(Fact::HiddenSize): shape.hidden,
        card.hf_key(Fact::LayerCount): shape.layers,
        card.hf_key(Fact::FfnSize): shape.ffn,
        card.hf_key(Fact::HeadCount): shape.heads,
        card.hf_key(Fact::KvHeadCount): shape.kv_heads,
        card.hf_key(Fact::HeadDim): shape.head_dim,
        card.hf_key(Fact::NormEpsilon): shape.epsilon,
        card.hf_key(Fact::ContextLength): shape.context,
        card.hf_key(Fact::RopeBase): shape.rope_base,
        "tie_word_embeddings": shape.tied,
    });
    match form {
        Form::Mlx(bits) => config["quantization"] = json!({ "group_size": GROUP, "bits": bits }),
        Form::Fp8 => {
            let scheme = |strategy: &str, dynamic: bool| json!({ "num_bits": 8, "type": "float", "symmetric": true, "strategy": strategy, "dynamic": dynamic });
            config["quantization_config"] = json!({
                "quant_method": "compressed-tensors",
                "format": "float-quantized",
                "config_groups": { "group_0": {
                    "targets": ["Linear"],
                    "weights": scheme("channel", false),
                    "input_activations": scheme("token", true),
                } },
                "ignore": ["lm_head"],
            });
        }
    }
    if let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } =
        shape.rope_scaling
    {
        config["rope_scaling"] = json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor, "original_max_position_embeddings": original_context,
        });
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_any_length_are_padded() {
        for (length, expected) in [(0, 0), (1, 8), (8, 8), (70_001, 70_008)] {
            assert_eq!(padded("x".repeat(length)).len(), expected);
        }
    }
}
