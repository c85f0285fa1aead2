//! Numbers: bounds, multiples, and what `llguidance` can write of them.

use std::rc::Rc;

use serde_json::{Map, Number, Value, json};

use super::shape::{Bound, Num};

/// Larger numbers are not generated: an integer's regular expression is built with 64 bits.
const LARGEST: f64 = 9e18;
/// Integers up to here are exact as `f64`, in which `llguidance` keeps bounds and constants.
const EXACT: f64 = 9_007_199_254_740_992.0;
/// Bounds nearer to zero are rounded, so that they have few digits.
const SMALLEST: f64 = 1e-15;
/// Limits on `multipleOf`, as an integer and its decimals: llguidance has a state for each remainder, and computes them
/// with 32 bits.
pub(super) const COEFFICIENT: u32 = 1_000;
const PLACES: u32 = 6;

/// The least `f64` that is not below the number, and the largest that is not above it.
pub(super) fn round(number: &Number) -> (f64, f64) {
    let near = number.as_f64().unwrap_or(f64::NAN);
    let exact = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
    match exact.map(|exact| (near as i128).cmp(&exact)) {
        Some(std::cmp::Ordering::Less) => (near.next_up(), near),
        Some(std::cmp::Ordering::Greater) => (near, near.next_down()),
        _ => (near, near),
    }
}

/// Whether the number is an `f64`, so that bounds need no rounding.
pub(super) fn is_rounded_exactly(number: &Number) -> bool {
    let (up, down) = round(number);
    up == down
}

/// Whether `llguidance` writes exactly this number.
pub(super) fn is_exact(number: &Number) -> bool {
    match number.as_i64() {
        Some(value) => value.unsigned_abs() <= EXACT as u64,
        None => number.as_f64().is_some_and(|value| value.abs() < EXACT),
    }
}

pub(super) fn higher(a: Bound, b: Bound) -> Bound {
    match (a, b) {
        (Some((x, ex)), Some((y, ey))) if x == y => Some((x, ex || ey)),
        (Some((x, _)), Some((y, _))) => {
            if x > y {
                a
            } else {
                b
            }
        }
        _ => a.or(b),
    }
}

pub(super) fn lower(a: Bound, b: Bound) -> Bound {
    match (a, b) {
        (Some((x, ex)), Some((y, ey))) if x == y => Some((x, ex || ey)),
        (Some((x, _)), Some((y, _))) => {
            if x < y {
                a
            } else {
                b
            }
        }
        _ => a.or(b),
    }
}

/// A coefficient and the count of its decimals; `None` if there are too many digits.
pub(super) fn decimal(number: &Number) -> Option<(i128, u32)> {
    let text = number.to_string();
    let (digits, exponent) = match text.split_once(['e', 'E']) {
        Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
        None => (&text[..], 0),
    };
    let (whole, decimals) = digits.split_once('.').unwrap_or((digits, ""));
    let mut coefficient: i128 = format!("{whole}{decimals}").parse().ok()?;
    let mut places = decimals.len() as i32 - exponent;
    while places < 0 {
        coefficient = coefficient.checked_mul(10)?;
        places += 1;
    }
    while places > 0 && coefficient % 10 == 0 {
        coefficient /= 10;
        places -= 1;
    }
    (places <= 20).then_some((coefficient, places as u32))
}

/// `multipleOf` as `llguidance` reads it, which multiplies by 10 until nothing is behind the point.
pub(super) fn multiple(number: &Number) -> Option<(u32, u32)> {
    let (coefficient, places) = decimal(number)?;
    let coefficient = u32::try_from(coefficient).ok().filter(|coefficient| *coefficient > 0)?;
    if coefficient > COEFFICIENT || places > PLACES {
        return None;
    }
    let mut value = number.as_f64()?;
    let mut read = 0;
    while value.fract() != 0.0 && read <= places {
        value *= 10.0;
        read += 1;
    }
    (read == places && value == f64::from(coefficient)).then_some((coefficient, places))
}

/// The multiples of both.
pub(super) fn common(a: (u32, u32), b: (u32, u32)) -> Option<(u32, u32)> {
    let places = a.1.max(b.1);
    let scaled = |(coefficient, own): (u32, u32)| {
        u128::from(coefficient).checked_mul(10u128.checked_pow(places - own)?)
    };
    let (x, y) = (scaled(a)?, scaled(b)?);
    let (mut g, mut rest) = (x, y);
    while rest != 0 {
        (g, rest) = (rest, g % rest);
    }
    let mut least = (x / g).checked_mul(y)?;
    let mut places = places;
    while places > 0 && least % 10 == 0 {
        (least, places) = (least / 10, places - 1);
    }
    let least = u32::try_from(least).ok().filter(|least| *least <= COEFFICIENT && places <= PLACES)?;
    Some((least, places))
}

pub(super) fn is_integer(number: &Number) -> bool {
    number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|value| value.fract() == 0.0)
}

/// Whether the number has the properties of `num`. A number that cannot be decided about has not.
pub(super) fn accepts(num: &Num, number: &Number) -> bool {
    let Some(value) = number.as_f64() else { return false };
    let above = num.min.is_none_or(|(min, excluded)| value > min || (value == min && !excluded));
    let below = num.max.is_none_or(|(max, excluded)| value < max || (value == max && !excluded));
    let divides = num.multiple.is_none_or(|(coefficient, places)| {
        let Some((mine, own)) = decimal(number) else { return false };
        let up = 10i128.checked_pow(places.saturating_sub(own)).and_then(|factor| mine.checked_mul(factor));
        let unit = 10i128
            .checked_pow(own.saturating_sub(places))
            .and_then(|f| i128::from(coefficient).checked_mul(f));
        matches!((up, unit), (Some(value), Some(unit)) if value % unit == 0)
    });
    let listed =
        num.values.as_ref().is_none_or(|values| values.iter().any(|other| other.as_f64() == number.as_f64()));
    above && below && divides && listed && (!num.is_integer || is_integer(number))
}

/// The values of both. `None` if there are none.
pub(super) fn meet(a: &Num, b: &Num) -> Option<Option<Num>> {
    if let Some(values) = &a.values {
        let b_keys = b.values.as_ref().map(|values| keys(values));
        let rest = Num { values: None, ..b.clone() };
        let in_b = |number: &&Number| b_keys.as_ref().is_none_or(|keys| keys.contains(&key(number)));
        let left: Vec<Number> =
            values.iter().filter(in_b).filter(|number| accepts(&rest, number)).cloned().collect();
        return Some((!left.is_empty()).then(|| Num { values: Some(Rc::new(left)), ..Num::default() }));
    }
    if b.values.is_some() {
        return meet(b, a);
    }
    let multiple = match (a.multiple, b.multiple) {
        (Some(a), Some(b)) => Some(common(a, b)?),
        (a, b) => a.or(b),
    };
    let (min, max) = (higher(a.min, b.min), lower(a.max, b.max));
    let is_integer = a.is_integer || b.is_integer;
    let is_empty = matches!((min, max), (Some((x, ex)), Some((y, ey))) if x > y || (x == y && (ex || ey)));
    Some((!is_empty).then_some(Num { values: None, is_integer, min, max, multiple }))
}

pub(super) fn key(number: &Number) -> u64 {
    // Of zero there are two.
    (number.as_f64().unwrap_or(f64::NAN) + 0.0).to_bits()
}

fn keys(values: &[Number]) -> std::collections::HashSet<u64> {
    values.iter().map(key).collect()
}

/// The keywords of a number without a list of values; `None` if nothing can be generated.
pub(super) fn emit(num: &Num) -> Option<Map<String, Value>> {
    let mut out = Map::new();
    let bounds = if num.is_integer { integer_bounds(num) } else { float_bounds(num) };
    let (min, max) = bounds?;
    out.insert("type".into(), if num.is_integer { "integer" } else { "number" }.into());
    for (name, excluded_name, bound) in
        [("minimum", "exclusiveMinimum", min), ("maximum", "exclusiveMaximum", max)]
    {
        if let Some((value, is_excluded)) = bound {
            let keyword = if is_excluded { excluded_name } else { name }.to_string();
            let whole = value.fract() == 0.0 && value.abs() <= LARGEST;
            out.insert(keyword, if whole { json!(value as i64) } else { json!(value) });
        }
    }
    if let Some((coefficient, places)) = num.multiple {
        let multiple: Value = match places {
            0 => json!(coefficient),
            _ => serde_json::from_str(&format!("{coefficient}e-{places}")).ok()?,
        };
        // The sum of both conditions may need more digits than either.
        let read = multiple.as_number().and_then(self::multiple);
        out.insert(
            "multipleOf".into(),
            read.filter(|read| *read == (coefficient, places)).map(|_| multiple)?,
        );
    }
    Some(out)
}

fn integer_bounds(num: &Num) -> Option<(Bound, Bound)> {
    let mut min = num.min.map(|(min, excluded)| match min.ceil() {
        whole if !excluded || min.fract() != 0.0 => whole,
        whole if whole.abs() < EXACT => whole + 1.0,
        whole => whole.next_up(),
    });
    let mut max = num.max.map(|(max, excluded)| match max.floor() {
        whole if !excluded || max.fract() != 0.0 => whole,
        whole if whole.abs() < EXACT => whole - 1.0,
        whole => whole.next_down(),
    });
    clamp(&mut min, &mut max)?;
    Some((min.map(|min| (min, false)), max.map(|max| (max, false))))
}

fn clamp(min: &mut Option<f64>, max: &mut Option<f64>) -> Option<()> {
    if min.is_some_and(|min| min > LARGEST) || max.is_some_and(|max| max < -LARGEST) {
        return None;
    }
    // A bound with 19 digits needs one on the other side.
    let is_large = |bound: &Option<f64>| bound.is_some_and(|bound| bound.abs() >= 1e17);
    if is_large(min) || is_large(max) {
        *min = Some(min.map_or(-LARGEST, |min| min.max(-LARGEST)));
        *max = Some(max.map_or(LARGEST, |max| max.min(LARGEST)));
    }
    (!matches!((*min, *max), (Some(min), Some(max)) if min > max)).then_some(())
}

fn float_bounds(num: &Num) -> Option<(Bound, Bound)> {
    let (mut min, mut max) = (num.min.map(|bound| bound.0), num.max.map(|bound| bound.0));
    let (mut min_excluded, mut max_excluded) = (num.min.is_some_and(|b| b.1), num.max.is_some_and(|b| b.1));
    clamp(&mut min, &mut max)?;
    // Up for the minimum, down for the maximum.
    let small = |value: f64| value != 0.0 && value.abs() < SMALLEST;
    if let Some(value) = min.filter(|value| small(*value)) {
        min = Some(if value > 0.0 { SMALLEST } else { 0.0 });
        min_excluded = false;
    }
    if let Some(value) = max.filter(|value| small(*value)) {
        max = Some(if value < 0.0 { -SMALLEST } else { 0.0 });
        max_excluded = false;
    }
    if let (Some(low), Some(high)) = (min, max) {
        // An excluded whole number is not excluded by llguidance if the other bound has the same whole part.
        let step = 10f64.powf(((high - low) / 20.0).log10().floor());
        let inside = |from: f64, to: f64| from.fract() == 0.0 && from != to && (to - from).abs() < 1.0;
        if min_excluded && low >= 0.0 && inside(low, high) {
            (min, min_excluded) = (Some(low + step).filter(|next| *next > low), false);
            min?;
        }
        if max_excluded && high <= 0.0 && inside(high, low) {
            (max, max_excluded) = (Some(high - step).filter(|next| *next < high), false);
            max?;
        }
    }
    match (min, max) {
        (Some(low), Some(high)) if low > high || (low == high && (min_excluded || max_excluded)) => {
            return None;
        }
        _ => {}
    }
    Some((min.map(|min| (min, min_excluded)), max.map(|max| (max, max_excluded))))
}
