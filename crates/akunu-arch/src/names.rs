//! Tensor names. Canonical ones are GGUF's; Hugging Face's map onto them by the one table below.

use std::collections::HashSet;

use akunu_format::{FormatError, Place, TensorInfo, printable};

use crate::ModelConfig;

/// Outside the layers: (Hugging Face, canonical).
const GLOBAL: [(&str, &str); 3] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
];

/// In layer N, `model.layers.N.` against `blk.N.`; each with `.weight`, some with `.bias` too.
const LAYER: [(&str, &str); 14] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    // What this is called hangs on whether the layer has norms on both sides: see `Sandwich`.
    ("post_attention_layernorm", "ffn_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    // Never in a Hugging Face file; here so that the table lists every canonical name.
    ("", POST_ATTENTION_NORM),
];

/// Stacked rows on rows in some checkpoints: (Hugging Face, canonical, what lies there in order).
const FUSED: [(&str, &str, &[&str]); 2] = [
    ("self_attn.qkv_proj", "attn_qkv", &["attn_q", "attn_k", "attn_v"]),
    // GGUF's Phi 3 has no name of its own for it: without an `ffn_gate` beside it, this is both.
    ("mlp.gate_up_proj", "ffn_up", &["ffn_gate", "ffn_up"]),
];

const POST_ATTENTION_NORM: &str = "post_attention_norm";

/// Canonical only: Llama 3's frequency divisors, which GGUF stores as a tensor.
const GGUF_GLOBAL: [&str; 1] = ["rope_freqs.weight"];

/// Prefixes that checkpoints of larger models put before a language model's names.
const PREFIXES: [&str; 3] = ["model.language_model.", "language_model.", ""];

/// Endings of tensors that carry nothing: buffers that every loader computes itself.
const IGNORABLE: [&str; 5] = [
    "rotary_emb.inv_freq",
    "rotary_emb.cos_cached",
    "rotary_emb.sin_cached",
    "self_attn.masked_bias",
    "attn_rot_embd.weight",
];

pub(crate) fn is_ignorable(name: &str) -> bool {
    IGNORABLE.iter().any(|ending| name.ends_with(ending))
}

/// Does every layer have norms before and after each half? Gemma 2 and 3 do, and their
/// `post_attention_layernorm` follows the attention, where LLaMA's (of the same name) precedes the feed-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sandwich {
    Yes,
    No,
}

impl Sandwich {
    pub(crate) fn of<'a>(mut names: impl Iterator<Item = &'a str>) -> Sandwich {
        let yes = names.any(|name| name.ends_with(".pre_feedforward_layernorm.weight"));
        if yes { Sandwich::Yes } else { Sandwich::No }
    }
}

/// The canonical name of a Hugging Face tensor.
pub(crate) fn canonical(name: &str, sandwich: Sandwich) -> Option<String> {
    let plain = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))?;
    // `model.language_model.layers…` and `language_model.model.layers…` are both about.
    let rooted = if plain.starts_with("model.") || plain.starts_with("lm_head.") {
        plain.to_string()
    } else {
        format!("model.{plain}")
    };
    if let Some((_, ours)) = GLOBAL.iter().find(|(theirs, _)| *theirs == rooted) {
        return Some((*ours).to_string());
    }
    let (layer, rest) = rooted.strip_prefix("model.layers.")?.split_once('.')?;
    let layer = layer_number(layer)?;
    let (part, kind) = rest.rsplit_once('.')?;
    if part.is_empty() || !matches!(kind, "weight" | "bias") {
        return None;
    }
    let fused = FUSED.iter().map(|(theirs, ours, _)| (theirs, ours));
    let mut all = LAYER.iter().map(|(theirs, ours)| (theirs, ours)).chain(fused);
    let (_, ours) = all.find(|(theirs, _)| **theirs == part)?;
    let ours = match (part, sandwich) {
        ("post_attention_layernorm", Sandwich::Yes) => POST_ATTENTION_NORM,
        _ => ours,
    };
    Some(format!("blk.{layer}.{ours}.{kind}"))
}

/// Gives every tensor its canonical name and leaves out what carries nothing.
pub(crate) fn rename(
    mut tensors: Vec<TensorInfo>,
    architecture: &str,
) -> Result<Vec<TensorInfo>, FormatError> {
    let sandwich = Sandwich::of(tensors.iter().map(|tensor| tensor.name.as_str()));
    tensors.retain(|tensor| !is_ignorable(&tensor.name));
    for tensor in &mut tensors {
        tensor.name = canonical(&tensor.name, sandwich).ok_or_else(|| unknown(&tensor.name, architecture))?;
    }
    Ok(tensors)
}

/// Plain decimal, so that no two names mean the same layer.
fn layer_number(text: &str) -> Option<usize> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'));
    plain.then(|| text.parse().ok()).flatten()
}

fn is_canonical(name: &str, layer_count: usize) -> bool {
    if GLOBAL.iter().any(|(_, ours)| *ours == name) || GGUF_GLOBAL.contains(&name) {
        return true;
    }
    let in_layer = || {
        let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let (part, kind) = rest.rsplit_once('.')?;
        let known = LAYER.iter().any(|(_, ours)| *ours == part) && matches!(kind, "weight" | "bias");
        (known && layer_number(layer)? < layer_count).then_some(())
    };
    in_layer().is_some()
}

/// The tensors that a model is made of, where a file stacks some of them: each part is a range of the stack's rows.
pub(crate) fn split_fused(
    stored: &[TensorInfo],
    config: &ModelConfig,
) -> Result<Vec<TensorInfo>, FormatError> {
    let there: HashSet<&str> = stored.iter().map(|tensor| tensor.name.as_str()).collect();
    let mut tensors = Vec::with_capacity(stored.len());
    for tensor in stored {
        match fused_parts(&tensor.name, &there) {
            Some(names) => split(tensor, &names, config, &mut tensors)?,
            None => tensors.push(tensor.clone()),
        }
    }
    Ok(tensors)
}

/// Names of what is in a tensor, if that is more than one.
fn fused_parts(name: &str, there: &HashSet<&str>) -> Option<Vec<String>> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let (part, kind) = rest.rsplit_once('.')?;
    let (_, _, parts) = FUSED.iter().find(|(_, ours, _)| *ours == part)?;
    let names: Vec<String> = parts.iter().map(|part| format!("blk.{layer}.{part}.{kind}")).collect();
    let apart = part == "ffn_up" && there.contains(names[0].as_str());
    (matches!(kind, "weight" | "bias") && !apart).then_some(names)
}

fn split(
    stack: &TensorInfo,
    names: &[String],
    config: &ModelConfig,
    out: &mut Vec<TensorInfo>,
) -> Result<(), FormatError> {
    let rows_of = |name: &str| match name.split('.').nth(2) {
        Some("attn_q") => config.head_count * config.head_dim,
        Some("attn_k" | "attn_v") => config.kv_head_count * config.head_dim,
        _ => config.ffn_size,
    };
    // A vector's rows are its elements.
    let rows = stack.shape.first().copied().unwrap_or(0);
    let wanted: usize = names.iter().map(|name| rows_of(name)).sum();
    if rows == 0 || rows != wanted || stack.shape.len() == 1 && stack.dtype.is_quantised() {
        if !crate::config::is_known_architecture(&config.architecture) {
            return Err(unknown(&stack.name, &config.architecture));
        }
        let parts: Vec<&str> = names.iter().filter_map(|name| name.split('.').nth(2)).collect();
        let problem = format!("{rows} rows, and {} stacked in it make {wanted}", parts.join(", "));
        return Err(FormatError::tensor(&stack.name, problem));
    }
    let mut first = 0;
    for name in names {
        let mut shape = stack.shape.clone();
        shape[0] = rows_of(name);
        let part = |place: Place| place.rows(first, rows_of(name), rows);
        let Place { offset, bytes, .. } = part(stack.place());
        let scales_offsets = stack.scales_offsets.map(|planes| planes.map(part));
        first += shape[0];
        out.push(TensorInfo { name: name.clone(), shape, offset, bytes, scales_offsets, ..stack.clone() });
    }
    Ok(())
}

/// A tensor without a place would be left out of the computation silently: better to say so.
pub(crate) fn refuse_unknown(tensors: &[TensorInfo], config: &ModelConfig) -> Result<(), FormatError> {
    match tensors.iter().find(|tensor| !is_canonical(&tensor.name, config.layer_count)) {
        None => Ok(()),
        Some(tensor) => Err(unknown(&tensor.name, &config.architecture)),
    }
}

pub(crate) fn unknown(name: &str, architecture: &str) -> FormatError {
    FormatError::UnknownTensor { name: printable(name), architecture: printable(architecture) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hugging_face_names_become_canonical() {
        for (theirs, ours) in [
            ("model.embed_tokens.weight", "token_embd.weight"),
            ("model.norm.weight", "output_norm.weight"),
            ("lm_head.weight", "output.weight"),
            ("model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight"),
            ("model.layers.31.self_attn.q_proj.bias", "blk.31.attn_q.bias"),
            ("model.layers.7.post_attention_layernorm.weight", "blk.7.ffn_norm.weight"),
            ("language_model.model.layers.2.mlp.up_proj.weight", "blk.2.ffn_up.weight"),
            ("model.language_model.layers.2.mlp.down_proj.weight", "blk.2.ffn_down.weight"),
            ("language_model.lm_head.weight", "output.weight"),
            ("layers.3.self_attn.o_proj.weight", "blk.3.attn_output.weight"),
            ("model.layers.3.self_attn.qkv_proj.bias", "blk.3.attn_qkv.bias"),
            ("model.layers.3.mlp.gate_up_proj.weight", "blk.3.ffn_up.weight"),
        ] {
            assert_eq!(canonical(theirs, Sandwich::No).as_deref(), Some(ours), "{theirs}");
        }
        for (theirs, ours) in [
            ("model.layers.7.post_attention_layernorm.weight", "blk.7.post_attention_norm.weight"),
            ("model.layers.7.pre_feedforward_layernorm.weight", "blk.7.ffn_norm.weight"),
            ("model.layers.7.post_feedforward_layernorm.weight", "blk.7.post_ffw_norm.weight"),
        ] {
            assert_eq!(canonical(theirs, Sandwich::Yes).as_deref(), Some(ours), "{theirs}");
        }
    }

    #[test]
    fn names_that_nearly_fit_do_not() {
        for name in [
            "",
            "model.layers..input_layernorm.weight",
            "model.layers.01.input_layernorm.weight",
            "model.layers.+1.input_layernorm.weight",
            "model.layers.1.input_layernorm.scales",
            "model.layers.1..weight",
            "model.layers.99999999999999999999.input_layernorm.weight",
            "vision_tower.embeddings.weight",
            "model.layers.1.block_sparse_moe.gate.weight",
        ] {
            assert_eq!(canonical(name, Sandwich::No), None, "{name}");
        }
    }
}
