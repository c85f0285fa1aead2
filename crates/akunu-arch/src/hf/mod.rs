//! A Hugging Face or MLX checkpoint understood as a model.

mod config;
mod rope;

use std::collections::HashMap;
use std::path::Path;

use akunu_format::hf::{Checkpoint, Document, Json, Quantisation, Weights};
use akunu_format::{FormatError, Region, TensorInfo, index_names};

use crate::{ModelConfig, WeightProvider, names};

/// A model in SafeTensors with its configuration beside it. Tensor names are canonical.
#[derive(Debug)]
pub struct SafeTensorsModel {
    config: ModelConfig,
    stored: Vec<TensorInfo>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    regions: Vec<Region>,
}

impl SafeTensorsModel {
    /// Opens a folder or a file: see [`Checkpoint::open`].
    pub fn open(path: &Path) -> Result<SafeTensorsModel, FormatError> {
        let checkpoint = Checkpoint::open(path)?;
        let root = checkpoint.config();
        // Before weights are looked at: what cannot run should say so at once.
        config::refuse_unsupported(&root).map_err(|error| error.in_file(checkpoint.config_path()))?;
        let weights = checkpoint.weights(names::is_ignorable)?;
        let generation = checkpoint.generation()?;
        SafeTensorsModel::assemble(&root, generation.as_ref(), checkpoint.name(), weights)
            .map_err(|error| error.in_file(checkpoint.path()))
    }

    /// From bytes: a whole SafeTensors file, and the text of its `config.json`.
    pub fn from_region(region: Region, config: &str) -> Result<SafeTensorsModel, FormatError> {
        let document = Document::parse(config)?;
        let root = document.root();
        config::refuse_unsupported(&root)?;
        SafeTensorsModel::assemble(&root, None, None, Weights::from_region(region)?)
    }

    fn assemble(
        root: &Json<'_>,
        generation: Option<&Document>,
        name: Option<String>,
        weights: Weights,
    ) -> Result<SafeTensorsModel, FormatError> {
        config::refuse_images(root, weights.names())?;
        let (joined, regions) = weights.join(Quantisation::of(root)?.as_ref())?;
        let card = config::Fields::of(root)?.card;
        let stored = names::rename(joined, card, root.str("model_type")?.unwrap_or_default())?;
        let generation = generation.map(Document::root);
        let config = config::model_config(root, generation.as_ref(), name, &stored)?;
        let tensors = names::split_fused(&stored, &config)?;
        let by_name = index_names(&tensors)?;
        names::refuse_unknown(&tensors, &config)?;
        Ok(SafeTensorsModel { config, stored, tensors, by_name, regions })
    }
}

impl WeightProvider for SafeTensorsModel {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    fn stored(&self) -> &[TensorInfo] {
        &self.stored
    }

    fn regions(&self) -> &[Region] {
        &self.regions
    }
}
