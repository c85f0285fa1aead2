//! The settings of compressed-tensors: groups of modules with a scheme each, and how weights are packed.

use super::json::Json;
use super::packed::REMEDY;
use crate::FormatError;
use crate::error::printable;

#[derive(Debug)]
pub(super) struct Compressed<'a> {
    /// The schemes of the weights of all groups of modules.
    pub(super) weights: Vec<Json<'a>>,
    /// Those of the rows that meet these weights, where they are quantised.
    pub(super) activations: Vec<Json<'a>>,
    /// Keys and values are to be quantised too.
    pub(super) cache: bool,
    /// Weights are integers in words; otherwise they have a byte each.
    pub(super) packed: bool,
}

const PACKED: &str = "pack-quantized";

impl<'a> Compressed<'a> {
    pub(super) fn of(json: &Json<'a>) -> Result<Compressed<'a>, FormatError> {
        let format = json.str("format")?;
        refuse_format(json, format)?;
        if let Some(sparse) = json.object("sparsity_config")?
            && let Some(other) = sparse.str("format")?.filter(|format| *format != "dense")
        {
            let asks = format!("is {} (and not dense; {REMEDY})", printable(other));
            return Err(sparse.unsupported("format", asks));
        }
        if let Some(transforms) = json.object("transform_config")?
            && transforms.object("config_groups")?.is_some_and(|groups| groups.keys().next().is_some())
        {
            let asks = format!("asks for transforms of weights and activations ({REMEDY})");
            return Err(json.unsupported("transform_config", asks));
        }
        let missing = |key: &str| FormatError::MissingKey { key: json.full(key), place: super::CONFIG };
        let groups = json.object("config_groups")?.ok_or_else(|| missing("config_groups"))?;
        let packed = format == Some(PACKED);
        let (mut weights, mut activations) = (Vec::new(), Vec::new());
        for name in groups.keys() {
            let group = groups.object(name)?.ok_or_else(|| missing(name))?;
            let own = group.str("format")?;
            refuse_format(&group, own)?;
            if own.is_some_and(|own| (own == PACKED) != packed) {
                return Err(
                    group.unsupported("format", format!("is another one than that of the folder ({REMEDY})"))
                );
            }
            // In some groups only activations are quantised.
            let Some(own) = group.object("weights")? else { continue };
            weights.push(own);
            activations.extend(group.object("input_activations")?);
        }
        let cache = json.object("kv_cache_scheme")?.is_some();
        Ok(Compressed { weights, activations, cache, packed })
    }
}

fn refuse_format(json: &Json<'_>, format: Option<&str>) -> Result<(), FormatError> {
    match format {
        None | Some("float-quantized" | "naive-quantized" | PACKED) => Ok(()),
        Some(other) => {
            let asks =
                format!("is {} (and not float-quantized or pack-quantized; {REMEDY})", printable(other));
            Err(json.unsupported("format", asks))
        }
    }
}
