//! The tables of a forward pass, for any number of rows.

use std::collections::HashMap;

use akunu_arch::tower::{BlockKind, Rotation, Tower};
use akunu_arch::{ModelConfig, WeightProvider};

use super::blocks::Blocks;
use super::emit::Emitter;
use super::forms::{Shape, ValueForms, fits_halves};
use super::fuse::{Rules, fuse, rows_of_packed_experts};
use super::graph::{Action, Graph, Part, Product, Read, Step, Value};
use super::place::place;
use super::stages::Sides;
use super::weights::{Matrix, Norm, RopeTable, Tensors, rope_tables};
use super::{Buffers, Context, size, table_io};
use crate::ops::{EIGHTS, RowSet};
use crate::plan::PlanError;
use crate::{
    BufferId, BufferKind, Card, DType, DispatchTable, FewRows, PackedRows, PassKind, Row, Side, Streams,
    TableIo, eights, halves,
};

/// The graph of a model up to its last hidden states, before any table is built from it.
#[derive(Debug)]
pub(super) struct Model {
    pub tower: Tower,
    pub graph: Graph,
    pub states: Value,
    pub embedding: Matrix,
    pub ropes: Vec<RopeTable>,
}

impl Model {
    pub fn new(
        provider: &dyn WeightProvider,
        card: &'static Card,
        (context, sides): (usize, Sides<'_>),
        tensors: &mut Tensors<'_>,
    ) -> Result<Model, PlanError> {
        let config = provider.config();
        let tokens = tensors.tokens(config.vocab_size);
        let embedding = tensors.matrix("token_embd.weight", tokens, config.hidden_size)?;
        let ropes = match config.rope.dims {
            0 => vec![],
            _ => rope_tables(tensors, config, context)?,
        };
        let tower = card.tower(provider);
        let (graph, states) =
            Blocks::new(config, card, (tensors, context, sides), Some(embedding), &ropes)?.lower(&tower)?;
        Ok(Model { tower, graph, states, embedding, ropes })
    }

    /// The RoPE frequencies of a layer; `None` without RoPE.
    pub fn layer_frequencies(&self, layer: usize) -> Option<BufferId> {
        let rotation = self.tower.blocks.iter().find_map(|block| match &block.kind {
            BlockKind::AttendLatent { .. } if block.layer == Some(layer) => Some(Rotation::Global),
            BlockKind::Attend { attention, .. } if block.layer == Some(layer) => attention.rotation,
            _ => None,
        })?;
        let table = match rotation {
            Rotation::Global => self.ropes.first(),
            Rotation::Local => self.ropes.last(),
        };
        table.map(|table| table.buffer)
    }
}

/// The end of a generative pass: a norm of the logit rows, and the logits.
#[derive(Debug)]
pub(super) struct Logits {
    norm: Norm,
    output: Matrix,
    bias: Option<BufferId>,
    /// Whether each rank has a part of the vocabulary.
    is_shared: bool,
}

impl Logits {
    pub fn new(
        config: &ModelConfig,
        embedding: Matrix,
        tensors: &mut Tensors<'_>,
    ) -> Result<Logits, PlanError> {
        let (hidden, vocab) = (config.hidden_size, tensors.tokens(config.vocab_size));
        // The embedding is also the output if the file has no output matrix.
        let output = match tensors.has("output.weight") {
            true => tensors.matrix("output.weight", vocab, hidden)?,
            false => embedding,
        };
        let bias = tensors.bias("output.bias", vocab)?;
        let scale = config.logit_scale.unwrap_or(1.0);
        let norm = tensors.scaled_norm("output_norm.weight", &[hidden], scale)?;
        Ok(Logits { norm, output, bias, is_shared: tensors.is_shared() })
    }

    /// Adds the operations to a graph. The returned value contains the logits.
    pub fn add(&self, graph: &mut Graph, states: Value, config: &ModelConfig) -> Value {
        let rows = RowSet::Logits;
        let picked = graph.value("picked", config.hidden_size, rows);
        graph.push("output_norm", Action::Norm { norm: self.norm, x: states, rows, out: picked });
        let logits = graph.value("logits", self.output.rows, rows);
        let product = Product {
            rows,
            soft_cap: config.logit_soft_cap.unwrap_or(0.0),
            ..Product::plain(
                picked,
                Part { label: "logits".into(), matrix: self.output, bias: self.bias, order: None },
                logits,
            )
        };
        graph.push("logits", Action::Product(product));
        if !self.is_shared {
            return logits;
        }
        let all = graph.value("all_logits", config.vocab_size, rows);
        graph.push("logits.gather", Action::AllGather { x: logits, out: all });
        all
    }
}

pub(super) struct Spec {
    pub name: &'static str,
    pub rows: usize,
    pub logit_rows: usize,
    pub steps: usize,
    /// Inputs and outputs of the prefill table, for tables that share them.
    pub io: Option<TableIo>,
    /// `None`: what is best for its rows.
    pub products: Option<Products>,
}

/// How a table multiplies all rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Products {
    /// Weights as they are, and what they need of the rows.
    Plain,
    /// Rows in f16 ([`crate::halves`]), and quantised weights as they are.
    Packed,
    /// Rows in f16, and weights that are f16 or are converted first.
    Converted,
    /// Rows in FP8 ([`crate::eights`]), and weights in FP8 as they are.
    Eights,
}

impl Products {
    /// What is best for so many rows.
    pub fn for_rows(context: &Context<'_>, graph: &Graph, rows: usize) -> Products {
        if let Some(few) = eight_rows(context, graph) {
            return if rows <= few { Products::Plain } else { Products::Eights };
        }
        let Some(few) = context.half_products.filter(|_| fits_halves(graph)) else { return Products::Plain };
        match packed_rows(context, graph) {
            Some(packed) if rows <= packed.few => Products::Plain,
            Some(packed) if rows <= packed.most => Products::Packed,
            None if rows <= rows_as_they_are(graph, few) => Products::Plain,
            _ => Products::Converted,
        }
    }
}

/// The tables beside a prefill table of `rows` rows that multiply fewer rows in another way, and the most rows of each.
pub(super) fn tables_for_fewer_rows(
    context: &Context<'_>,
    graph: &Graph,
    rows: usize,
) -> Vec<(PassKind, usize)> {
    if let Some(few) = eight_rows(context, graph) {
        return if (2..rows).contains(&few) { vec![(PassKind::SmallPrefill, few)] } else { vec![] };
    }
    let Some(few) = context.half_products.filter(|_| converted(graph).next().is_some()) else {
        return vec![];
    };
    let packed = packed_rows(context, graph);
    let tables = [
        (PassKind::SmallPrefill, packed.map_or(rows_as_they_are(graph, few), |packed| packed.few)),
        (PassKind::MiddlePrefill, packed.map_or(0, |packed| packed.most)),
    ];
    let own = Products::for_rows(context, graph, rows);
    let differs = |most: usize| Products::for_rows(context, graph, most) != own;
    tables.into_iter().filter(|(_, most)| (2..rows).contains(most) && differs(*most)).collect()
}

/// The most rows for which a graph's weights are not multiplied by rows in FP8, if they can be: the file asks for such rows,
/// and at least half of the weights that meet all rows are FP8. The others meet rows in f32.
fn eight_rows(context: &Context<'_>, graph: &Graph) -> Option<usize> {
    let few = context.eight_products?;
    // Experts have no products of FP8.
    let by_experts = |step: &Step| {
        let reads = step.action.reads();
        let all_rows = reads.iter().any(|(_, how)| matches!(how, Read::Input(_, RowSet::All)));
        all_rows && !matches!(step.action, Action::Product(_))
    };
    if graph.steps.iter().any(by_experts) {
        return None;
    }
    let (mut eight, mut all) = (0, 0);
    for product in graph.products().filter(|product| product.rows == RowSet::All) {
        let size: usize = product.parts.iter().map(|part| part.matrix.rows * part.matrix.cols).sum();
        all += size;
        if multiplies_eights(product, graph.cols(product.out.of)) {
            eight += size;
        }
    }
    (eight > 0 && eight * 2 >= all).then_some(few)
}

/// Whether a product can multiply rows in FP8. `stride`: columns of the rows that it writes to.
pub(super) fn multiplies_eights(product: &Product, stride: usize) -> bool {
    let whole = |count: usize| count.is_multiple_of(eights::WHOLE);
    let fits = |matrix: &Matrix| matrix.dtype == EIGHTS && whole(matrix.rows) && whole(matrix.cols);
    let all_fit = product.parts.iter().all(|part| fits(&part.matrix));
    all_fit && whole(stride) && product.rows == RowSet::All && product.soft_cap == 0.0 && !product.unhalved
}

/// The rows for which a graph's weights are multiplied packed: if all weights that meet f16 rows are quantised, and the rows
/// are whole groups of lanes.
fn packed_rows(context: &Context<'_>, graph: &Graph) -> Option<PackedRows> {
    let packs = |product: &Product| {
        let quantised = product.parts.iter().all(|part| part.matrix.dtype.is_quantised());
        quantised && graph.cols(product.x).is_multiple_of(halves::GROUP)
    };
    let in_f32 = |product: &Product| product.parts.iter().all(|part| part.matrix.dtype == DType::F32);
    let halved = |product: &&Product| product.rows == RowSet::All && !product.unhalved && !in_f32(product);
    let mut products = graph.products().filter(halved).peekable();
    products.peek()?;
    let rows = context.packed_products.filter(|_| products.all(packs))?;
    // The table for more rows multiplies experts packed, too, from so many rows on.
    let most =
        rows_of_packed_experts(graph).map_or(rows.most, |least| rows.most.min(least - 1).max(rows.few));
    Some(PackedRows { most, ..rows })
}

/// Builds a table from a graph, whose `output` is read by the host.
pub(super) fn build(
    context: &Context<'_>,
    graph: (Graph, Value),
    ropes: &[RopeTable],
    spec: &Spec,
    buffers: &mut Buffers,
) -> Result<DispatchTable, PlanError> {
    build_with(context, graph, HashMap::new(), ropes, spec, buffers)
}

/// The same, with buffers of values that the host writes.
pub(super) fn build_with(
    context: &Context<'_>,
    (graph, output): (Graph, Value),
    inputs: HashMap<Value, BufferId>,
    ropes: &[RopeTable],
    spec: &Spec,
    buffers: &mut Buffers,
) -> Result<DispatchTable, PlanError> {
    let (io, logit_rows) = match spec.io {
        Some(io) => (io, spec.logit_rows),
        None => {
            let logit_rows = spec.logit_rows.min(spec.rows);
            let sizes = [spec.rows, logit_rows, spec.steps, graph.cols(output)];
            (table_io(buffers, spec.name, sizes)?, logit_rows)
        }
    };
    let products = spec.products.unwrap_or_else(|| Products::for_rows(context, &graph, spec.rows));
    let folds = context.folds && spec.rows == 1;
    let picks = context.options.fuse && !context.options.keep_inputs && spec.rows == 1;
    let packs_logits = context.packed_products.is_some() && products != Products::Plain;
    let packs_experts = context.packed_products.is_some() && products == Products::Converted;
    let rules = Rules {
        joins: context.options.fuse,
        folds,
        picks,
        products,
        packs_logits,
        rows_of_packed_experts: packs_experts.then_some(spec.rows),
        kv: context.options.kv,
    };
    let graph = fuse(graph, rules);
    let shape = Shape { context, name: spec.name, rows: spec.rows, logit_rows, products };
    let forms = ValueForms::new(&graph, &shape);
    let mut given = inputs;
    given.insert(output, io.logits);
    let places = place(&graph, &shape, &forms, &given, buffers)?;
    let converts = products == Products::Converted;
    let unpacked_bytes = if converts { unpacked_bytes(&graph)? } else { None };
    let unpacked = unpacked_bytes.map(|bytes| buffers.scratch(spec.name, "unpacked", bytes));
    let segments = match graph.reads_segments() {
        true => {
            let bytes = size(&[spec.rows, 4])?;
            Some(buffers.add(format!("{}.segments", spec.name), bytes, BufferKind::Io))
        }
        false => None,
    };
    let across = match graph.attends_across() {
        true => Some(buffers.scratch(spec.name, "across", size(&[spec.rows, Row::BYTES])?)),
        false => None,
    };
    let mut emitter = Emitter {
        shape,
        graph: &graph,
        forms: &forms,
        places: &places,
        ropes,
        io: TableIo { segments, across, ..io },
        unpacked,
        advances: spec.steps > 1,
        commands: Vec::new(),
        labels: Vec::new(),
        side: Side::Device,
    };
    emitter.emit();
    let Emitter { commands, labels, io, .. } = emitter;
    Ok(DispatchTable {
        name: spec.name,
        commands,
        labels,
        rows: spec.rows,
        logit_rows,
        steps: spec.steps,
        io,
        bounds: context.row_bounds().into(),
        streams: Streams::default(),
    })
}

/// Whether a product of converted weights must convert its own: a single matrix that is f16 already is multiplied in place,
/// and f32 is not multiplied in f16.
pub(super) fn needs_unpacking(product: &Product) -> bool {
    let in_f32 = product.parts.iter().all(|part| part.matrix.dtype == DType::F32);
    !in_f32 && !matches!(&product.parts[..], [part] if part.matrix.dtype == DType::F16)
}

/// The most rows for which a graph's weights are multiplied as they are. Weights that are f16 already are not converted,
/// so that two rows are enough for products in f16.
pub(super) fn rows_as_they_are(graph: &Graph, few: FewRows) -> usize {
    let parts = converted(graph).flat_map(|product| &product.parts);
    parts.map(|part| few.of(part.matrix.dtype)).min().unwrap_or(1)
}

/// The products whose weights must be converted for products in f16.
fn converted(graph: &Graph) -> impl Iterator<Item = &Product> {
    graph
        .products()
        .filter(|product| product.rows == RowSet::All && !product.unhalved && !product.packed)
        .filter(|product| needs_unpacking(product))
}

/// Size of the converted f16 weights of the largest product; `None` if no product converts any.
fn unpacked_bytes(graph: &Graph) -> Result<Option<u64>, PlanError> {
    let weights =
        |product: &Product| product.parts.iter().map(|part| part.matrix.rows * part.matrix.cols).sum();
    converted(graph).map(weights).max().map(|most| size(&[most, 2])).transpose()
}
