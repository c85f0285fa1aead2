//! Lines of a terminal: words that are wrapped at its width, and their styles.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The style of a character.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    pub bold: bool,
    pub dim: bool,
    pub italic: bool,
    pub code: bool,
}

impl Style {
    pub const PLAIN: Style = Style { bold: false, dim: false, italic: false, code: false };
    pub const DIM: Style = Style { dim: true, ..Style::PLAIN };
    pub const CODE: Style = Style { code: true, ..Style::PLAIN };

    /// Writes the escape sequences that lead from another style to this one.
    fn change(self, from: Style, out: &mut String) {
        // Bold and dim have one sequence that ends both.
        let ends = (from.bold && !self.bold) || (from.dim && !self.dim);
        if ends {
            out.push_str("\x1b[22m");
        }
        for (wanted, was, on) in [(self.bold, from.bold, "\x1b[1m"), (self.dim, from.dim, "\x1b[2m")] {
            if wanted && (ends || !was) {
                out.push_str(on);
            }
        }
        for (wanted, was, on, off) in [
            (self.italic, from.italic, "\x1b[3m", "\x1b[23m"),
            (self.code, from.code, "\x1b[36m", "\x1b[39m"),
        ] {
            if wanted != was {
                out.push_str(if wanted { on } else { off });
            }
        }
    }
}

/// Distance of tab stops.
const TAB: usize = 8;
/// On narrower terminals words are not wrapped.
const MIN_COLUMNS: usize = 8;

/// Text for a terminal. A word is written when it is complete, so that nothing has to be erased when it turns out to be
/// too long for its line, whatever the terminal does when its size changes.
#[derive(Debug, Default)]
pub struct Lines {
    /// Width of the terminal; `None`: lines are not wrapped.
    columns: Option<usize>,
    /// Position of the cursor after what is written.
    column: usize,
    /// Where the lines of a wrapped paragraph begin.
    indent: usize,
    /// Only indentation is on the line.
    fresh: bool,
    /// Spaces before the word.
    spaces: Vec<(Style, char)>,
    /// The word that is not complete, in runs of one style.
    word: Vec<(Style, String)>,
    out: String,
    active: Style,
}

impl Lines {
    pub fn new() -> Lines {
        Lines { fresh: true, ..Lines::default() }
    }

    /// Sets the terminal's width, which may have changed.
    pub fn set_columns(&mut self, columns: Option<usize>) {
        self.columns = columns.filter(|&columns| columns >= MIN_COLUMNS);
        // Most terminals break a line that is now too long.
        self.break_line();
    }

    /// Adds text whose lines may be broken at spaces, and between characters of two columns.
    pub fn push(&mut self, text: &str, style: Style) {
        for c in text.chars() {
            match c {
                '\n' => self.newline(),
                ' ' | '\t' | '\u{3000}' => {
                    self.end_word();
                    self.spaces.push((style, c));
                }
                _ => {
                    if self.last().is_some_and(|last| may_break(last, c)) {
                        self.end_word();
                    }
                    match self.word.last_mut().filter(|(of, _)| *of == style) {
                        Some((_, run)) => run.push(c),
                        None => self.word.push((style, c.to_string())),
                    }
                }
            }
        }
    }

    /// Adds a part of a line that is not wrapped.
    pub fn verbatim(&mut self, text: &str, style: Style) {
        self.end_word();
        self.write_spaces();
        self.write(text, style);
    }

    pub fn newline(&mut self) {
        self.end_word();
        self.spaces.clear();
        self.style(Style::PLAIN);
        self.out.push('\n');
        (self.column, self.indent, self.fresh) = (0, 0, true);
    }

    /// Lets further lines of this paragraph begin below what follows.
    pub fn hang(&mut self) {
        self.end_word();
        let column = self.column + self.gap();
        self.indent = if self.columns.is_some_and(|columns| column > columns / 2) { 0 } else { column };
    }

    /// What may be written now. It ends in the plain style.
    pub fn take(&mut self) -> String {
        self.style(Style::PLAIN);
        std::mem::take(&mut self.out)
    }

    pub fn end_word(&mut self) {
        if self.word.is_empty() {
            return;
        }
        let width: usize = self.word.iter().map(|(_, run)| run.width()).sum();
        // The last column stays free: not all terminals wait for the next character there before they go on.
        let is_too_long = self.columns.is_some_and(|columns| self.column + self.gap() + width >= columns);
        if is_too_long && !self.fresh {
            self.spaces.clear();
            self.style(Style::PLAIN);
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', self.indent));
            self.column = self.indent;
        }
        self.write_spaces();
        for (style, run) in std::mem::take(&mut self.word) {
            self.write(&run, style);
        }
        self.fresh = false;
    }

    fn last(&self) -> Option<char> {
        self.word.last()?.1.chars().last()
    }

    /// Width of the spaces before the word.
    fn gap(&self) -> usize {
        self.spaces.iter().fold(self.column, |column, (_, c)| next_column(column, *c)) - self.column
    }

    fn write_spaces(&mut self) {
        for (style, c) in std::mem::take(&mut self.spaces) {
            self.write(c.encode_utf8(&mut [0; 4]), style);
        }
    }

    fn write(&mut self, text: &str, style: Style) {
        if text.is_empty() {
            return;
        }
        self.style(style);
        self.out.push_str(text);
        self.column = match text.contains('\t') {
            true => text.chars().fold(self.column, next_column),
            false => self.column + text.width(),
        };
        self.break_line();
    }

    /// Moves the cursor as the terminal does for a line that it cannot hold.
    fn break_line(&mut self) {
        if let Some(columns) = self.columns
            && self.column > columns
        {
            self.column = (self.column - 1) % columns + 1;
        }
    }

    fn style(&mut self, style: Style) {
        style.change(self.active, &mut self.out);
        self.active = style;
    }
}

fn next_column(column: usize, c: char) -> usize {
    match c {
        '\t' => (column / TAB + 1) * TAB,
        _ => column + c.width().unwrap_or(0),
    }
}

/// Whether a line may be broken between two characters that are no spaces.
fn may_break(before: char, after: char) -> bool {
    const OPENING: &str = "（「『【《〈［｛“‘";
    const CLOSING: &str = "）」』】》〉］｝”’、。，．！？：；・ー々ぁぃぅぇぉっゃゅょァィゥェォッャュョ…";
    const JOINER: char = '\u{200d}';
    let is_wide = |c: char| c.width() == Some(2);
    let is_skin_tone = matches!(after, '\u{1f3fb}'..='\u{1f3ff}');
    (is_wide(before) || is_wide(after))
        && after.width() != Some(0)
        && before != JOINER
        && !is_skin_tone
        && !OPENING.contains(before)
        && !CLOSING.contains(after)
        // An apostrophe or a full stop stays with its word.
        && !after.is_ascii_punctuation()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(columns: usize, text: &str) -> String {
        let mut lines = Lines::new();
        lines.set_columns(Some(columns));
        lines.push(text, Style::PLAIN);
        lines.end_word();
        lines.take()
    }

    #[test]
    fn words_that_do_not_fit_go_to_the_next_line() {
        assert_eq!(wrapped(11, "one two three four"), "one two\nthree four");
        assert_eq!(wrapped(11, "one two three  four\nfive"), "one two\nthree\nfour\nfive");
        assert_eq!(wrapped(20, "  indented\n\nx  y"), "  indented\n\nx  y");
        // A word that no line can hold begins on its own line, and the terminal breaks it.
        assert_eq!(wrapped(10, "see https://example.org/x now"), "see\nhttps://example.org/x now");
        assert_eq!(wrapped(8, "a b"), "a b");
    }

    #[test]
    fn the_text_is_the_same_wherever_it_is_cut() {
        let text = "Some words, 日本語の文章です。 and\ta tab\n\n  émig 👩\u{200d}👩\u{200d}👧 end";
        for columns in [8, 11, 20, 80] {
            let whole = wrapped(columns, text);
            let mut lines = Lines::new();
            let mut pieces = String::new();
            for c in text.chars() {
                lines.set_columns(Some(columns));
                lines.push(&c.to_string(), Style::PLAIN);
                pieces += &lines.take();
            }
            lines.end_word();
            assert_eq!(pieces + &lines.take(), whole);
            for line in whole.split('\n') {
                assert!(line.width() < columns, "{line:?} on {columns} columns");
            }
        }
    }

    #[test]
    fn wide_characters_are_broken_anywhere_but_before_punctuation() {
        assert_eq!(wrapped(9, "日本語の文章です。"), "日本語の\n文章で\nす。");
        assert_eq!(wrapped(9, "abc日本「語」"), "abc日本\n「語」");
        let family = "👩\u{200d}👩\u{200d}👧";
        assert_eq!(wrapped(8, &format!("{family} 👍🏽 👍🏽")), format!("{family} 👍🏽\n👍🏽"));
    }

    #[test]
    fn a_changed_width_counts_from_the_next_word() {
        let mut lines = Lines::new();
        lines.set_columns(Some(40));
        lines.push("one two three four ", Style::PLAIN);
        lines.set_columns(Some(12));
        // The terminal shows "four" at column 2 of its second row.
        lines.push("five six seven ", Style::PLAIN);
        assert_eq!(lines.take(), "one two three four five\nsix seven");
        lines.set_columns(None);
        lines.push("eight nine ten eleven ", Style::PLAIN);
        assert_eq!(lines.take(), " eight nine ten eleven");
    }

    #[test]
    fn paragraphs_hang_below_their_beginning() {
        let mut lines = Lines::new();
        lines.set_columns(Some(12));
        lines.push("- ", Style::PLAIN);
        lines.hang();
        lines.push("one two three four\nfive", Style::PLAIN);
        lines.end_word();
        assert_eq!(lines.take(), "- one two\n  three\n  four\nfive");
    }

    #[test]
    fn each_piece_ends_in_the_plain_style() {
        let mut lines = Lines::new();
        let bold = Style { bold: true, ..Style::PLAIN };
        lines.push("a ", bold);
        assert_eq!(lines.take(), "\x1b[1ma\x1b[22m");
        lines.push("b c ", bold);
        lines.push("d ", Style { dim: true, ..bold });
        lines.push("e ", Style::DIM);
        lines.push("f ", Style { italic: true, code: true, ..Style::PLAIN });
        let expected = "\x1b[1m b c \x1b[2md \x1b[22m\x1b[2me \x1b[22m\x1b[3m\x1b[36mf\x1b[23m\x1b[39m";
        assert_eq!(lines.take(), expected);
    }
}
