//! A validator for the subset of JSON Schema that OpenAI's API description uses.

use serde_json::Value as Json;

pub struct Description(Json);

impl Description {
    /// `None`, with a message, if the file is missing.
    pub fn open() -> Option<Description> {
        let file = akunu_testing::data("holding answers to OpenAI's description", "openai/openapi.json")?;
        Some(Description(serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()))
    }

    pub fn assert(&self, schema: &str, value: &Json) {
        let schema = &self.0["components"]["schemas"][schema];
        assert!(schema.is_object());
        if let Err(reason) = self.check(schema, value, "") {
            panic!("{reason}\n{value:#}");
        }
    }

    fn check(&self, schema: &Json, value: &Json, place: &str) -> Result<(), String> {
        if schema["nullable"] == true && value.is_null() {
            return Ok(());
        }
        if let Some(name) = schema["$ref"].as_str() {
            let found = self.0.pointer(name.strip_prefix('#').unwrap()).unwrap();
            return self.check(found, value, place);
        }
        for part in schema["allOf"].as_array().into_iter().flatten() {
            self.check(part, value, place)?;
        }
        for choice in ["anyOf", "oneOf"] {
            let Some(parts) = schema[choice].as_array() else { continue };
            let failures: Vec<String> =
                parts.iter().filter_map(|part| self.check(part, value, place).err()).collect();
            if failures.len() == parts.len() {
                return Err(format!("{place} is none of what it may be: {}", failures.join("; ")));
            }
        }
        check_type(schema, value, place)?;
        if let Some(allowed) = schema["enum"].as_array()
            && !allowed.contains(value)
        {
            return Err(format!("{place}: {value} is none of {allowed:?}"));
        }
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str) {
            if value.is_object() && value.get(name).is_none() {
                return Err(format!("{place} has no {name}"));
            }
        }
        for (name, value) in value.as_object().into_iter().flatten() {
            let place = format!("{place}.{name}");
            match (&schema["properties"][name], &schema["additionalProperties"]) {
                (Json::Null, more @ Json::Object(_)) => self.check(more, value, &place)?,
                (Json::Null, _) => {}
                (schema, _) => self.check(schema, value, &place)?,
            }
        }
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            self.check(&schema["items"], item, &format!("{place}[{index}]"))?;
        }
        Ok(())
    }
}

fn check_type(schema: &Json, value: &Json, place: &str) -> Result<(), String> {
    let is = |kind: &str| match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => panic!("what is the type {kind}?"),
    };
    let agrees = match &schema["type"] {
        Json::Null => true,
        Json::String(kind) => is(kind),
        kinds => kinds.as_array().unwrap().iter().any(|kind| is(kind.as_str().unwrap())),
    };
    if agrees { Ok(()) } else { Err(format!("{place}: {value} is not of type {}", schema["type"])) }
}
