//! The syntax tree of a Go template.

/// A list of nodes: the template itself, or the body of a block.
pub(super) type Nodes = Vec<Node>;

#[derive(Debug)]
pub(super) enum Node {
    Text(String),
    /// `{{ pipeline }}`
    Action(Pipe),
    If(Branch),
    With(Branch),
    Range(Branch),
    /// `{{ template "name" pipeline }}`
    Call(String, Option<Pipe>, usize),
    /// With their lines.
    Break(usize),
    Continue(usize),
}

#[derive(Debug)]
pub(super) struct Branch {
    pub(super) pipe: Pipe,
    pub(super) body: Nodes,
    pub(super) otherwise: Nodes,
}

/// `$variables := command | command …`
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) variables: Vec<String>,
    /// `:=`, which makes the variables, not `=`.
    pub(super) declares: bool,
    pub(super) commands: Vec<Command>,
    pub(super) line: usize,
}

/// A value, or a function and its arguments.
pub(super) type Command = Vec<Operand>;

/// A value, of which `fields` are taken one after the other: `.a.b`, `$x.a`, `(…).a`.
#[derive(Debug)]
pub(super) struct Operand {
    pub(super) base: Base,
    pub(super) fields: Vec<String>,
}

#[derive(Debug)]
pub(super) enum Base {
    Dot,
    /// Its name without `$`; that of what the template was given is empty.
    Variable(String),
    Function(String),
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Pipe(Box<Pipe>),
}
