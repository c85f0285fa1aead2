//! Reads fields of a JSON object, with errors that name the field. A null field counts as absent.

use std::ops::RangeInclusive;

use serde_json::{Map, Value as Json};

use crate::refusal::Refusal;

#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    map: &'a Map<String, Json>,
    /// The prefix of names in errors, such as `stream_options.`.
    prefix: &'a str,
}

impl<'a> Fields<'a> {
    pub fn new(json: &'a Json) -> Result<Fields<'a>, Refusal> {
        match json {
            Json::Object(map) => Ok(Fields { map, prefix: "" }),
            _ => Err(Refusal::invalid("the request's body must be a JSON object")),
        }
    }

    /// The fields of a nested object.
    pub fn within(map: &'a Map<String, Json>, prefix: &'a str) -> Fields<'a> {
        Fields { map, prefix }
    }

    pub fn get(&self, name: &str) -> Option<&'a Json> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The field of this name; within an object if the name has a dot.
    pub(crate) fn at(&self, name: &str) -> Option<&'a Json> {
        match name.split_once('.') {
            None => self.get(name),
            Some((object, name)) => self.get(object)?.get(name).filter(|value| !value.is_null()),
        }
    }

    /// The names of all fields, or of those of the object in the field `object`.
    pub(crate) fn names(&self, object: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let map = match object {
            "" => Some(self.map),
            object => self.get(object).and_then(Json::as_object),
        };
        map.into_iter().flatten().filter(|(_, value)| !value.is_null()).map(|(name, _)| name.as_str())
    }

    pub fn refuse(&self, name: &str, expected: impl std::fmt::Display) -> Refusal {
        let param = format!("{}{name}", self.prefix);
        Refusal::invalid(format!("'{param}' must be {expected}")).param(param).code("invalid_value")
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
        self.read(name, "a string", Json::as_str)
    }

    /// One of these texts.
    pub fn one_of(&self, name: &str, all: &[&str]) -> Result<Option<&'a str>, Refusal> {
        match self.text(name)? {
            Some(text) if !all.contains(&text) => {
                Err(self.refuse(name, format_args!("one of \"{}\"", all.join("\", \""))))
            }
            text => Ok(text),
        }
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
            usize::MAX => format!("an integer of at least {}", range.start()),
            end => format!("an integer from {} to {end}", range.start()),
        };
        let read = |value: &Json| {
            let number = usize::try_from(value.as_u64()?).ok()?;
            range.contains(&number).then_some(number)
        };
        self.read(name, &expected, read)
    }

    pub fn whole(&self, name: &str) -> Result<Option<i32>, Refusal> {
        self.read(name, "a 32-bit integer", |value| i32::try_from(value.as_i64()?).ok())
    }

    /// Any 64-bit integer, signed or unsigned.
    pub fn seed(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let read = |value: &Json| value.as_u64().or_else(|| value.as_i64().map(|seed| seed as u64));
        self.read(name, "an integer", read)
    }

    /// A string, or a list of strings.
    pub fn texts(&self, name: &str) -> Result<Vec<String>, Refusal> {
        let read = |value: &Json| match value {
            Json::String(text) => Some(vec![text.clone()]),
            Json::Array(list) => list.iter().map(|text| text.as_str().map(str::to_string)).collect(),
            _ => None,
        };
        Ok(self.read(name, "a string or a list of strings", read)?.unwrap_or_default())
    }

    /// Stop sequences: [`Fields::texts`], none of them empty. `expected` is for the error.
    pub fn stops(&self, name: &str, expected: &str) -> Result<Vec<String>, Refusal> {
        let texts = self.texts(name)?;
        match texts.iter().any(String::is_empty) {
            true => Err(self.refuse(name, format!("{expected}, none of them empty"))),
            false => Ok(texts),
        }
    }
}
