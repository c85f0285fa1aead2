//! What sentence-transformers keeps beside a model: how its states become a vector, the matrices that follow, and the
//! prompts that texts begin with.

use std::path::Path;

use akunu_format::hf::{Document, Json, Weights};
use akunu_format::{FormatError, index_names, printable};

use super::SafeTensorsModel;
use crate::Pooling;

const MODULES: &str = "modules.json";
const PROMPTS: &str = "config_sentence_transformers.json";
const LENGTHS: &str = "sentence_bert_config.json";

impl SafeTensorsModel {
    /// The model with what its folder says about vectors.
    pub(super) fn with_sentence_modules(mut self, folder: &Path) -> Result<SafeTensorsModel, FormatError> {
        let modules = folder.join(MODULES);
        if modules.is_file() {
            for module in Document::read_list(&modules)? {
                self.add_module(folder, &module.root()).map_err(|error| error.in_file(&modules))?;
            }
        }
        let prompts = folder.join(PROMPTS);
        if prompts.is_file() {
            self.read_prompts(&Document::read(&prompts)?.root()).map_err(|error| error.in_file(&prompts))?;
        }
        let lengths = folder.join(LENGTHS);
        if lengths.is_file() {
            self.config.embedding.most_tokens = Document::read(&lengths)?
                .root()
                .usize("max_seq_length")
                .map_err(|error| error.in_file(&lengths))?
                .filter(|&most| most > 0);
        }
        Ok(self)
    }

    fn add_module(&mut self, folder: &Path, module: &Json<'_>) -> Result<(), FormatError> {
        let kind = module.str("type")?.unwrap_or_default();
        let path = module.str("path")?.unwrap_or_default();
        // Only folders of this very folder: a list must not lead anywhere else.
        if !path.is_empty() && Path::new(path).file_name().is_none_or(|name| name != path) {
            return Err(module.unsupported("path", format!("is {}", printable(path))));
        }
        let folder = folder.join(path);
        match kind.rsplit('.').next().unwrap_or_default() {
            "Transformer" | "Normalize" => Ok(()),
            "Pooling" => {
                let document = Document::read(&folder.join("config.json"))?;
                self.config.embedding.pooling = Some(pooling(&document.root())?);
                Ok(())
            }
            "Dense" => self.add_dense(&folder, module.usize("idx")?.unwrap_or(0)),
            _ => Err(module.unsupported("type", format!("is {}", printable(kind)))),
        }
    }

    /// A matrix that vectors are multiplied by; its canonical name has the module's number.
    fn add_dense(&mut self, folder: &Path, number: usize) -> Result<(), FormatError> {
        let document = Document::read(&folder.join("config.json"))?;
        let config = document.root();
        let activation = config.str("activation_function")?.unwrap_or_default();
        if !activation.is_empty() && !activation.ends_with(".Identity") {
            return Err(config.unsupported("activation_function", format!("is {}", printable(activation))));
        }
        let (tensors, regions) = Weights::open(&folder.join("model.safetensors"))?.join(None)?;
        let first = self.regions.len();
        for mut tensor in tensors {
            let part = match tensor.name.as_str() {
                "linear.weight" => "weight",
                "linear.bias" => "bias",
                other => return Err(FormatError::tensor(other, "a dense module has a weight and a bias")),
            };
            tensor.name = format!("dense_{number}.{part}");
            tensor.region += first;
            self.tensors.push(tensor.clone());
            self.stored.push(tensor);
        }
        self.regions.extend(regions);
        self.by_name = index_names(&self.tensors)?;
        Ok(())
    }

    fn read_prompts(&mut self, root: &Json<'_>) -> Result<(), FormatError> {
        let facts = &mut self.config.embedding;
        if let Some(prompts) = root.object("prompts")? {
            for name in prompts.keys() {
                facts.prompts.push((name.to_string(), prompts.str(name)?.unwrap_or_default().to_string()));
            }
        }
        facts.default_prompt = root.str("default_prompt_name")?.map(str::to_string);
        Ok(())
    }
}

/// Older files have a flag for each mode, newer ones a name.
fn pooling(config: &Json<'_>) -> Result<Pooling, FormatError> {
    const MODE: &str = "pooling_mode";
    const FLAGS: [(&str, Option<Pooling>); 6] = [
        ("pooling_mode_cls_token", Some(Pooling::First)),
        ("pooling_mode_mean_tokens", Some(Pooling::Mean)),
        ("pooling_mode_lasttoken", Some(Pooling::Last)),
        ("pooling_mode_max_tokens", None),
        ("pooling_mode_mean_sqrt_len_tokens", None),
        ("pooling_mode_weightedmean_tokens", None),
    ];
    if let Some(name) = config.str(MODE)? {
        let named = [("cls", Pooling::First), ("mean", Pooling::Mean), ("lasttoken", Pooling::Last)];
        let found = named.iter().find(|(known, _)| *known == name).map(|(_, pooling)| *pooling);
        return found.ok_or_else(|| config.unsupported(MODE, format!("is {}", printable(name))));
    }
    let mut chosen = None;
    for (flag, pooling) in FLAGS {
        if config.bool(flag)? != Some(true) {
            continue;
        }
        // Several modes at once are put side by side.
        if pooling.is_none() || chosen.is_some() {
            return Err(
                config.unsupported(flag, "asks for a pooling that is not one of cls, mean, last token")
            );
        }
        chosen = pooling;
    }
    Ok(chosen.unwrap_or(Pooling::Mean))
}
