//! All output to stdout and stderr.

use std::io::{self, BufWriter, ErrorKind, IsTerminal, StdoutLock, Write};

use serde::Serialize;

use crate::failure::Failure;

/// Stdout. Writes are buffered until [`Output::flush`]; if the reader has closed the pipe, the command ends silently.
#[derive(Debug)]
pub struct Output {
    out: BufWriter<StdoutLock<'static>>,
}

impl Output {
    pub fn new() -> Output {
        Output { out: BufWriter::new(io::stdout().lock()) }
    }

    pub fn text(&mut self, text: &str) -> Result<(), Failure> {
        self.out.write_all(text.as_bytes()).map_err(|error| stdout_failure(&error))
    }

    pub fn line(&mut self, line: &str) -> Result<(), Failure> {
        self.text(line)?;
        self.text("\n")
    }

    pub fn flush(&mut self) -> Result<(), Failure> {
        self.out.flush().map_err(|error| stdout_failure(&error))
    }

    /// Pretty-printed JSON and a newline.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        serde_json::to_writer_pretty(&mut self.out, value).map_err(|error| json_failure(&error))?;
        self.text("\n")?;
        self.flush()
    }

    /// JSON on one line, for long output.
    pub fn compact_json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        serde_json::to_writer(&mut self.out, value).map_err(|error| json_failure(&error))?;
        self.text("\n")?;
        self.flush()
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

/// Writes a line to stderr. Errors are ignored, since they could not be reported.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Escapes untrusted text for use within a line: control characters, line breaks, and characters that change the text
/// direction.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        let turns = matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if c.is_control() || turns { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
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
    }
}
