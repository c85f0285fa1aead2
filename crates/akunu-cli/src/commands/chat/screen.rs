//! Prints answers as they arrive: as they are into a pipe, and wrapped and with styles on a terminal.

use std::io::IsTerminal;
use std::ops::ControlFlow;

use akunu::chat::{AnswerDelta, Event, Kind, Part};

use super::lines::Style;
use super::markdown::Markdown;
use crate::failure::Failure;
use crate::output::{self, Cleaner, Output, printable, printable_lines};
use crate::progress::Progress;

/// How answers are shown.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    is_terminal: bool,
    /// Whether the terminal may have colours and other styles.
    styles: bool,
    pub reasoning: bool,
    pub wrap: bool,
    pub markdown: bool,
    /// Calls of tools are not shown.
    pub without_calls: bool,
}

impl Look {
    pub fn new(reasoning: bool, plain: bool) -> Look {
        let is_terminal = std::io::stdout().is_terminal();
        let styles = is_terminal && crate::environment::allows_colours();
        Look { is_terminal, styles, reasoning, wrap: !plain, markdown: !plain, without_calls: false }
    }

    /// Shows a message of the conversation on stderr, answers as [`Screen`] shows them.
    pub fn note(self, role: &str, text: &str) {
        let styles = std::io::stderr().is_terminal() && crate::environment::allows_colours();
        let columns = terminal_size::terminal_size_of(std::io::stderr()).map(|(width, _)| width.0.into());
        let mut shown = Markdown::new(styles && self.markdown);
        shown.set_columns(columns.filter(|_| self.wrap));
        shown.plain(&format!("{}: ", printable(role)), Style::PLAIN);
        let text = printable_lines(text);
        match role {
            "assistant" => shown.push(&text),
            _ => shown.plain(&text, Style::PLAIN),
        }
        output::styled_note(&shown.end());
    }
}

/// Prints one answer. A write error ends the generation and is returned afterwards.
#[derive(Debug)]
pub struct Screen<'a> {
    out: &'a mut Output,
    look: Look,
    text: Markdown,
    cleaner: Cleaner,
    progress: Option<Progress>,
    /// Only whitespace was received so far, with reasoning hidden.
    blank: bool,
    at_line_start: bool,
    /// Reasoning was shown last.
    after_reasoning: bool,
    failure: Option<Failure>,
}

impl Screen<'_> {
    pub fn new(out: &mut Output, look: Look) -> Screen<'_> {
        Screen {
            out,
            look,
            text: Markdown::new(look.styles && look.markdown),
            cleaner: Cleaner::default(),
            progress: None,
            blank: !look.reasoning,
            at_line_start: true,
            after_reasoning: false,
            failure: None,
        }
    }

    pub fn event(&mut self, event: Event<'_>) -> ControlFlow<()> {
        let shown = match event {
            Event::Reading { done, total } => {
                let bar = || Progress::new("reading the conversation", total as u64);
                self.progress.get_or_insert_with(bar).set(done as u64);
                Ok(())
            }
            Event::Part(part) if self.look.without_calls && part.kind == Kind::Answer => Ok(()),
            Event::Part(part) => self.part(part),
            Event::Delta(delta) if self.look.without_calls => self.delta(delta),
            Event::Delta(_) => Ok(()),
        };
        match shown {
            Ok(()) => ControlFlow::Continue(()),
            Err(failure) => {
                self.failure = Some(failure);
                ControlFlow::Break(())
            }
        }
    }

    /// Text beside calls, which begins a line after reasoning.
    fn delta(&mut self, delta: &AnswerDelta) -> Result<(), Failure> {
        for text in [&delta.answer, &delta.cut].into_iter().filter(|text| !text.is_empty()) {
            if self.after_reasoning && !self.at_line_start {
                self.part(Part { kind: Kind::Answer, text: "\n" })?;
            }
            self.part(Part { kind: Kind::Answer, text })?;
        }
        Ok(())
    }

    fn part(&mut self, part: Part<'_>) -> Result<(), Failure> {
        self.progress = None;
        let is_answer = part.kind == Kind::Answer;
        if !self.look.reasoning && !is_answer {
            return Ok(());
        }
        let text = if self.blank { part.text.trim_start() } else { part.text };
        if text.is_empty() {
            return Ok(());
        }
        self.blank = false;
        self.after_reasoning = !is_answer;
        self.at_line_start = text.ends_with('\n');
        if !self.look.is_terminal {
            self.out.text(text)?;
            return self.out.flush();
        }
        let columns = terminal_size::terminal_size_of(std::io::stdout()).map(|(width, _)| width.0.into());
        self.text.set_columns(columns.filter(|_| self.look.wrap));
        let text = self.cleaner.clean(text);
        match is_answer {
            true => self.text.push(&text),
            false if self.look.styles => self.text.plain(&text, Style::DIM),
            false => self.text.plain(&text, Style::PLAIN),
        }
        self.write()
    }

    fn write(&mut self) -> Result<(), Failure> {
        let ready = self.text.take();
        if ready.is_empty() {
            return Ok(());
        }
        self.out.text(&ready)?;
        self.out.flush()
    }

    pub fn has_printed(&self) -> bool {
        !self.at_line_start || self.failure.is_some()
    }

    /// Ends the line, if anything was printed.
    pub fn end(mut self) -> Result<(), Failure> {
        self.progress = None;
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let rest = self.text.end();
        self.out.text(&rest)?;
        if !self.at_line_start {
            self.out.text("\n")?;
        }
        if self.look.is_terminal {
            self.out.text("\n")?;
        }
        self.out.flush()
    }
}
