//! Constrained generation: answers that have to be of a JSON Schema, any object of JSON, or a call of a tool.
//!
//! ```text
//! ResponseFormat ─schema─▶ nodes ─Machine─▶ bytes that may follow ─Vocabulary─▶ tokens that may follow ─Sampler─▶ all others at −∞
//! ```
//!
//! The format is a grammar that is read byte by byte with a stack. At each place of it the vocabulary, a tree of bytes, is walked
//! together with the grammar; the mask of tokens that was found is kept, because places come again. The text may end only where the value is whole, and ends by itself where nothing can
//! follow.

mod disjoint;
mod machine;
mod node;
mod number;
mod schema;
#[cfg(test)]
mod tests;
mod text;
mod vocabulary;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use akunu_tokenizer::Tokenizer;
use serde_json::Value as Json;

use crate::chat::Tags;
use crate::{Error, Model};
use machine::{Machine, Stack};
use node::{Mark, Node, NodeId, Property};
pub use schema::SchemaError;
use schema::{Compiler, key};
pub(crate) use vocabulary::{Mask, Vocabulary};

/// Memory for what is kept of one constraint.
const MOST_KEPT: usize = 16 << 20;

/// What an answer is to be.
#[derive(Clone, Debug, PartialEq)]
pub enum ResponseFormat {
    /// Any object.
    Object,
    /// A value of this JSON Schema.
    Schema(Json),
    /// `{"name": …, "arguments": …}` for one of these.
    Call(Vec<Tool>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    pub name: String,
    /// The JSON Schema of its arguments; `None`: any object.
    pub parameters: Option<Json>,
}

impl Tool {
    /// Reads a tool in the form of the OpenAI API; `None`: it has no name.
    pub fn from_openai(tool: &Json) -> Option<Tool> {
        let function = &tool["function"];
        let name = function["name"].as_str()?.to_string();
        let parameters = function.get("parameters").filter(|parameters| parameters.is_object()).cloned();
        Some(Tool { name, parameters })
    }
}

/// What a model may write before its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Reasoning {
    pub tags: &'static Tags,
    /// The prompt has opened it already.
    pub is_open: bool,
    /// Control tokens that tags are made of.
    pub marks: Vec<u32>,
}

/// Constraints that are kept.
const KEPT: usize = 8;

/// The constraints of one model. To make one takes long, so the latest are kept.
#[derive(Debug)]
pub struct Constraints {
    model: Arc<Model>,
    /// The latest first, each with all that it was made from, written out.
    kept: Mutex<VecDeque<(String, Arc<Constraint>)>>,
}

impl Constraints {
    pub fn new(model: Arc<Model>) -> Constraints {
        Constraints { model, kept: Mutex::default() }
    }

    /// As [`Constraint::new`], but that one which is kept is given again.
    pub fn get(&self, format: &ResponseFormat, before: Option<&Reasoning>) -> Result<Arc<Constraint>, Error> {
        let made_from = format!("{format:?} {before:?}");
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, constraint)) = kept().iter().find(|(other, _)| *other == made_from) {
            return Ok(constraint.clone());
        }
        // The lock is free meanwhile: others need not wait for this.
        let constraint = Arc::new(Constraint::new(&self.model, format, before)?);
        let mut kept = kept();
        kept.truncate(KEPT - 1);
        kept.push_front((made_from, constraint.clone()));
        Ok(constraint)
    }
}

/// The grammar of a format over a model's vocabulary. Many requests may share it.
#[derive(Debug)]
pub struct Constraint {
    machine: Machine,
    tokenizer: Arc<dyn Tokenizer>,
    vocabulary: Arc<Vocabulary>,
    vocab_size: usize,
    /// Control tokens with a text.
    marks: Vec<(u32, Box<[u8]>)>,
    masks: Mutex<HashMap<Vec<Stack>, Arc<Mask>>>,
}

impl Constraint {
    /// Refuses schemas that cannot be held to, and those that nothing can be.
    pub fn new(
        model: &Model,
        format: &ResponseFormat,
        before: Option<&Reasoning>,
    ) -> Result<Constraint, Error> {
        let tokenizer = model.tokenizer()?.clone();
        let mut compiler = Compiler::default();
        let mut root = format_node(&mut compiler, format)?;
        if let Some(reasoning) = before {
            root = behind(&mut compiler, reasoning, root);
        }
        let Some(machine) = Machine::new(compiler.grammar(root)) else {
            return Err(SchemaError {
                place: "#".into(),
                reason: "no value can be all that it asks for".into(),
            }
            .into());
        };
        let text = |id: &u32| Some((*id, tokenizer.token_text(*id)?.as_bytes().into()));
        let marks = before.map_or(&[][..], |reasoning| &reasoning.marks).iter().filter_map(text).collect();
        Ok(Constraint {
            machine,
            vocabulary: model.vocabulary()?,
            vocab_size: model.config().vocab_size,
            marks,
            tokenizer,
            masks: Mutex::default(),
        })
    }

    pub(crate) fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn mask(&self, stacks: &[Stack]) -> Result<Arc<Mask>, Error> {
        if let Some(mask) = self.masks.lock().unwrap_or_else(PoisonError::into_inner).get(stacks) {
            return Ok(mask.clone());
        }
        let mask = self.vocabulary.allowed(&self.machine, stacks, &self.marks);
        let mask = Arc::new(mask.ok_or(Error::ManyReadings)?);
        let mut masks = self.masks.lock().unwrap_or_else(PoisonError::into_inner);
        if masks.len() * mask.bytes() > MOST_KEPT {
            masks.clear();
        }
        masks.insert(stacks.to_vec(), mask.clone());
        Ok(mask)
    }

    fn bytes(&self, id: u32) -> &[u8] {
        let mark = self.marks.iter().find(|mark| mark.0 == id).map(|mark| &*mark.1);
        mark.or_else(|| self.tokenizer.token_bytes(id)).unwrap_or_default()
    }
}

fn format_node(compiler: &mut Compiler, format: &ResponseFormat) -> Result<NodeId, SchemaError> {
    match format {
        ResponseFormat::Object => Ok(compiler.any_object()),
        ResponseFormat::Schema(schema) => compiler.schema(schema),
        ResponseFormat::Call(tools) => {
            let calls = tools.iter().map(|tool| {
                let name = Json::from(tool.name.as_str()).to_string();
                let name = compiler.literals([name.as_str()]);
                let arguments = match &tool.parameters {
                    Some(schema) => compiler.schema(schema)?,
                    None => compiler.any_object(),
                };
                let property = |name: &str, value| Property { key: key(name), value, required: true };
                Ok(compiler.object(vec![property("name", name), property("arguments", arguments)], None))
            });
            let calls = calls.collect::<Result<Vec<_>, SchemaError>>()?;
            Ok(compiler.node(Node::Choice(calls)))
        }
    }
}

/// An answer behind what a model thinks, if it does.
fn behind(compiler: &mut Compiler, reasoning: &Reasoning, answer: NodeId) -> NodeId {
    let Tags { open, close, silent, anywhere } = *reasoning.tags;
    let begin = compiler.reserve();
    // What thinks in one place only goes on to the answer.
    let after = if anywhere { begin } else { answer };
    let thought = compiler.node(Node::Until(Mark::new(close)));
    let thinking = compiler.node(Node::Then(thought, after));
    let mut ways = vec![answer];
    let open = compiler.literals([open]);
    ways.push(compiler.node(Node::Then(open, thinking)));
    for header in silent {
        let header = compiler.literals([*header]);
        ways.push(compiler.node(Node::Then(header, begin)));
    }
    let ways = compiler.node(Node::Choice(ways));
    compiler.fill(begin, ways);
    if reasoning.is_open { thinking } else { begin }
}

/// How far an answer has come.
#[derive(Debug)]
pub(crate) struct Cursor {
    constraint: Arc<Constraint>,
    stacks: Vec<Stack>,
    /// Of the prompt and what was generated, so many tokens are read.
    read: usize,
    /// Tokens that end the text.
    endings: Vec<u32>,
    next: Vec<Stack>,
}

impl Cursor {
    pub(crate) fn new(constraint: Arc<Constraint>, prompt_len: usize, endings: &[u32]) -> Cursor {
        let stacks = constraint.machine.start();
        Cursor { constraint, stacks, read: prompt_len, endings: endings.to_vec(), next: Vec::new() }
    }

    fn follow(&mut self, history: &[u32]) {
        for &id in history.get(self.read..).unwrap_or_default() {
            for &byte in self.constraint.bytes(id) {
                self.constraint.machine.step(&self.stacks, byte, &mut self.next);
                std::mem::swap(&mut self.stacks, &mut self.next);
            }
        }
        self.read = history.len();
    }

    /// Rules out what cannot follow.
    pub(crate) fn rule_out(&mut self, history: &[u32], logits: &mut [f32]) -> Result<(), Error> {
        self.follow(history);
        let mask = self.constraint.mask(&self.stacks)?;
        let endings: Vec<(u32, f32)> = self.endings.iter().map(|&id| (id, logits[id as usize])).collect();
        let mut any = false;
        for (logit, id) in logits.iter_mut().zip(0..) {
            if mask.contains(id) {
                any = true;
            } else {
                *logit = f32::NEG_INFINITY;
            }
        }
        // They may have a text, which then is not what they mean.
        for (id, logit) in endings {
            logits[id as usize] = if mask.may_end { logit } else { f32::NEG_INFINITY };
            any |= mask.may_end;
        }
        if any { Ok(()) } else { Err(Error::NothingFits) }
    }

    /// Whether all is said, and nothing can follow.
    pub(crate) fn is_over(&mut self, history: &[u32]) -> bool {
        self.follow(history);
        self.constraint.machine.is_over(&self.stacks)
    }
}
