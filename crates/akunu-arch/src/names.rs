//! Tensor names. Canonical names are those of GGUF; Hugging Face names are mapped to them by the rules of a card.

use std::collections::HashSet;

use akunu_format::{FormatError, Place, TensorInfo, printable};

use crate::families::CARDS;
use crate::tensors::{FusedRule, Kind, Part, Sizes, TensorRule};
use crate::{Card, ModelConfig};

/// Suffixes of tensors that carry no information: buffers that every loader computes itself.
const IGNORABLE: [&str; 7] = [
    "rotary_emb.inv_freq",
    "rotary_emb.cos_cached",
    "rotary_emb.sin_cached",
    "self_attn.masked_bias",
    "attention.masked_bias",
    // A causal mask.
    ".attention.bias",
    "attn_rot_embd.weight",
];

/// How the names of biases end that are in no module of their own: those that are added to the scores of experts for choosing,
/// and to the steps of a state.
const BIASES: [&str; 2] = [".e_score_correction_bias", ".dt_bias"];

pub(crate) fn is_ignorable(name: &str) -> bool {
    IGNORABLE.iter().any(|ending| name.ends_with(ending))
}

/// The canonical name of a Hugging Face tensor.
pub(crate) fn canonical(name: &str, card: &Card) -> Option<String> {
    let naming = &card.naming;
    let plain = naming.prefixes.iter().find_map(|prefix| name.strip_prefix(prefix))?;
    let is_parameter = |rule: &TensorRule| {
        rule.kind == Kind::Parameter && rule.hf.is_some_and(|parameter| plain.ends_with(parameter))
    };
    let (module, kind) = if card.tensor_rules().any(is_parameter) {
        (plain, "weight")
    } else if BIASES.iter().any(|bias| plain.ends_with(bias)) {
        // It is the bias of a module of its own here.
        (plain.strip_suffix("_bias")?, "bias")
    } else {
        plain.rsplit_once('.')?
    };
    // Old checkpoints use other names for the weights and biases of norms.
    let kind = match kind {
        "gamma" => "weight",
        "beta" => "bias",
        other => other,
    };
    // Both `model.language_model.layers…` and `language_model.model.layers…` exist.
    let rooted = match module.starts_with(naming.root) {
        true => module.to_string(),
        false => format!("{}{module}", naming.root),
    };
    let find = |part: Part, module: &str| {
        let mut rules = card.tensor_rules().filter(|rule| rule.part == part);
        rules.find(|rule| rule.hf == Some(module)).map(|rule| rule.name)
    };
    if let Some(ours) = find(Part::Model, module).or_else(|| find(Part::Model, &rooted)) {
        return matches!(kind, "weight" | "bias").then(|| format!("{ours}.{kind}"));
    }
    let (of, start, (layer, part)) = naming.of_layers().find_map(|(of, start, layers)| {
        let rest = module.strip_prefix(layers).or_else(|| rooted.strip_prefix(layers))?;
        Some((of, start, rest.split_once('.')?))
    })?;
    let layer = layer_number(layer)?;
    if !matches!(kind, "weight" | "bias") {
        return None;
    }
    let stacked =
        || card.fused.iter().find(|stack| stack.hf == part && of == Part::Layer).map(|stack| stack.name);
    let alias =
        card.aliases.iter().find(|(theirs, _)| *theirs == part).and_then(|(_, known)| find(of, known));
    let ours = find(of, part).or(alias).or_else(stacked)?;
    Some(format!("{start}{layer}.{ours}.{kind}"))
}

/// The inverse: the Hugging Face name of a tensor with this canonical name.
pub(crate) fn hugging_face(name: &str, card: &Card) -> Option<String> {
    let (module, kind) = name.rsplit_once('.')?;
    let find = |part: Part, name: &str| {
        let rule = card.tensor_rules().find(|rule| rule.part == part && rule.name == name)?;
        let ending = match rule.kind {
            Kind::Parameter => String::new(),
            Kind::Bias if kind == "bias" => "_bias".into(),
            _ => format!(".{kind}"),
        };
        Some(format!("{}{ending}", rule.hf?))
    };
    match layer_and_part(name) {
        Some((of, layer, part)) => {
            let theirs = find(of, part)?;
            let layers = card.naming.of_layers().find(|(part, ..)| *part == of)?.2;
            Some(format!("{layers}{layer}.{theirs}"))
        }
        None => find(Part::Model, module),
    }
}

/// Whether a Hugging Face tensor belongs to a vision encoder.
pub(crate) fn is_vision(name: &str) -> bool {
    ["vision_tower.", "vision_model.", "multi_modal_projector."].iter().any(|part| name.contains(part))
}

/// Whether a Hugging Face tensor is not needed by this engine.
pub(crate) fn is_ignored(name: &str, card: &Card) -> bool {
    let plain = card.naming.prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    is_ignorable(name) || card.ignored.iter().any(|start| plain.starts_with(start))
}

/// What layers that predict further tokens are called in reports.
pub(crate) const FURTHER_LAYERS: &str = "layers that predict further tokens";

/// Whether a canonical name is that of a tensor in one of `count` layers from `first` on.
pub(crate) fn is_layer_of(name: &str, first: usize, count: usize) -> bool {
    let layer = name.strip_prefix("blk.").and_then(|rest| layer_number(rest.split('.').next()?));
    layer.is_some_and(|layer| layer.checked_sub(first).is_some_and(|at| at < count))
}

/// The layer of a Hugging Face tensor.
pub(crate) fn hf_layer(name: &str, card: &Card) -> Option<usize> {
    let naming = &card.naming;
    let plain = naming.prefixes.iter().find_map(|prefix| name.strip_prefix(prefix))?;
    let layers = naming.layers.strip_prefix(naming.root).unwrap_or(naming.layers);
    let rest = plain.strip_prefix(naming.layers).or_else(|| plain.strip_prefix(layers))?;
    layer_number(rest.split('.').next()?)
}

/// Gives every tensor its canonical name.
pub(crate) fn rename(
    mut tensors: Vec<TensorInfo>,
    card: &Card,
    architecture: &str,
) -> Result<Vec<TensorInfo>, FormatError> {
    for tensor in &mut tensors {
        tensor.name = canonical(&tensor.name, card).ok_or_else(|| unknown(&tensor.name, architecture))?;
        join_taps(tensor, card);
        // The gate of a shared expert is a matrix of one row, and in some files so is the bias of experts.
        let is_vector =
            ["ffn_gate_inp_shexp.weight", "exp_probs_b.bias"].iter().any(|end| tensor.name.ends_with(end));
        if is_vector && tensor.shape.len() == 2 && tensor.shape[0] == 1 {
            tensor.shape.remove(0);
        }
    }
    // The first matrix of a classifier without the second is a leftover of training.
    if !tensors.iter().any(|tensor| tensor.name == "cls.output.weight") {
        tensors.retain(|tensor| !tensor.name.starts_with("cls."));
    }
    Ok(tensors)
}

/// The rows of a convolution's matrix have all weights of an output.
pub(crate) fn join_taps(tensor: &mut TensorInfo, card: &Card) {
    if let [outputs, inputs, taps] = tensor.shape[..]
        && card.tensor_rules().any(|rule| {
            rule.kind == Kind::Convolution && tensor.name.strip_suffix(".weight") == Some(rule.name)
        })
    {
        tensor.shape = vec![outputs, inputs * taps];
    }
}

/// A plain decimal number, so that a layer has only one name.
fn layer_number(text: &str) -> Option<usize> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'));
    (plain && !text.is_empty()).then(|| text.parse().ok()).flatten()
}

/// Whether any family has a tensor of this name. Whether this model's family has it is checked by the plan.
fn is_canonical(name: &str, config: &ModelConfig) -> bool {
    let known = |part: Part, name: &str| {
        let mut rules = CARDS.iter().flat_map(|card| card.tensor_rules());
        rules.any(|rule| rule.part == part && rule.name == name)
    };
    let in_layer = || {
        let (of, layer, part) = layer_and_part(name)?;
        let known = (name.ends_with(".weight") || name.ends_with(".bias")) && known(of, part);
        let count = match of {
            Part::EncoderLayer => config.encoder.as_ref().map_or(0, |encoder| encoder.layer_count),
            Part::Layer | Part::Model => config.layer_count,
        };
        (known && layer_number(layer)? < count).then_some(())
    };
    let in_model = || {
        let (part, kind) = name.rsplit_once('.')?;
        // Matrices of dense modules, after pooling.
        let dense = part.strip_prefix("dense_").is_some_and(|number| layer_number(number).is_some());
        (matches!(kind, "weight" | "bias") && (dense || known(Part::Model, part))).then_some(())
    };
    in_model().or_else(in_layer).is_some()
}

/// Kind of layer, layer and base name of a tensor: `blk.3.attn_q.weight` is `attn_q` of the layer 3.
pub(crate) fn layer_and_part(name: &str) -> Option<(Part, &str, &str)> {
    let (part, rest) = match name.strip_prefix("enc.blk.") {
        Some(rest) => (Part::EncoderLayer, rest),
        None => (Part::Layer, name.strip_prefix("blk.")?),
    };
    let (layer, rest) = rest.split_once('.')?;
    Some((part, layer, rest.rsplit_once('.')?.0))
}

/// The tensors of the model, with fused ones split: each part is a range of rows of the fused tensor.
pub(crate) fn split_fused(
    stored: &[TensorInfo],
    config: &ModelConfig,
) -> Result<Vec<TensorInfo>, FormatError> {
    let known = Card::find(&config.architecture);
    let card = known.unwrap_or(&Card::PLAIN);
    let there: HashSet<&str> = stored.iter().map(|tensor| tensor.name.as_str()).collect();
    let mut tensors = Vec::with_capacity(stored.len());
    for tensor in stored {
        let Some((stack, names)) = fused_rule(&tensor.name, card, &there) else {
            tensors.push(tensor.clone());
            continue;
        };
        let rows = part_rows(stack, card, config);
        let wanted: usize = rows.iter().sum();
        // The rows of a vector are its elements.
        let found = tensor.shape.first().copied().unwrap_or(0);
        if found == 0 || found != wanted || tensor.shape.len() == 1 && tensor.dtype.is_quantised() {
            if known.is_none() {
                return Err(unknown(&tensor.name, &config.architecture));
            }
            let parts = stack.parts.join(", ");
            let problem = format!("it has {found} rows, but {parts} fused in it need {wanted}");
            return Err(FormatError::tensor(&tensor.name, problem));
        }
        split(tensor, names.into_iter().zip(rows), &mut tensors);
    }
    Ok(tensors)
}

/// The rule of a fused tensor, and the names of its parts; `None` if the tensor is not fused.
fn fused_rule<'c>(name: &str, card: &'c Card, there: &HashSet<&str>) -> Option<(&'c FusedRule, Vec<String>)> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let (part, kind) = rest.rsplit_once('.')?;
    let stack = card.fused.iter().find(|stack| stack.name == part)?;
    let names: Vec<String> = stack.parts.iter().map(|part| format!("blk.{layer}.{part}.{kind}")).collect();
    let apart = stack.parts.contains(&part) && there.contains(names.first()?.as_str());
    (matches!(kind, "weight" | "bias") && !apart).then_some((stack, names))
}

/// Number of rows of each part of a fused tensor.
fn part_rows(stack: &FusedRule, card: &Card, config: &ModelConfig) -> Vec<usize> {
    let sizes = Sizes::from(config);
    let rows = |part: &&str| {
        let rule = card.tensor_rules().find(|rule| rule.part == Part::Layer && rule.name == *part);
        rule.and_then(|rule| rule.shape.first()).map_or(0, |dim| dim.of(&sizes))
    };
    stack.parts.iter().map(rows).collect()
}

fn split(stack: &TensorInfo, parts: impl Iterator<Item = (String, usize)>, out: &mut Vec<TensorInfo>) {
    let all = stack.shape.first().copied().unwrap_or(0);
    let mut first = 0;
    for (name, rows) in parts {
        let mut shape = stack.shape.clone();
        shape[0] = rows;
        let part = |place: Place| place.rows(first, rows, all);
        let Place { offset, bytes, .. } = part(stack.place());
        let scales_offsets = stack.scales_offsets.map(|plane| plane.map(part));
        first += rows;
        out.push(TensorInfo { name, shape, offset, bytes, scales_offsets, ..stack.clone() });
    }
}

/// Rejects unknown tensors, which would otherwise be omitted from the computation silently.
pub(crate) fn refuse_unknown(tensors: &[TensorInfo], config: &ModelConfig) -> Result<(), FormatError> {
    match tensors.iter().find(|tensor| !is_canonical(&tensor.name, config)) {
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
            assert_eq!(canonical(theirs, &Card::PLAIN).as_deref(), Some(ours), "{theirs}");
        }
        let sandwich = CARDS
            .iter()
            .copied()
            .find(|card| hugging_face("blk.0.post_ffw_norm.weight", card).is_some())
            .unwrap();
        for (theirs, ours) in [
            ("model.layers.7.post_attention_layernorm.weight", "blk.7.post_attention_norm.weight"),
            ("model.layers.7.pre_feedforward_layernorm.weight", "blk.7.ffn_norm.weight"),
            ("model.layers.7.post_feedforward_layernorm.weight", "blk.7.post_ffw_norm.weight"),
        ] {
            assert_eq!(canonical(theirs, sandwich).as_deref(), Some(ours), "{theirs}");
        }
    }

    #[test]
    fn every_rule_of_every_card_works_in_both_directions() {
        for card in CARDS {
            for rule in card.tensor_rules() {
                let ours = match rule.part {
                    Part::Model => format!("{}.weight", rule.name),
                    Part::Layer => format!("blk.5.{}.weight", rule.name),
                    Part::EncoderLayer => format!("enc.blk.5.{}.weight", rule.name),
                };
                let theirs = hugging_face(&ours, card);
                assert_eq!(theirs.is_some(), rule.hf.is_some(), "{ours}");
                if let Some(theirs) = theirs {
                    assert_eq!(canonical(&theirs, card), Some(ours), "{theirs}");
                }
            }
        }
    }

    #[test]
    fn similar_names_do_not_match() {
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
            assert_eq!(canonical(name, &Card::PLAIN), None, "{name}");
        }
    }
}
