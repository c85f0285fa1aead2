//! An opened model file: weights, configuration and vocabulary.

use std::path::Path;
use std::sync::Arc;

use akunu_format::{Metadata, ModelConfig, WeightProvider};

use crate::Error;

/// A model file that has been opened and checked; nothing large has been read yet.
#[derive(Debug)]
pub struct Model {
    weights: Arc<dyn WeightProvider>,
    /// What it is called in listings: the file's name, or `embedded`.
    name: String,
}

impl Model {
    /// Opens a GGUF file (any part of a split one), a SafeTensors file or a folder with `config.json`.
    pub fn open(path: impl AsRef<Path>) -> Result<Model, Error> {
        let _ = path;
        Err(Error::NoTokenizer)
    }

    /// The small story-teller that comes with the binary.
    pub fn embedded() -> Result<Model, Error> {
        Err(Error::NoTokenizer)
    }

    /// A model from any provider: weights made in memory, another file format.
    pub fn from_weights(weights: Arc<dyn WeightProvider>, name: &str) -> Result<Model, Error> {
        Ok(Model { weights, name: name.to_string() })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn weights(&self) -> &dyn WeightProvider {
        &*self.weights
    }

    pub fn config(&self) -> &ModelConfig {
        self.weights.config()
    }

    /// GGUF metadata, where the file is GGUF.
    pub fn metadata(&self) -> Option<&Metadata> {
        self.weights.metadata()
    }

    /// Ids that end a text, from the configuration and the vocabulary; ascending.
    pub fn eos_ids(&self) -> &[u32] {
        &[]
    }

    /// A prompt's ids, with the special tokens that the model wants around it (usually a BOS in front).
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        let _ = text;
        Err(Error::NoTokenizer)
    }

    /// The text of ids; special tokens have none.
    pub fn decode(&self, ids: &[u32]) -> Result<String, Error> {
        let _ = ids;
        Err(Error::NoTokenizer)
    }
}
