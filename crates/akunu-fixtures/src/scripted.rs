//! A model with scripted output: the next token depends only on the current one.
//!
//! Embeddings are unit vectors, layers add nothing, and row j of the output matrix has `CERTAIN` for all tokens whose
//! successor is j.

use std::collections::HashMap;
use std::path::Path;

use akunu_format::{Array, DType, GgufWriter, Metadata, Strings, TensorSpec, Value};

pub const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                          {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Vocabulary size and hidden size: one unit vector per token.
const WIDTH: usize = 288;
/// The logit of the successor is 17 times this, and all others are 0. At usual temperatures that is more than draws can differ,
/// so sampled answers are the script too.
const CERTAIN: f32 = 64.0;
const CONTROLS: [&str; 6] = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"];

/// Writes a model that generates `chain`, each token followed by the next; all other tokens are followed by the end of
/// turn. The generation prompt ends with a newline or a colon.
pub fn write(path: &Path, template: Option<&str>, chain: &[&str]) {
    // Kinds: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    let mut tokens: Vec<(String, i32)> = vec![("<unk>".into(), 2), ("▁".into(), 1)];
    tokens.extend(CONTROLS.map(|text| (text.to_string(), 3)));
    tokens.extend((0..256).map(|byte| (format!("<0x{byte:02X}>"), 6)));
    let mut ids: HashMap<String, usize> = tokens.iter().cloned().map(|(text, _)| text).zip(0..).collect();
    ids.insert("\n".into(), ids["<0x0A>"]);
    ids.insert(":".into(), ids["<0x3A>"]);
    for word in chain {
        if !ids.contains_key(*word) {
            ids.insert((*word).to_string(), tokens.len());
            tokens.push(((*word).to_string(), 4));
        }
    }
    tokens.extend((tokens.len()..WIDTH).map(|id| (format!("unused {id}"), 5)));
    assert_eq!(tokens.len(), WIDTH);
    let mut successor = vec![ids["<|im_end|>"]; WIDTH];
    for pair in chain.windows(2) {
        successor[ids[pair[0]]] = ids[pair[1]];
    }
    write_model(path, &metadata(template, &tokens, &ids), &successor);
}

fn metadata(template: Option<&str>, tokens: &[(String, i32)], ids: &HashMap<String, usize>) -> Metadata {
    let mut metadata = Metadata::default();
    let mut text = |key: &str, value: &str| metadata.insert(key, Value::String(value.into()));
    text("general.architecture", "llama");
    text("tokenizer.ggml.model", "llama");
    if let Some(template) = template {
        text("tokenizer.chat_template", template);
    }
    for (key, value) in [
        ("llama.context_length", 1 << 20),
        ("llama.embedding_length", WIDTH),
        ("llama.block_count", 1),
        ("llama.feed_forward_length", 32),
        ("llama.attention.head_count", WIDTH / 32),
        ("llama.attention.head_count_kv", 1),
        ("tokenizer.ggml.bos_token_id", ids["<s>"]),
        ("tokenizer.ggml.eos_token_id", ids["</s>"]),
        ("tokenizer.ggml.unknown_token_id", 0),
    ] {
        metadata.insert(key, Value::U32(value as u32));
    }
    metadata.insert("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    metadata.insert("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    metadata.insert("tokenizer.ggml.add_bos_token", Value::Bool(false));
    let texts: Strings = tokens.iter().map(|(text, _)| text.as_str()).collect();
    let kinds = tokens.iter().map(|(_, kind)| *kind).collect();
    metadata.insert("tokenizer.ggml.tokens", Value::Array(Array::Strings(texts)));
    metadata.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)));
    metadata.insert("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; tokens.len()])));
    metadata
}

fn write_model(path: &Path, metadata: &Metadata, successor: &[usize]) {
    let unit = |row: usize, column: usize| f32::from(row == column);
    let follows = |row: usize, column: usize| if successor[column] == row { CERTAIN } else { 0.0 };
    let nothing = |_: usize, _: usize| 0.0;
    let ones = |_: usize, _: usize| 1.0;
    type Fill<'a> = &'a dyn Fn(usize, usize) -> f32;
    let tensors: [(&str, usize, usize, Fill<'_>); 12] = [
        ("token_embd", WIDTH, WIDTH, &unit),
        ("output", WIDTH, WIDTH, &follows),
        ("output_norm", 1, WIDTH, &ones),
        ("blk.0.attn_norm", 1, WIDTH, &ones),
        ("blk.0.ffn_norm", 1, WIDTH, &ones),
        ("blk.0.attn_q", WIDTH, WIDTH, &nothing),
        ("blk.0.attn_k", 32, WIDTH, &nothing),
        ("blk.0.attn_v", 32, WIDTH, &nothing),
        ("blk.0.attn_output", WIDTH, WIDTH, &nothing),
        ("blk.0.ffn_gate", 32, WIDTH, &nothing),
        ("blk.0.ffn_up", 32, WIDTH, &nothing),
        ("blk.0.ffn_down", WIDTH, 32, &nothing),
    ];
    let spec = |&(name, rows, columns, _): &(&str, usize, usize, Fill<'_>)| {
        let shape = if rows == 1 { vec![columns] } else { vec![rows, columns] };
        TensorSpec::new(format!("{name}.weight"), DType::F32, shape)
    };
    let file = std::fs::File::create(path).unwrap();
    let mut writer = GgufWriter::new(file, metadata, tensors.iter().map(spec).collect()).unwrap();
    for (_, rows, columns, fill) in tensors {
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let bytes: Vec<u8> = places.flat_map(|(row, column)| fill(row, column).to_le_bytes()).collect();
        writer.tensor(|out| out.write_all(&bytes)).unwrap();
    }
    writer.finish().unwrap();
}
