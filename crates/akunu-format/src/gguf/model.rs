//! A GGUF container understood as a model.

use std::path::Path;

use super::{Gguf, Metadata, config};
use crate::{FormatError, ModelConfig, Region, TensorInfo, WeightProvider, names, provider};

/// A GGUF file that can be run, as far as the file itself can tell: container plus configuration.
#[derive(Debug)]
pub struct GgufModel {
    gguf: Gguf,
    config: ModelConfig,
}

impl GgufModel {
    pub fn open(path: &Path) -> Result<GgufModel, FormatError> {
        GgufModel::from_gguf(Gguf::open(path)?).map_err(|error| error.in_file(path))
    }

    /// A model embedded in the binary, for one.
    pub fn from_region(region: Region) -> Result<GgufModel, FormatError> {
        GgufModel::from_gguf(Gguf::from_region(region)?)
    }

    pub fn from_gguf(mut gguf: Gguf) -> Result<GgufModel, FormatError> {
        if gguf.tensors.is_empty() {
            return Err(FormatError::NotAModel {
                found: "a GGUF file without tensors".to_string(),
                advice: "It holds a vocabulary only: take the file with the weights.".to_string(),
            });
        }
        let config = config::model_config(&gguf.metadata, &gguf.tensors)?;
        gguf.tensors.retain(|tensor| !names::is_ignorable(&tensor.name));
        gguf.by_name = provider::index_names(&gguf.tensors)?;
        names::refuse_unknown(&gguf.tensors, &config)?;
        provider::refuse_misaligned(&gguf.tensors, &gguf.regions)?;
        Ok(GgufModel { gguf, config })
    }

    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }
}

impl WeightProvider for GgufModel {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.gguf.tensors()
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.gguf.tensor(name)
    }

    fn regions(&self) -> &[Region] {
        self.gguf.regions()
    }

    fn metadata(&self) -> Option<&Metadata> {
        Some(self.gguf.metadata())
    }
}
