//! Cards are complete, and no other code names a family.
#![allow(clippy::unwrap_used)] // in helpers of tests

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use akunu_arch::facts::Fact;
use akunu_arch::{CARDS, Card};

/// Folders of `crates/` that may name families, and the reason.
const EXCEPTIONS: [(&str, &str); 3] = [
    ("akunu-arch/src/families", "the cards"),
    ("akunu-fixtures/src", "models of tests"),
    (
        "akunu-tokenizer/src",
        "names of tokenizer models and pre-tokenizers in GGUF, some of which are those of families",
    ),
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            out.push(path);
        }
    }
}

/// The lines of a file without comments and without its tests, which come last.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().take_while(|(_, line)| !line.starts_with("#[cfg(test)]"));
    lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

#[test]
fn only_cards_name_architectures() {
    let crates = crates();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&crates).unwrap() {
        sources(&entry.unwrap().path().join("src"), &mut files);
    }
    assert!(files.len() > 200, "{} files", files.len());
    let quoted: Vec<String> = Card::all_names().map(|name| format!("\"{name}\"")).collect();
    let is_exempt = |file: &Path| {
        EXCEPTIONS.iter().any(|(folder, _)| file.starts_with(crates.join(folder)))
            || file.ends_with("tests.rs")
    };
    let mut found = Vec::new();
    for file in files.iter().filter(|file| !is_exempt(file)) {
        let text = std::fs::read_to_string(file).unwrap();
        for (line, text) in code(&text) {
            if quoted.iter().any(|name| text.contains(name.as_str())) {
                found.push(format!("{}:{}: {}", file.display(), line + 1, text.trim()));
            }
        }
    }
    assert!(found.is_empty(), "state it on the family's card:\n{}", found.join("\n"));
}

#[test]
fn no_two_cards_share_a_name() {
    let mut seen = HashSet::new();
    for name in Card::all_names() {
        assert!(seen.insert(name), "{name} is on two cards");
    }
    let mut shapes = HashSet::new();
    for shape in CARDS.iter().flat_map(|card| card.shapes) {
        assert!(shapes.insert(shape.name), "{} is a shape of two cards", shape.name);
    }
}

#[test]
fn every_model_type_finds_its_card() {
    for (card, kind) in Card::kinds() {
        // Where several cards have a `model_type`, its name is on the one of models with experts and without states.
        if kind.with_experts != Some(false) && kind.recurrent_types.is_empty() {
            assert_eq!(Card::find(kind.model_type), Some(card), "{}", kind.model_type);
        }
        assert_eq!(Card::find(card.gguf_name()), Some(card));
        if let Some(outer) = kind.nested_in {
            assert!(Card::find(outer).is_some(), "{outer}");
        }
    }
}

#[test]
fn every_default_belongs_to_a_fact_with_keys() {
    for (card, kind) in Card::kinds() {
        for (fact, _) in kind.defaults {
            assert!(
                card.rule(*fact).is_some_and(|rule| !rule.hf.is_empty()),
                "{}: {fact:?}",
                kind.model_type
            );
        }
        for (fact, _) in card.gguf_defaults {
            assert!(
                card.rule(*fact).is_some_and(|rule| !rule.gguf.is_empty()),
                "{}: {fact:?}",
                kind.model_type
            );
        }
        // Facts for which transformers has a default.
        for fact in [
            Fact::ContextLength,
            Fact::HiddenSize,
            Fact::LayerCount,
            Fact::FfnSize,
            Fact::HeadCount,
            Fact::NormEpsilon,
            Fact::RopeBase,
        ] {
            let derived = fact == Fact::FfnSize && kind.ffn_ratio.is_some();
            assert!(derived || kind.default(fact).is_some(), "{} has no {fact:?}", kind.model_type);
        }
    }
}

#[test]
fn the_parts_of_fused_tensors_have_rules() {
    for card in CARDS {
        for part in card.fused.iter().flat_map(|stack| stack.parts) {
            assert!(card.tensor_rules().any(|rule| rule.name == *part), "{}: {part}", card.gguf_name());
        }
    }
}
