//! Templates in the language of Go, as Ollama's models have them: written as Jinja templates, which are rendered with the
//! same limits as all others.
//!
//! ```text
//! source ─lexer─▶ pieces ─parser─▶ ast ─jinja─▶ source of a Jinja template
//! ```
//!
//! A template that has `.Messages` is given all of them ([`values`]). One that has not is rendered once for each answer of
//! the conversation, with `.System`, `.Prompt` and `.Response`, and at last up to where the next answer is.

mod ast;
mod jinja;
mod lexer;
mod parser;
#[cfg(test)]
mod tests;
mod values;

use std::time::Instant;

use akunu_jinja::{JinjaError, LocalTime, Output, Template, Variable};
use serde_json::{Map, Value as Json};

use self::ast::{Base, Branch, Node, Nodes, Operand, Pipe};
use super::ChatError;

fn fail<T>(line: usize, message: impl Into<String>) -> Result<T, ChatError> {
    Err(ChatError::Syntax { line, message: message.into() })
}

#[derive(Debug)]
pub(super) struct GoTemplate {
    whole: Template,
    /// Up to the answer, of a template that has no `.Messages`.
    until_response: Option<Template>,
    /// The names of its fields, in small letters.
    names: Vec<String>,
}

impl GoTemplate {
    pub(super) fn new(source: &str) -> Result<GoTemplate, ChatError> {
        let mut parsed = parser::parse(lexer::pieces(source)?)?;
        let mut names = Vec::new();
        for nodes in [&parsed.main].into_iter().chain(parsed.defined.iter().map(|(_, nodes)| nodes)) {
            each_pipe(nodes, &mut |pipe| names.extend(names_of(pipe)));
        }
        let has = |name: &str| names.iter().any(|known| known == name);
        let has_messages = has("messages");
        if !has_messages && !has("response") {
            parsed.main.push(Node::Action(response()));
        }
        let template = |until_response| -> Result<Template, ChatError> {
            Ok(Template::new(&jinja::write(&parsed, until_response)?)?)
        };
        let until_response = if has_messages { None } else { Some(template(true)?) };
        let whole = template(false)?;
        Ok(GoTemplate { whole, until_response, names })
    }

    /// Whether the template reads what a Jinja template has as a variable of this name.
    pub(super) fn mentions(&self, name: &str) -> bool {
        let has = |name: &str| self.names.iter().any(|known| known == name);
        match name {
            "enable_thinking" => has("think") || has("isthinkset"),
            "reasoning_effort" => has("thinklevel"),
            "messages" | "tools" => has(name),
            _ => false,
        }
    }

    pub(super) fn has_fields(&self) -> bool {
        !self.names.is_empty()
    }

    /// `begin`: what the text begins with, whether the template writes it or not.
    pub(super) fn render(
        &self,
        begin: &str,
        messages: &[Json],
        tools: &Json,
        extra: &Map<String, Json>,
        (now, deadline): (LocalTime, Instant),
    ) -> Result<Output, ChatError> {
        let parts = match &self.until_response {
            None => vec![(&self.whole, values::of_conversation(messages, tools, extra))],
            Some(until_response) => {
                let mut turns = values::turns(messages, extra);
                let last = turns.pop();
                let last = last.map(|turn| (until_response, turn));
                turns.into_iter().map(|turn| (&self.whole, turn)).chain(last).collect()
            }
        };
        let dot = |values| Variable { name: jinja::ROOT, value: values, untrusted: true };
        let parts = parts.iter().map(|(template, values)| (*template, dot(values)));
        let mut output = match Template::render_parts(parts, now, deadline) {
            // The line is that of the Jinja template.
            Err(JinjaError::Runtime { message, .. }) => return Err(ChatError::Failed { message }),
            rendered => rendered?,
        };
        let is_begun = output.untrusted.first().is_none_or(|range| range.start >= begin.len());
        if !(is_begun && output.text.starts_with(begin)) {
            output.text.insert_str(0, begin);
            for range in &mut output.untrusted {
                *range = range.start + begin.len()..range.end + begin.len();
            }
        }
        Ok(output)
    }
}

/// `{{ .Response }}`
fn response() -> Pipe {
    let operand = Operand { base: Base::Dot, fields: vec!["Response".into()] };
    Pipe { variables: Vec::new(), declares: false, commands: vec![vec![operand]], line: 0 }
}

/// Whether it has the answer.
fn reads_response(pipe: &Pipe) -> bool {
    pipe.commands.iter().flatten().any(|operand| match &operand.base {
        Base::Dot => operand.fields.iter().any(|name| name == "Response"),
        Base::Pipe(pipe) => reads_response(pipe),
        _ => false,
    })
}

fn names_of(pipe: &Pipe) -> Vec<String> {
    let of_operand = |operand: &Operand| {
        let mut names: Vec<String> = operand.fields.iter().map(|name| name.to_lowercase()).collect();
        if let Base::Pipe(pipe) = &operand.base {
            names.extend(names_of(pipe));
        }
        names
    };
    pipe.commands.iter().flatten().flat_map(of_operand).collect()
}

fn each_pipe(nodes: &Nodes, visit: &mut dyn FnMut(&Pipe)) {
    for node in nodes {
        match node {
            Node::Action(pipe) | Node::Call(_, Some(pipe), _) => visit(pipe),
            Node::If(Branch { pipe, body, otherwise })
            | Node::With(Branch { pipe, body, otherwise })
            | Node::Range(Branch { pipe, body, otherwise }) => {
                visit(pipe);
                each_pipe(body, visit);
                each_pipe(otherwise, visit);
            }
            Node::Text(_) | Node::Call(_, None, _) | Node::Break(_) | Node::Continue(_) => {}
        }
    }
}
