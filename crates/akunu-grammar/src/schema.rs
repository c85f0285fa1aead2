//! JSON Schema, rewritten into the keywords that `llguidance` supports.
//!
//! ```text
//! schema ─places─▶ keywords with their places ─convert─▶ unions of typed shapes ─plan, emit─▶ plain schema
//! ```
//!
//! The rewritten schema allows only values that the schema allows. It may allow fewer: where a keyword cannot be
//! expressed exactly, it is narrowed or the schema is refused. `docs/grammar-schema.md` lists both.
//!
//! A schema becomes a union of shapes, each of one JSON type. `allOf` intersects unions, `anyOf` joins them. `not`,
//! `oneOf`, `if` and dependencies need the complement of a schema, which is built from the schema's source: the union
//! of the violations of its keywords. So a narrowed shape is never complemented.

mod array;
mod budget;
mod complement;
mod convert;
mod emit;
mod formats;
mod keywords;
mod meet;
mod negate;
mod numbers;
mod object;
mod pattern;
mod places;
mod plan;
mod regexes;
mod shape;
#[cfg(test)]
mod tests;
mod uri;

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

/// Why a schema is refused. Places are JSON pointers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    #[error("{keyword} at {place} is not supported: {reason}")]
    Unsupported { keyword: String, place: String, reason: String },

    #[error("{keyword} at {place} is invalid: {reason}")]
    Invalid { keyword: String, place: String, reason: String },

    #[error("no value that can be generated satisfies the schema at {place}")]
    Unsatisfiable { place: String },

    /// The reason begins with the place.
    #[error("the schema is too complex: {reason}; simplify it, or divide it into several requests")]
    TooLarge { reason: String },
}

/// How a reason begins that has its place.
const PLACE: &str = "at #";

impl SchemaError {
    /// Adds the place of a schema that is too large, if it is not known yet.
    fn within(self, pointer: impl FnOnce() -> String) -> SchemaError {
        match self {
            SchemaError::TooLarge { reason } if !reason.starts_with(PLACE) => {
                SchemaError::TooLarge { reason: format!("{PLACE}{}: {reason}", &pointer()[1..]) }
            }
            other => other,
        }
    }
}

/// The schema in the keywords that `llguidance` supports: each part has one type, and unions are `anyOf`.
pub fn rewrite(schema: &Value) -> Result<Value, SchemaError> {
    let mut converter = convert::Converter::new(schema).map_err(|error| error.within(|| "#".into()))?;
    let root = converter.root();
    let plan = plan::plan(&mut converter, root);
    let emitted = plan.and_then(|plan| emit::emit(plan, root));
    emitted.map_err(|error| converter.nothing_left(error).within(|| "#".into()))
}

/// The grammar of a schema's values. It is not compiled yet.
pub fn grammar(schema: &Value) -> Result<TopLevelGrammar, SchemaError> {
    Ok(rewritten_grammar(rewrite(schema)?))
}

/// The grammar of a schema that [`rewrite`] returned.
pub fn rewritten_grammar(rewritten: Value) -> TopLevelGrammar {
    let mut schema = match rewritten {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    // Without `\u`: a property that the schema names could be written with it, and would pass as an additional one.
    schema.insert("x-guidance".into(), json!({ "json_allowed_escapes": "nrbtf\\\"" }));
    TopLevelGrammar::from_json_schema(Value::Object(schema))
}
