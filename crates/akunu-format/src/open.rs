//! One door for every kind of model file. What a file is, its content says, not its name.

use std::path::Path;

use crate::{FormatError, GgufModel, WeightProvider};

/// Opens a model: a GGUF file, a SafeTensors file, or a Hugging Face folder.
pub fn open_model(path: &Path) -> Result<Box<dyn WeightProvider>, FormatError> {
    // SafeTensors to come.
    Ok(Box::new(GgufModel::open(path)?))
}
