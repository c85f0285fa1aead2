//! Selects representative functions where compiling every one would take too long.

use std::collections::HashSet;

use crate::{Function, emulated_text};

/// The preprocessor constants that together describe a weight type.
const TYPE: [&str; 12] = [
    "WEIGHT_TYPE",
    "BITS",
    "ZERO",
    "TABLE_OF",
    "SCALES",
    "SCALE_TYPE",
    "PLANES",
    "PLANE_0",
    "PLANE_1",
    "PLANE_2",
    "PLANE_3",
    "PLANE_4",
];

/// Offered functions one by one, it skips those that cover nothing new. New is a variant value, a weight type or an
/// argument list that the kernel has not had before; with pair coverage also two of these that have not occurred
/// together.
#[derive(Debug, Default)]
pub struct Cover {
    pairs: bool,
    seen: HashSet<(&'static str, String)>,
    /// The texts of the functions that were taken.
    taken: HashSet<String>,
}

impl Cover {
    pub fn of_numbers() -> Cover {
        Cover::default()
    }

    pub fn of_pairs() -> Cover {
        Cover { pairs: true, ..Cover::default() }
    }

    /// Whether these functions, which belong to one case, are worth compiling: one covers something new, or all have
    /// been compiled already.
    pub fn takes(&mut self, functions: &[&Function]) -> bool {
        let new: Vec<_> = functions.iter().flat_map(|f| self.new_in(f)).collect();
        let texts = || functions.iter().map(|function| emulated_text(function));
        if new.is_empty() {
            return texts().all(|text| self.taken.contains(&text));
        }
        self.seen.extend(new);
        self.taken.extend(texts());
        true
    }

    fn new_in(&self, function: &Function) -> Vec<(&'static str, String)> {
        let numbers = |of_type: bool| {
            let is = move |number: &&(&str, u32)| TYPE.contains(&number.0) == of_type;
            function.variant.iter().filter(is)
        };
        let mut all = vec![format!("{:?}", numbers(true).collect::<Vec<_>>())];
        all.push(format!("{:?}", function.arguments));
        all.extend(numbers(false).map(|number| format!("{number:?}")));
        if self.pairs {
            for i in 0..all.len() {
                let pairs: Vec<String> = all[..i].iter().map(|one| format!("{one} {}", all[i])).collect();
                all.extend(pairs);
            }
        }
        let all = all.into_iter().map(|what| (function.entry, what));
        all.filter(|what| !self.seen.contains(what)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(bits: u32, tile: u32, kind: u32) -> Function {
        Function {
            name: String::new(),
            entry: "product",
            sources: vec![],
            variant: vec![("BITS", bits), ("PLANES", bits), ("TILE", tile), ("KIND", kind)],
            constants: vec![],
            arguments: vec!["x"],
        }
    }

    #[test]
    fn what_is_new_is_taken_and_what_was_taken_again() {
        let all = [(4, 1, 0), (4, 1, 1), (5, 1, 1), (5, 1, 0), (4, 2, 0), (4, 2, 1), (5, 2, 1), (5, 2, 0)];
        for (mut cover, expected) in [
            (Cover::of_numbers(), [true, true, true, false, true, false, false, false]),
            // For three binary values, four texts cover all pairs; this order takes five.
            (Cover::of_pairs(), [true, true, true, true, true, true, true, false]),
        ] {
            for _ in 0..2 {
                let taken = all.map(|(bits, tile, kind)| cover.takes(&[&function(bits, tile, kind)]));
                assert_eq!(taken, expected);
            }
            let [old, new] = [function(5, 2, 0), function(6, 1, 0)];
            assert!(cover.takes(&[&old, &new]) && cover.takes(&[&old]));
        }
    }
}
