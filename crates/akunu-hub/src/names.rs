//! Short names of well-known models, such as `qwen3:0.6b`.

use crate::reference::PREFIX;

/// A model on the hub that has a short name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// A family, and a size or variant after a colon if it has several.
    pub name: &'static str,
    /// The repository, and after a colon a quantisation or file, where the default choice would be another.
    pub source: &'static str,
    /// What the model is used for.
    pub purpose: &'static str,
}

/// Shorter beginnings of names are rather words.
const SHORTEST_FAMILY: usize = 4;

const CHAT: &str = "chat";
const CODE: &str = "chat about code";
const REASONING: &str = "chat with reasoning";
const EMBED: &str = "embeddings";
const RERANK: &str = "reranking";

const fn known(name: &'static str, source: &'static str, purpose: &'static str) -> Known {
    Known { name, source, purpose }
}

/// Sorted by name.
pub static KNOWN: &[Known] = &[
    known("all-minilm", "sentence-transformers/all-MiniLM-L6-v2", EMBED),
    known("bge-m3", "BAAI/bge-m3", EMBED),
    known("bge-reranker", "BAAI/bge-reranker-v2-m3", RERANK),
    known("bge-small", "BAAI/bge-small-en-v1.5", EMBED),
    known("deepseek-r1:1.5b", "bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF", REASONING),
    known("deepseek-r1:7b", "bartowski/DeepSeek-R1-Distill-Qwen-7B-GGUF", REASONING),
    known("deepseek-r1:8b", "unsloth/DeepSeek-R1-Distill-Llama-8B-GGUF", REASONING),
    known("embeddinggemma", "ggml-org/embeddinggemma-300M-GGUF", EMBED),
    known("gemma2:2b", "bartowski/gemma-2-2b-it-GGUF", CHAT),
    known("gemma3:1b", "ggml-org/gemma-3-1b-it-GGUF", CHAT),
    known("gemma3:270m", "unsloth/gemma-3-270m-it-GGUF:Q8_0", CHAT),
    known("gemma3:4b", "ggml-org/gemma-3-4b-it-GGUF", CHAT),
    known("gpt-oss:120b", "ggml-org/gpt-oss-120b-GGUF", REASONING),
    known("gpt-oss:20b", "ggml-org/gpt-oss-20b-GGUF", REASONING),
    known("granite3.3:2b", "ibm-granite/granite-3.3-2b-instruct-GGUF", CHAT),
    known("llama3.1:8b", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", CHAT),
    known("llama3.2:1b", "bartowski/Llama-3.2-1B-Instruct-GGUF", CHAT),
    known("llama3.2:3b", "bartowski/Llama-3.2-3B-Instruct-GGUF", CHAT),
    known("llama3.3:70b", "bartowski/Llama-3.3-70B-Instruct-GGUF", CHAT),
    known("ministral3:3b", "mistralai/Ministral-3-3B-Instruct-2512-GGUF", CHAT),
    known("mistral:7b", "bartowski/Mistral-7B-Instruct-v0.3-GGUF", CHAT),
    known("mxbai-embed-large", "mixedbread-ai/mxbai-embed-large-v1", EMBED),
    known("nomic-embed-text", "nomic-ai/nomic-embed-text-v1.5-GGUF", EMBED),
    known("olmo2:1b", "allenai/OLMo-2-0425-1B-Instruct-GGUF", CHAT),
    known("phi3.5", "bartowski/Phi-3.5-mini-instruct-GGUF", CHAT),
    known("phi4-mini", "unsloth/Phi-4-mini-instruct-GGUF", CHAT),
    known("qwen2.5-coder:1.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", CODE),
    known("qwen2.5-coder:7b", "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF", CODE),
    known("qwen2.5:0.5b", "Qwen/Qwen2.5-0.5B-Instruct-GGUF", CHAT),
    known("qwen2.5:1.5b", "Qwen/Qwen2.5-1.5B-Instruct-GGUF", CHAT),
    known("qwen2.5:3b", "Qwen/Qwen2.5-3B-Instruct-GGUF", CHAT),
    known("qwen2.5:7b", "Qwen/Qwen2.5-7B-Instruct-GGUF", CHAT),
    known("qwen3-embedding:0.6b", "Qwen/Qwen3-Embedding-0.6B-GGUF:Q8_0", EMBED),
    known("qwen3-instruct:4b", "unsloth/Qwen3-4B-Instruct-2507-GGUF", CHAT),
    known("qwen3-reranker:0.6b", "Qwen/Qwen3-Reranker-0.6B", RERANK),
    known("qwen3:0.6b", "Qwen/Qwen3-0.6B-GGUF:Q8_0", REASONING),
    known("qwen3:1.7b", "Qwen/Qwen3-1.7B-GGUF:Q8_0", REASONING),
    known("qwen3:14b", "Qwen/Qwen3-14B-GGUF", REASONING),
    known("qwen3:32b", "Qwen/Qwen3-32B-GGUF", REASONING),
    known("qwen3:4b", "Qwen/Qwen3-4B-GGUF", REASONING),
    known("qwen3:8b", "Qwen/Qwen3-8B-GGUF", REASONING),
    known("smollm2:1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF", CHAT),
    known("smollm2:135m", "bartowski/SmolLM2-135M-Instruct-GGUF:Q8_0", CHAT),
    known("smollm2:360m", "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF:Q8_0", CHAT),
    known("smollm3:3b", "ggml-org/SmolLM3-3B-GGUF", REASONING),
    known("tinyllama:1.1b", "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF", CHAT),
];

impl Known {
    /// The model with exactly this short name; letters may be upper-case.
    pub fn find(name: &str) -> Option<&'static Known> {
        KNOWN.iter().find(|known| known.name.eq_ignore_ascii_case(name))
    }

    /// The models that this text may mean, the most likely first: those of the family that it names, or else those
    /// whose name differs in few letters. None if the text does not look like a short name.
    pub fn near(text: &str) -> Vec<&'static Known> {
        let text = text.to_ascii_lowercase();
        if text.is_empty() || text.len() > 40 || text.contains(|c: char| c.is_whitespace() || c == '/') {
            return Vec::new();
        }
        let family = text.split(':').next().unwrap_or_default();
        let mut found: Vec<(usize, &Known)> = KNOWN
            .iter()
            .filter_map(|known| {
                let whole = distance(&text, known.name);
                let families = distance(family, known.family());
                let near =
                    families <= family.len() / 5 || whole <= text.len() / 4 || known.begins_with(&text);
                near.then_some((whole, known))
            })
            .collect();
        if found.iter().any(|(_, known)| known.family() == family) {
            found.retain(|(_, known)| known.family() == family);
        }
        found.sort_by_key(|(distance, _)| *distance);
        found.into_iter().map(|(_, known)| known).collect()
    }

    /// Whether a text names a family, or a family without its version: "qwen3" or "qwen".
    pub fn is_family(text: &str) -> bool {
        KNOWN.iter().any(|known| known.begins_with(&text.to_ascii_lowercase()))
    }

    fn begins_with(&self, text: &str) -> bool {
        let rest = self.name.strip_prefix(text).filter(|_| text.len() >= SHORTEST_FAMILY);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphabetic()))
    }

    /// The name of the reference: `hf:OWNER/NAME`, with a selector if there is one.
    pub fn reference(&self) -> String {
        format!("{PREFIX}{}", self.source)
    }

    /// `OWNER/NAME`.
    pub fn repo(&self) -> &'static str {
        self.source.split(':').next().unwrap_or_default()
    }

    fn family(&self) -> &'static str {
        self.name.split(':').next().unwrap_or_default()
    }
}

/// Levenshtein distance in characters.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reference;

    fn near(text: &str) -> Vec<&'static str> {
        Known::near(text).iter().map(|known| known.name).collect()
    }

    #[test]
    fn names_are_sorted_and_unique_and_lead_to_valid_references() {
        assert!(KNOWN.windows(2).all(|pair| pair[0].name < pair[1].name));
        for known in KNOWN {
            let reference: Reference = known.reference().parse().unwrap();
            assert_eq!(reference.to_string(), format!("hf:{}", known.source));
            let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".:-".contains(c);
            assert!(known.name.chars().all(inside) && known.name.len() <= 40, "{}", known.name);
            assert_eq!(Known::find(&known.name.to_uppercase()), Some(known));
            assert_eq!(near(known.name)[0], known.name);
        }
    }

    #[test]
    fn a_family_without_a_size_is_not_a_name_but_lists_its_sizes() {
        assert_eq!(Known::find("qwen3"), None);
        let sizes = near("qwen3");
        assert_eq!(sizes.len(), 6, "{sizes:?}");
        assert!(sizes.iter().all(|name| name.starts_with("qwen3:")), "{sizes:?}");
        assert_eq!(near("qwen3:0.7b")[0], "qwen3:0.6b");
    }

    #[test]
    fn misspelt_names_have_neighbours_and_other_texts_have_none() {
        assert_eq!(near("qwen3.0.6b")[0], "qwen3:0.6b");
        assert_eq!(near("lama3.2:1b")[0], "llama3.2:1b");
        assert_eq!(near("smollm2:135"), ["smollm2:135m", "smollm2:1.7b", "smollm2:360m"]);
        assert_eq!(near("all-minilm-l6"), ["all-minilm"]);
        assert_eq!(near("llama3"), ["llama3.1:8b", "llama3.2:1b", "llama3.2:3b", "llama3.3:70b"]);
        for (text, family) in
            [("qwen", true), ("Mistral", true), ("deep", false), ("tiny", false), ("all", false)]
        {
            assert_eq!(Known::is_family(text), family, "{text}");
        }
        for other in ["", "Once upon a time", "model.gguf", "no/such/model", "cat", "Hello", "x:y"] {
            assert_eq!(near(other), [""; 0], "{other}");
        }
    }

    #[test]
    fn the_distance_counts_changed_letters() {
        for (a, b, expected) in [("", "", 0), ("a", "", 1), ("kitten", "sitting", 3), ("ab", "ba", 2)] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
    }
}
