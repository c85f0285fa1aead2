//! Opens model files of every kind.

use std::path::Path;

use akunu_format::{Container, FormatError, Loading};

use crate::{GgmlModel, GgufModel, SafeTensorsModel, WeightProvider};

/// Opens a model: a GGUF file (any part of a split one), a SafeTensors file, a Hugging Face folder, or a file of
/// whisper.cpp.
pub fn open_model(path: &Path) -> Result<Box<dyn WeightProvider>, FormatError> {
    load_model(path, Loading::Map)
}

/// As [`open_model`], mapped or read.
pub fn load_model(path: &Path, loading: Loading) -> Result<Box<dyn WeightProvider>, FormatError> {
    match Container::of(path)? {
        Container::Gguf => Ok(Box::new(GgufModel::load(path, loading)?)),
        Container::SafeTensors => Ok(Box::new(SafeTensorsModel::load(path, loading)?)),
        Container::Ggml => Ok(Box::new(GgmlModel::load(path, loading)?)),
    }
}
