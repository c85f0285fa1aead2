//! A pass before it has buffers: plain operations over values. `blocks` makes one from a tower, `fuse` rewrites it for a
//! device, `place` gives its values buffers, and `emit` turns it into commands.

use super::weights::{Matrix, Norm};
use crate::ops::{PoolKind, RowSet};
use crate::{Activation, BufferId, DType, RopeStyle};
use akunu_arch::tower::{Rotation, Span};

/// Rows of numbers that one operation computes and others read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Value(pub usize);

/// What is known of a value before it has a buffer.
#[derive(Clone, Debug)]
pub(super) struct ValueInfo {
    /// Names its buffer. Values of one role share buffers as far as they are not needed at the same time.
    pub role: String,
    pub cols: usize,
    pub rows: RowSet,
}

/// In which form an operation reads a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    F32,
    /// Int8 blocks ([`crate::q8`]).
    Q8,
    /// Halves with a scale a row ([`crate::halves`]).
    F16,
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    /// As the printed table has it: `layer.3.attention`.
    pub label: String,
    pub action: Action,
}

/// Columns of a value that a product writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    pub of: Value,
    pub first: usize,
}

/// A matrix that a product multiplies by.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// The part's own name, for labels of products that stay apart.
    pub label: String,
    pub matrix: Matrix,
    pub bias: Option<BufferId>,
}

/// `x · Wᵀ (+ bias) (+ residual)` for one matrix or several, whose outputs stand side by side.
#[derive(Clone, Debug)]
pub(super) struct Product {
    pub x: Value,
    pub parts: Vec<Part>,
    pub out: Columns,
    pub residual: Option<Value>,
    pub rows: RowSet,
    pub soft_cap: f32,
    /// Sums of squares of `x`, where the norm of `x` has been deferred to its products.
    pub deferred: Option<Value>,
    /// The norm that this product prepares for those that read its output.
    pub defers: Option<DeferredNorm>,
}

impl Product {
    /// Of one matrix and of all rows, into a value of its own.
    pub fn plain(x: Value, part: Part, out: Value) -> Product {
        Product {
            x,
            parts: vec![part],
            out: Columns { of: out, first: 0 },
            residual: None,
            rows: RowSet::All,
            soft_cap: 0.0,
            deferred: None,
            defers: None,
        }
    }
}

/// A norm of a product's output: the product writes `normed`, not yet divided, and the sums of squares to divide by.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeferredNorm {
    pub norm: Norm,
    pub normed: Value,
    pub squares: Value,
}

/// Heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heads {
    pub count: usize,
    pub kv: usize,
    pub dim: usize,
}

impl Heads {
    pub fn q_size(self) -> usize {
        self.count * self.dim
    }

    pub fn kv_size(self) -> usize {
        self.kv * self.dim
    }
}

/// What is added to a score by how far its key is from its query: f32, `[heads][2 · reach − 1]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PositionBias {
    pub buffer: BufferId,
    pub reach: usize,
}

/// What queries are multiplied by: `count` numbers of f32, each for `step` positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueryFactors {
    pub buffer: BufferId,
    pub step: usize,
    pub count: usize,
}

/// Embeddings of token types.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenTypes {
    pub buffer: BufferId,
    pub count: usize,
}

/// How the heads of Q and K are prepared for attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadRotation {
    pub style: RopeStyle,
    /// Which frequencies; `None` where heads do not rotate.
    pub frequencies: Option<Rotation>,
    /// cos and sin of each row; any value where heads do not rotate.
    pub angles: Value,
    /// Norms of each head of Q and K.
    pub norms: Option<[BufferId; 2]>,
}

#[derive(Clone, Debug)]
pub(super) struct Attend {
    pub layer: usize,
    pub heads: Heads,
    pub window: Option<Span>,
    /// Q; with `rotation` Q, K and V side by side, as products left them.
    pub q: Value,
    /// Where attention prepares the heads itself.
    pub rotation: Option<HeadRotation>,
    pub position_bias: Option<PositionBias>,
    pub query_factors: Option<QueryFactors>,
    pub out: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Action {
    Embed {
        table: Matrix,
        scale: f32,
        out: Value,
    },
    /// Learned positions and token types, as far as there are any, added to `x`.
    AddPositions {
        x: Value,
        /// The table and its rows.
        positions: Option<(BufferId, usize)>,
        types: Option<TokenTypes>,
        out: Value,
    },
    /// Norms each head by itself, with weights of its own.
    HeadNorm {
        norm: Norm,
        heads: usize,
        dim: usize,
        x: Columns,
        out: Columns,
    },
    Activate {
        activation: Activation,
        x: Value,
        rows: RowSet,
        out: Value,
    },
    /// Of each text, one row of its states or their mean.
    Pool {
        kind: PoolKind,
        x: Value,
        out: Value,
    },
    Angles {
        frequencies: Rotation,
        out: Value,
    },
    Norm {
        norm: Norm,
        x: Value,
        rows: RowSet,
        out: Value,
    },
    Product(Product),
    Glu {
        activation: Activation,
        gate: Value,
        up: Value,
        out: Value,
    },
    GluProduct {
        activation: Activation,
        x: Value,
        gate: Matrix,
        up: Matrix,
        out: Value,
        deferred: Option<Value>,
    },
    /// `residual + scale · x`.
    Add {
        residual: Value,
        x: Value,
        scale: f32,
        out: Value,
    },
    NormAdd {
        norm: Norm,
        x: Value,
        residual: Value,
        out: Value,
    },
    /// Prepares the heads of `qkv`, writes K and V to the cache and Q to `q`.
    RopeKv {
        layer: usize,
        heads: Heads,
        rotation: HeadRotation,
        qkv: Value,
        q: Value,
    },
    Attend(Attend),
    Argmax {
        logits: Value,
        vocab: usize,
    },
}

#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    pub steps: Vec<Step>,
    pub values: Vec<ValueInfo>,
}

impl Graph {
    pub fn value(&mut self, role: impl Into<String>, cols: usize, rows: RowSet) -> Value {
        self.values.push(ValueInfo { role: role.into(), cols, rows });
        Value(self.values.len() - 1)
    }

    pub fn cols(&self, value: Value) -> usize {
        self.values[value.0].cols
    }

    pub fn push(&mut self, label: impl Into<String>, action: Action) {
        self.steps.push(Step { label: label.into(), action });
    }

    /// How many operations read the value.
    pub fn uses(&self, value: Value) -> usize {
        self.steps.iter().filter(|step| step.action.reads().iter().any(|(read, _)| *read == value)).count()
    }

    /// Whether an operation asks for the kind of each row's token.
    pub fn reads_segments(&self) -> bool {
        self.steps.iter().any(
            |step| matches!(&step.action, Action::AddPositions { types: Some(types), .. } if types.count > 1),
        )
    }

    pub fn products(&self) -> impl Iterator<Item = &Product> {
        self.steps.iter().filter_map(|step| match &step.action {
            Action::Product(product) => Some(product),
            _ => None,
        })
    }
}

impl Action {
    /// The values that it reads, and the type of the weights that they meet: it decides in which form they are read.
    /// Without such a type they are read as f32.
    pub fn reads(&self) -> Vec<(Value, Option<(DType, RowSet)>)> {
        match self {
            Action::Embed { .. } | Action::Angles { .. } => vec![],
            Action::AddPositions { x, .. }
            | Action::Norm { x, .. }
            | Action::Activate { x, .. }
            | Action::Pool { x, .. } => vec![(*x, None)],
            Action::HeadNorm { x, .. } => vec![(x.of, None)],
            Action::Product(product) => {
                let mut all: Vec<_> = product
                    .parts
                    .iter()
                    .map(|part| (product.x, Some((part.matrix.dtype, product.rows))))
                    .collect();
                all.extend(product.residual.into_iter().chain(product.deferred).map(|value| (value, None)));
                all
            }
            Action::Glu { gate, up, .. } => vec![(*gate, None), (*up, None)],
            Action::GluProduct { x, gate, up, deferred, .. } => {
                let weights = [gate, up].map(|matrix| (*x, Some((matrix.dtype, RowSet::All))));
                weights.into_iter().chain(deferred.map(|value| (value, None))).collect()
            }
            Action::Add { x, residual, .. } | Action::NormAdd { x, residual, .. } => {
                vec![(*x, None), (*residual, None)]
            }
            Action::RopeKv { rotation, qkv, .. } => vec![(*qkv, None), (rotation.angles, None)],
            Action::Attend(attend) => {
                let angles = attend.rotation.map(|rotation| (rotation.angles, None));
                [(attend.q, None)].into_iter().chain(angles).collect()
            }
            Action::Argmax { logits, .. } => vec![(*logits, None)],
        }
    }

    pub fn writes(&self) -> Vec<Value> {
        match self {
            Action::Embed { out, .. }
            | Action::AddPositions { out, .. }
            | Action::Activate { out, .. }
            | Action::Pool { out, .. }
            | Action::Angles { out, .. }
            | Action::Norm { out, .. }
            | Action::Glu { out, .. }
            | Action::GluProduct { out, .. }
            | Action::Add { out, .. }
            | Action::NormAdd { out, .. } => vec![*out],
            Action::Product(product) => {
                let deferred = product.defers.iter().flat_map(|defers| [defers.normed, defers.squares]);
                [product.out.of].into_iter().chain(deferred).collect()
            }
            Action::HeadNorm { out, .. } => vec![out.of],
            Action::RopeKv { q, .. } => vec![*q],
            Action::Attend(attend) => vec![attend.out],
            Action::Argmax { .. } => vec![],
        }
    }
}
