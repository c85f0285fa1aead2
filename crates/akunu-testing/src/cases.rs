//! How many of their cases the slowest tests run.

use std::env;

const VARIABLE: &str = "AKUNU_TEST_CASES";

/// The value of `AKUNU_TEST_CASES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cases {
    /// `fewest`, or unset: what somebody who has just cloned the repository waits for.
    Fewest,
    /// `few`: what finds most mistakes in little time, and what CI runs.
    Few,
    /// `many`: about three times as many.
    Many,
    /// `all`: also what hardly differs from other cases.
    All,
}

/// # Panics
/// If `AKUNU_TEST_CASES` has another value than those.
pub fn cases() -> Cases {
    named(&env::var(VARIABLE).unwrap_or_default())
}

fn named(value: &str) -> Cases {
    match value {
        "" | "fewest" => Cases::Fewest,
        "few" => Cases::Few,
        "many" => Cases::Many,
        "all" => Cases::All,
        _ => panic!("{VARIABLE} is \"{value}\"; it may be fewest, few, many or all"),
    }
}

/// With `few` one case of each three times `step`, from the first on, with `fewest` of five times as many, unless all are
/// meant, and with `many` of each third of it. An odd step stays odd, so that what alternates from case to case still does.
pub fn some_of<T>(all: impl IntoIterator<Item = T>, step: usize) -> impl Iterator<Item = T> {
    all.into_iter().step_by(step_of(cases(), step))
}

fn step_of(cases: Cases, step: usize) -> usize {
    match cases {
        Cases::Fewest if step > 1 => 5 * step,
        Cases::Few if step > 1 => 3 * step,
        Cases::Fewest | Cases::Few => step,
        Cases::Many => step.div_ceil(3),
        Cases::All => 1,
    }
}

/// A number for few cases, or the one for many.
pub fn few_or_many<T>(few: T, many: T) -> T {
    if cases() <= Cases::Few { few } else { many }
}

/// A number for the fewest cases, for few, or for many.
pub fn fewest_or<T>(fewest: T, few: T, many: T) -> T {
    if cases() == Cases::Fewest { fewest } else { few_or_many(few, many) }
}

/// Whether a test is left to CI, as those are that take several seconds and rarely fail alone. Says so if it is.
#[allow(clippy::print_stdout, reason = "what was not tested has to be seen")]
pub fn left_to_ci() -> bool {
    let left = cases() == Cases::Fewest;
    if left {
        println!("skipped: CI runs it, and {VARIABLE}=few");
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_names_how_many() {
        let named: Vec<Cases> = ["", "fewest", "few", "many", "all"].map(named).into();
        assert_eq!(named, [Cases::Fewest, Cases::Fewest, Cases::Few, Cases::Many, Cases::All]);
        assert!(named.is_sorted());
    }

    #[test]
    fn more_cases_have_shorter_steps() {
        for (step, expected) in [(1, [1, 1, 1, 1]), (3, [15, 9, 1, 1]), (7, [35, 21, 3, 1])] {
            assert_eq!(
                [Cases::Fewest, Cases::Few, Cases::Many, Cases::All].map(|cases| step_of(cases, step)),
                expected
            );
        }
    }

    #[test]
    #[should_panic(expected = "it may be fewest, few, many or all")]
    fn another_value_is_an_error() {
        named("1");
    }
}
