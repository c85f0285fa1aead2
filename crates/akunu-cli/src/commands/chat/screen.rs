//! Prints answers as they arrive; reasoning is dimmed on terminals that support it.

use std::io::IsTerminal;
use std::ops::ControlFlow;

use akunu::chat::{Event, Kind, Part};

use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[22m";

/// Output style of answers.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    pub dims: bool,
    pub hides_reasoning: bool,
    /// Whether an empty line follows each answer.
    pub spaced: bool,
}

impl Style {
    pub fn new(hides_reasoning: bool) -> Style {
        let terminal = std::io::stdout().is_terminal();
        let dims = terminal && crate::environment::allows_colours();
        Style { dims, hides_reasoning, spaced: terminal }
    }
}

/// Prints one answer. A write error ends the generation and is returned afterwards.
#[derive(Debug)]
pub struct Screen<'a> {
    out: &'a mut Output,
    style: Style,
    progress: Option<Progress>,
    dimmed: bool,
    /// Only whitespace was received so far, with reasoning hidden.
    blank: bool,
    at_line_start: bool,
    failure: Option<Failure>,
}

impl Screen<'_> {
    pub fn new(out: &mut Output, style: Style) -> Screen<'_> {
        Screen {
            out,
            style,
            progress: None,
            dimmed: false,
            blank: style.hides_reasoning,
            at_line_start: true,
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
            Event::Part(part) => self.part(part),
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

    fn part(&mut self, part: Part<'_>) -> Result<(), Failure> {
        self.progress = None;
        let is_answer = part.kind == Kind::Answer;
        if self.style.hides_reasoning && !is_answer {
            return Ok(());
        }
        let text = if self.blank { part.text.trim_start() } else { part.text };
        if text.is_empty() {
            return Ok(());
        }
        self.blank = false;
        self.dim(!is_answer)?;
        self.at_line_start = text.ends_with('\n');
        self.out.text(text)?;
        self.out.flush()
    }

    fn dim(&mut self, dimmed: bool) -> Result<(), Failure> {
        if !self.style.dims || self.dimmed == dimmed {
            return Ok(());
        }
        self.dimmed = dimmed;
        self.out.text(if dimmed { DIM } else { PLAIN })
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
        self.dim(false)?;
        if !self.at_line_start {
            self.out.text("\n")?;
        }
        if self.style.spaced {
            self.out.text("\n")?;
        }
        self.out.flush()
    }
}
