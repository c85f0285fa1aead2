//! Evaluation of statements: output, scopes, loops and macros.

use std::collections::HashMap;

use super::ast::{Args, Expr, Filter, ForLoop, MacroDef, Stmt, StmtKind, Symbol, Target};
use super::functions::Arguments;
use super::limits::{Limits, OUTPUT, TOO_MUCH_TEXT};
use super::parser::Parsed;
use super::text::{Text, TextBuffer};
use super::time::LocalTime;
use super::value::{Heap, Id, Loop, Macro, Value};
use super::{JinjaError, JinjaResult, Output, Variable, input, python};

/// The variables of a scope.
#[derive(Debug)]
struct Scope {
    /// Index of the enclosing scope; the outermost scope has its own index.
    parent: usize,
    variables: Vec<(Symbol, Value)>,
}

/// The state of one rendering.
#[derive(Debug)]
pub(super) struct Interpreter<'t> {
    pub(super) heap: Heap<'t>,
    pub(super) limits: Limits,
    pub(super) names: &'t [String],
    symbols: HashMap<&'t str, Symbol>,
    pub(super) now: LocalTime,
    scopes: Vec<Scope>,
    scope: usize,
    /// Output buffers: that of the current macro or block is on top.
    outputs: Vec<TextBuffer>,
    /// Recursive loops, by index.
    recursive: Vec<&'t ForLoop>,
}

/// The control flow after a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

pub(super) fn render(
    parsed: &Parsed,
    variables: &[Variable<'_>],
    now: LocalTime,
    limits: &mut Limits,
) -> JinjaResult<Output> {
    let mut interpreter = Interpreter {
        heap: Heap::default(),
        limits: *limits,
        names: &parsed.names,
        symbols: parsed.names.iter().map(String::as_str).zip(0..).collect(),
        now,
        scopes: vec![Scope { parent: 0, variables: Vec::new() }],
        scope: 0,
        outputs: vec![TextBuffer::default()],
        recursive: Vec::new(),
    };
    let rendered = interpreter.render(parsed, variables);
    *limits = interpreter.limits;
    rendered
}

impl<'t> Interpreter<'t> {
    fn render(&mut self, parsed: &'t Parsed, variables: &[Variable<'_>]) -> JinjaResult<Output> {
        for variable in variables {
            if let Some(symbol) = self.symbol(variable.name) {
                let value = input::value(self, variable.value, variable.untrusted)?;
                self.store(symbol, value)?;
            }
        }
        self.run(&parsed.body)?;
        let (text, untrusted) = self.outputs.pop().unwrap_or_default().into_parts();
        Ok(Output { text, untrusted })
    }

    pub(super) fn symbol(&self, name: &str) -> Option<Symbol> {
        self.symbols.get(name).copied()
    }

    pub(super) fn name(&self, symbol: Symbol) -> &'t str {
        self.names.get(symbol as usize).map_or("", String::as_str)
    }

    pub(super) fn lookup(&mut self, symbol: Symbol) -> JinjaResult<Value> {
        let mut at = self.scope;
        loop {
            let scope = &self.scopes[at];
            self.limits.spend(1 + scope.variables.len() / 32)?;
            if let Some((_, value)) = scope.variables.iter().find(|(name, _)| *name == symbol) {
                return Ok(value.clone());
            }
            if at == scope.parent {
                break;
            }
            at = scope.parent;
        }
        let name = self.name(symbol);
        let function = super::functions::NAMES.into_iter().find(|known| *known == name);
        Ok(match function {
            Some(function) => Value::Function(function),
            None => Value::Undefined(format!("'{name}' is undefined").into()),
        })
    }

    fn store(&mut self, symbol: Symbol, value: Value) -> JinjaResult<()> {
        let variables = &mut self.scopes[self.scope].variables;
        self.limits.spend(variables.len() / 32)?;
        match variables.iter_mut().find(|(name, _)| *name == symbol) {
            Some((_, old)) => *old = value,
            None => {
                self.limits.bytes(size_of::<(Symbol, Value)>())?;
                variables.push((symbol, value));
            }
        }
        Ok(())
    }

    /// Runs `inside` in a new scope within `parent`. The scope is freed afterwards, unless a macro was defined that may
    /// refer to it.
    fn scoped<T>(
        &mut self,
        parent: usize,
        inside: impl FnOnce(&mut Self) -> JinjaResult<T>,
    ) -> JinjaResult<T> {
        self.limits.enter()?;
        self.limits.bytes(size_of::<Scope>())?;
        let (before, macros, scopes) = (self.scope, self.heap.macro_count(), self.scopes.len());
        self.scopes.push(Scope { parent, variables: Vec::new() });
        self.scope = scopes;
        let done = inside(self);
        self.scope = before;
        if self.heap.macro_count() == macros {
            self.scopes.truncate(scopes);
        }
        self.limits.leave();
        done
    }

    pub(super) fn push_text(&mut self, text: &Text) -> JinjaResult<()> {
        self.limits.bytes(text.len())?;
        let nested = self.outputs.len() > 1;
        if let Some(out) = self.outputs.last_mut() {
            out.push_text(text);
            if !nested && out.len() > OUTPUT {
                return Err(JinjaError::Limit(TOO_MUCH_TEXT));
            }
        }
        Ok(())
    }

    /// Captures the output of `inside`.
    fn captured(&mut self, inside: impl FnOnce(&mut Self) -> JinjaResult<()>) -> JinjaResult<Text> {
        self.outputs.push(TextBuffer::default());
        let done = inside(self);
        let text = self.outputs.pop().unwrap_or_default().finish();
        done.map(|()| text)
    }

    /// `str(value)`.
    pub(super) fn text_of(&mut self, value: &Value) -> JinjaResult<Text> {
        if let Value::Str(text) = value {
            return Ok(text.clone());
        }
        let mut out = TextBuffer::default();
        python::write(&self.heap, value, self.names, &mut out, &mut self.limits)?;
        Ok(out.finish())
    }

    fn run(&mut self, body: &'t [Stmt]) -> JinjaResult<Flow> {
        self.limits.enter()?;
        for stmt in body {
            self.limits.spend(1)?;
            let flow = self.statement(&stmt.kind).map_err(|error| error.at(stmt.line))?;
            if flow != Flow::Next {
                self.limits.leave();
                return Ok(flow);
            }
        }
        self.limits.leave();
        Ok(Flow::Next)
    }

    fn run_all(&mut self, body: &'t [Stmt]) -> JinjaResult<()> {
        self.run(body).map(|_| ())
    }

    fn statement(&mut self, kind: &'t StmtKind) -> JinjaResult<Flow> {
        match kind {
            StmtKind::Raw(text) => self.push_text(text)?,
            StmtKind::Print(expr) => {
                let value = self.eval(expr)?;
                let text = self.text_of(&value)?;
                self.push_text(&text)?;
            }
            StmtKind::If(branches) => return self.if_statement(branches),
            StmtKind::For(made) => {
                let items = self.eval(&made.iterable)?;
                return self.for_loop(made, &items, 1);
            }
            StmtKind::Set(targets, unpacks, expr) => {
                let value = self.eval(expr)?;
                self.assign_all(targets, *unpacks, value)?;
            }
            StmtKind::SetBlock(target, filters, body) => {
                let scope = self.scope;
                let text = self.captured(|me| me.scoped(scope, |me| me.run_all(body)))?;
                let value = self.filtered(Value::Str(text), filters)?;
                self.assign(target, value)?;
            }
            StmtKind::With(values, body) => return self.with(values, body),
            StmtKind::Filter(filters, body) => {
                let scope = self.scope;
                let text = self.captured(|me| me.scoped(scope, |me| me.run_all(body)))?;
                let value = self.filtered(Value::Str(text), filters)?;
                let text = self.text_of(&value)?;
                self.push_text(&text)?;
            }
            StmtKind::Macro(definition) => {
                let made = self.add_macro(definition, false)?;
                if let Some(name) = definition.name {
                    self.store(name, made)?;
                }
            }
            StmtKind::Call(definition, call) => self.call_block(definition, call)?,
            StmtKind::Break => return Ok(Flow::Break),
            StmtKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn if_statement(&mut self, branches: &'t [(Option<Expr>, Vec<Stmt>)]) -> JinjaResult<Flow> {
        for (test, body) in branches {
            let holds = match test {
                Some(test) => {
                    let value = self.eval(test)?;
                    self.heap.truth(&value)
                }
                None => true,
            };
            if holds {
                return self.run(body);
            }
        }
        Ok(Flow::Next)
    }

    fn with(&mut self, values: &'t [(Target, Expr)], body: &'t [Stmt]) -> JinjaResult<Flow> {
        let mut found = Vec::with_capacity(values.len());
        for (target, expr) in values {
            found.push((target, self.eval(expr)?));
        }
        let scope = self.scope;
        self.scoped(scope, |me| {
            for (target, value) in found {
                me.assign(target, value)?;
            }
            me.run(body)
        })
    }

    fn filtered(&mut self, mut value: Value, filters: &'t [Filter]) -> JinjaResult<Value> {
        for filter in filters {
            value = self.filter(&filter.name, value, &filter.args)?;
        }
        Ok(value)
    }

    fn assign_all(&mut self, targets: &'t [Target], unpacks: bool, value: Value) -> JinjaResult<()> {
        match targets {
            [target] if !unpacks => self.assign(target, value),
            targets => self.unpack(targets, &value),
        }
    }

    fn assign(&mut self, target: &'t Target, value: Value) -> JinjaResult<()> {
        match target {
            Target::Name(name) => self.store(*name, value),
            Target::Tuple(targets) => self.unpack(targets, &value),
            Target::Attribute(name, attribute) => match self.lookup(*name)? {
                Value::Namespace(id) => {
                    self.limits.bytes(size_of::<(Symbol, Value)>())?;
                    self.limits.spend(self.heap.attributes(id).len() / 32)?;
                    self.heap.set_attribute(id, *attribute, value);
                    Ok(())
                }
                _ => Err(JinjaError::type_error("cannot assign attribute on non-namespace object")),
            },
        }
    }

    fn unpack(&mut self, targets: &'t [Target], value: &Value) -> JinjaResult<()> {
        let items = self.iterate(value)?;
        if items.len() != targets.len() {
            let (wanted, found) = (targets.len(), items.len());
            return Err(JinjaError::type_error(format!("cannot unpack {found} values into {wanted} names")));
        }
        for (target, item) in targets.iter().zip(items.iter()) {
            self.assign(target, item.clone())?;
        }
        Ok(())
    }

    fn for_loop(&mut self, made: &'t ForLoop, items: &Value, depth: usize) -> JinjaResult<Flow> {
        let mut items = self.iterate(items)?;
        let parent = self.scope;
        if let Some(test) = &made.test {
            let mut kept = Vec::new();
            for item in items.iter() {
                let keeps = self.scoped(parent, |me| {
                    me.assign_all(&made.targets, made.unpacks, item.clone())?;
                    let value = me.eval(test)?;
                    Ok(me.heap.truth(&value))
                })?;
                if keeps {
                    kept.push(item.clone());
                }
            }
            items = kept.into();
        }
        if items.is_empty() {
            return self.scoped(parent, |me| me.run(&made.otherwise));
        }
        let recursive = made.recursive.then(|| {
            self.recursive.push(made);
            (self.recursive.len() - 1, parent)
        });
        self.limits.bytes(size_of::<Loop>() + items.len() * size_of::<Value>())?;
        let id = self.heap.add_loop(Loop { items: items.clone(), index: 0, depth, changed: None, recursive });
        let name = self.symbol("loop");
        for (index, item) in items.iter().enumerate() {
            self.heap.get_loop_mut(id).index = index;
            let flow = self.scoped(parent, |me| {
                if let Some(name) = name {
                    me.store(name, Value::Loop(id))?;
                }
                me.assign_all(&made.targets, made.unpacks, item.clone())?;
                me.run(&made.body)
            })?;
            if flow == Flow::Break {
                break;
            }
        }
        Ok(Flow::Next)
    }

    /// `loop(items)` in a recursive loop.
    pub(super) fn recurse(&mut self, id: Id, items: &Value) -> JinjaResult<Value> {
        let about = self.heap.get_loop(id);
        let (depth, Some((number, scope))) = (about.depth, about.recursive) else {
            return Err(JinjaError::type_error("the loop must have the 'recursive' marker to be called"));
        };
        let made = self.recursive[number];
        self.limits.enter()?;
        let before = std::mem::replace(&mut self.scope, scope);
        let text = self.captured(|me| me.for_loop(made, items, depth + 1).map(|_| ()));
        self.scope = before;
        self.limits.leave();
        Ok(Value::Str(text?))
    }

    fn add_macro(&mut self, definition: &'t MacroDef, is_caller: bool) -> JinjaResult<Value> {
        self.limits.bytes(64)?;
        Ok(self.heap.add_macro(Macro { definition, scope: self.scope, is_caller }))
    }

    fn call_block(&mut self, definition: &'t MacroDef, call: &'t Expr) -> JinjaResult<()> {
        let caller = self.add_macro(definition, true)?;
        let Expr::Postfix(base, chain) = call else {
            return Err(JinjaError::type_error("a call block must contain a call"));
        };
        let Some((super::ast::Postfix::Call(args), before)) = chain.split_last() else {
            return Err(JinjaError::type_error("a call block must contain a call"));
        };
        let callee = self.chain(base, before)?;
        let mut arguments = self.arguments(args)?;
        arguments.named.push(("caller".into(), caller));
        let value = self.call(&callee, arguments)?;
        let text = self.text_of(&value)?;
        self.push_text(&text)
    }

    pub(super) fn arguments(&mut self, args: &'t Args) -> JinjaResult<Arguments> {
        let mut arguments = Arguments::default();
        for expr in &args.positional {
            arguments.positional.push(self.eval(expr)?);
        }
        if let Some(expr) = &args.star {
            let value = self.eval(expr)?;
            arguments.positional.extend(self.iterate(&value)?.iter().cloned());
        }
        for (name, expr) in &args.named {
            let value = self.eval(expr)?;
            arguments.named.push((self.name(*name).into(), value));
        }
        if let Some(expr) = &args.star_star {
            match self.eval(expr)? {
                Value::Dict(id) => {
                    let entries = &self.heap.entries(id).entries;
                    self.limits.bytes(entries.len() * 64)?;
                    for (key, value) in entries {
                        if let Value::Str(key) = key {
                            arguments.named.push((key.clone(), value.clone()));
                        }
                    }
                }
                _ => return Err(JinjaError::type_error("the argument after ** must be a mapping")),
            }
        }
        Ok(arguments)
    }

    /// Calls a macro.
    pub(super) fn call_macro(&mut self, id: Id, arguments: Arguments) -> JinjaResult<Value> {
        let about = self.heap.get_macro(id);
        let (definition, parent) = (about.definition, about.scope);
        let name =
            if about.is_caller { "caller" } else { definition.name.map_or("", |name| self.name(name)) };
        let Arguments { positional, mut named } = arguments;
        let text = self.captured(|me| {
            me.scoped(parent, |me| {
                let mut rest = positional.into_iter();
                for (parameter, default) in &definition.parameters {
                    let wanted = me.name(*parameter);
                    me.limits.spend(named.len() / 16)?;
                    let by_name = named.iter().position(|(name, _)| name.as_str() == wanted);
                    let value = match (rest.next(), by_name) {
                        (Some(_), Some(_)) => {
                            let message =
                                format!("macro '{name}' got multiple values for argument '{wanted}'");
                            return Err(JinjaError::type_error(message));
                        }
                        (Some(value), None) => value,
                        (None, Some(at)) => named.swap_remove(at).1,
                        (None, None) => match default {
                            Some(default) => me.eval(default)?,
                            None => Value::Undefined(format!("parameter '{wanted}' was not provided").into()),
                        },
                    };
                    me.store(*parameter, value)?;
                }
                me.extra_arguments(name, rest.collect(), named)?;
                me.run_all(&definition.body)
            })
        })?;
        Ok(Value::Str(text))
    }

    /// The values of `caller`, `varargs` and `kwargs`.
    fn extra_arguments(
        &mut self,
        name: &str,
        positional: Vec<Value>,
        mut named: Vec<(Text, Value)>,
    ) -> JinjaResult<()> {
        let caller = named.iter().position(|(name, _)| name.as_str() == "caller");
        if let (Some(at), Some(symbol)) = (caller, self.symbol("caller")) {
            let (_, value) = named.swap_remove(at);
            self.store(symbol, value)?;
        }
        match self.symbol("varargs") {
            Some(symbol) => {
                let value = self.heap.tuple(positional, &mut self.limits)?;
                self.store(symbol, value)?;
            }
            None if positional.is_empty() => {}
            None => {
                let message = format!("macro '{name}' takes fewer positional arguments");
                return Err(JinjaError::type_error(message));
            }
        }
        match (self.symbol("kwargs"), named.first()) {
            (Some(symbol), _) => {
                let entries = named.into_iter().map(|(name, value)| (Value::Str(name), value));
                let value = self.make_dict(entries.collect())?;
                self.store(symbol, value)
            }
            (None, None) => Ok(()),
            (None, Some((extra, _))) => {
                let message = format!("macro '{name}' takes no keyword argument '{}'", extra.shown());
                Err(JinjaError::type_error(message))
            }
        }
    }
}
