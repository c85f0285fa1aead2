//! The tokens that a post-processor adds around one text and around two, as a [`Template`].

use serde_json::Value;

use super::parts::{malformed, sequence, unknown_part};
use crate::TokenizerError;
use crate::template::{Piece, Template};

const KNOWN: &str = "BertProcessing, ByteLevel, RobertaProcessing, Sequence, TemplateProcessing";

/// The template of a file's `post_processor`.
pub(super) fn template(post: &Value) -> Result<Template, TokenizerError> {
    // This one affects offsets only.
    let parts = sequence(post, "processors").into_iter().filter(|part| part["type"] != "ByteLevel");
    let unsupported = |what: &str| TokenizerError::Unsupported { what: what.into() };
    let part = match parts.collect::<Vec<&Value>>()[..] {
        [] => return Ok(Template::empty(1)),
        [part] => part,
        _ => return Err(unsupported("several post-processors that add tokens")),
    };
    match part["type"].as_str() {
        Some("BertProcessing") => {
            let (cls, sep) = (id(part, &part["cls"][1])?, id(part, &part["sep"][1])?);
            Ok(Template::from_ids(&[cls], &[sep], &[sep], 1))
        }
        Some("RobertaProcessing") => {
            let (cls, sep) = (id(part, &part["cls"][1])?, id(part, &part["sep"][1])?);
            Ok(Template::from_ids(&[cls], &[sep, sep], &[sep], 0))
        }
        Some("TemplateProcessing") => {
            let single = pieces(part, "single")?;
            let pair = pieces(part, "pair").ok();
            let once = || unsupported("a post-processor that does not contain the text once");
            Template::new(single, pair).ok_or_else(once)
        }
        _ => Err(unknown_part("post_processor", part, KNOWN)),
    }
}

fn id(part: &Value, value: &Value) -> Result<u32, TokenizerError> {
    value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| malformed(part, "ids"))
}

fn pieces(part: &Value, key: &str) -> Result<Vec<Piece>, TokenizerError> {
    let mut out = Vec::new();
    for piece in part[key].as_array().ok_or_else(|| malformed(part, key))? {
        if let Some(text) = piece["Sequence"]["id"].as_str() {
            let place = match text {
                "A" => 0,
                "B" => 1,
                _ => return Err(malformed(part, key)),
            };
            out.push(Piece::Text { place, segment: id(part, &piece["Sequence"]["type_id"])? });
            continue;
        }
        let name = piece["SpecialToken"]["id"].as_str().ok_or_else(|| malformed(part, key))?;
        let segment = id(part, &piece["SpecialToken"]["type_id"])?;
        let ids = part["special_tokens"][name]["ids"].as_array();
        for value in ids.ok_or_else(|| malformed(part, "special_tokens"))? {
            out.push(Piece::Token { id: id(part, value)?, segment });
        }
    }
    Ok(out)
}
