//! Strings that track which of their bytes are untrusted, i.e. come from a message and not from the template.
//!
//! In `'<|im_start|>' + message.role`, the bytes up to `>` come from the template, and the rest is untrusted. The
//! tokenizer uses this to recognise special tokens only in text that the template wrote.

use std::ops::Range;
use std::sync::Arc;

/// A Python string. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Text {
    text: Arc<str>,
    /// Untrusted byte ranges, sorted and disjoint. `None` if there are none.
    untrusted: Option<Arc<[Range<usize>]>>,
    /// A `Markup` string of MarkupSafe: made by `|safe`; strings that are added to it are escaped.
    pub(super) safe: bool,
}

/// The beginning of a string, for error messages.
pub(super) fn shown(text: &str) -> &str {
    &text[..text.floor_char_boundary(100)]
}

impl From<&str> for Text {
    fn from(text: &str) -> Text {
        Text { text: text.into(), untrusted: None, safe: false }
    }
}

impl From<String> for Text {
    fn from(text: String) -> Text {
        Text { text: text.into(), untrusted: None, safe: false }
    }
}

impl From<Arc<str>> for Text {
    fn from(text: Arc<str>) -> Text {
        Text { text, untrusted: None, safe: false }
    }
}

impl Text {
    /// A string from untrusted input.
    pub(super) fn from_untrusted(text: &str) -> Text {
        let mut buffer = TextBuffer::default();
        buffer.push(text, true);
        buffer.finish()
    }

    /// The string without a copy.
    pub(super) fn shared(&self) -> Arc<str> {
        self.text.clone()
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// For error messages, which must not grow with a template's strings.
    pub(super) fn shown(&self) -> &str {
        shown(&self.text)
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    pub(super) fn untrusted(&self) -> &[Range<usize>] {
        self.untrusted.as_deref().unwrap_or_default()
    }

    fn has_untrusted(&self) -> bool {
        self.untrusted.is_some()
    }

    /// A substring. The range must be at character boundaries.
    pub(super) fn slice(&self, range: Range<usize>) -> Text {
        if range == (0..self.len()) {
            return self.clone();
        }
        let Some(text) = self.text.get(range.clone()) else { return Text::default() };
        let Some(untrusted) = &self.untrusted else {
            return Text { text: text.into(), untrusted: None, safe: self.safe };
        };
        let first = untrusted.partition_point(|o| o.end <= range.start);
        let cut = untrusted[first..].iter().take_while(|o| o.start < range.end);
        let cut = cut.map(|o| o.start.max(range.start) - range.start..o.end.min(range.end) - range.start);
        let cut: Arc<[Range<usize>]> = cut.collect();
        Text { text: text.into(), untrusted: (!cut.is_empty()).then_some(cut), safe: self.safe }
    }

    /// Consecutive runs of trusted and untrusted bytes.
    pub(super) fn runs(&self) -> impl Iterator<Item = (&str, bool)> {
        let mut at = 0;
        let mut ends = Vec::with_capacity(2 * self.untrusted().len() + 1);
        for range in self.untrusted() {
            ends.push((at..range.start, false));
            ends.push((range.clone(), true));
            at = range.end;
        }
        ends.push((at..self.len(), false));
        ends.into_iter()
            .filter(|(r, _)| !r.is_empty())
            .map(|(range, untrusted)| (&self.text[range], untrusted))
    }

    /// The result of a transformation that does not preserve byte positions: untrusted if any part of the input was.
    pub(super) fn like(&self, text: String) -> Text {
        let mut buffer = TextBuffer::default();
        buffer.push(&text, self.has_untrusted());
        buffer.finish()
    }

    /// Transforms each run separately.
    pub(super) fn map_runs(&self, mut change: impl FnMut(&str) -> String) -> Text {
        let mut buffer = TextBuffer::default();
        for (run, untrusted) in self.runs() {
            buffer.push(&change(run), untrusted);
        }
        buffer.finish()
    }

    pub(super) fn marked_safe(mut self, safe: bool) -> Text {
        self.safe = safe;
        self
    }

    pub(super) fn trim_start(&self, strip: impl Fn(char) -> bool) -> Text {
        let rest = self.text.trim_start_matches(strip);
        self.slice(self.len() - rest.len()..self.len())
    }

    pub(super) fn trim_end(&self, strip: impl Fn(char) -> bool) -> Text {
        let rest = self.text.trim_end_matches(strip);
        self.slice(0..rest.len())
    }
}

/// Builds a [`Text`].
#[derive(Debug, Default)]
pub(super) struct TextBuffer {
    text: String,
    untrusted: Vec<Range<usize>>,
}

impl TextBuffer {
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    pub(super) fn push(&mut self, text: &str, untrusted: bool) {
        let start = self.text.len();
        self.text.push_str(text);
        if untrusted {
            self.note(start..self.text.len());
        }
    }

    fn note(&mut self, range: Range<usize>) {
        match self.untrusted.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.untrusted.push(range),
        }
    }

    pub(super) fn push_trusted(&mut self, text: &str) {
        self.push(text, false);
    }

    pub(super) fn push_text(&mut self, text: &Text) {
        let start = self.text.len();
        self.text.push_str(&text.text);
        for range in text.untrusted() {
            self.note(start + range.start..start + range.end);
        }
    }

    pub(super) fn finish(self) -> Text {
        let untrusted = (!self.untrusted.is_empty()).then(|| self.untrusted.into());
        Text { text: self.text.into(), untrusted, safe: false }
    }

    pub(super) fn into_parts(self) -> (String, Vec<Range<usize>>) {
        (self.text, self.untrusted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_keep_untrusted_ranges() {
        let mut buffer = TextBuffer::default();
        buffer.push_trusted("ab");
        buffer.push("cd", true);
        buffer.push("ef", true);
        buffer.push_trusted("gh");
        let text = buffer.finish();
        assert_eq!(text.untrusted(), std::slice::from_ref(&(2..6)));
        assert_eq!(text.slice(3..8).untrusted(), std::slice::from_ref(&(0..3)));
        assert!(text.slice(0..2).untrusted().is_empty());
        assert!(text.slice(6..8).untrusted().is_empty());
        assert_eq!(text.runs().collect::<Vec<_>>(), [("ab", false), ("cdef", true), ("gh", false)]);
    }
}
