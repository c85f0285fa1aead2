//! Constrained generation: answers that conform to a JSON Schema, are any JSON object, or are a tool call.
//!
//! ```text
//! ResponseFormat ─schema─▶ nodes ─Machine─▶ bytes that may follow ─Vocabulary─▶ tokens that may follow ─Sampler─▶ all others at −∞
//! ```
//!
//! A format is a grammar, parsed byte by byte with a stack. At each state the vocabulary, a trie of bytes, is traversed together with
//! the grammar. The resulting mask of tokens is cached, because states recur. The text may end only where the value is complete, and
//! ends by itself where nothing can follow.

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

/// Memory limit for the cached masks of one constraint.
const MAX_CACHED_BYTES: usize = 16 << 20;

/// The required format of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum ResponseFormat {
    /// Any object.
    Object,
    /// A value that conforms to this JSON Schema.
    Schema(Json),
    /// `{"name": …, "arguments": …}` for one of these tools.
    Call(Vec<Tool>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    pub name: String,
    /// The JSON Schema of the arguments; `None`: any object.
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

/// Reasoning that may precede an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Reasoning {
    pub tags: &'static Tags,
    /// The prompt ends with the opening tag.
    pub is_open: bool,
    /// Control tokens that occur in the tags.
    pub marks: Vec<u32>,
}

/// Number of cached constraints.
const KEPT: usize = 8;

/// The constraints of a model. They are slow to create, so the latest are cached.
#[derive(Debug)]
pub struct Constraints {
    model: Arc<Model>,
    /// Latest first, each with a key of everything that it was created from.
    kept: Mutex<VecDeque<(String, Arc<Constraint>)>>,
}

impl Constraints {
    pub fn new(model: Arc<Model>) -> Constraints {
        Constraints { model, kept: Mutex::default() }
    }

    /// As [`Constraint::new`], with a cache.
    pub fn get(&self, format: &ResponseFormat, before: Option<&Reasoning>) -> Result<Arc<Constraint>, Error> {
        let key = format!("{format:?} {before:?}");
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, constraint)) = kept().iter().find(|(other, _)| *other == key) {
            return Ok(constraint.clone());
        }
        // Created without the lock, so that other requests do not wait.
        let constraint = Arc::new(Constraint::new(&self.model, format, before)?);
        let mut kept = kept();
        kept.truncate(KEPT - 1);
        kept.push_front((key, constraint.clone()));
        Ok(constraint)
    }
}

/// The grammar of a format over a model's vocabulary. It may be shared by many requests.
#[derive(Debug)]
pub struct Constraint {
    machine: Machine,
    tokenizer: Arc<dyn Tokenizer>,
    vocabulary: Arc<Vocabulary>,
    vocab_size: usize,
    /// Control tokens that have a text.
    marks: Vec<(u32, Box<[u8]>)>,
    masks: Mutex<HashMap<Vec<Stack>, Arc<Mask>>>,
}

impl Constraint {
    /// Refuses schemas that are not supported, and those that no value satisfies.
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
            return Err(SchemaError { place: "#".into(), reason: "no value satisfies it".into() }.into());
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
        if masks.len() * mask.bytes() > MAX_CACHED_BYTES {
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

/// A node for an optional reasoning, followed by the answer.
fn behind(compiler: &mut Compiler, reasoning: &Reasoning, answer: NodeId) -> NodeId {
    let Tags { open, close, silent, anywhere } = *reasoning.tags;
    let begin = compiler.reserve();
    // Reasoning that may only start the text is followed by the answer.
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

/// The state of a constrained answer.
#[derive(Debug)]
pub(crate) struct Cursor {
    constraint: Arc<Constraint>,
    stacks: Vec<Stack>,
    /// The number of tokens of the history that are parsed.
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

    /// Masks the tokens that cannot follow.
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
        // They may have a text, which is not meant as text.
        for (id, logit) in endings {
            logits[id as usize] = if mask.may_end { logit } else { f32::NEG_INFINITY };
            any |= mask.may_end;
        }
        if any { Ok(()) } else { Err(Error::NothingFits) }
    }

    /// Whether the answer is complete, and nothing can follow.
    pub(crate) fn is_over(&mut self, history: &[u32]) -> bool {
        self.follow(history);
        self.constraint.machine.is_over(&self.stacks)
    }
}
