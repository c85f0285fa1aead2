//! How many of their cases the slowest tests run.

use std::env;

const VARIABLE: &str = "AKUNU_TEST_CASES";

/// The value of `AKUNU_TEST_CASES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cases {
    /// `few`, or unset: what finds most mistakes in little time.
    Few,
    /// `many`: what CI runs.
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
        "" | "few" => Cases::Few,
        "many" => Cases::Many,
        "all" => Cases::All,
        _ => panic!("{VARIABLE} is \"{value}\"; it may be few, many or all"),
    }
}

/// One case of each `step`, from the first on; all of them in CI.
pub fn some_of<T>(cases: impl IntoIterator<Item = T>, step: usize) -> impl Iterator<Item = T> {
    cases.into_iter().step_by(few_or_many(step, 1))
}

/// A number for few cases, or the one for many.
pub fn few_or_many<T>(few: T, many: T) -> T {
    if cases() == Cases::Few { few } else { many }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_names_how_many() {
        let named: Vec<Cases> = ["", "few", "many", "all"].map(named).into();
        assert_eq!(named, [Cases::Few, Cases::Few, Cases::Many, Cases::All]);
        assert!(named.is_sorted());
    }

    #[test]
    #[should_panic(expected = "it may be few, many or all")]
    fn another_value_is_an_error() {
        named("1");
    }
}
