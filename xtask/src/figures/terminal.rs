//! Runs commands and draws what they print, as it appeared: an SVG whose text becomes visible over time.

use std::fmt::Write;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Result, bail};

use super::escaped;

const COMMANDS: [&[&str]; 3] = [
    &["run", "Once upon a time", "--seed", "3"],
    &["chat", "-q", "--seed", "8", "-p", "Tell me a story about a fox"],
    &["plan", "-c", "2048"],
];

const COLUMNS: usize = 88;
/// Size of a character, in pixels.
const CHARACTER: (f64, f64) = (8.4, 20.0);
const MARGIN: f64 = 16.0;
/// Seconds before a command, and before its output.
const PAUSES: (f64, f64) = (1.2, 0.6);
/// Maximum seconds between two pieces of output.
const LONGEST_GAP: f64 = 0.25;

/// Text that appears at once.
#[derive(Debug)]
struct Piece {
    at: f64,
    row: usize,
    column: usize,
    text: String,
    class: &'static str,
}

#[derive(Debug, Default)]
struct Screen {
    now: f64,
    row: usize,
    column: usize,
    pieces: Vec<Piece>,
}

impl Screen {
    /// Texts with the times at which they came. Their words are not divided between rows.
    fn write(&mut self, texts: &[(f64, String, &'static str)]) {
        let characters =
            texts.iter().enumerate().flat_map(|(index, (_, text, _))| text.chars().map(move |c| (c, index)));
        let characters: Vec<(char, usize)> = characters.collect();
        let mut last = None;
        for (place, &(c, index)) in characters.iter().enumerate() {
            let begins_word = place == 0 || characters[place - 1].0 == ' ';
            let rest = characters[place..].iter().take_while(|(c, _)| !c.is_whitespace()).count();
            if self.column > 0 && (self.column == COLUMNS || (begins_word && self.column + rest > COLUMNS)) {
                (self.row, self.column) = (self.row + 1, 0);
            }
            if c == ' ' && self.column == 0 && place > 0 && characters[place - 1].0 != '\n' {
                continue;
            }
            if c == '\n' {
                (self.row, self.column) = (self.row + 1, 0);
                continue;
            }
            match self.pieces.last_mut().filter(|piece| last == Some(index) && piece.row == self.row) {
                Some(piece) => piece.text.push(c),
                None => {
                    let (at, _, class) = texts[index];
                    let (row, column) = (self.row, self.column);
                    self.pieces.push(Piece { at, row, column, text: c.into(), class });
                }
            }
            last = Some(index);
            self.column += 1;
        }
    }

    fn svg(&self) -> Result<String> {
        let (width, height) = CHARACTER;
        let size = (2.0 * MARGIN + COLUMNS as f64 * width, 2.0 * MARGIN + self.row as f64 * height);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} {:.0}\" role=\"img\" \
             aria-label=\"A terminal in which akunu runs\">\n<style>\n\
             text {{ font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; \
             white-space: pre; animation: appear 1ms backwards; }}\n\
             .typed {{ fill: #f0f6fc; font-weight: bold; }}\n.out {{ fill: #c9d1d9; }}\n.note {{ fill: #8b949e; }}\n\
             @keyframes appear {{ from {{ opacity: 0; }} }}\n\
             @media (prefers-reduced-motion) {{ text {{ animation: none; }} }}\n</style>\n\
             <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#0d1117\"/>\n",
            size.0, size.1
        );
        for piece in &self.pieces {
            let (x, y) = (MARGIN + piece.column as f64 * width, MARGIN + (piece.row as f64 + 0.75) * height);
            let length = piece.text.chars().count() as f64 * width;
            writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y:.0}\" textLength=\"{length:.1}\" lengthAdjust=\"spacingAndGlyphs\" \
                 class=\"{}\" style=\"animation-delay: {:.2}s\">{}</text>",
                piece.class,
                piece.at,
                escaped(&piece.text)
            )?;
        }
        svg.push_str("</svg>\n");
        Ok(svg)
    }
}

pub(super) fn record(akunu: &Path) -> Result<String> {
    let mut screen = Screen::default();
    for (number, args) in COMMANDS.iter().enumerate() {
        let typed = screen.now + if number > 0 { PAUSES.0 } else { 0.0 };
        let before = if number > 0 { "\n$ " } else { "$ " };
        let mut texts =
            vec![(typed, before.into(), "note"), (typed, format!("akunu {}\n", shown(args)), "typed")];
        texts.extend(run(akunu, args, typed + PAUSES.1)?);
        screen.now = texts.iter().fold(0.0, |last, text| text.0.max(last));
        screen.write(&texts);
    }
    screen.svg()
}

/// Arguments as they are typed in a shell.
fn shown(args: &[&str]) -> String {
    let quoted = |arg: &&str| if arg.contains(' ') { format!("\"{arg}\"") } else { arg.to_string() };
    args.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// What a command prints, and when. Both streams go through one pipe, which keeps their order.
fn run(akunu: &Path, args: &[&str], begin: f64) -> Result<Vec<(f64, String, &'static str)>> {
    let (mut reader, writer) = std::io::pipe()?;
    let mut command = Command::new(akunu);
    command.args(args).env("COLUMNS", COLUMNS.to_string()).stdin(Stdio::null());
    let mut child = command.stdout(writer.try_clone()?).stderr(writer).spawn()?;
    // It holds the ends of the pipe that are written to.
    drop(command);
    let (mut now, mut before, mut texts) = (begin, Instant::now(), Vec::new());
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    while let count @ 1.. = reader.read(&mut buffer)? {
        now += before.elapsed().as_secs_f64().min(LONGEST_GAP);
        before = Instant::now();
        bytes.extend_from_slice(&buffer[..count]);
        let whole = match std::str::from_utf8(&bytes) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        let text: Vec<u8> = bytes.drain(..whole).collect();
        texts.push((now, String::from_utf8_lossy(&text).into_owned(), "out"));
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("akunu {args:?} failed: {status}");
    }
    Ok(texts)
}
