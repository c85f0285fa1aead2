//! Selects the files of a repository that make up the requested model.

use crate::disk::human_size;
use crate::reference::Repo;
use crate::{Error, Result};

/// A file of a repository, as far as it matters for the selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RepoFile {
    pub path: String,
    pub size: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub files: Vec<String>,
    pub open: Open,
}

/// The path that the loader is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Open {
    File(String),
    /// The snapshot's folder.
    Folder,
}

/// Preferred quantisations if none is requested; the first one available is used. First those that are small and
/// accurate, then larger ones, then smaller and less accurate ones.
const PREFERRED: &[&str] = &[
    "Q4_K_M", "Q4_0", "Q8_0", "Q5_K_M", "Q4_K_S", "Q5_K_S", "Q6_K", "Q5_0", "Q5_1", "Q4_1", "IQ4_NL",
    "IQ4_XS", "MXFP4", "Q3_K_L", "Q3_K_M", "IQ3_M", "IQ3_S", "Q3_K_S", "IQ3_XS", "IQ3_XXS", "Q2_K", "IQ2_M",
    "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S", "BF16", "F16", "F32",
];

/// Files that belong to a SafeTensors model in addition to its weights.
const AUXILIARY_FILES: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "quantize_config.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// Files in the module folders of sentence-transformers (`1_Pooling`, `2_Dense`, …) that are needed for embeddings.
const MODULE_FILES: &[&str] = &["config.json", "model.safetensors"];

/// Whether a file belongs to a SafeTensors model in `folder` (empty, or ending in a slash) in addition to its weights.
fn is_auxiliary(path: &str, folder: &str) -> bool {
    let Some(name) = path.strip_prefix(folder) else { return false };
    match name.split_once('/') {
        None => AUXILIARY_FILES.contains(&name),
        Some((module, file)) => {
            let numbered = module.split_once('_').is_some_and(|(number, kind)| {
                number.bytes().all(|b| b.is_ascii_digit()) && !number.is_empty() && !kind.is_empty()
            });
            numbered && MODULE_FILES.contains(&file)
        }
    }
}

/// Maximum number of lines of a listing in an error.
const MAX_LINES: usize = 40;

pub(crate) fn choose(repo: &Repo, files: &[RepoFile], selector: Option<&str>) -> Result<Choice> {
    let models = ggufs(files);
    match selector {
        Some(selector) if files.iter().any(|f| f.path == selector) => one_file(repo, files, selector),
        Some(selector) if looks_like_a_file(selector) => Err(Error::NoFile {
            repo: repo.clone(),
            file: selector.to_string(),
            listing: listing(files.iter().map(|f| (f.path.as_str(), f.size))),
        }),
        Some(tag) => {
            let found: Vec<&Gguf> = models.iter().filter(|m| has_tag(&m.name, tag)).collect();
            pick(repo, &found, &models, &format!("several models match {}", tag.to_uppercase()), || {
                format!("no GGUF file has the quantisation {tag}")
            })
        }
        None if !models.is_empty() => default_gguf(repo, &models),
        None => folder(repo, files),
    }
}

/// The complete models among files, each with its selector; none for the one that is chosen without.
pub(crate) fn complete(repo: &Repo, files: &[RepoFile]) -> Vec<(Option<String>, Open)> {
    let default = choose(repo, files, None).ok().map(|choice| choice.open);
    let ggufs = ggufs(files);
    let others = ggufs.iter().filter_map(|model| model.choice(repo).ok()).map(|choice| choice.open);
    let others: Vec<Open> = others.filter(|open| Some(open) != default.as_ref()).collect();
    let selector = |open: &Open| match open {
        Open::File(file) => Some(file.clone()),
        Open::Folder => None,
    };
    let mut models: Vec<(Option<String>, Open)> = default.into_iter().map(|open| (None, open)).collect();
    models.extend(others.into_iter().map(|open| (selector(&open), open)));
    models
}

/// A GGUF model: one file, or all parts of a split one.
#[derive(Debug)]
struct Gguf {
    /// The path without `-00001-of-00003` and `.gguf`.
    name: String,
    parts: Vec<RepoFile>,
    /// Number of parts of a complete model.
    count: usize,
}

impl Gguf {
    fn size(&self) -> u64 {
        self.parts.iter().map(|p| p.size).sum()
    }

    fn choice(&self, repo: &Repo) -> Result<Choice> {
        if self.parts.len() != self.count {
            let reason =
                format!("only {} of the {} parts of {} exist", self.parts.len(), self.count, self.name);
            let listing = listing(self.parts.iter().map(|p| (p.path.as_str(), p.size)));
            return Err(choice(repo, reason, "choose another file", listing));
        }
        let files: Vec<String> = self.parts.iter().map(|p| p.path.clone()).collect();
        Ok(Choice { open: Open::File(files[0].clone()), files })
    }
}

/// The models among the files, sorted by name. Projectors and importance matrices are GGUF files too, but not models.
fn ggufs(files: &[RepoFile]) -> Vec<Gguf> {
    let mut models: Vec<Gguf> = Vec::new();
    let mut sorted: Vec<&RepoFile> = files.iter().collect();
    sorted.sort_by(|a, b| a.path.cmp(&b.path));
    for file in sorted {
        let Some(stem) = strip_ending(&file.path, ".gguf") else { continue };
        let base = stem.rsplit('/').next().unwrap_or(stem).to_ascii_lowercase();
        if base.starts_with("mmproj") || base.contains("-mmproj") || base.starts_with("imatrix") {
            continue;
        }
        let (name, count) = match split_part(stem) {
            Some((name, _, count)) => (name, count),
            None => (stem, 1),
        };
        match models.iter_mut().find(|m| m.name == name && m.count == count && count > 1) {
            Some(model) => model.parts.push(file.clone()),
            None => models.push(Gguf { name: name.to_string(), parts: vec![file.clone()], count }),
        }
    }
    models
}

/// `model-00002-of-00003` as `("model", 2, 3)`.
fn split_part(stem: &str) -> Option<(&str, usize, usize)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (name, part) = rest.rsplit_once('-')?;
    let number = |text: &str| (text.len() == 5).then(|| text.parse::<usize>().ok()).flatten();
    let (part, count) = (number(part)?, number(count)?);
    (1..=count).contains(&part).then_some((name, part, count))
}

fn strip_ending<'a>(path: &'a str, ending: &str) -> Option<&'a str> {
    let at = path.len().checked_sub(ending.len())?;
    let (stem, found) = path.split_at_checked(at)?;
    found.eq_ignore_ascii_case(ending).then_some(stem)
}

fn looks_like_a_file(selector: &str) -> bool {
    let endings = [".gguf", ".safetensors", ".json", ".txt", ".model", ".jinja", ".md", ".bin"];
    selector.contains('/') || endings.iter().any(|ending| strip_ending(selector, ending).is_some())
}

/// Whether a file name contains this quantisation: `Q4_K` is not contained in `model-Q4_K_M`, nor `F16` in
/// `model-BF16`.
fn has_tag(name: &str, tag: &str) -> bool {
    let (name, tag) = (name.to_ascii_uppercase(), tag.to_ascii_uppercase());
    let apart = |c: char| matches!(c, '-' | '.' | '/');
    name.match_indices(&tag).any(|(at, _)| {
        let before = name[..at].chars().next_back();
        let after = name[at + tag.len()..].chars().next();
        before.is_none_or(|c| apart(c) || c == '_') && after.is_none_or(apart)
    })
}

fn pick(
    repo: &Repo,
    found: &[&Gguf],
    all: &[Gguf],
    several: &str,
    none: impl FnOnce() -> String,
) -> Result<Choice> {
    let lines = |models: &[&Gguf]| listing(models.iter().map(|m| (m.parts[0].path.as_str(), m.size())));
    match found {
        [one] => one.choice(repo),
        [] if all.is_empty() => Err(choice(
            repo,
            none() + ", and there are no GGUF files at all",
            "remove the part after the colon",
            String::new(),
        )),
        [] => {
            let all: Vec<&Gguf> = all.iter().collect();
            Err(choice(repo, none(), "choose one of these", lines(&all)))
        }
        several_found => {
            Err(choice(repo, several.to_string(), "choose one by its file name", lines(several_found)))
        }
    }
}

fn default_gguf(repo: &Repo, models: &[Gguf]) -> Result<Choice> {
    if let [only] = models {
        return only.choice(repo);
    }
    for tag in PREFERRED {
        let found: Vec<&Gguf> = models.iter().filter(|m| has_tag(&m.name, tag)).collect();
        if !found.is_empty() {
            return pick(repo, &found, models, &format!("several models match {tag}"), String::new);
        }
    }
    let all: Vec<&Gguf> = models.iter().collect();
    pick(repo, &all, models, "there are several models, none with a preferred quantisation", String::new)
}

fn one_file(repo: &Repo, files: &[RepoFile], selector: &str) -> Result<Choice> {
    let open = Open::File(selector.to_string());
    if let Some((name, _, count)) = strip_ending(selector, ".gguf").and_then(split_part) {
        let models = ggufs(files);
        if let Some(model) = models.iter().find(|m| m.name == name && m.count == count) {
            return model.choice(repo);
        }
    }
    let mut chosen = vec![selector.to_string()];
    if strip_ending(selector, ".safetensors").is_some() {
        let folder = selector.rfind('/').map_or("", |at| &selector[..=at]);
        chosen.extend(files.iter().map(|f| &f.path).filter(|path| is_auxiliary(path, folder)).cloned());
    }
    Ok(Choice { files: chosen, open })
}

/// A SafeTensors model: its configuration, weights and vocabulary.
fn folder(repo: &Repo, files: &[RepoFile]) -> Result<Choice> {
    let has = |name: &str| files.iter().any(|f| f.path == name);
    let top: Vec<&str> = files.iter().map(|f| f.path.as_str()).filter(|p| !p.contains('/')).collect();
    let weights: Vec<&str> =
        top.iter().copied().filter(|p| strip_ending(p, ".safetensors").is_some()).collect();
    let everything = || listing(files.iter().map(|f| (f.path.as_str(), f.size)));
    if weights.is_empty() {
        let reason = "there are no GGUF and no SafeTensors weights in this repository".to_string();
        return Err(choice(repo, reason, "choose a repository with GGUF or SafeTensors files", everything()));
    }
    if !has("config.json") {
        let reason =
            "there are SafeTensors weights but no config.json: an adapter, or a part of a model".to_string();
        return Err(choice(repo, reason, "choose a repository with the complete model", everything()));
    }
    let index = "model.safetensors.index.json";
    let mut chosen: Vec<String> = Vec::new();
    if has(index) {
        let shards: Vec<&str> = weights.into_iter().filter(|p| p.starts_with("model-")).collect();
        let count = shards.iter().find_map(|p| split_part(strip_ending(p, ".safetensors")?)).map(|s| s.2);
        if shards.is_empty() || count.is_some_and(|count| count != shards.len()) {
            let reason = format!("only {} of the {} shards exist", shards.len(), count.unwrap_or(0));
            return Err(choice(repo, reason, "choose another revision", everything()));
        }
        chosen.push(index.to_string());
        chosen.extend(shards.iter().map(|p| p.to_string()));
    } else if has("model.safetensors") {
        chosen.push("model.safetensors".to_string());
    } else if let [only] = weights[..] {
        chosen.push(only.to_string());
    } else {
        let lines = listing(files.iter().filter(|f| weights.contains(&&*f.path)).map(|f| (&*f.path, f.size)));
        let reason = "there are several SafeTensors files and no index".to_string();
        return Err(choice(repo, reason, "choose one by its file name", lines));
    }
    chosen.extend(files.iter().map(|f| &f.path).filter(|path| is_auxiliary(path, "")).cloned());
    Ok(Choice { files: chosen, open: Open::Folder })
}

fn choice(repo: &Repo, reason: String, advice: &'static str, listing: String) -> Error {
    Error::Choice { repo: repo.clone(), reason, advice, listing }
}

/// Lines of name and size, appended to an error.
pub(crate) fn listing<'a>(files: impl Iterator<Item = (&'a str, u64)>) -> String {
    let files: Vec<(&str, u64)> = files.collect();
    let mut text = String::new();
    let width = files.iter().take(MAX_LINES).map(|(path, _)| path.chars().count()).max().unwrap_or(0);
    for (path, size) in files.iter().take(MAX_LINES) {
        text.push_str(&format!("\n  {path:<width$}  {}", human_size(*size)));
    }
    if files.len() > MAX_LINES {
        text.push_str(&format!("\n  … and {} more", files.len() - MAX_LINES));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repo() -> Repo {
        Repo::new("o", "n").unwrap()
    }

    fn files(paths: &[&str]) -> Vec<RepoFile> {
        paths.iter().map(|p| RepoFile { path: p.to_string(), size: 1 << 20 }).collect()
    }

    fn chosen(paths: &[&str], selector: Option<&str>) -> Vec<String> {
        choose(&repo(), &files(paths), selector).unwrap().files
    }

    fn refused(paths: &[&str], selector: Option<&str>) -> String {
        choose(&repo(), &files(paths), selector).unwrap_err().to_string()
    }

    const QUANTS: &[&str] =
        &["README.md", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-BF16.gguf", "mmproj-F16.gguf"];

    #[test]
    fn a_quantisation_is_found_by_its_tag() {
        for tag in ["Q4_K_M", "q4_k_m"] {
            assert_eq!(chosen(QUANTS, Some(tag)), ["m-Q4_K_M.gguf"]);
        }
        assert_eq!(chosen(QUANTS, Some("m-Q8_0.gguf")), ["m-Q8_0.gguf"]);
        let text = refused(QUANTS, Some("F16"));
        assert!(text.contains("F16") && text.contains("m-BF16.gguf") && !text.contains("mmproj"), "{text}");
        assert!(refused(QUANTS, Some("Q4_K")).contains("m-Q4_K_S.gguf"));
        assert!(refused(QUANTS, Some("x.gguf")).contains("no file x.gguf"));
    }

    #[test]
    fn without_a_selector_the_preferred_quantisation_is_chosen() {
        assert_eq!(chosen(QUANTS, None), ["m-Q4_K_M.gguf"]);
        assert_eq!(chosen(&["m.q8_0.gguf", "m.q4_0.gguf"], None), ["m.q4_0.gguf"]);
        assert_eq!(chosen(&["whatever.gguf"], None), ["whatever.gguf"]);
        assert!(refused(&["a.gguf", "b.gguf"], None).contains("several models"));
        assert!(refused(&["a-Q4_0.gguf", "b-Q4_0.gguf"], None).contains("b-Q4_0.gguf  1.0 MiB"));
    }

    #[test]
    fn all_parts_of_a_split_model_are_chosen() {
        let parts = ["m-Q4_0-00001-of-00002.gguf", "m-Q4_0-00002-of-00002.gguf"];
        let all = [&parts[..], &["m-Q8_0.gguf"]].concat();
        for selector in ["Q4_0", parts[1]] {
            let choice = choose(&repo(), &files(&all), Some(selector)).unwrap();
            assert_eq!(
                (choice.files, choice.open),
                (parts.map(String::from).to_vec(), Open::File(parts[0].into()))
            );
        }
        assert!(refused(&parts[1..], Some("Q4_0")).contains("1 of the 2 parts"));
        let folders = ["Q4_0/m-00001-of-00001.gguf", "Q8_0/m-00001-of-00001.gguf"];
        assert_eq!(chosen(&folders, Some("q8_0")), [folders[1]]);
    }

    #[test]
    fn a_safetensors_repository_is_chosen_completely() {
        let paths =
            ["config.json", "model.safetensors", "tokenizer.json", "README.md", "onnx/model.safetensors"];
        let choice = choose(&repo(), &files(&paths), None).unwrap();
        assert_eq!(choice.files, ["model.safetensors", "config.json", "tokenizer.json"]);
        assert_eq!(choice.open, Open::Folder);
        assert!(refused(&paths[1..], None).contains("no config.json"));
        assert!(refused(&paths, Some("Q4_0")).contains("no GGUF files at all"));
        assert!(refused(&["pytorch_model.bin"], None).contains("no SafeTensors weights"));
    }

    #[test]
    fn modules_of_sentence_transformers_are_included() {
        let paths = [
            "model.safetensors",
            "config.json",
            "modules.json",
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            "config_sentence_transformers.json",
            "sentence_bert_config.json",
        ];
        let beside =
            ["onnx/model.onnx", "openvino/config.json", "2_Dense/pytorch_model.bin", "_x/config.json"];
        assert_eq!(chosen(&[&paths[..], &beside].concat(), None), paths);
    }

    #[test]
    fn shards_are_chosen_with_their_index_and_without_duplicates() {
        let paths = [
            "config.json",
            "consolidated.safetensors",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
        ];
        let found = chosen(&paths, None);
        assert_eq!(found, ["model.safetensors.index.json", paths[2], paths[3], "config.json"]);
        let missing = [paths[0], paths[2], paths[4]];
        assert!(refused(&missing, None).contains("1 of the 2 shards"));
        assert!(refused(&["config.json", "a.safetensors", "b.safetensors"], None).contains("no index"));
    }

    #[test]
    fn a_safetensors_file_includes_the_configuration_of_its_folder() {
        let paths = ["config.json", "x/config.json", "x/a.safetensors", "x/b.safetensors"];
        assert_eq!(chosen(&paths, Some("x/a.safetensors")), ["x/a.safetensors", "x/config.json"]);
        assert_eq!(chosen(&paths, Some("config.json")), ["config.json"]);
    }
}
