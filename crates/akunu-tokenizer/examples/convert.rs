//! Encodes and decodes what stands in a file, for comparisons with other programs:
//! `cargo run --release -p akunu-tokenizer --example convert -- VOCAB CASES [special]`. With `special`, special tokens are
//! recognised in texts.
//!
//! `VOCAB` is a GGUF file, a `tokenizer.json` or a `tokenizer.model`. Each line of `CASES` is a JSON string, which is
//! encoded, or a list of ids, which is decoded. For each, a line with the ids or the text is written, or an object with
//! the error.

#![allow(clippy::print_stderr)]

use std::io::Write;
use std::path::Path;

use akunu_tokenizer::{
    EncodeOptions, HfTokenizer, Sidecar, Tokenizer, TokenizerError, from_gguf, from_model_file,
};
use serde_json::{Value, json};

fn open(path: &Path) -> Result<Box<dyn Tokenizer>, Box<dyn std::error::Error>> {
    Ok(match path.extension().and_then(|end| end.to_str()) {
        Some("gguf") => Box::new(from_gguf(akunu_format::Gguf::open(path)?.metadata())?),
        Some("json") => Box::new(HfTokenizer::from_bytes(&std::fs::read(path)?, &Sidecar::default())?),
        _ => Box::new(from_model_file(path)?),
    })
}

fn answer(tokenizer: &dyn Tokenizer, case: &Value, options: EncodeOptions) -> Result<Value, TokenizerError> {
    Ok(match case {
        Value::String(text) => json!(tokenizer.encode(text, options)?),
        Value::Array(ids) => {
            let ids: Vec<u32> = ids.iter().filter_map(|id| id.as_u64()?.try_into().ok()).collect();
            json!(tokenizer.decode(&ids))
        }
        other => json!({"error": format!("neither a text nor ids: {other}")}),
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let paths: Vec<_> = std::env::args_os().skip(1).collect();
    let [vocabulary, cases, rest @ ..] = &paths[..] else {
        return Err("usage: convert VOCAB CASES [special]".into());
    };
    let parse_special = rest.iter().any(|word| word == "special");
    let options = EncodeOptions { parse_special, ..EncodeOptions::default() };
    let tokenizer = open(Path::new(vocabulary))?;
    eprintln!("{}", tokenizer.describe());
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for line in std::fs::read_to_string(cases)?.lines() {
        let value = answer(&*tokenizer, &serde_json::from_str(line)?, options);
        writeln!(out, "{}", value.unwrap_or_else(|error| json!({"error": error.to_string()})))?;
    }
    Ok(())
}
