//! Which functions stand for all of their kind, where to compile each one takes long.

use std::collections::HashSet;

use crate::{Function, emulated_text};

/// Numbers of a variant that are one thing together: how weights are read.
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

/// Takes functions one by one, and those that have nothing new in them it leaves out. New is a number of a variant, a weight type or a
/// list of arguments that its kernel had not before; and, where pairs count, two of these that it had not together.
#[derive(Debug, Default)]
pub struct Cover {
    pairs: bool,
    seen: HashSet<(&'static str, String)>,
    /// What was taken, as texts.
    taken: HashSet<String>,
}

impl Cover {
    pub fn of_numbers() -> Cover {
        Cover::default()
    }

    pub fn of_pairs() -> Cover {
        Cover { pairs: true, ..Cover::default() }
    }

    /// Whether these, which come together, are worth their compiling: something is new, or all have been compiled before.
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
            // Of three numbers with two values each, four texts have all pairs, and this order takes five.
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
