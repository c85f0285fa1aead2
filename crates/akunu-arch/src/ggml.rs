//! A file of whisper.cpp interpreted as a model.

use std::collections::HashMap;
use std::path::Path;

use akunu_format::{FormatError, Ggml, Loading, Metadata, Region, TensorInfo, Value, index_names, printable};

use crate::facts::Fact;
use crate::gguf::config::model_config;
use crate::tensors::Part;
use crate::{CARDS, Card, ModelConfig, Source, WeightProvider, names};

const PLACE: &str = "header of the GGML file";

/// All published models have this, and files do not state it.
const NORM_EPSILON: f32 = 1e-5;

/// Prefixes of the layers of both towers.
const LAYERS: [(Part, &str, &str); 2] =
    [(Part::EncoderLayer, "encoder.blocks.", "enc.blk."), (Part::Layer, "decoder.blocks.", "blk.")];

/// A GGML container with its configuration. Tensor names are canonical.
#[derive(Debug)]
pub struct GgmlModel {
    ggml: Ggml,
    config: ModelConfig,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl GgmlModel {
    /// Opens a file, mapped or read.
    pub fn load(path: &Path, loading: Loading) -> Result<GgmlModel, FormatError> {
        GgmlModel::from_ggml(Ggml::load(path, loading)?).map_err(|error| error.in_file(path))
    }

    pub fn from_region(region: Region) -> Result<GgmlModel, FormatError> {
        GgmlModel::from_ggml(Ggml::from_region(region)?)
    }

    pub fn from_ggml(ggml: Ggml) -> Result<GgmlModel, FormatError> {
        if ggml.tensors().is_empty() {
            return Err(FormatError::NotAModel {
                found: "a GGML file without tensors".to_string(),
                advice: "It holds a vocabulary only: take the file with the weights.".to_string(),
            });
        }
        // The cards of models that hear have these names; there is one.
        let card = CARDS.iter().copied().find(|card| !card.ggml_names.is_empty()).unwrap_or(&Card::PLAIN);
        let mut tensors = ggml.tensors().to_vec();
        for tensor in &mut tensors {
            tensor.name = canonical(&tensor.name, card)
                .ok_or_else(|| names::unknown(&tensor.name, card.gguf_name()))?;
            // Biases of convolutions are columns.
            if let [count, 1] = tensor.shape[..]
                && tensor.name.ends_with(".bias")
            {
                tensor.shape = vec![count];
            }
            names::join_taps(tensor, card);
        }
        let by_name = index_names(&tensors)?;
        let config = ModelConfig { source: Source::Ggml, ..config(&ggml, card, &tensors, &by_name)? };
        names::refuse_unknown(&tensors, &config)?;
        Ok(GgmlModel { ggml, config, tensors, by_name })
    }

    pub fn ggml(&self) -> &Ggml {
        &self.ggml
    }
}

/// The canonical name of a tensor: `encoder.blocks.0.attn.query.weight` is `enc.blk.0.attn_q.weight`.
fn canonical(name: &str, card: &Card) -> Option<String> {
    let find = |part: Part, theirs: &str| {
        let mut names = card.ggml_names.iter().filter(|(of, ..)| *of == part);
        names.find(|(_, other, _)| *other == theirs).map(|(.., ours)| *ours)
    };
    if let Some(ours) = find(Part::Model, name) {
        return Some(format!("{ours}.weight"));
    }
    let (module, kind) = name.rsplit_once('.').filter(|(_, kind)| matches!(*kind, "weight" | "bias"))?;
    if let Some(ours) = find(Part::Model, module) {
        return Some(format!("{ours}.{kind}"));
    }
    LAYERS.iter().find_map(|(part, theirs, ours)| {
        let (layer, rest) = module.strip_prefix(theirs)?.split_once('.')?;
        Some(format!("{ours}{layer}.{}.{kind}", find(*part, rest)?))
    })
}

/// The facts that the header states, read like those of a GGUF file. Feed-forward sizes are those of the matrices.
fn config(
    ggml: &Ggml,
    card: &'static Card,
    tensors: &[TensorInfo],
    by_name: &HashMap<String, usize>,
) -> Result<ModelConfig, FormatError> {
    let shape = ggml.shape();
    let wrong =
        |key: &str, problem: String| FormatError::Config { key: key.to_string(), place: PLACE, problem };
    if shape.encoder.width != shape.decoder.width {
        let problem =
            format!("{} in the encoder, and {} in the decoder", shape.encoder.width, shape.decoder.width);
        return Err(wrong("hidden size", problem));
    }
    let ffn = |name: &str| {
        let tensor = by_name.get(name).map(|&at| &tensors[at]);
        let rows = tensor.and_then(|tensor| tensor.shape.first()).copied();
        rows.and_then(|rows| u32::try_from(rows).ok())
            .ok_or_else(|| FormatError::MissingTensor { name: printable(name) })
    };
    let facts = [
        (Fact::ContextLength, shape.decoder.context),
        (Fact::HiddenSize, shape.decoder.width),
        (Fact::HeadCount, shape.decoder.heads),
        (Fact::LayerCount, shape.decoder.layers),
        (Fact::FfnSize, ffn("blk.0.ffn_up.weight")?),
        (Fact::EncoderPositions, shape.encoder.context),
        (Fact::EncoderHeadCount, shape.encoder.heads),
        (Fact::EncoderLayerCount, shape.encoder.layers),
        (Fact::EncoderFfnSize, ffn("enc.blk.0.ffn_up.weight")?),
        (Fact::MelBands, shape.bands),
    ];
    let mut metadata = Metadata::default();
    metadata.insert("general.architecture", Value::String(card.gguf_name().to_string()));
    let key = |fact: Fact| format!("{}.{}", card.gguf_name(), card.gguf_key(fact));
    for (fact, value) in facts {
        metadata.insert(key(fact), Value::U32(value));
    }
    metadata.insert(key(Fact::NormEpsilon), Value::F32(NORM_EPSILON));
    let config = model_config(&metadata, tensors, None)?;
    if config.vocab_size != shape.vocab as usize {
        let problem = format!("{}, but the embedding has {} rows", shape.vocab, config.vocab_size);
        return Err(wrong("vocabulary size", problem));
    }
    Ok(config)
}

impl WeightProvider for GgmlModel {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    fn regions(&self) -> &[Region] {
        std::slice::from_ref(self.ggml.region())
    }

    fn ranked_tokens(&self) -> Option<Vec<&[u8]>> {
        Some(self.ggml.tokens().collect())
    }
}
