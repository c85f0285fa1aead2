//! Parses statements into a syntax tree. Expressions are in [`super::expressions`].

use std::collections::HashMap;

use super::ast::{Filter, ForLoop, MacroDef, Stmt, StmtKind, Symbol, Target};
use super::lexer::{Token, tokenize};
use super::{JinjaError, JinjaResult};

/// Maximum nesting of statements and brackets.
const DEPTH: usize = 100;

#[derive(Debug)]
pub(super) struct Parser {
    tokens: Vec<(Token, usize)>,
    at: usize,
    names: HashMap<String, Symbol>,
    depth: usize,
    /// Number of enclosing loops inside the innermost macro.
    loops: usize,
}

/// The syntax tree of a template, and its names by [`Symbol`].
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) body: Vec<Stmt>,
    pub(super) names: Vec<String>,
}

pub(super) fn parse(source: &str) -> JinjaResult<Parsed> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    // Jinja2 drops one newline at the end of a template.
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let tokens = tokenize(source)?;
    let mut parser = Parser { tokens, at: 0, names: HashMap::new(), depth: 0, loops: 0 };
    let (body, _) = parser.body(&[])?;
    let mut names = vec![String::new(); parser.names.len()];
    for (name, symbol) in parser.names {
        names[symbol as usize] = name;
    }
    Ok(Parsed { body, names })
}

impl Parser {
    pub(super) fn symbol(&mut self, name: &str) -> Symbol {
        let next = self.names.len() as Symbol;
        *self.names.entry(name.to_string()).or_insert(next)
    }

    pub(super) fn line(&self) -> usize {
        self.tokens[self.at].1
    }

    pub(super) fn error<T>(&self, message: impl Into<String>) -> JinjaResult<T> {
        Err(JinjaError::Syntax { line: self.line(), message: message.into() })
    }

    pub(super) fn unexpected<T>(&self, wanted: &str) -> JinjaResult<T> {
        let found = match self.peek() {
            Token::End => "the end of the template".to_string(),
            Token::Name(name) => format!("'{name}'"),
            Token::Op(op) => format!("'{op}'"),
            Token::BlockEnd | Token::PrintEnd => "the end of the tag".to_string(),
            Token::Str(_) => "a string".to_string(),
            _ => "something else".to_string(),
        };
        self.error(format!("expected {wanted}, found {found}"))
    }

    pub(super) fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    pub(super) fn peek_at(&self, ahead: usize) -> &Token {
        &self.tokens[(self.at + ahead).min(self.tokens.len() - 1)].0
    }

    pub(super) fn next(&mut self) -> Token {
        let token = self.tokens[self.at].0.clone();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        token
    }

    pub(super) fn is_op(&self, op: &str) -> bool {
        matches!(self.peek(), Token::Op(found) if *found == op)
    }

    pub(super) fn skip_op(&mut self, op: &str) -> bool {
        let found = self.is_op(op);
        if found {
            self.next();
        }
        found
    }

    pub(super) fn expect_op(&mut self, op: &str) -> JinjaResult<()> {
        if self.skip_op(op) { Ok(()) } else { self.unexpected(&format!("'{op}'")) }
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Token::Name(found) if found == name)
    }

    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        if found {
            self.next();
        }
        found
    }

    pub(super) fn expect_name(&mut self) -> JinjaResult<String> {
        match self.peek() {
            Token::Name(_) => match self.next() {
                Token::Name(name) => Ok(name),
                _ => self.unexpected("a name"),
            },
            _ => self.unexpected("a name"),
        }
    }

    fn expect(&mut self, token: &Token) -> JinjaResult<()> {
        if self.peek() == token {
            self.next();
            return Ok(());
        }
        self.unexpected("the end of the tag")
    }

    pub(super) fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> JinjaResult<T>) -> JinjaResult<T> {
        if self.depth == DEPTH {
            return self.error("it nests too deeply");
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Statements up to a tag with one of these names; the name of that tag is consumed.
    fn body(&mut self, ends: &[&'static str]) -> JinjaResult<(Vec<Stmt>, &'static str)> {
        self.deeper(|parser| parser.statements(ends))
    }

    fn statements(&mut self, ends: &[&'static str]) -> JinjaResult<(Vec<Stmt>, &'static str)> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            let kind = match self.next() {
                Token::Data(text) => StmtKind::Raw(text.into()),
                Token::PrintBegin => {
                    let printed = self.tuple(true)?;
                    self.expect(&Token::PrintEnd)?;
                    StmtKind::Print(printed)
                }
                Token::BlockBegin => {
                    let name = self.expect_name()?;
                    if let Some(end) = ends.iter().find(|end| **end == name) {
                        return Ok((body, end));
                    }
                    match self.statement(&name)? {
                        Some(kind) => kind,
                        None => continue,
                    }
                }
                Token::End if ends.is_empty() => return Ok((body, "")),
                Token::End => {
                    return self.error(format!(
                        "unexpected end of the template, expected '{}'",
                        ends[ends.len() - 1]
                    ));
                }
                _ => return self.unexpected("text or a tag"),
            };
            body.push(Stmt { line, kind });
        }
    }

    /// A body whose end tag consists of the name only.
    fn body_to(&mut self, end: &'static str) -> JinjaResult<Vec<Stmt>> {
        let (body, _) = self.body(&[end])?;
        self.expect(&Token::BlockEnd)?;
        Ok(body)
    }

    fn statement(&mut self, name: &str) -> JinjaResult<Option<StmtKind>> {
        Ok(Some(match name {
            "if" => self.if_statement()?,
            "for" => self.for_statement()?,
            "set" => self.set_statement()?,
            "with" => self.with_statement()?,
            "macro" => self.macro_statement()?,
            "call" => self.call_statement()?,
            "filter" => {
                let filters = self.filter_chain()?;
                self.expect(&Token::BlockEnd)?;
                StmtKind::Filter(filters, self.body_to("endfilter")?)
            }
            // A transformers extension that marks assistant output for training; it has its own scope.
            "generation" => {
                self.expect(&Token::BlockEnd)?;
                StmtKind::With(Vec::new(), self.body_to("endgeneration")?)
            }
            "break" | "continue" => {
                if self.loops == 0 {
                    return self.error(format!("'{name}' outside a loop"));
                }
                self.expect(&Token::BlockEnd)?;
                if name == "break" { StmtKind::Break } else { StmtKind::Continue }
            }
            _ => return self.error(format!("unknown tag '{name}'")),
        }))
    }

    fn if_statement(&mut self) -> JinjaResult<StmtKind> {
        let mut branches = Vec::new();
        loop {
            let test = self.tuple(false)?;
            self.expect(&Token::BlockEnd)?;
            let (body, end) = self.body(&["elif", "else", "endif"])?;
            branches.push((Some(test), body));
            match end {
                "elif" => {}
                "else" => {
                    self.expect(&Token::BlockEnd)?;
                    branches.push((None, self.body_to("endif")?));
                    return Ok(StmtKind::If(branches));
                }
                _ => {
                    self.expect(&Token::BlockEnd)?;
                    return Ok(StmtKind::If(branches));
                }
            }
        }
    }

    fn for_statement(&mut self) -> JinjaResult<StmtKind> {
        let (targets, unpacks) = self.targets(false)?;
        if !self.skip_name("in") {
            return self.unexpected("'in'");
        }
        let iterable = self.tuple(false)?;
        let test = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_name("recursive");
        self.expect(&Token::BlockEnd)?;
        self.loops += 1;
        let parsed = self.body(&["else", "endfor"]);
        self.loops -= 1;
        let (body, end) = parsed?;
        self.expect(&Token::BlockEnd)?;
        let otherwise = if end == "else" { self.body_to("endfor")? } else { Vec::new() };
        let made = ForLoop { targets, unpacks, iterable, test, body, otherwise, recursive };
        Ok(StmtKind::For(Box::new(made)))
    }

    /// `a`, `a, b` or `(a, b)`, and with `attributes` also `ns.a`. Returns true if there are several targets or a
    /// trailing comma.
    fn targets(&mut self, attributes: bool) -> JinjaResult<(Vec<Target>, bool)> {
        let mut targets = Vec::new();
        let mut commas = false;
        loop {
            if self.skip_op("(") {
                let (inner, _) = self.deeper(|parser| parser.targets(attributes))?;
                self.expect_op(")")?;
                targets.push(Target::Tuple(inner));
            } else {
                let name = self.expect_name()?;
                let name = self.symbol(&name);
                if attributes && self.skip_op(".") {
                    let attribute = self.expect_name()?;
                    let attribute = self.symbol(&attribute);
                    targets.push(Target::Attribute(name, attribute));
                } else {
                    targets.push(Target::Name(name));
                }
            }
            if !self.skip_op(",") {
                return Ok((targets, commas));
            }
            commas = true;
            if !matches!(self.peek(), Token::Name(_) | Token::Op("(")) || self.is_name("in") {
                return Ok((targets, commas));
            }
        }
    }

    fn set_statement(&mut self) -> JinjaResult<StmtKind> {
        let (mut targets, unpacks) = self.targets(true)?;
        if self.skip_op("=") {
            let value = self.tuple(true)?;
            self.expect(&Token::BlockEnd)?;
            return Ok(StmtKind::Set(targets, unpacks, value));
        }
        let filters = if self.skip_op("|") { self.filter_chain()? } else { Vec::new() };
        self.expect(&Token::BlockEnd)?;
        let body = self.body_to("endset")?;
        match targets.pop() {
            Some(target) if targets.is_empty() => Ok(StmtKind::SetBlock(target, filters, body)),
            _ => self.error("a set block takes exactly one name"),
        }
    }

    fn with_statement(&mut self) -> JinjaResult<StmtKind> {
        let mut values = Vec::new();
        while *self.peek() != Token::BlockEnd {
            if !values.is_empty() {
                self.expect_op(",")?;
            }
            let name = self.expect_name()?;
            let target = Target::Name(self.symbol(&name));
            self.expect_op("=")?;
            values.push((target, self.expression()?));
        }
        self.expect(&Token::BlockEnd)?;
        Ok(StmtKind::With(values, self.body_to("endwith")?))
    }

    /// `name` or `name(args)`, then further filters after `|`.
    fn filter_chain(&mut self) -> JinjaResult<Vec<Filter>> {
        let mut filters = Vec::new();
        loop {
            filters.push(self.filter()?);
            if !self.skip_op("|") {
                return Ok(filters);
            }
        }
    }

    fn parameters(&mut self) -> JinjaResult<Vec<(Symbol, Option<super::ast::Expr>)>> {
        let mut parameters = Vec::new();
        self.expect_op("(")?;
        while !self.skip_op(")") {
            if !parameters.is_empty() {
                self.expect_op(",")?;
                if self.skip_op(")") {
                    break;
                }
            }
            let name = self.expect_name()?;
            let name = self.symbol(&name);
            let default = if self.skip_op("=") { Some(self.expression()?) } else { None };
            parameters.push((name, default));
        }
        Ok(parameters)
    }

    fn macro_statement(&mut self) -> JinjaResult<StmtKind> {
        let name = self.expect_name()?;
        let name = Some(self.symbol(&name));
        let parameters = self.parameters()?;
        self.expect(&Token::BlockEnd)?;
        let body = self.macro_body("endmacro")?;
        Ok(StmtKind::Macro(Box::new(MacroDef { name, parameters, body })))
    }

    /// The end tag may repeat the name of the macro.
    fn macro_body(&mut self, end: &'static str) -> JinjaResult<Vec<Stmt>> {
        let loops = std::mem::take(&mut self.loops);
        let parsed = self.body(&[end]);
        self.loops = loops;
        let (body, _) = parsed?;
        self.expect(&Token::BlockEnd)?;
        Ok(body)
    }

    fn call_statement(&mut self) -> JinjaResult<StmtKind> {
        let parameters = if self.is_op("(") { self.parameters()? } else { Vec::new() };
        let call = self.expression()?;
        self.expect(&Token::BlockEnd)?;
        let body = self.macro_body("endcall")?;
        Ok(StmtKind::Call(Box::new(MacroDef { name: None, parameters, body }), call))
    }
}
