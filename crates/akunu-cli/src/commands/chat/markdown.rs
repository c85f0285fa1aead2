//! Markdown as it arrives: what the marks mean is shown instead of the marks.
//!
//! A mark is held back until it is certain what it is, at most [`LONGEST`] characters or to the end of the line. What
//! turns out to be no mark is shown as it was written, so that nothing is lost.

use super::lines::{Lines, Style};

/// Longest emphasis or code within a line, in bytes; what is longer is shown with its marks.
const LONGEST: usize = 160;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// What kind of line this is, is not certain.
    Start,
    Prose(Style),
    /// The rest of a line that is not wrapped.
    Verbatim(Style),
}

/// Writes Markdown into lines.
#[derive(Debug)]
pub struct Markdown {
    lines: Lines,
    /// Whether marks are replaced by styles; otherwise they only decide which lines are wrapped.
    styled: bool,
    place: Place,
    /// Text that may be a mark.
    held: String,
    /// The character before what is held.
    before: char,
    /// Character and length of the open code block's fence.
    fence: Option<(char, usize)>,
}

impl Markdown {
    pub fn new(styled: bool) -> Markdown {
        Markdown {
            lines: Lines::new(),
            styled,
            place: Place::Start,
            held: String::new(),
            before: '\n',
            fence: None,
        }
    }

    pub fn set_columns(&mut self, columns: Option<usize>) {
        self.lines.set_columns(columns);
    }

    pub fn push(&mut self, text: &str) {
        for c in text.chars() {
            self.character(c);
        }
    }

    /// Adds text without marks.
    pub fn plain(&mut self, text: &str, style: Style) {
        self.end_marks();
        self.lines.push(text, style);
        self.place = Place::Start;
    }

    pub fn take(&mut self) -> String {
        self.lines.take()
    }

    /// Everything that was held back.
    pub fn end(&mut self) -> String {
        self.end_marks();
        self.lines.end_word();
        self.lines.take()
    }

    fn end_marks(&mut self) {
        if self.place == Place::Start {
            self.end_start();
        }
        if let Place::Prose(base) = self.place {
            self.inline(base, true);
        }
    }

    fn character(&mut self, c: char) {
        if c == '\n' {
            self.end_marks();
            self.lines.newline();
            (self.place, self.before) = (Place::Start, '\n');
            return;
        }
        match self.place {
            Place::Verbatim(style) => self.lines.verbatim(c.encode_utf8(&mut [0; 4]), style),
            Place::Prose(base) => self.prose(c, base),
            Place::Start => {
                self.held.push(c);
                self.start();
            }
        }
    }

    /// Decides what kind of line begins with the held text, if that is certain.
    fn start(&mut self) {
        let text = self.held.trim_start_matches(' ');
        let Some(first) = text.chars().next() else { return };
        let same = text.chars().take_while(|c| *c == first).count();
        let rest = &text[same * first.len_utf8()..];
        if let Some((fence, length)) = self.fence {
            let may_close = first == fence && rest.trim_end().is_empty() && self.held.len() < LONGEST;
            if !may_close || (!rest.is_empty() && same < length) {
                self.verbatim(if self.styled { Style::CODE } else { Style::PLAIN });
            }
            return;
        }
        match (first, same, rest) {
            ('`' | '~', 1..3, "") => {}
            ('`' | '~', 3.., _) if self.held.len() < LONGEST => {}
            ('#', 1..7, "") => {}
            ('#', 1..7, " ") if self.styled => {
                self.held.clear();
                self.place = Place::Prose(Style { bold: true, ..Style::PLAIN });
            }
            ('-' | '*' | '_', _, "") if same < LONGEST => {}
            ('+', 1, "") => {}
            ('-' | '*' | '+', 1, " ") => self.item(first),
            ('0'..='9', _, _) if is_number_so_far(text) => {}
            ('0'..='9', _, _) if text.ends_with(' ') && is_number_so_far(text.trim_end()) => self.item(first),
            ('>', 1, "") => {}
            ('>', ..) => self.quote(),
            ('|', ..) => self.verbatim(Style::PLAIN),
            _ => self.begin_prose(),
        }
    }

    /// Decides at the end of the line or text.
    fn end_start(&mut self) {
        let text = self.held.trim();
        let Some(first) = text.chars().next() else { return self.begin_prose() };
        let same = text.chars().take_while(|c| *c == first).count();
        let rest = &text[same * first.len_utf8()..];
        match self.fence {
            Some((fence, length)) => {
                if first == fence && same >= length && rest.is_empty() {
                    self.fence = None;
                    self.verbatim(self.dim());
                } else {
                    self.verbatim(if self.styled { Style::CODE } else { Style::PLAIN });
                }
            }
            None if matches!(first, '`' | '~') && same >= 3 && !rest.contains('`') => {
                self.fence = Some((first, same));
                self.verbatim(self.dim());
            }
            None if matches!(first, '-' | '*' | '_') && same >= 3 && rest.is_empty() => {
                self.verbatim(self.dim())
            }
            None if first == '>' && text == ">" => self.quote(),
            None => self.begin_prose(),
        }
    }

    fn dim(&self) -> Style {
        if self.styled { Style::DIM } else { Style::PLAIN }
    }

    fn verbatim(&mut self, style: Style) {
        let held = std::mem::take(&mut self.held);
        self.lines.verbatim(&held, style);
        self.place = Place::Verbatim(style);
    }

    fn begin_prose(&mut self) {
        let held = std::mem::take(&mut self.held);
        let text = held.trim_start_matches(' ');
        let base = Style::PLAIN;
        self.place = Place::Prose(base);
        if text.len() < held.len() {
            self.lines.push(&held[..held.len() - text.len()], base);
            self.lines.hang();
        }
        for c in text.chars() {
            self.prose(c, base);
        }
    }

    /// A list item, whose mark is held.
    fn item(&mut self, mark: char) {
        let held = std::mem::take(&mut self.held);
        match self.styled && !mark.is_ascii_digit() {
            true => self.lines.push(&held.replacen(mark, "•", 1), Style::PLAIN),
            false => self.lines.push(&held, Style::PLAIN),
        }
        self.lines.hang();
        self.place = Place::Prose(Style::PLAIN);
        self.before = ' ';
    }

    /// A quotation, whose mark is held with what follows it.
    fn quote(&mut self) {
        let held = std::mem::take(&mut self.held);
        let (mark, rest) = held.split_at(held.find('>').map_or(0, |at| at + 1));
        self.lines.push(mark, self.dim());
        let rest = match rest.strip_prefix(' ') {
            Some(rest) => {
                self.lines.push(" ", Style::PLAIN);
                rest
            }
            None => rest,
        };
        self.lines.hang();
        for c in rest.chars() {
            self.character(c);
        }
    }

    fn prose(&mut self, c: char, base: Style) {
        let is_mark = matches!(c, '*' | '_' | '`' | '\\');
        if self.styled && (is_mark || !self.held.is_empty()) {
            self.held.push(c);
            self.inline(base, false);
        } else {
            self.say(c.encode_utf8(&mut [0; 4]), base);
        }
    }

    fn say(&mut self, text: &str, style: Style) {
        self.lines.push(text, style);
        self.before = text.chars().last().unwrap_or(self.before);
    }

    /// Shows what is certain of the held text; all of it at its end.
    fn inline(&mut self, base: Style, at_end: bool) {
        let held = std::mem::take(&mut self.held);
        let used = self.spans(&held, base, at_end);
        self.held.push_str(&held[used..]);
    }

    /// Shows the spans of a text, and returns how much of it is shown.
    fn spans(&mut self, text: &str, base: Style, at_end: bool) -> usize {
        let mut at = 0;
        while let Some(first) = text[at..].chars().next() {
            let rest = &text[at..];
            let run = &rest[..rest.len() - rest.trim_start_matches(first).len()];
            let after = rest[run.len()..].chars().next();
            if after.is_none() && !at_end && matches!(first, '*' | '_' | '`' | '\\') {
                return at;
            }
            let found = match first {
                '\\' if run.len() == 1 && after.is_some_and(|c| "*_`".contains(c)) => {
                    let escaped = &rest[1..2];
                    self.say(escaped, base);
                    at += 2;
                    continue;
                }
                '`' => code_end(rest, run.len(), at_end),
                '*' | '_' if opens(self.before, first, run.len(), after) => {
                    emphasis_end(rest, run.len(), at_end)
                }
                _ => End::None,
            };
            match found {
                End::At(end) => {
                    let inside = &rest[run.len()..end];
                    match first {
                        '`' => self.say(code_text(inside), Style { code: true, ..base }),
                        _ => {
                            let style = emphasised(base, run.len());
                            self.spans(inside, style, true);
                        }
                    }
                    at += end + run.len();
                }
                End::Unknown if !at_end && rest.len() < LONGEST => return at,
                _ => {
                    // No mark: shown as it is, up to the next character that may be one.
                    let tail = &rest[run.len()..];
                    let next = tail.find(['*', '_', '`', '\\']).unwrap_or(tail.len());
                    self.say(&rest[..run.len() + next], base);
                    at += run.len() + next;
                }
            }
        }
        at
    }
}

/// Where a span ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The closing mark is at this byte.
    At(usize),
    /// The text may go on.
    Unknown,
    None,
}

/// The closing run of a code span, which has the same length as the opening one.
fn code_end(text: &str, length: usize, at_end: bool) -> End {
    let mut at = length;
    while let Some(start) = text[at..].find('`').map(|found| at + found) {
        let run = text[start..].len() - text[start..].trim_start_matches('`').len();
        let may_grow = start + run == text.len() && !at_end;
        match run == length {
            true if may_grow => return End::Unknown,
            true => return End::At(start),
            false => at = start + run,
        }
    }
    End::Unknown
}

/// Code that begins and ends with a backtick has spaces around it.
fn code_text(inside: &str) -> &str {
    let inner = inside.strip_prefix(' ').and_then(|inner| inner.strip_suffix(' '));
    inner.filter(|inner| !inner.trim().is_empty()).unwrap_or(inside)
}

/// Whether a run of `*` or `_` may begin an emphasis. Within words and numbers it is no mark.
fn opens(before: char, mark: char, length: usize, after: Option<char>) -> bool {
    let Some(after) = after else { return false };
    length <= 3 && !after.is_whitespace() && before != mark && !joins(before, mark)
}

/// Whether a mark beside this character is within a word. Languages without spaces have marks within sentences.
fn joins(c: char, mark: char) -> bool {
    if mark == '_' { c.is_alphanumeric() } else { c.is_ascii_alphanumeric() }
}

/// The run that closes an emphasis: as long as the opening one, after a character, and not within a word.
fn emphasis_end(text: &str, length: usize, at_end: bool) -> End {
    let mark = text.chars().next().unwrap_or_default();
    let mut at = length;
    while let Some(found) = text[at..].find([mark, '`', '\\']) {
        let start = at + found;
        let rest = &text[start..];
        if rest.starts_with('\\') {
            at = start + 1 + rest.chars().nth(1).map_or(0, char::len_utf8);
            continue;
        }
        if rest.starts_with('`') {
            let run = rest.len() - rest.trim_start_matches('`').len();
            match code_end(rest, run, at_end) {
                End::At(end) => at = start + end + run,
                End::Unknown if !at_end => return End::Unknown,
                _ => at = start + run,
            }
            continue;
        }
        let run = rest.len() - rest.trim_start_matches(mark).len();
        let after = rest[run..].chars().next();
        if after.is_none() && !at_end {
            return End::Unknown;
        }
        let before = text[..start].chars().next_back();
        let closes = run == length
            && before.is_some_and(|c| !c.is_whitespace())
            && after.is_none_or(|c| !joins(c, mark));
        if closes {
            return End::At(start);
        }
        at = start + run;
    }
    End::Unknown
}

fn emphasised(base: Style, length: usize) -> Style {
    match length {
        1 => Style { italic: true, ..base },
        2 => Style { bold: true, ..base },
        _ => Style { bold: true, italic: true, ..base },
    }
}

/// Whether a text is the beginning of the mark of a numbered item: digits, and then a full stop or a parenthesis.
fn is_number_so_far(text: &str) -> bool {
    let digits = text.trim_end_matches(['.', ')']);
    digits.len() <= 9 && text.len() - digits.len() <= 1 && digits.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Renders a text in pieces; styles are shown as letters in braces.
    fn shown(text: &str, pieces: &[&str], styled: bool) -> String {
        let mut markdown = Markdown::new(styled);
        let mut shown = String::new();
        markdown.set_columns(Some(40));
        for piece in pieces {
            markdown.push(piece);
            shown += &markdown.take();
        }
        shown += &markdown.end();
        assert_eq!(pieces.concat(), text);
        shown
    }

    /// The text with the style of each run: `<b>bold</>`.
    fn readable(shown: &str) -> String {
        let mut runs: Vec<(String, String)> = vec![(String::new(), String::new())];
        let mut style = String::new();
        let mut rest = shown;
        while let Some(c) = rest.chars().next() {
            let sequence = rest.strip_prefix("\x1b[").and_then(|rest| rest.split_once('m'));
            let Some((code, after)) = sequence else {
                if runs.last().unwrap().0 != style {
                    runs.push((style.clone(), String::new()));
                }
                runs.last_mut().unwrap().1.push(c);
                rest = &rest[c.len_utf8()..];
                continue;
            };
            match code {
                "1" => style.push('b'),
                "2" => style.push('d'),
                "3" => style.push('i'),
                "36" => style.push('c'),
                "22" => style.retain(|c| !"bd".contains(c)),
                "23" => style.retain(|c| c != 'i'),
                "39" => style.retain(|c| c != 'c'),
                other => panic!("{other}"),
            }
            let mut sorted: Vec<char> = style.chars().collect();
            sorted.sort_unstable();
            style = sorted.into_iter().collect();
            rest = after;
        }
        let tagged = |(style, text): (String, String)| match style.as_str() {
            "" => text,
            style => format!("<{style}>{text}</>"),
        };
        assert_eq!(style, "", "the end is plain");
        runs.into_iter().map(tagged).collect()
    }

    /// Renders in one piece, by character and in pairs, which must give the same.
    fn styled(text: &str) -> String {
        let whole = readable(&shown(text, &[text], true));
        for size in [1, 2, 3] {
            let chars: Vec<char> = text.chars().collect();
            let pieces: Vec<String> = chars.chunks(size).map(|piece| piece.iter().collect()).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            assert_eq!(readable(&shown(text, &pieces, true)), whole, "in pieces of {size}: {text:?}");
        }
        whole
    }

    #[test]
    fn emphasis_and_code_within_a_line() {
        for (text, expected) in [
            ("a **bold** word", "a <b>bold</> word"),
            ("**Two words**: x", "<b>Two words</>: x"),
            ("*one* and ***three***", "<i>one</> and <bi>three</>"),
            ("_so_ and __so__.", "<i>so</> and <b>so</>."),
            ("call `f(x)` now", "call <c>f(x)</> now"),
            ("``a`b`` and `` ` ``", "<c>a`b</> and <c>`</>"),
            ("**bold `a*b` end**", "<b>bold </><bc>a*b</><b> end</>"),
            ("**a *b* c**", "<b>a </><bi>b</><b> c</>"),
            ("(**x**)", "(<b>x</>)"),
            ("日本**語**です", "日本<b>語</>です"),
        ] {
            assert_eq!(styled(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_mark_stays() {
        for text in [
            "2 * 3 * 4",
            "2*3*4 and 2**10",
            "snake_case_name and _x",
            "f(**kwargs) and *args",
            "a * b",
            "`open and **open",
            "x**",
            "C:\\new and \\( x_1 \\)",
            "a ** b ** c",
            "#hashtag",
            "1.5 times",
            "-5 degrees",
            "--flag",
            "12",
            "<b",
        ] {
            assert_eq!(styled(text), text);
        }
        assert_eq!(styled("\\*not\\* \\`code\\`"), "*not* `code`");
        // Too long to wait for its end.
        let long = format!("**{} end", "word ".repeat(40));
        assert!(styled(&long).starts_with("**word word"));
    }

    #[test]
    fn marks_at_the_beginning_of_a_line() {
        assert_eq!(styled("# A title\ntext"), "<b>A title</>\ntext");
        assert_eq!(styled("### A `b` c\n"), "<b>A </><bc>b</><b> c</>\n");
        assert_eq!(styled("- one\n* two\n  + three\n"), "• one\n• two\n  • three\n");
        assert_eq!(styled("1. one\n10) **two**"), "1. one\n10) <b>two</>");
        assert_eq!(styled("a\n\n---\nb\n***"), "a\n\n<d>---</>\nb\n<d>***</>");
        assert_eq!(styled("> said\n>\n> > so"), "<d>></> said\n<d>></>\n<d>></> <d>></> so");
        assert_eq!(styled("**Note** x\n**not**"), "<b>Note</> x\n<b>not</>");
        assert_eq!(styled("| a | *b* |\n|---|---|\n"), "| a | *b* |\n|---|---|\n");
    }

    #[test]
    fn code_blocks_are_neither_wrapped_nor_changed() {
        let code = "let a = b * c * d; // **not bold** and longer than the line";
        let text = format!("Text:\n```rust\n{code}\n\n  ``\n# no title\n- no item\n```\n**after**");
        let expected = format!(
            "Text:\n<d>```rust</>\n<c>{code}</>\n\n<c>  ``</>\n<c># no title</>\n<c>- no item</>\n<d>```</>\n<b>after</>"
        );
        assert_eq!(styled(&text), expected);
        assert_eq!(styled("   ~~~\n  x\n   ~~~\n*y*"), "<d>   ~~~</>\n<c>  x</>\n<d>   ~~~</>\n<i>y</>");
        // Not closed, and closed by a longer fence only.
        assert_eq!(styled("````\na\n```\nb"), "<d>````</>\n<c>a</>\n<c>```</>\n<c>b</>");
        assert_eq!(styled("```one line``` x"), "<c>one line</> x");
    }

    #[test]
    fn items_hang_and_long_lines_wrap() {
        let text =
            "- **first** item whose text is longer than the line\n1. second item whose text is longer too";
        let expected = "• <b>first</> item whose text is longer than\n  the line\n1. second item whose text is longer too";
        assert_eq!(styled(text), expected);
    }

    #[test]
    fn without_styles_all_marks_stay() {
        let text = "# A **title**\n- `item`\n> x\n```\ncode that is longer than the line of forty columns\n```\n---\n";
        assert_eq!(shown(text, &[text], false), text);
    }

    #[test]
    fn plain_text_has_no_marks() {
        let mut markdown = Markdown::new(true);
        markdown.plain("# no *marks*", Style::DIM);
        markdown.plain("\n", Style::DIM);
        markdown.push("# title");
        assert_eq!(readable(&markdown.end()), "<d># no *marks*</>\n<b>title</>");
    }
}
