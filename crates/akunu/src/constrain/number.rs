//! JSON numbers within bounds, parsed digit by digit.
//!
//! A number has at most 15 digits before its exponent and two in it, so that every program reads it exactly, and different numbers
//! as different values.

use std::ops::RangeInclusive;

const MOST_DIGITS: u8 = 15;
const MOST_EXPONENT: u8 = 2;

/// Bounds are in units of 10⁻¹⁵, the finest resolution of the digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct NumberRule {
    pub(super) whole: bool,
    pub(super) least: Option<i128>,
    pub(super) most: Option<i128>,
}

pub(super) const UNIT: i128 = 10i128.pow(MOST_DIGITS as u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Start,
    Minus,
    /// After a leading zero, which no digit may follow.
    Zero,
    Whole,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

/// The state of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct NumberAt {
    stage: Stage,
    negative: bool,
    /// Digits so far: before the point, after it, and in the exponent.
    whole: u8,
    fraction: u8,
    exponent: u8,
    /// The value of all digits except the exponent's, if there are bounds.
    value: u64,
}

pub(super) const START: NumberAt =
    NumberAt { stage: Stage::Start, negative: false, whole: 0, fraction: 0, exponent: 0, value: 0 };

impl NumberRule {
    fn is_bounded(&self) -> bool {
        self.least.is_some() || self.most.is_some()
    }

    /// Whether any number satisfies the bounds.
    pub(super) fn is_possible(&self) -> bool {
        (0..=u8::MAX).any(|byte| self.step(START, byte).is_some())
    }

    /// `None`: the byte is not allowed.
    pub(super) fn step(&self, at: NumberAt, byte: u8) -> Option<NumberAt> {
        let mut next = at;
        let room = at.whole + at.fraction < MOST_DIGITS;
        match (at.stage, byte) {
            (Stage::Start, b'-') => (next.stage, next.negative) = (Stage::Minus, true),
            (Stage::Start, b'0') => (next.stage, next.whole) = (Stage::Zero, 1),
            // Some programs read the integer -0 as a fraction.
            (Stage::Minus, b'0') if !self.whole => (next.stage, next.whole) = (Stage::Zero, 1),
            (Stage::Start | Stage::Minus, b'1'..=b'9') => (next.stage, next.whole) = (Stage::Whole, 1),
            (Stage::Whole, b'0'..=b'9') if room => next.whole = at.whole + 1,
            (Stage::Zero | Stage::Whole, b'.') if room && !self.whole => next.stage = Stage::Point,
            (Stage::Point | Stage::Fraction, b'0'..=b'9') if room => {
                (next.stage, next.fraction) = (Stage::Fraction, at.fraction + 1);
            }
            (Stage::Zero | Stage::Whole | Stage::Fraction, b'e' | b'E')
                if !self.whole && !self.is_bounded() =>
            {
                next.stage = Stage::E;
            }
            (Stage::E, b'+' | b'-') => next.stage = Stage::Sign,
            (Stage::E | Stage::Sign | Stage::Exponent, b'0'..=b'9') if at.exponent < MOST_EXPONENT => {
                (next.stage, next.exponent) = (Stage::Exponent, at.exponent + 1);
            }
            _ => return None,
        }
        if !self.is_bounded() {
            return Some(next);
        }
        if byte.is_ascii_digit() {
            next.value = at.value * 10 + u64::from(byte - b'0');
        }
        self.can_be(&next).then_some(next)
    }

    /// Whether the number may end here.
    pub(super) fn may_end(&self, at: NumberAt) -> bool {
        let is_number = matches!(at.stage, Stage::Zero | Stage::Whole | Stage::Fraction | Stage::Exponent);
        is_number && (!self.is_bounded() || is_within(&self.magnitudes(at.negative), at.scaled(), 0, 1))
    }

    /// The bounds for the number without its sign.
    fn magnitudes(&self, negative: bool) -> RangeInclusive<i128> {
        let (least, most) = match negative {
            false => (self.least, self.most),
            true => (self.most.map(|most| -most), self.least.map(|least| -least)),
        };
        let first = if negative && self.whole { UNIT } else { 0 };
        least.unwrap_or(0).max(first)..=most.unwrap_or(i128::MAX)
    }

    /// Whether zero or more further digits can make it a number within the bounds.
    fn can_be(&self, at: &NumberAt) -> bool {
        let wanted = self.magnitudes(at.negative);
        let digits = at.whole + at.fraction;
        let finest = |digits: u8| if self.whole { UNIT } else { 10i128.pow(digits.into()) };
        // The distance to the next number with as many digits, which further digits can fill.
        let between = |value: i128, unit: i128, digits: u8| {
            let step = finest(digits).min(unit);
            is_within(&wanted, value * unit, unit - step, step)
        };
        match at.stage {
            Stage::Zero => between(0, UNIT, 1),
            Stage::Minus | Stage::Whole => (0..=MOST_DIGITS - digits).any(|more| {
                let factor = 10i128.pow(more.into());
                let first = i128::from(at.value) * factor;
                // All numbers with these digits, this many more, and possibly a fraction.
                let step = finest((digits + more).max(1));
                is_within(&wanted, first * UNIT, factor * UNIT - step, step)
            }),
            Stage::Point => between(at.value.into(), UNIT, at.whole),
            _ => between(at.value.into(), 10i128.pow((MOST_DIGITS - at.fraction).into()), at.whole),
        }
    }
}

impl NumberAt {
    fn scaled(&self) -> i128 {
        i128::from(self.value) * 10i128.pow((MOST_DIGITS - self.fraction).into())
    }
}

/// Whether one of `first`, `first + step`, … `first + reach` is within the bounds.
fn is_within(wanted: &RangeInclusive<i128>, first: i128, reach: i128, step: i128) -> bool {
    let least = (*wanted.start()).max(first);
    // `first` is a multiple of the step.
    let next = (least + step - 1).div_euclid(step) * step;
    next <= (first + reach).min(*wanted.end())
}

/// A JSON number in units of 10⁻¹⁵, rounded down, and whether that is exact. `None`: too large to matter.
pub(super) fn scaled(text: &str) -> Option<(i128, bool)> {
    let (digits, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let exponent: i32 = exponent.parse().ok()?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let negative = whole.starts_with('-');
    let all = format!("{}{fraction}", whole.trim_start_matches('-'));
    let all = all.trim_start_matches('0');
    let shift = exponent - fraction.len() as i32 + i32::from(MOST_DIGITS);
    if all.is_empty() {
        return Some((0, true));
    }
    // More than 32 digits exceed all supported numbers.
    if all.len() as i32 + shift > 2 * i32::from(MOST_DIGITS) + 2 {
        return None;
    }
    let kept = (all.len() as i32 + shift.min(0)).max(0) as usize;
    let (kept, lost) = all.split_at(kept);
    let value: i128 = if kept.is_empty() { 0 } else { kept.parse().ok()? };
    let value = value * 10i128.pow(shift.max(0) as u32);
    let exact = lost.bytes().all(|digit| digit == b'0');
    Some(match negative {
        false => (value, exact),
        true => (-value - i128::from(!exact), exact),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn takes(rule: &NumberRule, text: &str) -> bool {
        let mut at = Some(START);
        for byte in text.bytes() {
            at = at.and_then(|at| rule.step(at, byte));
        }
        at.is_some_and(|at| rule.may_end(at))
    }

    #[test]
    fn json_numbers_are_accepted() {
        let any = NumberRule::default();
        for text in ["0", "-0", "10", "-1.5", "0.25", "1e5", "1E-07", "12.50e+1"] {
            assert!(takes(&any, text), "{text}");
            let is_whole = !text.contains(['.', 'e', 'E']) && text != "-0";
            assert_eq!(takes(&NumberRule { whole: true, ..any }, text), is_whole, "{text}");
        }
        for text in ["", "-", "01", "1.", ".5", "+1", "1e", "1e+", "--1", "0x1", "1234567890123456", "1e100"]
        {
            assert!(!takes(&any, text), "{text}");
        }
    }

    #[test]
    fn bounds_are_parsed_exactly() {
        assert_eq!(scaled("1"), Some((UNIT, true)));
        assert_eq!(scaled("-0.5"), Some((-UNIT / 2, true)));
        assert_eq!(scaled("2.5e2"), Some((250 * UNIT, true)));
        assert_eq!(scaled("1e-16"), Some((0, false)));
        assert_eq!(scaled("-1e-16"), Some((-1, false)));
        assert_eq!(scaled("0.0"), Some((0, true)));
        assert_eq!(scaled("1e300"), None);
    }

    proptest! {
        /// Numbers generated digit by digit are within the bounds, and all numbers within the bounds can be generated.
        #[test]
        fn bounded_numbers_are_within_and_never_come_to_nothing(
            least in -2000i64..2000, width in 0i64..3000, places in 0u32..3, whole in any::<bool>(), choices in prop::collection::vec(any::<u8>(), 40),
        ) {
            let unit = UNIT / 10i128.pow(places);
            let (least, most) = (i128::from(least) * unit, i128::from(least + width) * unit);
            let rule = NumberRule { whole, least: Some(least), most: Some(most) };
            let has_whole = most.div_euclid(UNIT) * UNIT >= least;
            prop_assert_eq!(rule.is_possible(), !whole || has_whole);
            if !rule.is_possible() {
                return Ok(());
            }
            let (mut at, mut text) = (START, String::new());
            for choice in choices {
                let next: Vec<u8> = (0..=255).filter(|&byte| rule.step(at, byte).is_some()).collect();
                // Either something can follow, or the number may end.
                prop_assert!(!next.is_empty() || rule.may_end(at), "{text}");
                if next.is_empty() || rule.may_end(at) && choice < 100 {
                    break;
                }
                let byte = next[choice as usize % next.len()];
                at = rule.step(at, byte).unwrap();
                text.push(char::from(byte));
            }
            prop_assert!(rule.may_end(at), "{text}");
            let (value, exact) = scaled(&text).unwrap();
            prop_assert!(exact && (least..=most).contains(&value), "{text}");
        }

        #[test]
        fn whole_numbers_within_are_let_through(least in -500i64..500, width in 0i64..300, by in 0i64..300) {
            let value = least + by;
            let rule = NumberRule { whole: true, least: Some(i128::from(least) * UNIT), most: Some(i128::from(least + width) * UNIT) };
            prop_assert_eq!(takes(&rule, &value.to_string()), by <= width);
            let any = NumberRule { whole: false, ..rule };
            let half = format!("{}.5", value);
            let half_value = i128::from(value) * UNIT + if value < 0 || half.starts_with('-') { -UNIT / 2 } else { UNIT / 2 };
            prop_assert_eq!(takes(&any, &half), (i128::from(least) * UNIT..=i128::from(least + width) * UNIT).contains(&half_value));
        }
    }
}
