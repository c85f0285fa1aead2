//! Regular expressions of `tokenizer.json` files that no scanner of ours is for.
//!
//! The matches are those of the `fancy-regex` crate, which the `tokenizers` library uses, and so is the syntax. The
//! difference is that no text makes matching slow: the work is at most proportional to the size of the text, times that
//! of the expression. Matching backtracks. A text that takes more steps than usual is matched with a memory of the
//! states that failed, so that none is tried twice. The library ends without an error after a million failures; here,
//! all matches are found.
//!
//! What would make this impossible is refused: backreferences, conditionals and calls of groups. So are `\K`, `\G`
//! elsewhere than at the beginning, and few forms that no tokenizer has, where the library's matches are accidents.
//!
//! `parse` reads an expression, `compile` makes instructions of it, `matcher` runs them. The classes of characters are
//! those of the `regex-syntax` crate.

mod compile;
mod matcher;
mod memo;
mod node;
mod parse;
mod peek;
mod program;
mod sets;
#[cfg(test)]
mod tests;

use crate::TokenizerError;
use crate::cancel::Watch;
use matcher::Matcher;
use program::Program;

/// Maximum size of an expression in bytes.
const MAX_PATTERN: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Regex(Program);

impl Regex {
    /// The error is the reason in plain words. It contains nothing but printable characters.
    pub(crate) fn new(pattern: &str) -> Result<Regex, String> {
        if pattern.len() > MAX_PATTERN {
            return Err(format!("it has {} bytes, and at most {MAX_PATTERN} are supported", pattern.len()));
        }
        let (node, sets) = parse::parse(pattern)?;
        Ok(Regex(compile::compile(&node, sets)?))
    }

    /// Calls `emit` with the bounds of each match, in order. Matches do not overlap, and an empty one does not directly
    /// follow another match.
    pub(crate) fn each_match(
        &self,
        text: &str,
        watch: &mut Watch,
        emit: impl FnMut(usize, usize) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        each_match(&mut Matcher::new(&self.0, text, watch)?, text, emit)
    }

    /// The same, for tests, with states remembered after `allowed` steps.
    #[cfg(any(test, feature = "oracle"))]
    pub(crate) fn matches(&self, text: &str, allowed: u64) -> Result<Vec<(usize, usize)>, TokenizerError> {
        let (mut found, mut watch) = (Vec::new(), Watch::new());
        let mut matcher = Matcher::new(&self.0, text, &mut watch)?;
        matcher.allow(allowed);
        let keep = |start, end| {
            found.push((start, end));
            Ok(())
        };
        each_match(&mut matcher, text, keep)?;
        Ok(found)
    }
}

fn each_match(
    matcher: &mut Matcher<'_>,
    text: &str,
    mut emit: impl FnMut(usize, usize) -> Result<(), TokenizerError>,
) -> Result<(), TokenizerError> {
    let (mut from, mut last) = (0, None);
    while from <= text.len() {
        let skipped = last.is_some_and(|last| from > last);
        let Some((start, end)) = matcher.find(from, skipped)? else { break };
        if start < end {
            from = end;
        } else {
            from = end + text[end..].chars().next().map_or(1, char::len_utf8);
            if last == Some(end) {
                continue;
            }
        }
        last = Some(end);
        emit(start, end)?;
    }
    Ok(())
}
