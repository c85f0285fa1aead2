//! Opens model files of every kind.

use std::path::Path;

use akunu_format::{Container, FormatError};

use crate::{GgufModel, SafeTensorsModel, WeightProvider};

/// Opens a model: a GGUF file (any part of a split one), a SafeTensors file, or a Hugging Face folder.
pub fn open_model(path: &Path) -> Result<Box<dyn WeightProvider>, FormatError> {
    match Container::of(path)? {
        Container::Gguf => Ok(Box::new(GgufModel::open(path)?)),
        Container::SafeTensors => Ok(Box::new(SafeTensorsModel::open(path)?)),
    }
}
