//! sentence-transformers files beside a model: pooling, dense layers and prompts.

use std::path::{Path, PathBuf};

use akunu_format::hf::{Document, Json, Weights};
use akunu_format::{FormatError, Loading, index_names, printable};

use super::SafeTensorsModel;
use crate::{MAX_MODULES, Pooling};

const MODULES: &str = "modules.json";
const PROMPTS: &str = "config_sentence_transformers.json";
/// File names of the first module's settings in sentence-transformers; the first one present is used.
const TRANSFORMERS: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];
const TOKENIZER: &str = "tokenizer_config.json";

/// Module types in the required order. All but the first are optional, and there may be several dense modules.
const ORDER: [&str; 4] = ["Transformer", "Pooling", "Dense", "Normalize"];

impl SafeTensorsModel {
    /// Adds the embedding settings of the folder to the model.
    pub(super) fn with_sentence_modules(
        mut self,
        folder: &Path,
        loading: Loading,
    ) -> Result<SafeTensorsModel, FormatError> {
        let prompts = folder.join(PROMPTS);
        if prompts.is_file() {
            self.read_prompts(&Document::read(&prompts)?.root()).map_err(|error| error.in_file(&prompts))?;
        }
        if let Some(path) = TRANSFORMERS.map(|name| folder.join(name)).into_iter().find(|path| path.is_file())
        {
            self.read_transformer(&Document::read(&path)?.root()).map_err(|error| error.in_file(&path))?;
        }
        let modules = folder.join(MODULES);
        if modules.is_file() {
            self.read_modules(folder, &modules, loading)?;
            self.read_max_tokens(&folder.join(TOKENIZER))?;
        }
        Ok(self)
    }

    fn read_modules(&mut self, folder: &Path, list: &Path, loading: Loading) -> Result<(), FormatError> {
        let mut last = None;
        for (number, module) in Document::read_list(list)?.iter().enumerate() {
            let module = module.root();
            let (kind, own) = module_of(folder, &module).map_err(|error| error.in_file(list))?;
            let name = ORDER[kind];
            let follows = match last {
                None => kind == 0 && own == folder,
                Some(last) => kind > last || name == "Dense" && kind == last,
            };
            if !follows || number > MAX_MODULES {
                let problem = format!("is {name} as module {} of the list", number + 1);
                return Err(module.unsupported("type", problem).in_file(list));
            }
            last = Some(kind);
            let config = own.join("config.json");
            match name {
                "Pooling" => self.read_pooling(&config)?,
                "Dense" => self.add_dense(&own, &config, number, loading)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn read_pooling(&mut self, path: &Path) -> Result<(), FormatError> {
        let document = Document::read(path)?;
        let root = document.root();
        let read = || {
            if root.bool("include_prompt")? == Some(false) && !self.config.embedding.prompts.is_empty() {
                return Err(root.unsupported("include_prompt", "is false, but the model has prompts"));
            }
            pooling(&root)
        };
        let pooling = read().map_err(|error| error.in_file(path))?;
        self.config.embedding.pooling = Some(pooling);
        Ok(())
    }

    fn read_transformer(&mut self, root: &Json<'_>) -> Result<(), FormatError> {
        let facts = &mut self.config.embedding;
        facts.max_text_tokens = root.usize("max_seq_length")?.filter(|&most| most > 0);
        facts.lower_case = root.bool("do_lower_case")?.unwrap_or(false);
        Ok(())
    }

    /// Used if the first module does not state the maximum length.
    fn read_max_tokens(&mut self, path: &Path) -> Result<(), FormatError> {
        if self.config.embedding.max_text_tokens.is_some() || !path.is_file() {
            return Ok(());
        }
        let document = Document::read(path)?;
        // Placeholder values beyond any length mean "no limit".
        let most = document.root().f64("model_max_length").map_err(|error| error.in_file(path))?;
        let most = most.filter(|most| *most >= 1.0 && *most < self.config.context_length as f64);
        self.config.embedding.max_text_tokens = most.map(|most| most as usize);
        Ok(())
    }

    /// A dense module; the canonical name of its matrix contains the module's number.
    fn add_dense(
        &mut self,
        folder: &Path,
        config: &Path,
        number: usize,
        loading: Loading,
    ) -> Result<(), FormatError> {
        let document = Document::read(config)?;
        refuse_activation(&document.root()).map_err(|error| error.in_file(config))?;
        let (tensors, regions) = Weights::open(&folder.join("model.safetensors"), loading)?.join(None)?;
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
        match &facts.default_prompt {
            Some(name) if facts.prompts.iter().all(|(known, _)| known != name) => {
                let problem = format!("is {}, but there is no such prompt", printable(name));
                Err(root.unsupported("default_prompt_name", problem))
            }
            _ => Ok(()),
        }
    }
}

/// The type of a module, as an index into [`ORDER`], and its folder.
fn module_of(folder: &Path, module: &Json<'_>) -> Result<(usize, PathBuf), FormatError> {
    let kind = module.str("type")?.unwrap_or_default();
    let path = module.str("path")?.unwrap_or_default();
    // Only direct subfolders, so that a list cannot refer to any other path.
    if !path.is_empty() && Path::new(path).file_name().is_none_or(|name| name != path) {
        return Err(module.unsupported("path", format!("is {}", printable(path))));
    }
    let name = kind.rsplit('.').next().unwrap_or_default();
    match ORDER.iter().position(|known| *known == name) {
        Some(place) => Ok((place, if path.is_empty() { folder.to_path_buf() } else { folder.join(path) })),
        None => Err(module.unsupported("type", format!("is {}", printable(kind)))),
    }
}

fn refuse_activation(config: &Json<'_>) -> Result<(), FormatError> {
    let activation = config.str("activation_function")?.unwrap_or_default();
    match activation.is_empty() || activation.ends_with(".Identity") {
        true => Ok(()),
        false => Err(config.unsupported("activation_function", format!("is {}", printable(activation)))),
    }
}

/// Older files have one flag per mode, newer ones a name.
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
        // Several modes at once would be concatenated.
        if pooling.is_none() || chosen.is_some() {
            return Err(
                config.unsupported(flag, "asks for a pooling that is not one of cls, mean, last token")
            );
        }
        chosen = pooling;
    }
    Ok(chosen.unwrap_or(Pooling::Mean))
}
