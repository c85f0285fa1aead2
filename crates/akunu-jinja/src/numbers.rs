//! Filters of numbers.

use super::eval::Interpreter;
use super::functions::Arguments;
use super::value::Value;
use super::{JinjaError, JinjaResult};

impl Interpreter<'_> {
    pub(super) fn number(&mut self, name: &str, value: &Value, arguments: Arguments) -> JinjaResult<Value> {
        match value {
            Value::Undefined(what) => return Err(JinjaError::type_error(what.to_string())),
            Value::Str(text) => self.limits.bytes(text.len())?,
            _ => {}
        }
        let parsed = match value {
            Value::Str(text) => text.as_str().trim().replace('_', "").parse().ok().map(Value::Float),
            Value::Bool(_) | Value::Int(_) | Value::Float(_) => Some(value.clone()),
            _ => None,
        };
        let no_number = || JinjaError::type_error(format!("{name} needs a number, not {}", value.kind()));
        match name {
            "int" => {
                let [default, base] = arguments.take(name, ["default", "base"])?;
                let base = base.map_or(Some(10), |base| base.as_int());
                let text = if let Value::Str(text) = value { text.as_str() } else { "" };
                let whole = base.and_then(|base| whole(text, base));
                Ok(match (whole, parsed) {
                    (Some(whole), _) => Value::Int(whole),
                    (None, Some(Value::Float(f))) if f.is_finite() => Value::Int(f as i128),
                    (None, Some(Value::Float(_)) | None) => default.unwrap_or(Value::Int(0)),
                    (None, Some(value)) => Value::Int(value.as_int().unwrap_or(0)),
                })
            }
            "float" => {
                let [default] = arguments.take(name, ["default"])?;
                let float = parsed.map(|value| Value::Float(value.as_float().unwrap_or(0.0)));
                Ok(float.or(default).unwrap_or(Value::Float(0.0)))
            }
            "abs" => {
                let [] = arguments.take(name, [])?;
                match value {
                    Value::Float(f) => Ok(Value::Float(f.abs())),
                    _ => Ok(Value::Int(value.as_int().ok_or_else(no_number)?.saturating_abs())),
                }
            }
            _ => {
                let [places, method] = arguments.take(name, ["precision", "method"])?;
                let places = places.and_then(|p| p.as_int()).unwrap_or(0).clamp(-30, 30) as i32;
                let float = value.as_float().ok_or_else(no_number)?;
                let scale = 10f64.powi(places);
                let method = match &method {
                    None => "common",
                    Some(Value::Str(text)) => text.as_str(),
                    Some(_) => "",
                };
                match (method, value) {
                    ("common", Value::Float(_)) => Ok(Value::Float(rounded(float, places))),
                    ("common", _) => Ok(Value::Int(rounded_whole(value.as_int().unwrap_or(0), places))),
                    ("ceil", _) => Ok(Value::Float((float * scale).ceil() / scale)),
                    ("floor", _) => Ok(Value::Float((float * scale).floor() / scale)),
                    _ => Err(JinjaError::type_error("method must be common, ceil or floor")),
                }
            }
        }
    }
}

/// What Python's `int` reads in a base, which is that of the text's prefix where it is 0.
fn whole(text: &str, base: i128) -> Option<i128> {
    let clean = text.trim().replace('_', "").to_ascii_lowercase();
    let (is_negative, digits) = match clean.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, clean.strip_prefix('+').unwrap_or(&clean)),
    };
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2)].into_iter().find_map(|(prefix, own)| {
        let digits = digits.strip_prefix(prefix).filter(|_| base == own || base == 0);
        digits.map(|digits| (digits, own))
    });
    let (digits, base) = prefixed.unwrap_or((digits, if base == 0 { 10 } else { base }));
    let base = u32::try_from(base).ok().filter(|base| (2..=36).contains(base))?;
    let is_sign = |c| matches!(c, '+' | '-');
    let found = i128::from_str_radix(digits, base).ok().filter(|_| !digits.starts_with(is_sign))?;
    Some(if is_negative { -found } else { found })
}

/// As Python's `round`, which rounds the exact decimal value, and halves to the even digit.
fn rounded(value: f64, places: i32) -> f64 {
    match usize::try_from(places) {
        Ok(places) => format!("{value:.places$}").parse().unwrap_or(value),
        Err(_) => (value * 10f64.powi(places)).round_ties_even() / 10f64.powi(places),
    }
}

fn rounded_whole(value: i128, places: i32) -> i128 {
    if places >= 0 {
        return value;
    }
    let unit = 10i128.pow(places.unsigned_abs());
    let (below, rest) = (value.div_euclid(unit), value.rem_euclid(unit));
    let is_up = rest > unit / 2 || (rest == unit / 2 && below % 2 != 0);
    (below + i128::from(is_up)).saturating_mul(unit)
}

#[cfg(test)]
mod tests {
    use crate::{LocalTime, Template};

    #[test]
    fn numbers_and_columns_are_those_of_python() {
        for (template, expected) in [
            ("{{ 7|round }} {{ 7|round(1) }} {{ true|round }}", "7 7 1"),
            ("{{ 15|round(-1) }} {{ 25|round(-1) }} {{ -15|round(-1) }}", "20 20 -20"),
            ("{{ 42.55|round }} {{ 2.5|round }} {{ 1e20|round(2) }}", "43.0 2.0 1e+20"),
            ("{{ 2.675|round(2) }} {{ 0.285|round(2) }} {{ 1234.5|round(-2) }}", "2.67 0.28 1200.0"),
            ("{{ 2.345|round(precision=2) }} {{ 2.31|round(1, method='ceil') }}", "2.35 2.4"),
            ("{{ 7|round(0, 'ceil') }} {{ 2.39|round(1, 'floor') }}", "7.0 2.3"),
            ("{{ '0x1f'|int(0, 16) }} {{ '1f'|int(base=16) }} {{ '-0b11'|int(base=0) }}", "31 31 -3"),
            ("{{ '0x1f'|int }} {{ 'zz'|int(5, base=16) }} {{ '0x-1'|int(7, 16) }}", "0 5 7"),
            ("{{ ' 1_0 '|int }} {{ '5.9'|int }} {{ '1e3'|int }} {{ 'nan'|int }}", "10 5 1000 0"),
            ("{{ 'a'|int(default=3) }} {{ ''|float(default=1) }} {{ '2'|float }}", "3 1 2.0"),
            ("{{ -1.5|abs }} {{ (-3)|abs }} {{ true|abs }} {{ [1]|int }}", "1.5 3 1 0"),
            ("{{ 'a\\tb\\nab\\t|'.expandtabs() }}", "a       b\nab      |"),
            ("{{ 'a\\tb\\t\\t'.expandtabs(4) }}| {{ '\\ta'.expandtabs(0) }}", "a   b       | a"),
        ] {
            let rendered = Template::new(template).unwrap().render(&[], LocalTime::from_seconds(0));
            assert_eq!(rendered.unwrap().text, expected, "{template}");
        }
    }
}
