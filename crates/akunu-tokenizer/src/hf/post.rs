//! The tokens that a post-processor adds around one text and around two, as a [`Template`].

use serde_json::Value;

use super::recognise::{Unknown, sequence, short};
use crate::template::{Piece, Template};

/// The template of a file's `post_processor`.
pub(super) fn template(post: &Value) -> Result<Template, Unknown> {
    // This one affects offsets only.
    let parts = sequence(post, "processors").into_iter().filter(|part| part["type"] != "ByteLevel");
    match parts.collect::<Vec<&Value>>()[..] {
        [] => Ok(Template::empty(1)),
        [part] => match part["type"].as_str() {
            Some("BertProcessing") => {
                let (cls, sep) = (id(&part["cls"][1])?, id(&part["sep"][1])?);
                Ok(Template::from_ids(&[cls], &[sep], &[sep], 1))
            }
            Some("RobertaProcessing") => {
                let (cls, sep) = (id(&part["cls"][1])?, id(&part["sep"][1])?);
                Ok(Template::from_ids(&[cls], &[sep, sep], &[sep], 0))
            }
            Some("TemplateProcessing") => {
                let single = pieces(part, "single")?;
                let pair = pieces(part, "pair").ok();
                let once = "a post-processor that does not contain the text once";
                Template::new(single, pair).ok_or_else(|| once.into())
            }
            _ => Err(format!("the post-processor {}", short(part))),
        },
        _ => Err("several post-processors that add tokens".into()),
    }
}

fn id(value: &Value) -> Result<u32, Unknown> {
    value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| "a post-processor's ids".into())
}

fn pieces(part: &Value, key: &str) -> Result<Vec<Piece>, Unknown> {
    let mut out = Vec::new();
    for piece in part[key].as_array().into_iter().flatten() {
        if let Some(text) = piece["Sequence"]["id"].as_str() {
            let place = match text {
                "A" => 0,
                "B" => 1,
                _ => return Err("a post-processor's template".into()),
            };
            out.push(Piece::Text { place, segment: id(&piece["Sequence"]["type_id"])? });
            continue;
        }
        let name = piece["SpecialToken"]["id"].as_str().ok_or("a post-processor's template")?;
        let segment = id(&piece["SpecialToken"]["type_id"])?;
        let ids = part["special_tokens"][name]["ids"].as_array().ok_or("a post-processor's tokens")?;
        for value in ids {
            out.push(Piece::Token { id: id(value)?, segment });
        }
    }
    Ok(out)
}
