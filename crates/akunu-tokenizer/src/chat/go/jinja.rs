//! Writes a Go template as a Jinja template.
//!
//! Each of its templates is a macro of its dot, `d`; the main one is the text itself. Blocks set the attributes of a
//! namespace `v`, which have numbers, so that a name of an inner block is another variable: `x1`, the variables of Go;
//! `b1`, what a block is of; `k1` and `e1`, the key and the element of a loop.

use std::fmt::Write;

use super::ast::{Base, Branch, Command, Node, Nodes, Operand, Pipe};
use super::parser::Parsed;
use super::{ChatError, fail};

/// Values as Go prints them: nothing for nil, and JSON for what Ollama prints as such.
const BEGIN: &str = "\
{% macro go_json(x) %}{{ (x if x is defined else none) | tojson(separators=(',', ':')) }}{% endmacro %}\
{% macro go_text(x) %}\
{% if x is boolean %}{{ 'true' if x else 'false' }}\
{% elif x is string or x is number %}{{ x }}\
{% elif x is mapping or x is sequence and x and x[0] is mapping %}{{ go_json(x) }}\
{% elif x is sequence and x is defined %}\
[{% for i in x %}{{ '' if loop.first else ' ' }}{{ go_text(i) }}{% endfor %}]\
{% endif %}{% endmacro %}";

/// Names of fields of Ollama's values, and those that they have in JSON. Other names are keys as they are.
const FIELDS: [(&str, &str); 21] = [
    ("AnyOf", "anyOf"),
    ("Arguments", "arguments"),
    ("Content", "content"),
    ("Defs", "$defs"),
    ("Description", "description"),
    ("Enum", "enum"),
    ("Function", "function"),
    ("ID", "id"),
    ("Images", "images"),
    ("Index", "index"),
    ("Items", "items"),
    ("Name", "name"),
    ("Parameters", "parameters"),
    ("Properties", "properties"),
    ("Required", "required"),
    ("Role", "role"),
    ("Thinking", "thinking"),
    ("ToolCallID", "tool_call_id"),
    ("ToolCalls", "tool_calls"),
    ("ToolName", "name"),
    ("Type", "type"),
];

/// The variable that a template is given, and that Go calls `$`.
pub(super) const ROOT: &str = "d";

/// What is wrong with the template.
type Written<T> = Result<T, String>;

/// The Jinja template. `until_response`: only up to the first `.Response`, where a model answers.
pub(super) fn write(parsed: &Parsed, until_response: bool) -> Result<String, ChatError> {
    let mut writer = Writer {
        parsed,
        jinja: BEGIN.into(),
        dot: ROOT.into(),
        variables: Vec::new(),
        numbers: 0,
        loops: 0,
        line: 1,
        until_response,
        is_over: false,
    };
    let written = writer.templates();
    written.or_else(|what| fail(writer.line, what))?;
    Ok(writer.jinja)
}

struct Writer<'p> {
    parsed: &'p Parsed,
    jinja: String,
    /// What `.` is.
    dot: String,
    /// Go's variables in order of their declaration, and the numbers of them.
    variables: Vec<(String, usize)>,
    numbers: usize,
    loops: usize,
    line: usize,
    until_response: bool,
    is_over: bool,
}

impl Writer<'_> {
    fn templates(&mut self) -> Written<()> {
        // Templates that are called are whole, as in Ollama.
        let until_response = std::mem::take(&mut self.until_response);
        for (index, (_, nodes)) in self.parsed.defined.iter().enumerate() {
            let _ = write!(self.jinja, "{{% macro go_template{index}({ROOT}) %}}");
            self.body(nodes)?;
            self.jinja.push_str("{% endmacro %}");
        }
        self.until_response = until_response;
        self.body(&self.parsed.main)
    }

    fn number(&mut self) -> usize {
        self.numbers += 1;
        self.numbers
    }

    fn set(&mut self, name: &str, number: usize, value: &str) {
        let _ = write!(self.jinja, "{{% set v.{name}{number} = {value} %}}");
    }

    fn body(&mut self, nodes: &Nodes) -> Written<()> {
        self.jinja.push_str("{% set v = namespace() %}");
        self.variables.clear();
        self.nodes(nodes)
    }

    /// The variables that are declared in the nodes end with them.
    fn nodes(&mut self, nodes: &Nodes) -> Written<()> {
        let known = self.variables.len();
        for node in nodes {
            if self.is_over {
                break;
            }
            self.node(node)?;
        }
        self.variables.truncate(known);
        Ok(())
    }

    fn node(&mut self, node: &Node) -> Written<()> {
        match node {
            Node::Text(text) => {
                let _ = write!(self.jinja, "{{{{ {} }}}}", literal(text));
            }
            Node::Action(pipe) => {
                let value = self.pipe(pipe)?;
                match pipe.variables.is_empty() {
                    true => {
                        let _ = write!(self.jinja, "{{{{ go_text({value}) }}}}");
                    }
                    false => self.assign(pipe, &value)?,
                }
                self.is_over = self.until_response && super::reads_response(pipe);
            }
            Node::If(branch) => self.condition(branch, false)?,
            Node::With(branch) => self.condition(branch, true)?,
            Node::Range(branch) => self.range(branch)?,
            Node::Call(name, pipe, line) => {
                self.line = *line;
                let index = self.parsed.defined.iter().rposition(|(known, _)| known == name);
                let index = index.ok_or_else(|| format!("the template {name:?} is not defined"))?;
                let value = match pipe {
                    Some(pipe) => self.pipe(pipe)?,
                    None => "none".into(),
                };
                let _ = write!(self.jinja, "{{{{ go_template{index}({value}) }}}}");
            }
            Node::Break(line) | Node::Continue(line) if self.loops == 0 => {
                self.line = *line;
                return Err("{{ break }} and {{ continue }} belong into a {{ range }}".into());
            }
            Node::Break(_) => self.jinja.push_str("{% break %}"),
            Node::Continue(_) => self.jinja.push_str("{% continue %}"),
        }
        Ok(())
    }

    /// Sets the only variable of a pipeline, if there is one.
    fn assign(&mut self, pipe: &Pipe, value: &str) -> Written<()> {
        let [name] = pipe.variables.as_slice() else {
            return match pipe.variables.is_empty() {
                true => Ok(()),
                false => Err("only {{ range }} sets two variables".into()),
            };
        };
        let number = if pipe.declares { self.declare(name) } else { self.variable(name)? };
        self.set("x", number, value);
        Ok(())
    }

    fn declare(&mut self, name: &str) -> usize {
        let number = self.number();
        self.variables.push((name.into(), number));
        number
    }

    fn variable(&self, name: &str) -> Written<usize> {
        let found = self.variables.iter().rfind(|(known, _)| known == name);
        found.map(|(_, number)| *number).ok_or_else(|| format!("the variable ${name} is not defined"))
    }

    /// A condition and its blocks. `is_dot`: the first block is of what the condition is.
    fn condition(&mut self, branch: &Branch, is_dot: bool) -> Written<()> {
        let (known, value) = (self.variables.len(), self.pipe(&branch.pipe)?);
        let number = self.number();
        let set = format!("v.b{number}");
        self.set("b", number, &value);
        self.assign(&branch.pipe, &set)?;
        let _ = write!(self.jinja, "{{% if {set} %}}");
        self.inside(&branch.body, is_dot.then_some(set))?;
        if !branch.otherwise.is_empty() {
            self.jinja.push_str("{% else %}");
            self.nodes(&branch.otherwise)?;
        }
        self.jinja.push_str("{% endif %}");
        self.variables.truncate(known);
        Ok(())
    }

    fn inside(&mut self, nodes: &Nodes, dot: Option<String>) -> Written<()> {
        let outer = dot.map(|dot| std::mem::replace(&mut self.dot, dot));
        self.nodes(nodes)?;
        if let Some(outer) = outer {
            self.dot = outer;
        }
        Ok(())
    }

    /// A loop over the elements of a list, or over the values of an object in the order of its keys.
    fn range(&mut self, branch: &Branch) -> Written<()> {
        let (known, of) = (self.variables.len(), self.pipe(&branch.pipe)?);
        let n = self.number();
        self.set("b", n, &of);
        let _ = write!(
            self.jinja,
            "{{% for i{n} in (v.b{n} | dictsort(true) if v.b{n} is mapping else v.b{n} or []) %}}\
             {{% set v.k{n} = i{n}[0] if v.b{n} is mapping else loop.index0 %}}\
             {{% set v.e{n} = i{n}[1] if v.b{n} is mapping else i{n} %}}"
        );
        let Pipe { variables, declares, .. } = &branch.pipe;
        let values = match variables.len() {
            0 => &[][..],
            1 => &["e"],
            2 => &["k", "e"],
            _ => return Err("{{ range }} sets at most two variables".into()),
        };
        for (name, value) in variables.iter().zip(values) {
            let number = if *declares { self.declare(name) } else { self.variable(name)? };
            self.set("x", number, &format!("v.{value}{n}"));
        }
        self.loops += 1;
        self.inside(&branch.body, Some(format!("v.e{n}")))?;
        self.loops -= 1;
        self.variables.truncate(known);
        if !branch.otherwise.is_empty() {
            self.jinja.push_str("{% else %}");
            self.nodes(&branch.otherwise)?;
        }
        self.jinja.push_str("{% endfor %}");
        Ok(())
    }

    fn pipe(&mut self, pipe: &Pipe) -> Written<String> {
        self.line = pipe.line;
        let mut value = None;
        for command in &pipe.commands {
            value = Some(self.command(command, value)?);
        }
        value.ok_or_else(|| "a value is missing".into())
    }

    /// The value of a command, whose last argument is that of the command before.
    fn command(&mut self, command: &Command, last: Option<String>) -> Written<String> {
        let Some((first, rest)) = command.split_first() else { return Err("a value is missing".into()) };
        let mut arguments = rest.iter().map(|operand| self.operand(operand)).collect::<Written<Vec<_>>>()?;
        arguments.extend(last);
        match &first.base {
            Base::Function(name) => {
                let format = rest.first().map(|operand| &operand.base);
                let value = call(name, &arguments, format)?;
                Ok(fields(value, &first.fields))
            }
            _ if arguments.is_empty() => self.operand(first),
            _ => Err("arguments are given to what is no function".into()),
        }
    }

    fn operand(&mut self, operand: &Operand) -> Written<String> {
        let base = match &operand.base {
            Base::Dot => self.dot.clone(),
            Base::Variable(name) if name.is_empty() => ROOT.into(),
            Base::Variable(name) => format!("v.x{}", self.variable(name)?),
            Base::Function(name) => call(name, &[], None)?,
            Base::Nil => "none".into(),
            Base::Bool(value) => value.to_string(),
            Base::Int(value) => format!("({value})"),
            // Go prints no fraction that is zero.
            Base::Float(value) if value.fract() == 0.0 && value.abs() < 1e15 => format!("({value:.0})"),
            Base::Float(value) => format!("({value:?})"),
            Base::Text(text) => literal(text),
            Base::Pipe(pipe) if pipe.variables.is_empty() => self.pipe(pipe)?,
            Base::Pipe(_) => return Err("a variable is set within parentheses".into()),
        };
        Ok(fields(base, &operand.fields))
    }
}

/// Fields of a value, one after the other. A value that is not there has none.
fn fields(value: String, names: &[String]) -> String {
    names.iter().fold(value, |value, name| {
        let known = FIELDS.iter().find(|(go, _)| go == name);
        field(&value, &literal(known.map_or(name.as_str(), |(_, json)| json)))
    })
}

/// What an object has under a key; a subscript would find methods of Python, too.
fn field(value: &str, key: &str) -> String {
    format!("({value} or {{}}).get({key})")
}

/// The call of a function. `format`: its first argument as it is written.
fn call(name: &str, arguments: &[String], format: Option<&Base>) -> Written<String> {
    let joined = |with: &str| format!("({})", arguments.join(with));
    let count = arguments.len();
    let text = |value: &String| format!("go_text({value})");
    let operator = match name {
        "ne" => "!=",
        "lt" => "<",
        "le" => "<=",
        "gt" => ">",
        "ge" => ">=",
        _ => "",
    };
    match (name, arguments) {
        ("and", [_, ..]) => Ok(joined(" and ")),
        ("or", [_, ..]) => Ok(joined(" or ")),
        ("not", [value]) => Ok(format!("(not {value})")),
        ("eq", [value, others @ ..]) if count >= 2 => Ok(format!("({value} in [{}])", others.join(", "))),
        (_, [left, right]) if !operator.is_empty() => Ok(format!("({left} {operator} {right})")),
        ("len", [value]) => Ok(format!("(({value} or []) | length)")),
        ("index", [value, keys @ ..]) => {
            Ok(keys.iter().fold(value.clone(), |value, key| match key.starts_with('\'') {
                true => field(&value, key),
                false => format!("({value} or {{}})[{key}]"),
            }))
        }
        ("slice", [value]) => Ok(value.clone()),
        ("slice", [value, from]) => Ok(format!("({value} or [])[{from}:]")),
        ("slice", [value, from, to]) => Ok(format!("({value} or [])[{from}:{to}]")),
        ("json", [value]) => Ok(format!("go_json({value})")),
        ("print", [value]) => Ok(text(value)),
        ("print", []) => Ok("''".into()),
        ("println", _) => {
            let texts: Vec<String> = arguments.iter().map(text).collect();
            Ok(format!("({} ~ '\\n')", if count == 0 { "''".into() } else { texts.join(" ~ ' ' ~ ") }))
        }
        ("printf", [_, values @ ..]) => match format {
            Some(Base::Text(format)) => printf(format, values),
            _ => Err("the format of printf has to be a text in quotes".into()),
        },
        ("currentDate", []) => Ok("strftime_now('%Y-%m-%d')".into()),
        (
            "and" | "or" | "not" | "eq" | "ne" | "lt" | "le" | "gt" | "ge" | "len" | "index" | "slice"
            | "json" | "print" | "printf" | "currentDate",
            _,
        ) => Err(format!("the function {name} does not take {count} arguments")),
        _ => Err(format!("the function {name} is not known")),
    }
}

/// The text of a format with `%s`, `%v`, `%d`, `%t`, `%q` and `%%`.
fn printf(format: &str, values: &[String]) -> Written<String> {
    let mut parts = vec!["''".to_string()];
    let mut values = values.iter();
    let mut pieces = format.split('%');
    parts.extend(pieces.next().map(literal));
    let mut is_literal = false;
    for piece in pieces {
        if std::mem::take(&mut is_literal) {
            parts.push(literal(piece));
            continue;
        }
        let Some(verb) = piece.chars().next() else {
            // The second of two.
            parts.push(literal("%"));
            is_literal = true;
            continue;
        };
        let value = values.next().ok_or_else(|| format!("printf has no value for %{verb}"))?;
        parts.push(match verb {
            's' | 'v' | 'd' | 't' => format!("go_text({value})"),
            'q' => format!("go_json(go_text({value}))"),
            _ => return Err(format!("printf does not know %{verb}")),
        });
        parts.push(literal(&piece[verb.len_utf8()..]));
    }
    match values.next() {
        None => Ok(format!("({})", parts.join(" ~ "))),
        Some(_) => Err("printf has more values than its format".into()),
    }
}

/// A text as Jinja writes it.
fn literal(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n").replace('\r', "\\r");
    format!("'{escaped}'")
}
