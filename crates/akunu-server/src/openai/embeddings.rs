//! `/v1/embeddings`.

use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde_json::{Value as Json, json};

use crate::app::App;
use crate::blocking::blocking;
use crate::body::JsonBody;
use crate::field_table;
use crate::fields::Fields;
use crate::refusal::Refusal;
use crate::texts::{self, EmbedJob, Embedded, base64, write_vector};

pub(super) async fn embeddings(
    State(app): State<App>,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let warnings = field_table::EMBEDDINGS.check(&fields)?;
    let as_base64 = match fields.text("encoding_format")? {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(fields.refuse("encoding_format", "\"float\" or \"base64\"")),
    };
    let job = EmbedJob {
        model: fields.text("model")?.map(str::to_string),
        inputs: texts::inputs(&fields, "input")?,
        field: "input",
        prompt_name: fields.text("prompt_name")?.map(str::to_string),
        truncate: fields.flag("truncate")?.unwrap_or(false),
        normalise: true,
        dimensions: fields.count("dimensions", 1..=usize::MAX)?,
    };
    let name = job.model.clone();
    let embedded = app.embed(job).await.map_err(|refusal| refusal.too_long_in("input"))?;
    let text = blocking(move || write(name.as_deref(), &embedded, as_base64)).await?;
    let mut response = text.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(warnings.on(response))
}

fn write(name: Option<&str>, embedded: &Embedded, as_base64: bool) -> String {
    let mut text = String::from("{\"object\":\"list\",\"data\":[");
    for (index, vector) in embedded.vectors.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        text.push_str(&format!("{comma}{{\"object\":\"embedding\",\"index\":{index},\"embedding\":"));
        match as_base64 {
            true => {
                let bytes = vector.iter().flat_map(|number| number.to_le_bytes());
                text.push_str(&Json::from(base64(bytes)).to_string());
            }
            false => write_vector(vector, &mut text),
        }
        text.push('}');
    }
    let model = Json::from(name.unwrap_or(&embedded.model));
    let usage = json!({ "prompt_tokens": embedded.tokens, "total_tokens": embedded.tokens });
    text.push_str(&format!("],\"model\":{model},\"usage\":{usage}}}"));
    text
}
