//! Prompts to fill in the middle of a text.
//!
//! ```text
//! PREFIX text before SUFFIX text after MIDDLE ─▶ the middle
//! SUFFIX text after PREFIX text before ─▶ the middle     (Codestral)
//! ```

use crate::{EncodeOptions, Tokenizer, TokenizerError};

/// The tokens of families of models, before the text before, before the text after, and before the middle.
const FAMILIES: [[&str; 3]; 8] = [
    // Qwen 2.5 and later, CodeGemma, JetBrains.
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    // StarCoder, StableCode.
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    // SantaCoder, Granite.
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    // GLM.
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    // Code Llama, in GGUF files and in folders.
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    ["<PRE>", "<SUF>", "<MID>"],
    CODESTRAL,
];

/// Its prompts have no token before the middle, which vocabularies of Mistral have nevertheless.
const CODESTRAL: [&str; 3] = ["[PREFIX]", "[SUFFIX]", ""];

/// Tokens before the name of a repository, and before that of each of its files, in families that were trained with them.
const FILES: [[&str; 2]; 2] = [["<|repo_name|>", "<|file_sep|>"], ["<repo_name>", "<file_sep>"]];

/// Names where requests have none, and what precedes a text beside without such tokens: those of llama.cpp's server.
const REPOSITORY: &str = "myproject\n";
const FILE: &str = "filename\n";
const SNIPPET: &str = "\n\n--- snippet ---\n\n";

/// The tokens of prompts to fill in a middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfillTokens {
    pub prefix: u32,
    pub suffix: u32,
    /// Without one, the text after comes first.
    pub middle: Option<u32>,
    /// Before the name of a repository, and before that of each of its files.
    pub files: Option<[u32; 2]>,
}

/// A file, or a part of one, beside the text that is filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfillFile {
    pub name: String,
    pub text: String,
}

impl InfillTokens {
    /// Those that the file states, or that have well-known names. `None`: the vocabulary has none. Searches
    /// the whole vocabulary.
    pub fn of(tokenizer: &dyn Tokenizer) -> Option<InfillTokens> {
        let mut found = [[None; 3]; FAMILIES.len()];
        let mut found_files = [[None; 2]; FILES.len()];
        for id in 0..u32::try_from(tokenizer.vocab_size()).ok()? {
            // All names begin with one of these; most tokens do not.
            let Some(text) = tokenizer.token_text(id).filter(|text| text.starts_with(['<', '▁', '[']))
            else {
                continue;
            };
            for (names, ids) in FAMILIES.iter().zip(&mut found) {
                if let Some(place) = names.iter().position(|name| *name == text) {
                    ids[place].get_or_insert(id);
                }
            }
            for (names, ids) in FILES.iter().zip(&mut found_files) {
                if let Some(place) = names.iter().position(|name| *name == text) {
                    ids[place].get_or_insert(id);
                }
            }
        }
        let files = found_files.into_iter().find_map(|ids| Some([ids[0]?, ids[1]?]));
        if let [Some(prefix), Some(suffix), Some(middle)] = tokenizer.special().infill {
            return Some(InfillTokens { prefix, suffix, middle: Some(middle), files });
        }
        FAMILIES.into_iter().zip(found).find_map(|(names, ids)| match ids {
            [Some(prefix), Some(suffix), middle] if middle.is_some() || names == CODESTRAL => {
                Some(InfillTokens { prefix, suffix, middle, files })
            }
            _ => None,
        })
    }

    /// The prompt for what is between two texts, with files beside it. Special tokens that are spelled out in them are text.
    pub fn prompt(
        self,
        tokenizer: &dyn Tokenizer,
        files: &[InfillFile],
        before: &str,
        after: &str,
    ) -> Result<Vec<u32>, TokenizerError> {
        let beside = self.beside(tokenizer, files)?;
        let special = tokenizer.special();
        let start = special.bos.filter(|_| special.add_bos);
        let before = match before {
            "" => Vec::new(),
            before => tokenizer.encode(before, PLAIN)?,
        };
        let after = without_space(tokenizer, after)?;
        let before = [vec![self.prefix], before].concat();
        let after = [vec![self.suffix], after].concat();
        let texts = if self.middle.is_some() { [before, after] } else { [after, before] };
        Ok(start.into_iter().chain(beside).chain(texts.concat()).chain(self.middle).collect())
    }

    /// What precedes the texts.
    fn beside(self, tokenizer: &dyn Tokenizer, files: &[InfillFile]) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        if let Some([repository, _]) = self.files.filter(|_| !files.is_empty()) {
            ids.push(repository);
            ids.extend(without_space(tokenizer, REPOSITORY)?);
        }
        for InfillFile { name, text } in files {
            ids.extend(self.files.map(|[_, file]| file));
            let text = match self.files {
                Some(_) => format!("{name}\n{text}"),
                None => format!("{SNIPPET}{text}"),
            };
            ids.extend(without_space(tokenizer, &text)?);
        }
        if let Some([_, file]) = self.files.filter(|_| !files.is_empty()) {
            ids.push(file);
            ids.extend(without_space(tokenizer, FILE)?);
        }
        Ok(ids)
    }
}

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

/// Encodes a text that does not begin a text, so without the space that encoding may add there.
fn without_space(tokenizer: &dyn Tokenizer, text: &str) -> Result<Vec<u32>, TokenizerError> {
    // Merges with no other character.
    const MARK: &str = "☺";
    if text.is_empty() {
        return Ok(Vec::new());
    }
    if tokenizer.has_space_prefix() {
        let (mark, both) =
            (tokenizer.encode(MARK, PLAIN)?, tokenizer.encode(&format!("{MARK}{text}"), PLAIN)?);
        if let Some(rest) = both.strip_prefix(mark.as_slice()) {
            return Ok(rest.to_vec());
        }
    }
    tokenizer.encode(text, PLAIN)
}

#[cfg(test)]
mod tests {
    use akunu_format::{Array, Metadata, Strings, Value};

    use super::*;
    use crate::NativeTokenizer;

    /// A byte-level vocabulary of the letters and these tokens, which are control tokens unless they are a line end.
    fn tokenizer(names: &[&str], stated: &[(&str, u32)]) -> NativeTokenizer {
        let letters: Vec<String> = ('a'..='z').map(String::from).collect();
        let tokens: Vec<&str> = letters.iter().map(String::as_str).chain(names.iter().copied()).collect();
        let is_text = |id: usize| id < letters.len() || tokens[id] == "Ċ";
        let kinds = (0..tokens.len()).map(|id| if is_text(id) { 1 } else { 3 });
        let mut metadata = Metadata::default();
        for (key, text) in [("model", "gpt2"), ("pre", "gpt-2")] {
            metadata.insert(format!("tokenizer.ggml.{key}"), Value::String(text.into()));
        }
        let tokens: Strings = tokens.iter().copied().collect();
        metadata.insert("tokenizer.ggml.tokens", Value::Array(Array::Strings(tokens)));
        metadata.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds.collect())));
        metadata.insert("tokenizer.ggml.merges", Value::Array(Array::Strings(Strings::default())));
        for (key, id) in stated {
            metadata.insert(format!("tokenizer.ggml.{key}_token_id"), Value::U32(*id));
        }
        crate::from_gguf(&metadata).unwrap()
    }

    #[test]
    fn tokens_are_those_that_the_file_states_or_well_known_ones() {
        let known = ["<x>", "<fim_suffix>", "<fim_middle>", "<fim_prefix>"];
        let expected = Some(InfillTokens { prefix: 29, suffix: 27, middle: Some(28), files: None });
        assert_eq!(InfillTokens::of(&tokenizer(&known, &[])), expected);
        // Two of three are none.
        assert_eq!(InfillTokens::of(&tokenizer(&known[..3], &[])), None);
        for (prefix, suffix, middle) in [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")] {
            let stated = tokenizer(&known, &[(prefix, 26), (suffix, 27), (middle, 29)]);
            let expected = Some(InfillTokens { prefix: 26, suffix: 27, middle: Some(29), files: None });
            assert_eq!(InfillTokens::of(&stated), expected);
        }
    }

    #[test]
    fn a_prompt_has_both_texts() {
        let tokenizer = tokenizer(&["<fim_prefix>", "<fim_suffix>", "<fim_middle>"], &[]);
        let tokens = InfillTokens::of(&tokenizer).unwrap();
        assert_eq!(tokens.prompt(&tokenizer, &[], "ab", "c").unwrap(), [26, 0, 1, 27, 2, 28]);
        assert_eq!(tokens.prompt(&tokenizer, &[], "", "").unwrap(), [26, 27, 28]);
    }

    /// As in `mistral-common`: the text after, then the text before.
    #[test]
    fn a_prompt_of_codestral_ends_with_the_text_before() {
        let tokenizer = tokenizer(&["[MIDDLE]", "[PREFIX]", "[SUFFIX]"], &[]);
        let tokens = InfillTokens::of(&tokenizer).unwrap();
        assert_eq!(tokens, InfillTokens { prefix: 27, suffix: 28, middle: None, files: None });
        assert_eq!(tokens.prompt(&tokenizer, &[], "ab", "c").unwrap(), [28, 2, 27, 0, 1]);
    }

    #[test]
    fn files_stand_before_a_prompt() {
        let file = |name: &str, text: &str| InfillFile { name: name.into(), text: text.into() };
        let files = [file("x", "ab"), file("y", "c")];
        let names = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"];
        let shown = |names: &[&str]| {
            let tokenizer = tokenizer(&[names, &["Ċ"]].concat(), &[]);
            let ids = InfillTokens::of(&tokenizer).unwrap().prompt(&tokenizer, &files, "d", "e").unwrap();
            ids.iter().map(|id| tokenizer.token_text(*id).unwrap()).collect::<String>()
        };
        assert_eq!(
            shown(&names),
            "<|repo_name|>myprojectĊ<|file_sep|>xĊab<|file_sep|>yĊc<|file_sep|>filenameĊ<|fim_prefix|>d<|fim_suffix|>e\
             <|fim_middle|>"
        );
        let plain = shown(&names[..3]);
        assert!(
            plain.contains("ab") && plain.ends_with("c<|fim_prefix|>d<|fim_suffix|>e<|fim_middle|>"),
            "{plain}"
        );
    }
}
