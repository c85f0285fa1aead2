//! A part of a file as JSON values, of limited number: a value takes up to a hundred times the bytes of its text.

use std::fmt;
use std::ops::Deref;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Published files have up to some hundred: normalizers with a list of replacements.
const MAX_VALUES: usize = 1 << 14;

#[derive(Debug, Default)]
pub(super) struct Part(Value);

impl Deref for Part {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Limited { left: &mut { MAX_VALUES } }.deserialize(deserializer).map(Part)
    }
}

/// A value, of which so many more values may be read, itself included.
struct Limited<'a> {
    left: &'a mut usize,
}

impl Limited<'_> {
    fn again(&mut self) -> Limited<'_> {
        Limited { left: self.left }
    }
}

impl<'de> DeserializeSeed<'de> for Limited<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let excess = || D::Error::custom(format_args!("one of its parts has more than {MAX_VALUES} values"));
        *self.left = self.left.checked_sub(1).ok_or_else(excess)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Limited<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self.again())? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            fields.insert(key, map.next_value_seed(self.again())?);
        }
        Ok(fields.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_what_serde_json_reads_up_to_the_limit() {
        let text = r#"{"a":[1,-2,0.5,18446744073709551615,"é\n",null,true,{}],"b":{"a":{"a":[]}},"a":false}"#;
        let part: Part = serde_json::from_str(text).unwrap();
        assert_eq!(*part, serde_json::from_str::<Value>(text).unwrap());

        let list = |count: usize| format!("[{}]", vec!["[]"; count].join(","));
        assert!(serde_json::from_str::<Part>(&list(MAX_VALUES - 1)).is_ok());
        let error = serde_json::from_str::<Part>(&list(MAX_VALUES)).unwrap_err().to_string();
        assert!(error.contains("more than 16384 values"), "{error}");
    }
}
