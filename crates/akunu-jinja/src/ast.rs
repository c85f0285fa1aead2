//! The syntax tree of a template.

use super::text::Text;

/// Index of an interned name.
pub(super) type Symbol = u32;

#[derive(Debug)]
pub(super) struct Stmt {
    pub(super) line: usize,
    pub(super) kind: StmtKind,
}

#[derive(Debug)]
pub(super) enum StmtKind {
    Raw(Text),
    Print(Expr),
    /// Conditions and bodies; the `else` body has no condition.
    If(Vec<(Option<Expr>, Vec<Stmt>)>),
    For(Box<ForLoop>),
    Set(Vec<Target>, bool, Expr),
    /// `{% set x %}…{% endset %}`, with filters.
    SetBlock(Target, Vec<Filter>, Vec<Stmt>),
    With(Vec<(Target, Expr)>, Vec<Stmt>),
    /// `{% filter … %}`.
    Filter(Vec<Filter>, Vec<Stmt>),
    Macro(Box<MacroDef>),
    /// `{% call(args) f() %}`: the body as a macro, and the call.
    Call(Box<MacroDef>, Expr),
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct ForLoop {
    pub(super) targets: Vec<Target>,
    /// `for a, b in …`, not `for a in …`.
    pub(super) unpacks: bool,
    pub(super) iterable: Expr,
    pub(super) test: Option<Expr>,
    pub(super) body: Vec<Stmt>,
    pub(super) otherwise: Vec<Stmt>,
    pub(super) recursive: bool,
}

#[derive(Debug)]
pub(super) struct MacroDef {
    /// `None` for the body of a call block.
    pub(super) name: Option<Symbol>,
    pub(super) parameters: Vec<(Symbol, Option<Expr>)>,
    pub(super) body: Vec<Stmt>,
}

#[derive(Debug)]
pub(super) enum Target {
    Name(Symbol),
    /// `ns.x`.
    Attribute(Symbol, Symbol),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub(super) struct Filter {
    pub(super) name: String,
    pub(super) args: Args,
}

#[derive(Debug, Default)]
pub(super) struct Args {
    pub(super) positional: Vec<Expr>,
    pub(super) named: Vec<(Symbol, Expr)>,
    /// `*list`.
    pub(super) star: Option<Box<Expr>>,
    /// `**dict`.
    pub(super) star_star: Option<Box<Expr>>,
}

#[derive(Debug)]
pub(super) enum Expr {
    Name(Symbol),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Text),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    /// Attribute accesses, calls, filters etc. after a primary expression, in order. A flat list, so that long chains
    /// do not nest.
    Postfix(Box<Expr>, Vec<Postfix>),
    Not(Box<Expr>),
    Negate(Box<Expr>),
    Positive(Box<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    /// `a + b - c`: operators of one precedence level, left-associative.
    Math(Box<Expr>, Vec<(MathOp, Expr)>),
    /// `a ~ b ~ c`.
    Concat(Vec<Expr>),
    /// `a < b <= c`.
    Compare(Box<Expr>, Vec<(CompareOp, Expr)>),
    /// `value if test else other`.
    Conditional(Box<(Expr, Expr, Option<Expr>)>),
}

#[derive(Debug)]
pub(super) enum Postfix {
    Attribute(Symbol),
    Item(Expr),
    Slice(Box<[Option<Expr>; 3]>),
    Call(Args),
    Filter(Filter),
    Test { name: String, args: Args, negated: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MathOp {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompareOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}
