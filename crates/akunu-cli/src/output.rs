//! All output to stdout and stderr.

use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};

use akunu_format::escaped;
use serde::Serialize;

use crate::failure::Failure;

/// Stdout. Writes are buffered until [`Output::flush`]; if the reader has closed the pipe, the command ends silently.
#[derive(Debug)]
pub struct Output {
    out: BufWriter<io::Stdout>,
    is_terminal: bool,
    cleaner: Cleaner,
}

impl Output {
    pub fn new() -> Output {
        let is_terminal = io::stdout().is_terminal();
        Output { out: BufWriter::new(io::stdout()), is_terminal, cleaner: Cleaner::default() }
    }

    /// Text as it is: what this program itself contains.
    pub fn text(&mut self, text: &str) -> Result<(), Failure> {
        self.out.write_all(text.as_bytes()).map_err(|error| stdout_failure(&error))
    }

    /// What a model has generated: as it is, but without control characters on a terminal.
    pub fn generated(&mut self, text: &str) -> Result<(), Failure> {
        match self.is_terminal {
            true => {
                let clean = self.cleaner.clean(text);
                self.text(&clean)
            }
            false => self.text(text),
        }
    }

    /// Lines that may contain untrusted text, whose control characters are escaped.
    pub fn listing(&mut self, lines: &str) -> Result<(), Failure> {
        self.text(&printable_lines(lines))
    }

    /// As [`Output::listing`], and a newline.
    pub fn line(&mut self, line: &str) -> Result<(), Failure> {
        self.listing(line)?;
        self.text("\n")
    }

    pub fn flush(&mut self) -> Result<(), Failure> {
        self.out.flush().map_err(|error| stdout_failure(&error))
    }

    /// Pretty-printed JSON and a newline.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        serde_json::to_writer_pretty(JsonWriter(&mut self.out), value)
            .map_err(|error| json_failure(&error))?;
        self.text("\n")?;
        self.flush()
    }

    /// JSON on one line, for long output.
    pub fn compact_json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        serde_json::to_writer(JsonWriter(&mut self.out), value).map_err(|error| json_failure(&error))?;
        self.text("\n")?;
        self.flush()
    }
}

/// Escapes control characters in text that arrives in pieces. Line breaks of two characters become newlines.
#[derive(Debug, Default)]
pub struct Cleaner {
    /// A carriage return whose successor is unknown was the last character.
    held: bool,
}

impl Cleaner {
    pub fn clean(&mut self, text: &str) -> String {
        let mut text = if std::mem::take(&mut self.held) { format!("\r{text}") } else { text.to_string() };
        if text.ends_with('\r') {
            text.pop();
            self.held = true;
        }
        printable_lines(&text.replace("\r\n", "\n"))
    }
}

/// Escapes the control characters that JSON allows in strings. The serializer writes strings in whole characters.
struct JsonWriter<W>(W);

impl<W: Write> Write for JsonWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        const FIRST: char = '\u{7f}';
        match std::str::from_utf8(bytes) {
            Ok(text) if text.contains(|c: char| c.is_control() && c >= FIRST) => {
                for c in text.chars() {
                    match c.is_control() && c >= FIRST {
                        true => write!(self.0, "\\u{:04x}", u32::from(c))?,
                        false => write!(self.0, "{c}")?,
                    }
                }
            }
            _ => self.0.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn json_failure(error: &serde_json::Error) -> Failure {
    match error.io_error_kind() {
        Some(kind) => stdout_failure(&kind.into()),
        None => Failure::new(format!("cannot write JSON: {error}")),
    }
}

fn stdout_failure(error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::ClosedPipe,
        _ => Failure::new(format!("cannot write to stdout: {error}")),
    }
}

/// Writes a line to stderr, or several; their control characters are escaped. Errors are ignored, since they could not
/// be reported.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", printable_lines(line));
}

/// As [`note`], of text that has styles and no other control characters.
pub fn styled_note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

pub const RED: &str = "31";
pub const GREEN: &str = "32";

/// As [`note`], after a label, which has a colour (a parameter of SGR) if stderr is a terminal that may have colours.
pub fn labelled(label: &str, colour: &str, line: &str) {
    let label = match io::stderr().is_terminal() && crate::environment::allows_colours() {
        true => format!("\x1b[1;{colour}m{label}:\x1b[0m"),
        false => format!("{label}:"),
    };
    let _ = writeln!(io::stderr().lock(), "{label} {}", printable_lines(line));
}

/// JSON on one line of stderr.
pub fn json_note(value: &impl Serialize) {
    let mut stderr = io::stderr().lock();
    let _ = serde_json::to_writer(JsonWriter(&mut stderr), value);
    let _ = writeln!(stderr);
}

/// Escapes untrusted text for use within a line: control characters, line breaks, and characters that change the text
/// direction.
pub fn printable(text: &str) -> String {
    escaped(text, &[])
}

/// As [`printable`], for use as lines: line breaks and tabs stay.
pub fn printable_lines(text: &str) -> String {
    escaped(text, &['\n', '\t'])
}

/// Width of tables: that of the terminal, or `COLUMNS`. `None` (unlimited) if stdout is a file or a pipe.
pub fn width() -> Option<usize> {
    if let Some(columns) = crate::environment::columns() {
        return Some(columns);
    }
    if !io::stdout().is_terminal() {
        return None;
    }
    terminal_size::terminal_size().map(|(width, _)| usize::from(width.0))
}

/// Whether characters beyond ASCII may be drawn with: stdout is a terminal, and the locale has UTF-8.
pub fn shows_blocks() -> bool {
    io::stdout().is_terminal() && crate::environment::is_utf8()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_letters_of_all_scripts_stay() {
        assert_eq!(printable("a\nb\tc\r\u{1b}[2J\u{7}\u{9b}"), "a\\nb\\tc\\r\\u{1b}[2J\\u{7}\\u{9b}");
        assert_eq!(printable("\u{202e}gnp\u{2028}"), "\\u{202e}gnp\\u{2028}");
        for text in ["it's \"so\" C:\\new", "日本　語", "हिन्दी", "می\u{200c}خواهم", "e\u{301}"]
        {
            assert_eq!(printable(text), text);
        }
        assert_eq!(printable_lines("a\n\tb\r\u{1b}\u{7f}\u{85}"), "a\n\tb\\r\\u{1b}\\u{7f}\\u{85}");
    }

    #[test]
    fn text_in_pieces_is_cleaned_as_a_whole() {
        let mut cleaner = Cleaner::default();
        let pieces = ["a\r", "\nb\r", "c\u{1b}", "[2J\td\r\n", "\r"];
        let clean: String = pieces.iter().map(|piece| cleaner.clean(piece)).collect();
        assert_eq!(clean, "a\nb\\rc\\u{1b}[2J\td\n");
    }

    #[test]
    fn json_has_no_control_characters_and_the_same_strings() {
        let text = "a\u{1b}[2J\u{7f}\u{80}\u{9b}m\u{a0}é\u{10ffff}";
        let mut bytes = Vec::new();
        serde_json::to_writer(JsonWriter(&mut bytes), &[text]).unwrap();
        let json = String::from_utf8(bytes).unwrap();
        assert!(json.chars().all(|c| !c.is_control()), "{json}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&json).unwrap(), [text]);
    }
}
