//! Fields of a request's object, read with an error that names them. Null is as good as absent.

use std::ops::RangeInclusive;

use serde_json::{Map, Value as Json};

use crate::refusal::Refusal;

#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    map: &'a Map<String, Json>,
    /// What stands before names in errors: `stream_options.`.
    place: &'a str,
}

impl<'a> Fields<'a> {
    pub fn new(json: &'a Json) -> Result<Fields<'a>, Refusal> {
        match json {
            Json::Object(map) => Ok(Fields { map, place: "" }),
            _ => Err(Refusal::invalid("the request's body has to be a JSON object")),
        }
    }

    /// The fields of an object within.
    pub fn within(map: &'a Map<String, Json>, place: &'a str) -> Fields<'a> {
        Fields { map, place }
    }

    pub fn get(&self, name: &str) -> Option<&'a Json> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub fn refuse(&self, name: &str, expected: impl std::fmt::Display) -> Refusal {
        let param = format!("{}{name}", self.place);
        Refusal::invalid(format!("'{param}' has to be {expected}")).param(param).code("invalid_value")
    }

    fn read<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&'a Json) -> Option<T>,
    ) -> Result<Option<T>, Refusal> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.refuse(name, expected))
    }

    pub fn text(&self, name: &str) -> Result<Option<&'a str>, Refusal> {
        self.read(name, "a text", Json::as_str)
    }

    pub fn flag(&self, name: &str) -> Result<Option<bool>, Refusal> {
        self.read(name, "true or false", Json::as_bool)
    }

    pub fn list(&self, name: &str) -> Result<Option<&'a [Json]>, Refusal> {
        self.read(name, "a list", |value| value.as_array().map(Vec::as_slice))
    }

    pub fn object(&self, name: &str) -> Result<Option<&'a Map<String, Json>>, Refusal> {
        self.read(name, "an object", Json::as_object)
    }

    pub fn number(&self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, Refusal> {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        let read = |value: &Json| value.as_f64().filter(|number| range.contains(number));
        Ok(self.read(name, &expected, read)?.map(|number| number as f32))
    }

    pub fn count(&self, name: &str, range: RangeInclusive<usize>) -> Result<Option<usize>, Refusal> {
        let expected = match *range.end() {
            usize::MAX => format!("a whole number, at least {}", range.start()),
            end => format!("a whole number from {} to {end}", range.start()),
        };
        let read = |value: &Json| {
            let number = usize::try_from(value.as_u64()?).ok()?;
            range.contains(&number).then_some(number)
        };
        self.read(name, &expected, read)
    }

    pub fn whole(&self, name: &str) -> Result<Option<i32>, Refusal> {
        self.read(name, "a whole number of 32 bits", |value| i32::try_from(value.as_i64()?).ok())
    }

    /// Any whole number that fits 64 bits, with a sign or without.
    pub fn seed(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let read = |value: &Json| value.as_u64().or_else(|| value.as_i64().map(|seed| seed as u64));
        self.read(name, "a whole number", read)
    }

    /// One text, or a list of them.
    pub fn texts(&self, name: &str) -> Result<Vec<String>, Refusal> {
        let read = |value: &Json| match value {
            Json::String(text) => Some(vec![text.clone()]),
            Json::Array(list) => list.iter().map(|text| text.as_str().map(str::to_string)).collect(),
            _ => None,
        };
        Ok(self.read(name, "a text or a list of texts", read)?.unwrap_or_default())
    }

    /// Where an answer ends: [`Fields::texts`], none of them empty. `expected` is what errors ask for.
    pub fn stops(&self, name: &str, expected: &str) -> Result<Vec<String>, Refusal> {
        let texts = self.texts(name)?;
        match texts.iter().any(String::is_empty) {
            true => Err(self.refuse(name, format!("{expected}, none of them empty"))),
            false => Ok(texts),
        }
    }
}
