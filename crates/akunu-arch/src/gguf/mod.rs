//! A GGUF file interpreted as a model.

pub(crate) mod config;
pub(crate) mod embedding;

use std::collections::HashMap;
use std::path::Path;

use akunu_format::blocks::dequantize_row;
use akunu_format::{
    FormatError, Gguf, Loading, Metadata, Region, TensorInfo, index_names, refuse_misaligned,
};

use crate::{Card, ModelConfig, RopeFactors, WeightProvider, latent, mamba, names};

/// A GGUF container with its configuration: runnable, as far as the file itself can tell.
#[derive(Debug)]
pub struct GgufModel {
    gguf: Gguf,
    config: ModelConfig,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    /// Of the file, and of what is made from it.
    regions: Vec<Region>,
}

impl GgufModel {
    pub fn open(path: &Path) -> Result<GgufModel, FormatError> {
        GgufModel::load(path, Loading::Map)
    }

    /// As [`GgufModel::open`], mapped or read.
    pub fn load(path: &Path, loading: Loading) -> Result<GgufModel, FormatError> {
        GgufModel::from_gguf(Gguf::load(path, loading)?).map_err(|error| error.in_file(path))
    }

    /// For example a model embedded in the binary.
    pub fn from_region(region: Region) -> Result<GgufModel, FormatError> {
        GgufModel::from_gguf(Gguf::from_region(region)?)
    }

    pub fn from_gguf(mut gguf: Gguf) -> Result<GgufModel, FormatError> {
        if gguf.tensors().is_empty() {
            return Err(FormatError::NotAModel {
                found: "a GGUF file without tensors".to_string(),
                advice: "It holds a vocabulary only: take the file with the weights.".to_string(),
            });
        }
        let config = config::model_config(gguf.metadata(), gguf.tensors(), rope_factors(&gguf)?)?;
        let further = config::further_layers(gguf.metadata())?;
        let is_further = |name: &str| names::is_layer_of(name, config.layer_count, further);
        let has_further = gguf.tensors().iter().any(|tensor| is_further(&tensor.name));
        gguf.retain(|tensor| !names::is_ignorable(&tensor.name) && !is_further(&tensor.name))?;
        let left_out = has_further.then(|| names::FURTHER_LAYERS.to_string());
        let config = ModelConfig { left_out, ..config };
        let mut tensors = names::split_fused(gguf.tensors(), &config)?;
        mamba::from_gguf(&mut tensors);
        tensors.retain(|tensor| !ROPE_FACTORS.contains(&tensor.name.as_str()));
        let mut regions = gguf.regions().to_vec();
        refuse_misaligned(&tensors, &regions)?;
        if let Some(card) = Card::find(&config.architecture) {
            latent::take_apart(&mut tensors, &mut regions, card, &config)?;
        }
        let by_name = index_names(&tensors)?;
        names::refuse_unknown(&tensors, &config)?;
        Ok(GgufModel { gguf, config, tensors, by_name, regions })
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
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    fn stored(&self) -> &[TensorInfo] {
        self.gguf.tensors()
    }

    fn regions(&self) -> &[Region] {
        &self.regions
    }

    fn metadata(&self) -> Option<&Metadata> {
        Some(self.gguf.metadata())
    }
}

/// LongRoPE factors for short and for long contexts.
pub(crate) const ROPE_FACTORS: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];

fn rope_factors(gguf: &Gguf) -> Result<Option<RopeFactors>, FormatError> {
    // More factors than any head size needs.
    const MAX: usize = 1 << 16;
    let [short, long] = ROPE_FACTORS.map(|name| {
        let Some(tensor) = gguf.tensor(name) else { return Ok(None) };
        if tensor.shape.len() != 1 || tensor.cols() > MAX {
            return Err(FormatError::tensor(name, format!("{:?} is not a list of factors", tensor.shape)));
        }
        let mut values = vec![0.0; tensor.cols()];
        dequantize_row(tensor.dtype, gguf.tensor_bytes(tensor), &mut values)?;
        Ok(Some(values.into_iter().map(f64::from).collect::<Vec<f64>>()))
    });
    match (short?, long?) {
        (Some(short), Some(long)) => Ok(Some(RopeFactors { short, long })),
        (None, None) => Ok(None),
        (Some(_), None) => Err(FormatError::tensor(ROPE_FACTORS[0], "the long factors are missing")),
        (None, Some(_)) => Err(FormatError::tensor(ROPE_FACTORS[1], "the short factors are missing")),
    }
}
