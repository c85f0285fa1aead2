//! An opened model file: weights, configuration and vocabulary.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use akunu_arch::{GgufModel, ModelConfig, WeightProvider};
use akunu_format::{Loading, Metadata, Region};
use akunu_grammar::Vocabulary;
use akunu_tokenizer::{EncodeOptions, TokenKind, Tokenizer};

use crate::Error;
use crate::engine::Note;
use crate::sampling::{Breakers, Sampling};

/// Bytes with the alignment of a mapped file, because kernels load whole vectors of weights.
#[repr(align(64))]
struct Aligned<T: ?Sized>(T);

static EMBEDDED: &Aligned<[u8]> = &Aligned(*include_bytes!("../embedded/akunu-tales.gguf"));

/// A model usually has one chat format, so one vocabulary with its marks and one without.
const KEPT_VOCABULARIES: usize = 4;

/// An opened and checked model file. Weights are not read yet.
#[derive(Debug)]
pub struct Model {
    weights: Arc<dyn WeightProvider>,
    /// `Err`: why there is none.
    tokenizer: Result<Arc<dyn Tokenizer>, String>,
    /// Vocabularies of grammars, by the control tokens that are text. Created for the first constrained answers.
    vocabularies: Mutex<Vec<(Vec<u32>, Arc<Vocabulary>)>>,
    default_breakers: OnceLock<Breakers>,
    eos_ids: Vec<u32>,
    /// The name in listings: the file's name, `embedded`, or the one set by [`Model::named`].
    name: String,
}

impl Model {
    /// Opens a GGUF file (any part of a split one), a SafeTensors file, a folder with `config.json`, or
    /// a file of whisper.cpp.
    pub fn open(path: impl AsRef<Path>) -> Result<Model, Error> {
        Model::load(path.as_ref(), Loading::Map)
    }

    /// As [`Model::open`], but reads the files into memory instead of mapping them, so that they may change afterwards. A
    /// file larger than the available memory is rejected.
    pub fn read(path: impl AsRef<Path>) -> Result<Model, Error> {
        Model::load(path.as_ref(), Loading::Read { available: crate::available_memory })
    }

    fn load(path: &Path, loading: Loading) -> Result<Model, Error> {
        let name =
            path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into());
        let weights: Arc<dyn WeightProvider> = akunu_arch::load_model(path, loading)?.into();
        if weights.metadata().is_some() || weights.ranked_tokens().is_some() {
            return Model::from_weights(weights, &name);
        }
        let folder = if path.is_dir() { Some(path) } else { path.parent() };
        let tokenizer = akunu_tokenizer::from_folder(folder.unwrap_or(Path::new(".")));
        Ok(Model::with_tokenizer(weights, tokenizer.map_err(|error| error.to_string()), &name))
    }

    /// The small story-telling model embedded in the binary.
    pub fn embedded() -> Result<Model, Error> {
        let weights = GgufModel::from_region(Region::from_static(&EMBEDDED.0))?;
        Model::from_weights(Arc::new(weights), "embedded")
    }

    /// A model from any provider, such as weights in memory or another file format.
    pub fn from_weights(weights: Arc<dyn WeightProvider>, name: &str) -> Result<Model, Error> {
        let tokenizer = match (weights.metadata(), weights.ranked_tokens()) {
            (Some(metadata), _) => akunu_tokenizer::from_gguf(metadata).map_err(|error| error.to_string()),
            (None, Some(tokens)) => {
                let rows = weights.config().vocab_size;
                akunu_tokenizer::from_ranks(&tokens, rows).map_err(|error| error.to_string())
            }
            (None, None) => Err("it is not a GGUF file".into()),
        };
        let tokenizer = tokenizer.map(|tokenizer| Arc::new(tokenizer) as Arc<dyn Tokenizer>);
        Ok(Model::with_tokenizer(weights, tokenizer, name))
    }

    fn with_tokenizer(
        weights: Arc<dyn WeightProvider>,
        tokenizer: Result<Arc<dyn Tokenizer>, String>,
        name: &str,
    ) -> Model {
        let vocab = weights.config().vocab_size;
        let tokenizer = tokenizer.and_then(|tokenizer| match misfit(tokenizer.vocab_size(), vocab) {
            Some(reason) => Err(reason),
            None => Ok(tokenizer),
        });
        let mut eos_ids = weights.config().eos_ids.clone();
        if let Ok(tokenizer) = &tokenizer {
            eos_ids.extend(tokenizer.end_of_generation());
        }
        // Ids without a logit cannot be generated.
        eos_ids.retain(|&id| (id as usize) < vocab);
        eos_ids.sort_unstable();
        eos_ids.dedup();
        Model {
            weights,
            tokenizer,
            vocabularies: Mutex::default(),
            default_breakers: OnceLock::new(),
            eos_ids,
            name: name.to_string(),
        }
    }

    /// Sets the name in listings.
    pub fn named(self, name: &str) -> Model {
        Model { name: name.to_string(), ..self }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn weights(&self) -> &dyn WeightProvider {
        &*self.weights
    }

    /// Bytes of files that were read into memory ([`Model::read`]).
    pub fn read_bytes(&self) -> u64 {
        let read = self.weights.regions().iter().filter(|region| region.is_read());
        read.map(|region| region.bytes().len() as u64).sum()
    }

    pub fn config(&self) -> &ModelConfig {
        self.weights.config()
    }

    /// Whether what is in the cache can be moved to other positions.
    pub(crate) fn moves_keys(&self) -> bool {
        let has_states = self.config().recurrent.contains(&true);
        !has_states
            && akunu_arch::Card::find(&self.config().architecture).is_none_or(akunu_arch::Card::moves_keys)
    }

    /// The metadata of a GGUF file.
    pub fn metadata(&self) -> Option<&Metadata> {
        self.weights.metadata()
    }

    /// Settings that the vocabulary's file does not state.
    pub(crate) fn tokenizer_notes(&self) -> impl Iterator<Item = Note> {
        self.tokenizer.iter().flat_map(|tokenizer| tokenizer.notes()).cloned().map(Note::Tokenizer)
    }

    /// The tokenizer, or an error if the files have no usable one; such a model accepts token ids only.
    pub fn tokenizer(&self) -> Result<&Arc<dyn Tokenizer>, Error> {
        self.tokenizer.as_ref().map_err(|reason| Error::NoTokenizer { reason: reason.clone() })
    }

    /// The vocabulary of grammars, in which `marks` are control tokens that count as text by their names.
    pub(crate) fn vocabulary(&self, marks: &[u32]) -> Result<Arc<Vocabulary>, Error> {
        let tokenizer = self.tokenizer()?;
        let mut kept = self.vocabularies.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, vocabulary)) = kept.iter().find(|(other, _)| other == marks) {
            return Ok(vocabulary.clone());
        }
        let text = |id: u32| {
            let mark = if marks.contains(&id) { tokenizer.token_text(id) } else { None };
            let is_text = !tokenizer.is_control(id) && tokenizer.token_kind(id) != Some(TokenKind::Unused);
            let bytes = tokenizer.token_bytes(id).filter(|_| is_text);
            mark.map(str::as_bytes).or(bytes).unwrap_or_default().to_vec()
        };
        let tokens: Vec<Vec<u8>> = (0..self.config().vocab_size as u32).map(text).collect();
        let vocabulary = Arc::new(Vocabulary::new(&tokens, akunu_grammar::Limits::default())?);
        kept.truncate(KEPT_VOCABULARIES - 1);
        kept.insert(0, (marks.to_vec(), vocabulary.clone()));
        Ok(vocabulary)
    }

    /// The tokens whose text has one of these in it, and control tokens: what DRY's repetitions do not reach across.
    pub fn breakers<T: AsRef<[u8]>>(&self, texts: &[T]) -> Breakers {
        let Ok(tokenizer) = self.tokenizer() else { return Breakers::default() };
        let contains =
            |bytes: &[u8], text: &[u8]| text.is_empty() || bytes.windows(text.len()).any(|part| part == text);
        let has_one = |bytes: &[u8]| texts.iter().any(|text| contains(bytes, text.as_ref()));
        let is_breaker = |id| tokenizer.is_control(id) || tokenizer.token_bytes(id).is_some_and(has_one);
        Breakers::new((0..tokenizer.vocab_size() as u32).map(is_breaker))
    }

    /// [`Model::breakers`] for [`Sampling::BREAKERS`].
    pub fn default_breakers(&self) -> &Breakers {
        self.default_breakers.get_or_init(|| self.breakers(&Sampling::BREAKERS))
    }

    /// Ids that end a text, from the configuration and the vocabulary; ascending.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// The tokens "yes" and "no" of a generative reranker, which compares their probabilities.
    pub fn answers(&self) -> Option<[u32; 2]> {
        let card = akunu_arch::Card::find(&self.config().architecture)?;
        let prompt = card.rerank?;
        let tokenizer = self.tokenizer().ok()?;
        Some([tokenizer.find_token(prompt.yes)?, tokenizer.find_token(prompt.no)?])
    }

    /// Tokenizes a prompt, with the special tokens that the model expects around it (usually a BOS at the start). Special tokens
    /// spelled out in the text (`<|im_end|>`) are encoded as such; for untrusted text use [`Model::tokenizer`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        Ok(self.tokenizer()?.encode(text, EncodeOptions { add_special: true, parse_special: true })?)
    }

    /// Decodes ids; special tokens have no text.
    pub fn decode(&self, ids: &[u32]) -> Result<String, Error> {
        Ok(self.tokenizer()?.decode(ids))
    }
}

/// Why a vocabulary of `tokens` does not belong to a model with `rows` of embeddings, if so. Models round their rows up by a
/// few hundred at most, so a vocabulary that is smaller by an eighth belongs to another model.
fn misfit(tokens: usize, rows: usize) -> Option<String> {
    if tokens > rows {
        return Some(format!(
            "the vocabulary has {tokens} tokens and the embedding only {rows} rows: take the one that was published \
             with the weights"
        ));
    }
    (rows - tokens > rows / 8).then(|| {
        format!(
            "the vocabulary is smaller than the embedding, {tokens} tokens for {rows} rows: ids from {tokens} on \
             could not be shown; take the vocabulary that was published with the weights"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vocabulary_may_lack_only_padding_rows() {
        // Qwen 2, Phi 2, Gemma 3.
        for (tokens, rows) in [(151665, 151936), (50295, 51200), (262145, 262208), (512, 512)] {
            assert_eq!(misfit(tokens, rows), None);
        }
        assert!(misfit(32001, 32000).unwrap().contains("32001 tokens and the embedding only 32000"));
        assert!(misfit(300, 512).unwrap().contains("smaller than the embedding, 300 tokens for 512"));
    }
}
