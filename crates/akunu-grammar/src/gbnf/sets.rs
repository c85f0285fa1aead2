//! Sets of characters, and which of them can begin, continue and follow the parts of a grammar.

use std::cell::Cell;

use super::{Expr, Rules};

/// Ranges of characters, ascending and apart from each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Set(Vec<(u32, u32)>);

const LAST: u32 = char::MAX as u32;

impl Set {
    pub(super) fn new(mut ranges: Vec<(u32, u32)>) -> Set {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Set(merged)
    }

    pub(super) fn all() -> Set {
        Set(vec![(0, LAST)])
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn ranges(&self) -> &[(u32, u32)] {
        &self.0
    }

    /// All other characters.
    pub(super) fn complement(&self) -> Set {
        let mut next = 0;
        let mut ranges = Vec::new();
        for &(first, last) in &self.0 {
            if next < first {
                ranges.push((next, first - 1));
            }
            next = last + 1;
        }
        if next <= LAST {
            ranges.push((next, LAST));
        }
        Set(ranges)
    }

    /// Steps for an operation with the set.
    fn steps(&self) -> u32 {
        1 + u32::try_from(self.0.len() / 8).unwrap_or(u32::MAX)
    }

    fn add(&mut self, other: &Set) {
        if !other.is_empty() {
            *self = Set::new([&self.0[..], &other.0[..]].concat());
        }
    }

    pub(super) fn intersects(&self, other: &Set) -> bool {
        let (mut ours, mut theirs) = (&self.0[..], &other.0[..]);
        while let ([a, rest_of_ours @ ..], [b, rest_of_theirs @ ..]) = (ours, theirs) {
            match (a.1 < b.0, b.1 < a.0) {
                (true, _) => ours = rest_of_ours,
                (_, true) => theirs = rest_of_theirs,
                _ => return true,
            }
        }
        false
    }
}

/// Maximum steps for one grammar: rules that can be empty may otherwise take a time that grows with a power of their number.
const MAX_STEPS: u32 = 3_000_000;

/// What is known of each rule.
#[derive(Debug)]
pub(super) struct Facts {
    /// Steps that are left. Without any, results are those that allow no lexeme.
    steps: Cell<u32>,
    empty: Vec<bool>,
    first: Vec<Set>,
    pub(super) follow: Vec<Set>,
}

impl Facts {
    pub(super) fn new(rules: &Rules) -> Facts {
        let count = rules.rules.len();
        let mut facts = Facts {
            steps: Cell::new(MAX_STEPS),
            empty: vec![false; count],
            first: vec![Set::default(); count],
            follow: Vec::new(),
        };
        while !facts.is_exhausted()
            && rules.rules.iter().enumerate().fold(false, |changed, (index, rule)| {
                let (empty, first) = (facts.is_empty(rule), facts.first(rule));
                let differs = empty != facts.empty[index] || first != facts.first[index];
                (facts.empty[index], facts.first[index]) = (empty, first);
                changed || differs
            })
        {}
        let mut follow = vec![Set::default(); count];
        loop {
            let before = follow.clone();
            for (index, rule) in rules.rules.iter().enumerate() {
                facts.add_follow(rule, &before[index], &mut follow);
            }
            if follow == before || facts.is_exhausted() {
                facts.follow = follow;
                return facts;
            }
        }
    }

    /// Whether the grammar takes more than the maximum of steps.
    pub(super) fn is_exhausted(&self) -> bool {
        self.steps.get() == 0
    }

    /// Whether there are steps left after these.
    fn spend(&self, steps: u32) -> bool {
        self.steps.set(self.steps.get().saturating_sub(steps));
        !self.is_exhausted()
    }

    fn step(&self) -> bool {
        self.spend(1)
    }

    /// Adds a set to another one.
    pub(super) fn add(&self, to: &mut Set, other: &Set) {
        if self.spend(to.steps().saturating_add(other.steps())) {
            to.add(other);
        }
    }

    /// Whether the empty text is one of an expression's.
    pub(super) fn is_empty(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Literal(text) => text.is_empty(),
            Expr::Class(_) => false,
            Expr::Rule(index) => self.empty[*index],
            Expr::Sequence(parts) => parts.iter().all(|part| self.is_empty(part)),
            Expr::Choice(parts) => parts.iter().any(|part| self.is_empty(part)),
            Expr::Repeat(part, least, _) => *least == 0 || self.is_empty(part),
        }
    }

    /// The characters with which an expression can begin.
    pub(super) fn first(&self, expr: &Expr) -> Set {
        match expr {
            Expr::Literal(text) => {
                Set::new(text.chars().take(1).map(|c| (u32::from(c), u32::from(c))).collect())
            }
            _ if self.is_exhausted() => Set::default(),
            Expr::Class(set) => self.copied(set),
            Expr::Rule(index) => self.copied(&self.first[*index]),
            Expr::Sequence(parts) => self.first_of_all(parts, &Set::default()),
            Expr::Choice(parts) => Set::new(parts.iter().flat_map(|part| self.first(part).0).collect()),
            Expr::Repeat(part, ..) => self.first(part),
        }
    }

    fn copied(&self, set: &Set) -> Set {
        self.spend(set.steps());
        set.clone()
    }

    /// The characters with which parts can begin that `follow` follows.
    pub(super) fn first_of_all(&self, parts: &[Expr], follow: &Set) -> Set {
        let mut first = Set::default();
        for part in parts.iter().take_while(|_| self.step()) {
            self.add(&mut first, &self.first(part));
            if !self.is_empty(part) {
                return first;
            }
        }
        self.add(&mut first, follow);
        first
    }

    /// The characters that can continue a whole text of a regular expression to a longer one; perhaps more than these.
    pub(super) fn continuation(&self, expr: &Expr, rules: &Rules) -> Set {
        if !self.step() {
            return Set::all();
        }
        match expr {
            Expr::Literal(_) | Expr::Class(_) => Set::default(),
            Expr::Rule(index) => self.continuation(&rules.rules[*index], rules),
            Expr::Sequence(parts) => {
                let mut set = Set::default();
                // From the end, as long as what follows can be empty.
                for part in parts.iter().rev() {
                    self.add(&mut set, &self.continuation(part, rules));
                    if !self.is_empty(part) {
                        return set;
                    }
                    self.add(&mut set, &self.first(part));
                }
                set
            }
            Expr::Choice(parts) => {
                let mut set = Set::default();
                let mut seen = Set::default();
                for part in parts {
                    self.add(&mut set, &self.continuation(part, rules));
                    let first = self.first(part);
                    // One may be the beginning of another.
                    if self.is_exhausted() || seen.intersects(&first) {
                        return Set::all();
                    }
                    self.add(&mut seen, &first);
                }
                if parts.iter().any(|part| self.is_empty(part)) {
                    self.add(&mut set, &seen);
                }
                set
            }
            Expr::Repeat(part, least, most) => {
                let mut set = self.continuation(part, rules);
                if *most != Some(*least) || self.is_empty(part) {
                    self.add(&mut set, &self.first(part));
                }
                set
            }
        }
    }

    /// Adds what can follow the rules in an expression that `follow` follows.
    fn add_follow(&self, expr: &Expr, follow: &Set, to: &mut [Set]) {
        match expr {
            _ if !self.step() => {}
            Expr::Literal(_) | Expr::Class(_) => {}
            Expr::Rule(index) => self.add(&mut to[*index], follow),
            Expr::Sequence(parts) => {
                let mut follow = self.copied(follow);
                for part in parts.iter().rev() {
                    self.add_follow(part, &follow, to);
                    let first = self.first(part);
                    if !self.is_empty(part) {
                        follow = Set::default();
                    }
                    self.add(&mut follow, &first);
                }
            }
            Expr::Choice(parts) => parts.iter().for_each(|part| self.add_follow(part, follow, to)),
            Expr::Repeat(part, _, most) => {
                let mut follow = self.copied(follow);
                if *most != Some(1) {
                    self.add(&mut follow, &self.first(part));
                }
                self.add_follow(part, &follow, to);
            }
        }
    }
}
