//! The small files beside a vocabulary that state the roles of its tokens.

use std::collections::HashSet;
use std::path::Path;

use akunu_format::hf::check_values;
use serde_json::Value;

use crate::TokenizerError;

/// The contents of `tokenizer_config.json` and similar files. All values are optional.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sidecar {
    pub(crate) bos: Option<String>,
    pub(crate) eos: Option<String>,
    pub(crate) unk: Option<String>,
    pub(crate) sep: Option<String>,
    pub(crate) pad: Option<String>,
    pub(crate) cls: Option<String>,
    pub(crate) mask: Option<String>,
    pub(crate) add_bos: Option<bool>,
    pub(crate) add_eos: Option<bool>,
    pub(crate) bos_id: Option<u32>,
    pub(crate) eos_ids: Vec<u32>,
}

impl Sidecar {
    /// Reads the files in the folder of `file`.
    pub fn beside(file: &Path) -> Result<Sidecar, TokenizerError> {
        let mut sidecar = Sidecar::default();
        for name in
            ["tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json"]
        {
            let path = file.with_file_name(name);
            if path.is_file() {
                let bytes = crate::files::read(&path)?;
                check_values(&bytes).map_err(|error| error.in_file(&path))?;
                let json =
                    serde_json::from_slice(&bytes).map_err(|error| crate::files::not_json(name, &error))?;
                sidecar.add(&json);
            }
        }
        Ok(sidecar)
    }

    /// Keeps existing values: the more specific file is read first.
    fn add(&mut self, json: &Value) {
        let texts = [
            ("bos_token", &mut self.bos),
            ("eos_token", &mut self.eos),
            ("unk_token", &mut self.unk),
            ("sep_token", &mut self.sep),
            ("pad_token", &mut self.pad),
            ("cls_token", &mut self.cls),
            ("mask_token", &mut self.mask),
        ];
        for (key, known) in texts {
            let text = json[key].as_str().or_else(|| json[key]["content"].as_str());
            if known.is_none() {
                *known = text.map(str::to_string);
            }
        }
        self.add_bos = self.add_bos.or(json["add_bos_token"].as_bool());
        self.add_eos = self.add_eos.or(json["add_eos_token"].as_bool());
        self.bos_id = self.bos_id.or_else(|| ids(&json["bos_token_id"]).first().copied());
        let mut known: HashSet<u32> = self.eos_ids.iter().copied().collect();
        self.eos_ids.extend(ids(&json["eos_token_id"]).into_iter().filter(|&id| known.insert(id)));
    }
}

/// An id or a list of ids.
fn ids(json: &Value) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match json {
        Value::Array(list) => list.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_file_with_a_value_decides() {
        let mut sidecar = Sidecar::default();
        sidecar.add(&serde_json::json!({
            "bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "add_bos_token": true, "pad_token": null,
        }));
        sidecar.add(
            &serde_json::json!({"eos_token": "<other>", "eos_token_id": [2, 7, -1, "x"], "bos_token_id": 1}),
        );
        assert_eq!((sidecar.bos.as_deref(), sidecar.eos.as_deref()), (Some("<s>"), Some("</s>")));
        assert_eq!((sidecar.add_bos, sidecar.add_eos, sidecar.pad), (Some(true), None, None));
        assert_eq!((sidecar.bos_id, sidecar.eos_ids), (Some(1), vec![2, 7]));
    }
}
