//! The first layers of a model, as a model.

use std::sync::Arc;

use akunu_arch::{ModelConfig, WeightProvider};
use akunu_format::{Region, TensorInfo};
use akunu_plan::layer_of;

use crate::{Error, Model};

/// The weights that a model has with so many layers.
#[derive(Debug)]
struct FirstLayers {
    of: Arc<Model>,
    config: ModelConfig,
    tensors: Vec<TensorInfo>,
}

impl Model {
    /// The embedding, the first layers and the output, without a tokenizer. Its texts mean nothing; a pass takes the time that
    /// these parts take in the whole model.
    pub fn first_layers(self: &Arc<Model>, count: usize) -> Result<Model, Error> {
        let config =
            ModelConfig { layer_count: count.min(self.config().layer_count), ..self.config().clone() };
        let is_in =
            |tensor: &&TensorInfo| layer_of(&tensor.name).is_none_or(|layer| layer < config.layer_count);
        let tensors = self.weights().tensors().iter().filter(is_in).cloned().collect();
        Model::from_weights(Arc::new(FirstLayers { of: self.clone(), config, tensors }), self.name())
    }

    /// How many layers are before the first one with experts; none in models without experts.
    pub fn dense_layers(&self) -> usize {
        let names = self.weights().tensors().iter().map(|tensor| &tensor.name);
        names.filter(|name| name.contains("_exps.")).filter_map(|name| layer_of(name)).min().unwrap_or(0)
    }
}

impl WeightProvider for FirstLayers {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    fn regions(&self) -> &[Region] {
        self.of.weights().regions()
    }
}
