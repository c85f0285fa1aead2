//! Parses the pieces of a Go template.

use std::vec::IntoIter;

use super::ast::{Base, Branch, Command, Node, Nodes, Operand, Pipe};
use super::lexer::{Piece, Placed, Token};
use super::{ChatError, fail};

/// Maximum depth of blocks and parentheses in each other.
const MAX_DEPTH: usize = 64;

/// The template, and those that it defines.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) main: Nodes,
    pub(super) defined: Vec<(String, Nodes)>,
}

pub(super) fn parse(pieces: Vec<Piece>) -> Result<Parsed, ChatError> {
    let mut parser = Parser { pieces: pieces.into_iter(), defined: Vec::new(), depth: 0, line: 1 };
    match parser.nodes()? {
        (main, End::Source) => Ok(Parsed { main, defined: parser.defined }),
        (_, end) => fail(parser.line, format!("{end} without a block")),
    }
}

struct Parser {
    pieces: IntoIter<Piece>,
    defined: Vec<(String, Nodes)>,
    depth: usize,
    line: usize,
}

/// What ends a list of nodes.
enum End {
    Source,
    /// `{{ end }}`
    Block,
    /// With the tokens of `else if …` or `else with …`.
    Else(Tokens),
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            End::Source => "the end of the template",
            End::Block => "{{ end }}",
            End::Else(_) => "{{ else }}",
        })
    }
}

impl Parser {
    fn enter(&mut self) -> Result<(), ChatError> {
        self.depth += 1;
        match self.depth > MAX_DEPTH {
            true => fail(self.line, format!("blocks and parentheses are nested deeper than {MAX_DEPTH}")),
            false => Ok(()),
        }
    }

    fn nodes(&mut self) -> Result<(Nodes, End), ChatError> {
        self.enter()?;
        let mut nodes = Vec::new();
        let end = loop {
            let (tokens, line) = match self.pieces.next() {
                None => break End::Source,
                Some(Piece::Text(text)) => {
                    nodes.push(Node::Text(text));
                    continue;
                }
                Some(Piece::Action(tokens, line)) => (tokens, line),
            };
            self.line = line;
            let mut tokens = Tokens { tokens, at: 0, line };
            match tokens.word() {
                Some("end") => {
                    tokens.end()?;
                    break End::Block;
                }
                Some("else") => break End::Else(tokens),
                Some("if") => nodes.push(Node::If(self.branch(tokens)?)),
                Some("with") => nodes.push(Node::With(self.branch(tokens)?)),
                Some("range") => nodes.push(Node::Range(self.branch(tokens)?)),
                Some("break") => {
                    tokens.end()?;
                    nodes.push(Node::Break(line));
                }
                Some("continue") => {
                    tokens.end()?;
                    nodes.push(Node::Continue(line));
                }
                Some("define") => {
                    let name = tokens.name()?;
                    tokens.end()?;
                    self.define(name)?;
                }
                Some("block") => {
                    let name = tokens.name()?;
                    let pipe = self.pipe(&mut tokens)?;
                    tokens.end()?;
                    self.define(name.clone())?;
                    nodes.push(Node::Call(name, Some(pipe), line));
                }
                Some("template") => {
                    let name = tokens.name()?;
                    let pipe = if tokens.peek().is_some() { Some(self.pipe(&mut tokens)?) } else { None };
                    tokens.end()?;
                    nodes.push(Node::Call(name, pipe, line));
                }
                _ => {
                    // What was taken for a statement is a function.
                    tokens.at = 0;
                    let pipe = self.pipe(&mut tokens)?;
                    tokens.end()?;
                    nodes.push(Node::Action(pipe));
                }
            }
        };
        self.depth -= 1;
        Ok((nodes, end))
    }

    fn define(&mut self, name: String) -> Result<(), ChatError> {
        match self.nodes()? {
            (nodes, End::Block) => self.defined.push((name, nodes)),
            (_, end) => return fail(self.line, format!("{end} instead of an {{{{ end }}}}")),
        }
        Ok(())
    }

    /// The rest of a block, after its first word.
    fn branch(&mut self, mut tokens: Tokens) -> Result<Branch, ChatError> {
        let pipe = self.pipe(&mut tokens)?;
        tokens.end()?;
        let (body, end) = self.nodes()?;
        let otherwise = match end {
            End::Block => Vec::new(),
            End::Else(mut tokens) => match tokens.word() {
                // One `end` ends both.
                Some("if") => vec![Node::If(self.nested(tokens)?)],
                Some("with") => vec![Node::With(self.nested(tokens)?)],
                _ => {
                    tokens.end()?;
                    match self.nodes()? {
                        (nodes, End::Block) => nodes,
                        (_, end) => return fail(self.line, format!("{end} instead of an {{{{ end }}}}")),
                    }
                }
            },
            End::Source => return fail(self.line, "a block has no {{ end }}"),
        };
        Ok(Branch { pipe, body, otherwise })
    }

    fn nested(&mut self, tokens: Tokens) -> Result<Branch, ChatError> {
        self.enter()?;
        let branch = self.branch(tokens)?;
        self.depth -= 1;
        Ok(branch)
    }

    fn pipe(&mut self, tokens: &mut Tokens) -> Result<Pipe, ChatError> {
        self.enter()?;
        let (variables, declares) = tokens.variables();
        let mut commands = vec![self.command(tokens)?];
        while tokens.take(&Token::Sign('|')) {
            commands.push(self.command(tokens)?);
        }
        self.depth -= 1;
        Ok(Pipe { variables, declares, commands, line: tokens.line })
    }

    fn command(&mut self, tokens: &mut Tokens) -> Result<Command, ChatError> {
        let mut operands = Vec::new();
        while let Some(operand) = self.operand(tokens)? {
            operands.push(operand);
        }
        match operands.is_empty() {
            true => fail(tokens.line, "a value is missing"),
            false => Ok(operands),
        }
    }

    fn operand(&mut self, tokens: &mut Tokens) -> Result<Option<Operand>, ChatError> {
        let mut fields = Vec::new();
        let Some(token) = tokens.peek().cloned() else { return Ok(None) };
        let base = match token {
            Token::Sign('(') => {
                tokens.at += 1;
                let pipe = self.pipe(tokens)?;
                if tokens.peek() != Some(&Token::Sign(')')) {
                    return fail(tokens.line, "a parenthesis is not closed");
                }
                Base::Pipe(Box::new(pipe))
            }
            Token::Dot => Base::Dot,
            Token::Field(name) => {
                fields.push(name);
                Base::Dot
            }
            Token::Variable(name) => Base::Variable(name),
            Token::Text(text) => Base::Text(text),
            Token::Int(value) => Base::Int(value),
            Token::Float(value) => Base::Float(value),
            Token::Word(word) => match word.as_str() {
                "nil" => Base::Nil,
                "true" => Base::Bool(true),
                "false" => Base::Bool(false),
                _ => Base::Function(word),
            },
            Token::Sign(_) | Token::Declare => return Ok(None),
        };
        tokens.at += 1;
        while let Some(Placed { token: Token::Field(name), is_apart: false }) = tokens.tokens.get(tokens.at) {
            fields.push(name.clone());
            tokens.at += 1;
        }
        Ok(Some(Operand { base, fields }))
    }
}

/// The tokens of an action that are not parsed yet.
struct Tokens {
    tokens: Vec<Placed>,
    at: usize,
    line: usize,
}

impl Tokens {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|placed| &placed.token)
    }

    fn take(&mut self, token: &Token) -> bool {
        let is_next = self.peek() == Some(token);
        self.at += usize::from(is_next);
        is_next
    }

    fn word(&mut self) -> Option<&str> {
        match self.tokens.get(self.at) {
            Some(Placed { token: Token::Word(word), .. }) => {
                self.at += 1;
                Some(word)
            }
            _ => None,
        }
    }

    /// The name of a template.
    fn name(&mut self) -> Result<String, ChatError> {
        match self.peek() {
            Some(Token::Text(name)) => {
                let name = name.clone();
                self.at += 1;
                Ok(name)
            }
            _ => fail(self.line, "the name of a template is missing"),
        }
    }

    /// `$a :=`, `$a =`, `$a, $b :=`; nothing if no assignment follows.
    fn variables(&mut self) -> (Vec<String>, bool) {
        let begin = self.at;
        let mut names = Vec::new();
        while let Some(Token::Variable(name)) = self.peek() {
            names.push(name.clone());
            self.at += 1;
            if self.take(&Token::Declare) {
                return (names, true);
            }
            if self.take(&Token::Sign('=')) {
                return (names, false);
            }
            if !self.take(&Token::Sign(',')) {
                break;
            }
        }
        self.at = begin;
        (Vec::new(), false)
    }

    fn end(&self) -> Result<(), ChatError> {
        match self.peek() {
            None => Ok(()),
            Some(token) => fail(self.line, format!("unexpected {token:?}")),
        }
    }
}
