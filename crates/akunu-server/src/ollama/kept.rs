//! The models that clients made, in a file of the folder of `--store`, so that they are there after a restart.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value as Json, json};

use super::create::preset;
use crate::app::App;
use crate::blocking::blocking;
use crate::models::digest::{digest, hex};
use crate::models::{Settings, Variant};
use crate::openai::responses::folder::create;
use crate::refusal::Refusal;

const FILE: &str = "models.json";
/// More than all models can have.
const MOST_BYTES: u64 = 256 << 20;

/// One at a time, so that the last state is the one that stays.
static WRITING: Mutex<()> = Mutex::new(());

/// Writes all models that clients made, if there is a folder.
pub(super) async fn save(app: &App) -> Result<(), Refusal> {
    let Some(folder) = app.response_folder().cloned() else { return Ok(()) };
    let of_app = app.clone();
    let write = move || {
        let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<Json> =
            of_app.models().variants_of_all().iter().map(|variant| to_json(variant)).collect();
        let part = folder.path().join(format!("{FILE}.part"));
        create(&part)
            .and_then(|mut file| file.write_all(Json::from(all).to_string().as_bytes()))
            .and_then(|()| fs::rename(&part, folder.path().join(FILE)))
    };
    blocking(write).await?.map_err(|error| {
        app.models().tell(&format!(
            "error: the models made by clients are not kept in the folder of --store: {error}"
        ));
        Refusal::internal("the change is made, and the server cannot keep it for its next start")
    })
}

/// Brings back what was written.
pub(crate) fn load(app: &App, folder: &Path) -> io::Result<()> {
    let file = match File::open(folder.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text)?;
    let all: Vec<Json> = serde_json::from_str(&text)?;
    for json in &all {
        let wrong = || io::Error::other(format!("{FILE} has a model that cannot be read: {}", json["name"]));
        let variant = from_json(app, json).ok_or_else(wrong)?;
        app.models().put_kept(variant);
    }
    Ok(())
}

fn to_json(variant: &Variant) -> Json {
    let Variant { name, of, settings, owner, created } = variant;
    let Settings { system, template, messages, parameters, license, .. } = settings;
    json!({
        "name": name, "of": of, "owner": owner.map(hex), "system": system, "template": template.as_deref(),
        "messages": messages, "parameters": parameters, "license": license,
        "created": created.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
    })
}

fn from_json(app: &App, json: &Json) -> Option<Variant> {
    let text = |name: &str| json[name].as_str().map(str::to_string);
    let parameters: Map<String, Json> = json["parameters"].as_object()?.clone();
    let license = json["license"].as_array()?.iter().map(|text| text.as_str().map(str::to_string));
    let settings = Settings {
        system: text("system"),
        template: text("template").map(Arc::from),
        messages: json["messages"].as_array()?.clone(),
        preset: preset(app, &parameters).ok()?,
        parameters,
        license: license.collect::<Option<_>>()?,
    };
    let owner = match &json["owner"] {
        Json::Null => None,
        owner => Some(digest(owner.as_str()?)?),
    };
    let created = SystemTime::UNIX_EPOCH + Duration::from_secs(json["created"].as_u64()?.min(1 << 40));
    Some(Variant { name: text("name")?, of: text("of")?, settings, owner, created })
}
