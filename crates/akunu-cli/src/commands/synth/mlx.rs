//! Synthetic models as MLX folders: `config.json` beside one SafeTensors file of quants, scales and biases.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use akunu_format::{Affine, DType, ScaleType};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::{Map, Value, json};

use super::Maker;
use super::presets::{Family, Preset, Role, Tensor};
use crate::failure::Failure;

/// Weights that share a scale, as mlx-lm has it.
const GROUP: usize = 64;

/// Our names' parts and theirs.
const NAMES: [(&str, &str); 15] = [
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("blk", "model.layers"),
];

/// As many bits as MLX writes.
pub(super) fn bits() -> impl TypedValueParser<Value = usize> {
    PossibleValuesParser::new(["2", "3", "4", "5", "6", "8"]).try_map(|bits| bits.parse::<usize>())
}

/// Every matrix the same, norms in f32.
pub(super) fn dtypes(tensors: &[Tensor], preset: &Preset, bits: usize) -> Result<Vec<DType>, Failure> {
    if let Family::Gemma3 { .. } = preset.family {
        // Its norms have other names there.
        return Err(Failure::usage(format!("{} cannot be made as an MLX folder", preset.name))
            .hint("take a shape of LLaMA or Qwen3, or leave --mlx out"));
    }
    let affine = Affine::new(bits, GROUP, ScaleType::BF16).map(DType::Affine);
    let affine = affine.ok_or_else(|| Failure::usage(format!("MLX has no weights of {bits} bits")))?;
    let plain = |tensor: &Tensor| matches!(tensor.role, Role::Norm | Role::RopeFactors);
    Ok(tensors.iter().map(|tensor| if plain(tensor) { DType::F32 } else { affine }).collect())
}

/// Writes the folder. Its configuration comes last: until then it is no model.
pub(super) fn write(
    folder: &Path,
    tensors: &[Tensor],
    dtypes: &[DType],
    bits: usize,
    maker: &mut Maker<'_>,
) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|error| Failure::io("make", folder, &error))?;
    let config_file = folder.join("config.json");
    if config_file.exists() {
        fs::remove_file(&config_file).map_err(|error| Failure::io("replace", &config_file, &error))?;
    }
    super::whole(&folder.join("model.safetensors"), |part| {
        let file = File::create(part).map_err(|error| Failure::io("write", part, &error))?;
        weights(BufWriter::new(file), tensors, dtypes, maker)
            .map_err(|error| Failure::io("write", part, &error))
    })?;
    let config = config(maker.preset, bits).to_string();
    fs::write(&config_file, config).map_err(|error| Failure::io("write", &config_file, &error))
}

fn weights(
    mut out: impl Write,
    tensors: &[Tensor],
    dtypes: &[DType],
    maker: &mut Maker<'_>,
) -> io::Result<()> {
    let stored = || {
        let all = tensors.iter().zip(dtypes).enumerate();
        // Frequencies are told by the configuration.
        all.filter(|(_, (tensor, _))| tensor.role != Role::RopeFactors)
    };
    let header = padded(header(stored().map(|(_, pair)| pair))?.to_string());
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
    out.flush()
}

/// The data begin at a multiple of eight.
fn padded(mut header: String) -> String {
    let spaces = header.len().next_multiple_of(8) - header.len();
    header.extend(std::iter::repeat_n(' ', spaces));
    header
}

/// Bytes of a row in each plane: one of floats, three of an affine type.
fn planes(dtype: DType, cols: usize) -> io::Result<[usize; 3]> {
    dtype.plane_bytes(cols).ok_or_else(|| io::Error::other("rows are not whole groups"))
}

/// What lies where.
fn header<'a>(tensors: impl Iterator<Item = (&'a Tensor, &'a DType)>) -> io::Result<Value> {
    let mut entries = Map::new();
    let mut at = 0;
    let mut add = |name: String, kind: &str, shape: &[usize], bytes: usize| {
        entries.insert(name, json!({ "dtype": kind, "shape": shape, "data_offsets": [at, at + bytes] }));
        at += bytes;
    };
    for (tensor, &dtype) in tensors {
        let (module, cols) = (module(&tensor.name), tensor.cols());
        let rows = tensor.elements() as usize / cols;
        let [quants, scales, biases] = planes(dtype, cols)?;
        if dtype == DType::F32 {
            add(format!("{module}.weight"), "F32", &tensor.shape, rows * quants);
            continue;
        }
        add(format!("{module}.weight"), "U32", &[rows, quants / 4], rows * quants);
        add(format!("{module}.scales"), "BF16", &[rows, cols / GROUP], rows * scales);
        add(format!("{module}.biases"), "BF16", &[rows, cols / GROUP], rows * biases);
    }
    Ok(Value::Object(entries))
}

/// `blk.3.attn_q.weight`: `model.layers.3.self_attn.q_proj`.
fn module(name: &str) -> String {
    let part = |part: &str| {
        let known = NAMES.iter().find(|(ours, _)| *ours == part);
        known.map_or(part.to_string(), |(_, theirs)| theirs.to_string())
    };
    let name = name.strip_suffix(".weight").unwrap_or(name);
    name.split('.').map(part).collect::<Vec<_>>().join(".")
}

fn config(preset: &Preset, bits: usize) -> Value {
    let mut config = json!({
        "model_type": preset.architecture(),
        "vocab_size": preset.vocab,
        "hidden_size": preset.hidden,
        "num_hidden_layers": preset.layers,
        "intermediate_size": preset.ffn,
        "num_attention_heads": preset.heads,
        "num_key_value_heads": preset.kv_heads,
        "head_dim": preset.head_dim,
        "rms_norm_eps": preset.epsilon,
        "max_position_embeddings": preset.context,
        "rope_theta": preset.rope_base,
        "tie_word_embeddings": preset.tied,
        "quantization": { "group_size": GROUP, "bits": bits },
    });
    if let Family::Llama3 { factor } = preset.family {
        config["rope_scaling"] = json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
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

    #[test]
    fn names_are_those_of_hugging_face() {
        assert_eq!(module("blk.12.attn_q_norm.weight"), "model.layers.12.self_attn.q_norm");
        assert_eq!(module("output_norm.weight"), "model.norm");
        assert_eq!(module("output.weight"), "lm_head");
    }
}
