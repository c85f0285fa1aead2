//! A pass before it has buffers: plain operations over values. `blocks` builds it from a tower, `fuse` rewrites it for
//! a device, `place` assigns buffers to its values, and `emit` converts it to commands.

use std::sync::Arc;

use super::weights::{Matrix, Norm};
use crate::ops::{GluKind, InputForm, PoolKind, RowSet};
use crate::plan::PlanError;
use crate::{Activation, BufferId, DType, RopeStyle, Side};
use akunu_arch::tower::{Rotation, ScaledBy, Span};
use akunu_arch::{ExpertFacts, MambaFacts, ModelConfig};

/// Rows of numbers that one operation computes and others read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Value(pub usize);

/// The properties of a value before it has a buffer.
#[derive(Clone, Debug)]
pub(super) struct ValueInfo {
    /// Name of its buffer. Values with the same role share buffers if they are not live at the same time.
    pub role: String,
    pub cols: usize,
    pub rows: RowCount,
}

/// How many rows a value has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowCount {
    /// One for each row of the pass that it works on.
    Of(RowSet),
    /// So many for each row of the pass.
    Times(usize),
    /// One in all.
    One,
}

impl RowCount {
    /// The number, for a table with so many rows and logit rows.
    pub fn of(self, rows: usize, logit_rows: usize) -> Option<usize> {
        match self {
            RowCount::Of(RowSet::All) => Some(rows),
            RowCount::Of(RowSet::Logits) => Some(logit_rows),
            RowCount::Times(times) => rows.checked_mul(times),
            RowCount::One => Some(1),
        }
    }
}

/// The form in which an operation reads a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    F32,
    /// Int8 blocks ([`crate::q8`]).
    Q8,
    /// f16 with a scale per row ([`crate::halves`]).
    F16,
}

/// How an operation reads a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    F32,
    F16,
    /// As the input of a product with weights of this type, which determines the form.
    Input(DType, RowSet),
    /// The same, of a product that never multiplies in half precision.
    Unhalved(DType),
    /// In f16, in the order of lanes.
    Lanes,
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    /// The label in the printed table: `layer.3.attention`.
    pub label: String,
    pub action: Action,
    pub side: Side,
}

/// Columns of a value that a product writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    pub of: Value,
    pub first: usize,
}

/// The input of the model at each place of a matrix's rows.
pub(super) type InputOrder = Arc<[u32]>;

/// A matrix of a product.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// The label of this matrix, used if products are not joined.
    pub label: String,
    pub matrix: Matrix,
    pub bias: Option<BufferId>,
    /// The order in which the matrix stores its inputs, if it is not that of the model.
    pub order: Option<InputOrder>,
}

impl Part {
    /// The same, if the matrix stores its inputs in the order of the model.
    pub fn in_order(self) -> Result<Part, PlanError> {
        match self.order {
            None => Ok(self),
            Some(_) => Err(out_of_order(&self.label)),
        }
    }
}

/// The error for a matrix that stores its inputs in another order where that is not supported.
pub(super) fn out_of_order(name: &str) -> PlanError {
    PlanError::Unsupported(format!(
        "{name} stores its inputs in another order (desc_act), and only products in layers support that: convert the \
         folder with akunu quantize"
    ))
}

/// `x · Wᵀ (+ bias) (+ residual)` for one or several matrices, whose outputs are adjacent; of one, it may be activated.
#[derive(Clone, Debug)]
pub(super) struct Product {
    pub x: Value,
    pub parts: Vec<Part>,
    pub out: Columns,
    pub residual: Option<Value>,
    pub rows: RowSet,
    pub soft_cap: f32,
    pub activation: Option<Activation>,
    /// Sums of squares of `x`, if the norm of `x` is deferred to its consumers.
    pub deferred: Option<Value>,
    /// The norm of the output that this product defers to the consumers.
    pub defers: Option<DeferredNorm>,
    /// Writes f16 with the scales of `x`, which the reader applies.
    pub leaves_f16: bool,
    /// Does not multiply in half precision, whatever other products do.
    pub unhalved: bool,
    /// Its matrix of 16 bits meets rows in the order of lanes, whatever the other products of the table do.
    pub packed: bool,
}

impl Product {
    /// A product of one matrix and all rows, into a separate value.
    pub fn plain(x: Value, part: Part, out: Value) -> Product {
        Product {
            x,
            parts: vec![part],
            out: Columns { of: out, first: 0 },
            residual: None,
            rows: RowSet::All,
            soft_cap: 0.0,
            activation: None,
            deferred: None,
            defers: None,
            leaves_f16: false,
            unhalved: false,
            packed: false,
        }
    }

    /// How it reads its input for one of its matrices.
    pub fn reads(&self, weight: DType) -> Read {
        match (self.unhalved, self.packed) {
            (true, _) => Read::Unhalved(weight),
            (_, true) => Read::Lanes,
            _ => Read::Input(weight, self.rows),
        }
    }
}

/// What products that write f16 leave to the reader: the scales of the rows of their input, and their biases, of all or of
/// none.
#[derive(Clone, Debug)]
pub(super) struct Unfinished {
    pub scales_of: Value,
    pub biases: Vec<BufferId>,
}

impl Unfinished {
    pub fn form(&self) -> InputForm {
        InputForm::F16 { bias: !self.biases.is_empty() }
    }
}

/// A deferred norm of a product's output: the product writes `normed`, not yet divided, and the sums of squares for the
/// division.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeferredNorm {
    pub norm: Norm,
    pub normed: Value,
    pub squares: Value,
}

/// The heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heads {
    pub count: usize,
    pub kv: usize,
    pub dim: usize,
}

impl Heads {
    pub fn of(config: &ModelConfig) -> Heads {
        Heads { count: config.head_count, kv: config.kv_head_count, dim: config.head_dim }
    }

    pub fn q_size(self) -> usize {
        self.count * self.dim
    }

    pub fn kv_size(self) -> usize {
        self.kv * self.dim
    }
}

/// Rows that are sorted by expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sorted {
    /// Experts, and how many of them each row is sorted to.
    pub count: usize,
    pub top: usize,
    /// Where the rows of each expert begin.
    pub starts: Value,
}

/// The experts of a product's rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Routed {
    /// Experts, and how many of them each row of the pass has.
    pub count: usize,
    pub top: usize,
    pub by: RoutedBy,
}

/// How a product finds the expert of each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoutedBy {
    /// Rows are sorted by expert: where those of each expert begin.
    Starts(Value),
    /// Rows are in the order of picks.
    Picks(Value),
}

impl RoutedBy {
    pub fn value(self) -> Value {
        let (RoutedBy::Starts(value) | RoutedBy::Picks(value)) = self;
        value
    }
}

/// Added to attention scores depending on the distance between key and query: f32, `[heads][2 · reach − 1]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PositionBias {
    pub buffer: BufferId,
    pub reach: usize,
}

/// Multipliers of queries: `count` f32 numbers, each for `step` positions or lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueryFactors {
    pub buffer: BufferId,
    pub by: ScaledBy,
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
    /// The style of RoPE, and cos and sin of each row; `None` without RoPE.
    pub rope: Option<(RopeStyle, Value)>,
    /// Norms of each head of Q and K.
    pub norms: Option<[BufferId; 2]>,
    /// The norms follow RoPE.
    pub norm_last: bool,
}

impl HeadRotation {
    pub fn angles(&self) -> Option<Value> {
        self.rope.map(|(_, angles)| angles)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Attend {
    pub layer: usize,
    pub heads: Heads,
    pub window: Option<Span>,
    /// Q; with `rotation`, the adjacent Q, K and V from the products.
    pub q: Value,
    /// Set if attention prepares the heads itself.
    pub rotation: Option<HeadRotation>,
    pub position_bias: Option<PositionBias>,
    pub query_factors: Option<QueryFactors>,
    /// A sink of each head.
    pub sinks: Option<BufferId>,
    /// To the states of an encoder, and not to the sequence itself.
    pub across: bool,
    pub out: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Action {
    /// The rows as attention to an encoder's states reads them.
    AcrossRows,
    /// The inputs of a convolution over three frames, around frame `middle` of the `frames` in a row.
    Unfold {
        x: Value,
        frames: usize,
        middle: usize,
        out: Value,
    },
    /// The columns of `x` in the order in which the matrices of the products that follow store their inputs.
    Reorder {
        x: Value,
        order: BufferId,
        out: Value,
    },
    Embed {
        table: Matrix,
        scale: f32,
        out: Value,
    },
    /// Adds learned positions and token types, as far as the model has them, to `x`.
    AddPositions {
        x: Value,
        /// The table and its number of rows.
        positions: Option<(BufferId, usize)>,
        types: Option<TokenTypes>,
        out: Value,
    },
    /// Normalizes each head separately, with separate weights.
    HeadNorm {
        norm: Norm,
        heads: usize,
        dim: usize,
        x: Columns,
        out: Columns,
    },
    /// The sum of the squares of each row.
    SumSquares {
        x: Value,
        out: Columns,
    },
    /// Normalizes a part of each row by the sum of the squares of `summed` numbers.
    NormPart {
        norm: Norm,
        summed: usize,
        x: Value,
        sums: Columns,
        out: Columns,
    },
    Activate {
        activation: Activation,
        x: Value,
        /// How a product left `x`, if not finished.
        unfinished: Option<Unfinished>,
        rows: RowSet,
        out: Value,
    },
    /// One row per text: one of its hidden states, or their mean.
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
    /// The experts of each row and their shares.
    Route {
        experts: ExpertFacts,
        logits: Value,
        /// Added to scores for choosing.
        bias: Option<BufferId>,
        picks: Value,
        shares: Value,
    },
    /// Multiplies rows by their only share, of which 1 is left.
    WeighInputs {
        x: Value,
        shares: Value,
        out: Value,
        left: Value,
    },
    /// Sorts rows by expert.
    Gather {
        picks: Value,
        x: Value,
        /// How the products with experts read the sorted rows.
        readers: Vec<Read>,
        experts: usize,
        out: Value,
        starts: Value,
        places: Value,
    },
    /// `glu(x · Gᵀ, x · Uᵀ)` with the matrices of each row's expert. Both have a bias, or none. By picks, `x` has the rows of
    /// the pass.
    ExpertGlu {
        glu: GluKind,
        x: Value,
        routed: Routed,
        gate: Part,
        up: Part,
        /// Reads rows in the order of lanes, and meets weights that are rounded to f16.
        packed: bool,
        out: Value,
    },
    /// `x · Wᵀ (+ bias)` with the matrix of each row's expert.
    ExpertProduct {
        x: Value,
        sorted: Sorted,
        part: Part,
        /// As of `ExpertGlu`.
        packed: bool,
        out: Value,
    },
    /// An expert product of rows in the order of picks, and the sum of what a row's experts give, as of `Combine`.
    ExpertSum {
        x: Value,
        experts: usize,
        picks: Value,
        shares: Value,
        part: Part,
        shared: Option<(Value, Option<Value>)>,
        residual: Option<Value>,
        out: Value,
    },
    /// The sum of what a row's experts give, and the expert that all rows share, with the logits of its gate.
    Combine {
        y: Value,
        places: Value,
        shares: Value,
        shared: Option<(Value, Option<Value>)>,
        residual: Option<Value>,
        out: Value,
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
    /// Prepares the heads of `qkv`, and writes K and V to the cache and Q to `q`. Without `q`, `qkv` is K and V alone.
    RopeKv {
        layer: usize,
        heads: Heads,
        rotation: HeadRotation,
        qkv: Value,
        /// How the products left K and V, if not finished.
        unfinished: Option<Unfinished>,
        q: Option<Value>,
    },
    Attend(Attend),
    /// Writes rows of a latent cache: the first columns of `x` normalized, the others rotated.
    LatentKv {
        layer: usize,
        norm: Norm,
        x: Value,
        angles: Value,
    },
    /// The first columns of each head of `x`, sorted by head.
    HeadsApart {
        x: Value,
        out: Value,
        starts: Value,
    },
    /// The queries of latent attention: `x` is sorted by head, and the ends of the heads of `q` are rotated.
    LatentQueries {
        x: Value,
        q: Value,
        angles: Value,
        out: Value,
    },
    /// Attention to a latent cache, sorted by head.
    LatentAttend {
        layer: usize,
        q: Value,
        out: Value,
    },
    /// The convolution before a state, of columns of `mixed`.
    StateConv {
        layer: usize,
        facts: MambaFacts,
        mixed: Value,
        weight: BufferId,
        bias: Option<BufferId>,
        out: Value,
    },
    /// The state of a layer, which takes up `x` and is read.
    StateScan {
        layer: usize,
        facts: MambaFacts,
        x: Value,
        mixed: Value,
        decay: BufferId,
        skip: BufferId,
        dt_bias: BufferId,
        out: Value,
    },
    /// Rows of all heads, of what is sorted by head.
    HeadsTogether {
        x: Value,
        heads: usize,
        out: Value,
    },
    /// The scores of one head's attention to the encoder's states.
    HeadScores {
        layer: usize,
        head: usize,
        q: Value,
        out: Columns,
    },
    Argmax {
        logits: Value,
        vocab: usize,
    },
    /// The sum of what all ranks have in `x`.
    AllReduce {
        x: Value,
        residual: Option<Value>,
        out: Value,
        /// The norm of the sum that is deferred to its consumers.
        defers: Option<DeferredNorm>,
    },
    /// The columns of `x` of all ranks, as far as `out` has columns.
    AllGather {
        x: Value,
        out: Value,
    },
}

#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    pub steps: Vec<Step>,
    pub values: Vec<ValueInfo>,
    /// Where the steps that are pushed next are computed.
    pub side: Side,
}

impl Graph {
    pub fn value(&mut self, role: impl Into<String>, cols: usize, rows: RowSet) -> Value {
        self.counted(role, cols, RowCount::Of(rows))
    }

    pub fn counted(&mut self, role: impl Into<String>, cols: usize, rows: RowCount) -> Value {
        self.values.push(ValueInfo { role: role.into(), cols, rows });
        Value(self.values.len() - 1)
    }

    pub fn cols(&self, value: Value) -> usize {
        self.values[value.0].cols
    }

    pub fn push(&mut self, label: impl Into<String>, action: Action) {
        self.steps.push(Step { label: label.into(), action, side: self.side });
    }

    /// Number of operations that read the value.
    pub fn uses(&self, value: Value) -> usize {
        self.steps.iter().filter(|step| step.action.reads().iter().any(|(read, _)| *read == value)).count()
    }

    /// Whether a product leaves the value in f16, with the scales of its input.
    pub fn is_left_in_f16(&self, value: Value) -> bool {
        self.products().any(|product| product.leaves_f16 && product.out.of == value)
    }

    /// Whether an operation attends to an encoder's states.
    pub fn attends_across(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.action, Action::AcrossRows))
    }

    /// Whether an operation reads the token types (segments).
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
    pub fn reads(&self) -> Vec<(Value, Read)> {
        let f32 = |value: Value| (value, Read::F32);
        match self {
            Action::Embed { .. } | Action::Angles { .. } | Action::AcrossRows => vec![],
            Action::AddPositions { x, .. }
            | Action::Norm { x, .. }
            | Action::Pool { x, .. }
            | Action::Reorder { x, .. }
            | Action::Unfold { x, .. } => vec![f32(*x)],
            Action::Activate { x, unfinished: None, .. } => vec![f32(*x)],
            Action::Activate { x, unfinished: Some(Unfinished { scales_of, .. }), .. } => {
                vec![(*x, Read::F16), (*scales_of, Read::F16)]
            }
            Action::HeadNorm { x, .. } => vec![f32(x.of)],
            Action::SumSquares { x, .. } => vec![f32(*x)],
            Action::NormPart { x, sums, .. } => vec![f32(*x), f32(sums.of)],
            Action::Product(product) => {
                let mut all: Vec<_> =
                    product.parts.iter().map(|part| (product.x, product.reads(part.matrix.dtype))).collect();
                all.extend(product.residual.into_iter().chain(product.deferred).map(f32));
                all
            }
            Action::Glu { gate, up, .. } => vec![f32(*gate), f32(*up)],
            Action::GluProduct { x, gate, up, deferred, .. } => {
                let weights = [gate, up].map(|matrix| (*x, Read::Unhalved(matrix.dtype)));
                weights.into_iter().chain(deferred.map(f32)).collect()
            }
            Action::Route { logits, .. } => vec![f32(*logits)],
            Action::WeighInputs { x, shares, .. } => vec![f32(*x), f32(*shares)],
            Action::Gather { picks, x, readers, .. } => {
                let forms = readers.iter().map(|how| (*x, *how));
                forms.chain([f32(*picks)]).collect()
            }
            Action::ExpertGlu { x, routed, gate, up, packed, .. } => {
                let weights = [gate, up].map(|part| (*x, of_experts(part, *packed)));
                weights.into_iter().chain([f32(routed.by.value())]).collect()
            }
            Action::ExpertProduct { x, sorted, part, packed, .. } => {
                vec![(*x, of_experts(part, *packed)), f32(sorted.starts)]
            }
            Action::ExpertSum { x, picks, shares, part, shared, residual, .. } => {
                let added = addends(*shared, *residual);
                let read = [*picks, *shares].into_iter().chain(added).map(f32);
                [(*x, Read::Unhalved(part.matrix.dtype))].into_iter().chain(read).collect()
            }
            Action::Combine { y, places, shares, shared, residual, .. } => {
                [*y, *places, *shares].into_iter().chain(addends(*shared, *residual)).map(f32).collect()
            }
            Action::Add { x, residual, .. } | Action::NormAdd { x, residual, .. } => {
                vec![f32(*x), f32(*residual)]
            }
            Action::RopeKv { unfinished: Some(Unfinished { scales_of, .. }), qkv, .. } => {
                vec![(*qkv, Read::F16), (*scales_of, Read::F16)]
            }
            Action::RopeKv { rotation, qkv, .. } => {
                [*qkv].into_iter().chain(rotation.angles()).map(f32).collect()
            }
            Action::Attend(attend) => {
                let angles = attend.rotation.and_then(|rotation| rotation.angles());
                [attend.q].into_iter().chain(angles).map(f32).collect()
            }
            Action::HeadScores { q, .. } | Action::LatentAttend { q, .. } => vec![f32(*q)],
            Action::LatentKv { x, angles, .. } => vec![f32(*x), f32(*angles)],
            Action::HeadsApart { x, .. } | Action::HeadsTogether { x, .. } => vec![f32(*x)],
            Action::StateConv { mixed, .. } => vec![f32(*mixed)],
            Action::StateScan { x, mixed, .. } => vec![f32(*x), f32(*mixed)],
            Action::LatentQueries { x, q, angles, .. } => vec![f32(*x), f32(*q), f32(*angles)],
            Action::Argmax { logits, .. } => vec![f32(*logits)],
            Action::AllReduce { x, residual, .. } => [*x].into_iter().chain(*residual).map(f32).collect(),
            Action::AllGather { x, .. } => vec![f32(*x)],
        }
    }

    pub fn writes(&self) -> Vec<Value> {
        match self {
            Action::Embed { out, .. }
            | Action::Unfold { out, .. }
            | Action::Reorder { out, .. }
            | Action::AddPositions { out, .. }
            | Action::Activate { out, .. }
            | Action::Pool { out, .. }
            | Action::Angles { out, .. }
            | Action::Norm { out, .. }
            | Action::Glu { out, .. }
            | Action::GluProduct { out, .. }
            | Action::ExpertGlu { out, .. }
            | Action::ExpertProduct { out, .. }
            | Action::ExpertSum { out, .. }
            | Action::Combine { out, .. }
            | Action::Add { out, .. }
            | Action::AllGather { out, .. }
            | Action::NormAdd { out, .. } => vec![*out],
            Action::Route { picks, shares, .. } => vec![*picks, *shares],
            Action::WeighInputs { out, left, .. } => vec![*out, *left],
            Action::Gather { out, starts, places, .. } => vec![*out, *starts, *places],
            Action::Product(product) => {
                let deferred = product.defers.iter().flat_map(|defers| [defers.normed, defers.squares]);
                [product.out.of].into_iter().chain(deferred).collect()
            }
            Action::AllReduce { out, defers, .. } => {
                let deferred = defers.iter().flat_map(|defers| [defers.normed, defers.squares]);
                [*out].into_iter().chain(deferred).collect()
            }
            Action::HeadNorm { out, .. }
            | Action::SumSquares { out, .. }
            | Action::NormPart { out, .. }
            | Action::HeadScores { out, .. } => vec![out.of],
            Action::RopeKv { q, .. } => q.iter().copied().collect(),
            Action::Attend(attend) => vec![attend.out],
            Action::HeadsApart { out, starts, .. } => vec![*out, *starts],
            Action::LatentQueries { out, .. }
            | Action::LatentAttend { out, .. }
            | Action::StateConv { out, .. }
            | Action::StateScan { out, .. }
            | Action::HeadsTogether { out, .. } => vec![*out],
            Action::Argmax { .. } | Action::AcrossRows | Action::LatentKv { .. } => vec![],
        }
    }
}

/// How a product with experts reads its input.
fn of_experts(part: &Part, packed: bool) -> Read {
    if packed { Read::Lanes } else { Read::Unhalved(part.matrix.dtype) }
}

/// What is added to the sum of a row's experts: the shared expert and its gate, and the residual.
fn addends(shared: Option<(Value, Option<Value>)>, residual: Option<Value>) -> impl Iterator<Item = Value> {
    let gate = shared.and_then(|(_, gate)| gate);
    shared.map(|(shared, _)| shared).into_iter().chain(gate).chain(residual)
}
