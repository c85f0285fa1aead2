//! Writes the rules as Lark.

use std::fmt::Write;

use super::sets::{Facts, Set};
use super::{Expr, Rules, invalid};
use crate::error::GrammarError;

/// Maximum characters of a rule as a regular expression. Rules that refer to others twice would otherwise double.
const MAX_REGEX: usize = 20_000;
/// Maximum parts of a lexeme.
const MAX_RUN: usize = 16;
/// Maximum characters of all rules.
const MAX_LARK: usize = 1 << 20;

pub(super) fn lark(rules: &Rules) -> Result<String, GrammarError> {
    let facts = Facts::new(rules);
    check_left_recursion(rules, &facts)?;
    let regexes = regexes(rules);
    let writer = Writer { rules, facts: &facts, regexes: &regexes };
    let mut lark = String::new();
    let mut written = vec![false; rules.rules.len()];
    let mut pending = vec![rules.root];
    lark.push_str("start: ");
    writer.expr(&mut lark, &Expr::Rule(rules.root), &Set::default());
    lark.push('\n');
    while let Some(index) = pending.pop() {
        if regexes[index].is_some() || std::mem::replace(&mut written[index], true) {
            continue;
        }
        lark.push_str(&format!("{}: ", name(index)));
        writer.expr(&mut lark, &rules.rules[index], &facts.follow[index]);
        lark.push('\n');
        references(&rules.rules[index], &mut pending);
        if lark.len() > MAX_LARK || facts.is_exhausted() {
            let reason = "its rules have too many parts".into();
            return Err(GrammarError::TooLarge { what: "grammar", reason });
        }
    }
    Ok(lark)
}

fn name(index: usize) -> String {
    format!("r{index}")
}

fn references(expr: &Expr, to: &mut Vec<usize>) {
    match expr {
        Expr::Literal(_) | Expr::Class(_) => {}
        Expr::Rule(index) => to.push(*index),
        Expr::Sequence(parts) | Expr::Choice(parts) => parts.iter().for_each(|part| references(part, to)),
        Expr::Repeat(part, ..) => references(part, to),
    }
}

/// Rounds in which rules become regular expressions. Deeper ones remain rules.
const MAX_ROUNDS: usize = 50;

/// The rules as regular expressions. `None`: a rule contains itself, or is too long.
fn regexes(rules: &Rules) -> Vec<Option<String>> {
    let mut regexes: Vec<Option<String>> = vec![None; rules.rules.len()];
    let mut count = 0;
    // Each round finds the rules whose references are known.
    for _ in 0..MAX_ROUNDS {
        for (index, rule) in rules.rules.iter().enumerate() {
            if regexes[index].is_none() {
                regexes[index] = regex(rule, &regexes);
            }
        }
        let found = regexes.iter().flatten().count();
        if found == count {
            break;
        }
        count = found;
    }
    regexes
}

/// A regular expression of its own, which can be followed by others.
fn regex(expr: &Expr, rules: &[Option<String>]) -> Option<String> {
    let mut regex = String::new();
    write_regex(&mut regex, expr, rules).map(|()| regex)
}

fn write_regex(to: &mut String, expr: &Expr, rules: &[Option<String>]) -> Option<()> {
    match expr {
        Expr::Literal(text) => {
            to.push_str("(?:");
            for c in text.chars() {
                // Writing to a string cannot fail.
                let _ = write!(to, "\\u{{{:x}}}", c as u32);
            }
            to.push(')');
        }
        Expr::Class(set) => to.push_str(&class(set)),
        Expr::Rule(index) => to.push_str(rules[*index].as_ref()?),
        Expr::Sequence(parts) => {
            to.push_str("(?:");
            parts.iter().try_for_each(|part| write_regex(to, part, rules))?;
            to.push(')');
        }
        Expr::Choice(parts) => {
            to.push_str("(?:");
            for (index, part) in parts.iter().enumerate() {
                to.push_str(if index > 0 { "|" } else { "" });
                write_regex(to, part, rules)?;
            }
            to.push(')');
        }
        Expr::Repeat(part, least, most) => {
            to.push_str("(?:");
            write_regex(to, part, rules)?;
            let most = most.map_or(String::new(), |most| most.to_string());
            let _ = write!(to, "{{{least},{most}}})");
        }
    }
    (to.len() <= MAX_REGEX).then_some(())
}

struct Writer<'a> {
    rules: &'a Rules,
    facts: &'a Facts,
    regexes: &'a [Option<String>],
}

impl Writer<'_> {
    /// An expression that `follow` follows.
    fn expr(&self, lark: &mut String, expr: &Expr, follow: &Set) {
        // The grammar is refused, and sets are no longer right.
        if self.facts.is_exhausted() {
            return;
        }
        if let Some(regex) = regex(expr, self.regexes)
            && !self.facts.continuation(expr, self.rules).intersects(follow)
        {
            return lexeme(lark, &regex);
        }
        match expr {
            // A rule that is regular, and cannot be one lexeme here.
            Expr::Rule(index) if self.regexes[*index].is_some() => {
                self.expr(lark, &self.rules.rules[*index], follow);
            }
            Expr::Rule(index) => lark.push_str(&name(*index)),
            Expr::Sequence(parts) => {
                lark.push('(');
                self.sequence(lark, parts, follow);
                lark.push(')');
            }
            Expr::Choice(parts) => {
                lark.push('(');
                for (index, part) in parts.iter().enumerate() {
                    lark.push_str(if index > 0 { " | " } else { "" });
                    self.expr(lark, part, follow);
                }
                lark.push(')');
            }
            Expr::Repeat(part, least, most) => {
                lark.push('(');
                let mut again = if *most == Some(1) { Set::default() } else { self.facts.first(part) };
                self.facts.add(&mut again, follow);
                self.expr(lark, part, &again);
                let most = most.map_or(String::new(), |most| most.to_string());
                // Writing to a string cannot fail.
                let _ = match (least, most.as_str()) {
                    (0, "") => write!(lark, ")*"),
                    (1, "") => write!(lark, ")+"),
                    _ => write!(lark, "){{{least},{most}}}"),
                };
            }
            // Always regular, unless they are too long.
            Expr::Literal(text) => lark.push_str(&crate::format::quoted(text)),
            Expr::Class(set) => lexeme(lark, &class(set)),
        }
        lark.push(' ');
    }

    /// The longest runs of regular parts that can be one lexeme, and the others.
    fn sequence(&self, lark: &mut String, parts: &[Expr], follow: &Set) {
        let mut at = 0;
        while at < parts.len() {
            let limited = parts[at..].iter().take(MAX_RUN);
            let regular = limited.map_while(|part| regex(part, self.regexes)).count();
            let run = (1..=regular).rev().find(|&count| {
                let (run, rest) = parts[at..].split_at(count);
                let continuation = self.facts.continuation(&Expr::Sequence(run.to_vec()), self.rules);
                !continuation.intersects(&self.facts.first_of_all(rest, follow))
            });
            let count = run.unwrap_or(1);
            let (run, rest) = parts[at..].split_at(count);
            let follow = self.facts.first_of_all(rest, follow);
            match run {
                [part] => self.expr(lark, part, &follow),
                run => self.expr(lark, &Expr::Sequence(run.to_vec()), &follow),
            }
            at += count;
        }
    }
}

/// A class of characters as a regular expression.
fn class(set: &Set) -> String {
    let mut regex = String::from("[");
    for (first, last) in set.ranges() {
        // Writing to a string cannot fail. Surrogates are not characters.
        for (first, last) in [(*first, (*last).min(0xd7ff)), ((*first).max(0xe000), *last)] {
            if first <= last {
                let _ = write!(regex, "\\u{{{first:x}}}-\\u{{{last:x}}}");
            }
        }
    }
    regex.push(']');
    regex
}

fn lexeme(lark: &mut String, regex: &str) {
    if !regex.is_empty() {
        // Writing to a string cannot fail.
        let _ = write!(lark, "/{}/ ", regex.replace('/', "\\/"));
    }
}

/// Refuses rules that can begin with themselves.
fn check_left_recursion(rules: &Rules, facts: &Facts) -> Result<(), GrammarError> {
    let firsts = rules.rules.iter().map(|rule| {
        let mut firsts = Vec::new();
        add_firsts(rule, facts, &mut firsts);
        firsts
    });
    let firsts: Vec<Vec<usize>> = firsts.collect();
    // Rules without left recursion are removed from the end of their chains until none can be.
    let mut done = vec![false; firsts.len()];
    loop {
        let before = done.iter().filter(|done| **done).count();
        for index in 0..firsts.len() {
            done[index] = done[index] || firsts[index].iter().all(|first| done[*first]);
        }
        let after = done.iter().filter(|done| **done).count();
        if after == done.len() {
            return Ok(());
        }
        if after == before {
            let mut index = done.iter().position(|done| !done).unwrap_or(0);
            // Following the chain this often ends within the cycle.
            for _ in 0..done.len() {
                index = firsts[index].iter().copied().find(|first| !done[*first]).unwrap_or(index);
            }
            return invalid(format!(
                "the rule \"{}\" can begin with itself (left recursion)",
                rules.names[index]
            ));
        }
    }
}

/// The rules with which an expression can begin.
fn add_firsts(expr: &Expr, facts: &Facts, to: &mut Vec<usize>) {
    match expr {
        Expr::Literal(_) | Expr::Class(_) => {}
        Expr::Rule(index) => to.push(*index),
        Expr::Sequence(parts) => {
            for part in parts {
                add_firsts(part, facts, to);
                if !facts.is_empty(part) {
                    return;
                }
            }
        }
        Expr::Choice(parts) => parts.iter().for_each(|part| add_firsts(part, facts, to)),
        Expr::Repeat(part, ..) => add_firsts(part, facts, to),
    }
}
