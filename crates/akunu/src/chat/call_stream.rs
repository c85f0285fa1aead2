//! The arguments of a call between tags as JSON text, written while the call is generated.

use akunu_grammar::{CallTags, ValueKind};
use serde_json::Value as Json;

use super::call_json::is_json;
use super::call_tags::{
    MOST_QUOTED, argument, begin_argument, has_lines, may_quote, name_in, tool_of, value_end,
};
use super::calls::{LONGEST_HEADER, OnSegment, Segment};
use super::reasoning::overlap;

/// What of a call has been passed on. It is always the beginning of what is parsed from the complete call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TagStream {
    stage: Stage,
    /// Where the text of this stage begins.
    at: usize,
    /// How much of the text was searched in this stage.
    seen: usize,
    /// Number of arguments that have begun.
    count: usize,
}

#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    #[default]
    Name,
    /// Before the name of an argument, or the end of the call.
    Key,
    /// In a string, which is passed on as it comes.
    Text { is_start: bool },
    /// In a value that is passed on when it is complete. Its end has been sought at this many tags.
    Value { kind: Option<ValueKind>, tried: usize },
    /// The name is not a tool's.
    Unknown,
}

/// A call that is generated.
#[derive(Clone, Copy, Debug)]
pub(super) struct TagCall<'t> {
    pub(super) tags: &'t CallTags,
    /// What precedes the name, and what ends the call.
    pub(super) around: [&'t str; 2],
    /// The text so far, without the mark before it.
    pub(super) text: &'t str,
    /// Whether all of it is there, without what ends it.
    pub(super) is_whole: bool,
    pub(super) tools: &'t [Json],
}

impl TagStream {
    /// Whether the call has been announced.
    pub(super) fn has_begun(&self) -> bool {
        !matches!(self.stage, Stage::Name | Stage::Unknown)
    }

    /// Passes on what is certain.
    pub(super) fn advance(&mut self, call: TagCall<'_>, on_segment: OnSegment<'_>) {
        while self.step(call, on_segment) {}
        if call.is_whole && self.has_begun() {
            on_segment(Segment::Arguments(if self.count == 0 { "{}" } else { "}" }));
        }
    }

    /// False: more text is needed.
    fn step(&mut self, call: TagCall<'_>, on_segment: OnSegment<'_>) -> bool {
        let TagCall { tags, around: [before, end], text, is_whole, tools } = call;
        let rest = &text[self.at..];
        let seen = std::mem::replace(&mut self.seen, text.len());
        let is_long = !is_whole && seen > self.at + LONGEST_HEADER;
        match self.stage {
            Stage::Unknown => return false,
            Stage::Name => {
                let Some((name, rest)) = name_in(before, text).filter(|_| !is_long) else { return false };
                if rest.is_empty() && !is_whole {
                    return false;
                }
                match tool_of(tools, name) {
                    None => self.stage = Stage::Unknown,
                    Some(_) => {
                        on_segment(Segment::Begun(name));
                        self.enter(Stage::Key, text.len() - rest.len());
                    }
                }
            }
            Stage::Key if is_long => return false,
            Stage::Key => {
                let Some(open) = rest.find(tags.key[0]) else { return false };
                if !is_whole && rest.find(end).is_some_and(|end| end < open) {
                    return false;
                }
                let tool = name_in(before, text).and_then(|(name, _)| tool_of(tools, name));
                let begun = begin_argument(tags, tool, &rest[open..]);
                let Some((key, kind, value)) = begun else { return false };
                let separator = if self.count == 0 { "{" } else { ", " };
                on_segment(Segment::Arguments(&format!("{separator}{}: ", Json::from(key))));
                self.count += 1;
                let stage = match kind {
                    Some(ValueKind::Text) => {
                        on_segment(Segment::Arguments("\""));
                        Stage::Text { is_start: true }
                    }
                    kind => Stage::Value { kind, tried: 0 },
                };
                self.enter(stage, text.len() - value.len());
            }
            Stage::Text { is_start: true } => {
                let is_line = has_lines(tags) && rest.starts_with('\n');
                if rest.is_empty() {
                    return false;
                }
                self.enter(Stage::Text { is_start: false }, self.at + usize::from(is_line));
            }
            Stage::Text { is_start: false } => {
                let close = tags.value[1];
                let found = rest.find(close);
                let certain = &rest[..found.unwrap_or_else(|| rest.len() - overlap(rest, close))];
                let line = if has_lines(tags) { certain.strip_suffix('\n') } else { None };
                let certain = line.unwrap_or(certain);
                let quoted = Json::from(certain).to_string();
                if !certain.is_empty() {
                    on_segment(Segment::Arguments(&quoted[1..quoted.len() - 1]));
                }
                let Some(found) = found else {
                    self.at += certain.len();
                    return false;
                };
                on_segment(Segment::Arguments("\""));
                self.enter(Stage::Key, self.at + found + close.len());
            }
            Stage::Value { kind, ref mut tried } => {
                let close = tags.value[1];
                let from = text.floor_char_boundary(self.at.max((seen + 1).saturating_sub(close.len())));
                let from = if is_whole { self.at } else { from };
                let found = match () {
                    () if is_whole => value_end(rest, close, kind),
                    () if !may_quote(rest, kind) => text[from..].find(close).map(|end| from + end - self.at),
                    // The mark may be in a string, so it is not the end unless the value is JSON.
                    () => {
                        let ends = text[from..].match_indices(close).map(|(end, _)| from + end - self.at);
                        let mut ends = ends.take(MOST_QUOTED.saturating_sub(*tried)).inspect(|_| *tried += 1);
                        ends.find(|end| is_json(&rest[..*end]))
                    }
                };
                let Some(found) = found else { return false };
                on_segment(Segment::Arguments(&argument(tags, &rest[..found], kind)));
                self.enter(Stage::Key, self.at + found + close.len());
            }
        }
        true
    }

    fn enter(&mut self, stage: Stage, at: usize) {
        (self.stage, self.at, self.seen) = (stage, at, at);
    }
}
