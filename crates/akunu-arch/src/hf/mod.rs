//! A Hugging Face or MLX checkpoint interpreted as a model.

mod classifier;
mod config;
mod experts;
mod gather;
mod join;
mod rope;
mod sentence;
mod ungroup;

use std::collections::HashMap;
use std::path::Path;

use akunu_format::hf::{Checkpoint, Document, Json, Quantisation, Weights};
use akunu_format::{FormatError, Loading, Place, Region, TensorInfo, index_names};

use crate::{Card, ModelConfig, WeightProvider, mamba, names};

/// A SafeTensors model with its configuration. Tensor names are canonical.
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
        SafeTensorsModel::load(path, Loading::Map)
    }

    /// As [`SafeTensorsModel::open`], mapped or read.
    pub fn load(path: &Path, loading: Loading) -> Result<SafeTensorsModel, FormatError> {
        let checkpoint = Checkpoint::open(path)?;
        let root = checkpoint.config();
        // Before reading weights, so that unsupported models are rejected quickly.
        config::refuse_unsupported(&root).map_err(|error| error.in_file(checkpoint.config_path()))?;
        let weights = checkpoint.weights(loading, names::is_ignorable)?;
        let generation = checkpoint.generation()?;
        let model = SafeTensorsModel::assemble(&root, generation.as_ref(), checkpoint.name(), weights)
            .map_err(|error| error.in_file(checkpoint.path()))?;
        // The files of the folder apply to a single file in it as well, as `config.json` does.
        match if path.is_dir() { Some(path) } else { path.parent() } {
            Some(folder) => model.with_sentence_modules(folder, loading),
            None => Ok(model),
        }
    }

    /// From memory: the bytes of a SafeTensors file, and the text of its `config.json`.
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
        mut weights: Weights,
    ) -> Result<SafeTensorsModel, FormatError> {
        let card = config::Fields::of(root)?.card;
        let reads_images = weights.names().any(names::is_vision);
        let further = config::Fields::of(root)?.further_layers()?;
        let is_further =
            |name: &str| names::hf_layer(name, card).is_some_and(|layer| further.contains(&layer));
        let has_further = weights.names().any(is_further);
        weights.retain(|name| !names::is_ignored(name, card) && !names::is_vision(name) && !is_further(name));
        let quantisation = Quantisation::of(root)?;
        let (mut joined, mut regions) = weights.join(quantisation.as_ref())?;
        gather::gather_heads(&mut joined, &mut regions, card)?;
        join::join(&mut joined, &mut regions, card)?;
        experts::take_apart(&mut joined, &mut regions, card)?;
        let mut stored = names::rename(joined, card, root.str("model_type")?.unwrap_or_default())?;
        let generation = generation.map(Document::root);
        let padding = config::padding_positions(&config::Fields::of(root)?)?;
        cut_padding(&mut stored, padding)?;
        let config = config::model_config(root, generation.as_ref(), name, &stored)?;
        feed_by_shared(&mut stored, card, &config);
        mamba::decays(&mut stored, &mut regions)?;
        ungroup::ungroup(&mut stored, &mut regions, card, &config)?;
        crate::latent::take_apart(&mut stored, &mut regions, card, &config)?;
        let tensors = names::split_fused(&stored, &config)?;
        let by_name = index_names(&tensors)?;
        names::refuse_unknown(&tensors, &config)?;
        let scales = quantisation.as_ref().is_some_and(Quantisation::has_cache_scheme);
        let left_out = left_out([
            (reads_images, "image input"),
            (has_further, names::FURTHER_LAYERS),
            (scales, "scales of a quantised cache"),
        ]);
        let config = ModelConfig { left_out, ..config };
        Ok(SafeTensorsModel { config, stored, tensors, by_name, regions })
    }
}

/// Without experts, what would be the expert that all tokens share is the feed-forward part.
fn feed_by_shared(tensors: &mut [TensorInfo], card: &Card, config: &ModelConfig) {
    if card.shared_alone && config.experts.is_none() {
        tensors.iter_mut().for_each(|tensor| tensor.name = tensor.name.replace("_shexp.", "."));
    }
}

fn left_out(parts: [(bool, &str); 3]) -> Option<String> {
    let names: Vec<&str> = parts.into_iter().filter_map(|(there, name)| there.then_some(name)).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Removes the rows for padding from the table of learned positions: texts do not use them.
fn cut_padding(tensors: &mut [TensorInfo], padding: usize) -> Result<(), FormatError> {
    let positions = tensors.iter_mut().find(|tensor| tensor.name == "position_embd.weight");
    let Some(tensor) = positions.filter(|_| padding > 0) else { return Ok(()) };
    let rows = tensor.shape.first().copied().unwrap_or(0);
    if rows <= padding {
        let problem = format!("it has {rows} rows, of which {padding} are for padding");
        return Err(FormatError::tensor(&tensor.name, problem));
    }
    let part = |place: Place| place.rows(padding, rows - padding, rows);
    let first = part(tensor.place());
    (tensor.offset, tensor.bytes) = (first.offset, first.bytes);
    tensor.scales_offsets = tensor.scales_offsets.map(|plane| plane.map(part));
    tensor.shape[0] = rows - padding;
    Ok(())
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
