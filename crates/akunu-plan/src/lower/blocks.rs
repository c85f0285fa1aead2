//! Lowers blocks to plain operations: the first pass of the lowering. It does not depend on the device or on the number
//! of rows.

use akunu_arch::tower::{Attention, Block, BlockKind, FeedForwardKind, QkNorm, Rotation, State, Tower};
use akunu_arch::{Activation, MAX_EXPERTS, ModelConfig, RopeStyle};

use super::graph::{
    Action, Attend, Columns, Graph, HeadRotation, Heads, InputOrder, Part, PositionBias, Product,
    QueryFactors, Read, Routed, RoutedBy, RowCount, Sorted, TokenTypes, Value,
};
use super::stages::Sides;
use super::weights::{Matrix, Norm, RopeTable, Tensors, position_bias, query_factors};
use crate::ops::{GluKind, RowSet};
use crate::plan::PlanError;
use crate::{BufferId, Card, NormKind, Side};

/// The epsilon of the norms within latent attention, whatever that of a model's other norms is.
const LATENT_EPSILON: f32 = 1e-6;

/// Frames of audio in a row.
const FRAMES: usize = 2;

/// Positions as sines of the first half of the elements and cosines of the second, with wavelengths up to 10,000 · 2π.
fn sinusoids(count: usize, cols: usize) -> Vec<f32> {
    let half = cols / 2;
    let step = 10_000f64.ln() / (half.max(2) - 1) as f64;
    let angle = |position: usize, i: usize| position as f64 * (-step * i as f64).exp();
    let row = |position: usize| {
        let of = move |f: fn(f64) -> f64| (0..half).map(move |i| f(angle(position, i)) as f32);
        of(f64::sin).chain(of(f64::cos))
    };
    (0..count).flat_map(row).collect()
}

pub(super) struct Blocks<'a, 'w> {
    pub config: &'a ModelConfig,
    pub card: &'static Card,
    pub tensors: &'a mut Tensors<'w>,
    /// The embedding, which may also be the output matrix, in towers that read tokens.
    pub embedding: Option<Matrix>,
    pub ropes: &'a [RopeTable],
    /// Shared by the attention of all layers.
    position_bias: Option<PositionBias>,
    query_factors: Option<QueryFactors>,
    ones: Option<BufferId>,
    sides: Sides<'a>,
    /// What the names of the tower's tensors begin with.
    pub prefix: &'static str,
    pub graph: Graph,
    /// The output of each block of the tower.
    states: Vec<Value>,
    /// cos and sin of each set of RoPE frequencies.
    angles: Vec<Value>,
    /// Values whose columns were put into the order of a matrix, and what became of them.
    reordered: Vec<(Value, InputOrder, Value)>,
}

impl<'a, 'w> Blocks<'a, 'w> {
    pub fn new(
        config: &'a ModelConfig,
        card: &'static Card,
        (tensors, context, sides): (&'a mut Tensors<'w>, usize, Sides<'a>),
        embedding: Option<Matrix>,
        ropes: &'a [RopeTable],
    ) -> Result<Blocks<'a, 'w>, PlanError> {
        let position_bias = position_bias(tensors, config.head_count)?;
        let query_factors = query_factors((config, card.scaled_by), context, tensors.buffers);
        let (graph, states, angles) = (Graph::default(), vec![], vec![]);
        Ok(Blocks {
            config,
            card,
            tensors,
            embedding,
            ropes,
            position_bias,
            query_factors,
            ones: None,
            sides,
            prefix: "",
            graph,
            states,
            angles,
            reordered: Vec::new(),
        })
    }

    /// Lowers the whole tower. The returned value contains its last hidden states.
    pub fn lower(mut self, tower: &Tower) -> Result<(Graph, Value), PlanError> {
        self.prefix = tower.prefix;
        // Blocks that belong to no layer are beside the one before them.
        let mut reached = 0;
        for block in &tower.blocks {
            let prefix = block.layer.map_or(String::new(), |layer| format!("layer.{layer}."));
            let label = |part: &str| format!("{prefix}{part}");
            reached = block.layer.unwrap_or(reached);
            self.graph.side = self.sides.of_layer(reached);
            let state = match &block.kind {
                BlockKind::Embed { scale } => {
                    let across = |block: &Block| matches!(block.kind, BlockKind::AttendAcross { .. });
                    if tower.blocks.iter().any(across) {
                        self.graph.push("across_rows", Action::AcrossRows);
                    }
                    self.embed(*scale)?
                }
                BlockKind::Frames { bands } => self.graph.value("frames", FRAMES * bands, RowSet::All),
                BlockKind::Convolve { x, tensor, both } => {
                    self.convolve(self.state(*x), tensor, if *both { FRAMES } else { 1 })?
                }
                BlockKind::AttendAcross { x } => {
                    self.attend_across(block.layer.unwrap_or(0), self.state(*x))?
                }
                BlockKind::Positions { x } => self.positions(self.state(*x))?,
                BlockKind::Norm { x, tensor } => {
                    let x = self.state(*x);
                    let name = block
                        .layer
                        .map_or(format!("{tensor}.weight"), |i| format!("blk.{i}.{tensor}.weight"));
                    let name = format!("{}{name}", self.prefix);
                    let norm = self.tensors.norm(&name, &[self.graph.cols(x)])?;
                    let out = self.graph.value("normed", self.graph.cols(x), RowSet::All);
                    self.graph.push(label(tensor), Action::Norm { norm, x, rows: RowSet::All, out });
                    out
                }
                BlockKind::Attend { x, attention } => {
                    self.attend(block.layer.unwrap_or(0), self.state(*x), *attention)?
                }
                BlockKind::AttendLatent { x } => {
                    self.attend_latent(block.layer.unwrap_or(0), self.state(*x))?
                }
                BlockKind::Mix { x } => self.mix(block.layer.unwrap_or(0), self.state(*x))?,
                BlockKind::Feed { x, kind } => self.feed(block.layer.unwrap_or(0), self.state(*x), *kind)?,
                BlockKind::Experts { x } => self.experts(block.layer.unwrap_or(0), self.state(*x))?,
                BlockKind::Add { residual, x, scale } => {
                    let (residual, x) = (self.state(*residual), self.state(*x));
                    let out = self.graph.value("hidden", self.config.hidden_size, RowSet::All);
                    self.graph.push(label("add"), Action::Add { residual, x, scale: *scale, out });
                    out
                }
            };
            self.states.push(state);
        }
        let last = self.state(tower.last());
        self.graph.side = Side::Device;
        Ok((self.graph, last))
    }

    fn state(&self, state: State) -> Value {
        self.states[state.0]
    }

    fn embed(&mut self, scale: f32) -> Result<Value, PlanError> {
        let table = self.embedding.ok_or_else(|| PlanError::MissingTensor("token_embd.weight".into()))?;
        let out = self.graph.value("hidden", self.config.hidden_size, RowSet::All);
        self.graph.push("embed", Action::Embed { table, scale, out });
        let out = self.summed("embed", out);
        let sets = [(Rotation::Global, "rope_angles"), (Rotation::Local, "rope_angles.local")];
        for (i, (frequencies, label)) in sets.into_iter().take(self.ropes.len()).enumerate() {
            let angles = self.graph.value(format!("angles.{i}"), self.config.rope.dims, RowSet::All);
            self.graph.push(label, Action::Angles { frequencies, out: angles });
            self.angles.push(angles);
        }
        Ok(out)
    }

    /// One product for each of the `frames` frames of the output, into its columns, and their activation.
    fn convolve(&mut self, x: Value, tensor: &str, frames: usize) -> Result<Value, PlanError> {
        let (hidden, cols) = (self.config.hidden_size, 3 * self.graph.cols(x) / FRAMES);
        let name = format!("{}{tensor}", self.prefix);
        let part = self.tensors.part(&name, tensor.into(), [hidden, cols])?;
        let convolved = self.graph.value("convolved", frames * hidden, RowSet::All);
        for middle in 0..frames {
            let unfolded = self.graph.value("unfolded", cols, RowSet::All);
            let unfold = Action::Unfold { x, frames: FRAMES, middle, out: unfolded };
            self.graph.push(format!("{tensor}.unfold"), unfold);
            self.product(unfolded, part.clone(), Columns { of: convolved, first: middle * hidden });
        }
        let out = self.graph.value("convolved_act", frames * hidden, RowSet::All);
        let activation = self.activation();
        let activate =
            Action::Activate { activation, x: convolved, unfinished: None, rows: RowSet::All, out };
        self.graph.push(format!("{tensor}.act"), activate);
        Ok(out)
    }

    fn activation(&self) -> Activation {
        self.config.activation.unwrap_or(self.card.activation)
    }

    fn positions(&mut self, x: Value) -> Result<Value, PlanError> {
        let hidden = self.config.hidden_size;
        let (name, count) = (format!("{}position_embd.weight", self.prefix), self.config.context_length);
        let positions = match self.tensors.has(&name) {
            true => Some((self.tensors.vector(&name, &[count, hidden], 0.0, 1.0)?, count)),
            // The encoder's are sines and cosines, which not every file has.
            false if !self.prefix.is_empty() => {
                Some((self.tensors.buffers.constant(&name, &sinusoids(count, hidden)), count))
            }
            false => None,
        };
        let types = match self.tensors.rows("token_types.weight")? {
            Some(count) => {
                let buffer = self.tensors.vector("token_types.weight", &[count, hidden], 0.0, 1.0)?;
                Some(TokenTypes { buffer, count })
            }
            None => None,
        };
        let out = self.graph.value("hidden", hidden, RowSet::All);
        self.graph.push("positions", Action::AddPositions { x, positions, types, out });
        Ok(out)
    }

    /// A matrix with its bias, if the file has one.
    pub fn part(
        &mut self,
        layer: usize,
        tensor: &str,
        label: &str,
        shape: [usize; 2],
    ) -> Result<Part, PlanError> {
        let name = format!("{}blk.{layer}.{tensor}", self.prefix);
        self.tensors.part(&name, format!("layer.{layer}.{label}"), shape)
    }

    /// The product with one matrix, written to columns of a value.
    pub fn product(&mut self, x: Value, part: Part, out: Columns) {
        let label = part.label.clone();
        let x = match &part.order {
            Some(order) => self.reordered(x, order, &label),
            None => x,
        };
        let unhalved = self.graph.side.is_host();
        let product = Product { out, unhalved, ..Product::plain(x, part, out.of) };
        self.graph.push(label, Action::Product(product));
    }

    /// The value with its columns in another order. Products of the same value in the same order share it.
    fn reordered(&mut self, x: Value, order: &InputOrder, label: &str) -> Value {
        if let Some((_, _, out)) = self.reordered.iter().find(|(of, by, _)| *of == x && by == order) {
            return *out;
        }
        let buffer = self.tensors.buffers.constant(&format!("{label}.order"), order);
        let out = self.graph.value("reordered", self.graph.cols(x), RowSet::All);
        self.graph.push(format!("{label}.order"), Action::Reorder { x, order: buffer, out });
        self.reordered.push((x, order.clone(), out));
        out
    }

    fn attend(&mut self, layer: usize, x: Value, attention: Attention) -> Result<Value, PlanError> {
        let config = self.config;
        // The layers of an encoder do not need those before them, and share a cache.
        let cached = if self.prefix.is_empty() { layer } else { 0 };
        let heads = Heads::of(config);
        let (inputs, q_size, kv_size) = (self.graph.cols(x), heads.q_size(), heads.kv_size());
        let label = |part: &str| format!("layer.{layer}.{part}");
        let qkv = self.graph.value("qkv", q_size + 2 * kv_size, RowSet::All);
        let parts = [("q", 0, q_size, heads.count), ("k", q_size, kv_size, heads.kv)];
        let mut of_ranks = Vec::new();
        for (name, first, outputs, count) in parts {
            let of = |part: &str| format!("{}blk.{layer}.attn_{part}", self.prefix);
            let (beside, name_of, label) = (of("v"), of(name), label(name));
            let part = self.tensors.part_beside(&beside, &name_of, label, [outputs, inputs])?;
            let to = Columns { of: qkv, first };
            match attention.qk_norm {
                Some(QkNorm::PerHeadWeights) => {
                    self.normed_product(layer, name, (x, part, to), [count, heads.dim])?
                }
                Some(QkNorm::Row) if self.tensors.is_shared() => {
                    let raw = self.graph.value(format!("{name}_raw"), outputs, RowSet::All);
                    self.product(x, part, Columns { of: raw, first: 0 });
                    of_ranks.push((name, raw, to));
                }
                Some(QkNorm::Row) => self.normed_product(layer, name, (x, part, to), [1, outputs])?,
                Some(QkNorm::Head | QkNorm::HeadAfterRope | QkNorm::Plain) | None => {
                    self.product(x, part, to)
                }
            }
        }
        self.norm_parts(layer, &of_ranks)?;
        let part = self.part(layer, "attn_v", "v", [kv_size, inputs])?;
        self.product(x, part, Columns { of: qkv, first: q_size + kv_size });
        let norms = match attention.qk_norm {
            Some(QkNorm::Head | QkNorm::HeadAfterRope) => Some(self.head_norms(layer, heads)?),
            Some(QkNorm::Plain) => Some(self.plain_norms(heads)),
            _ => None,
        };
        let angles = attention.rotation.map(|rotation| self.angles[self.rope_index(rotation)]);
        let norm_last = attention.qk_norm == Some(QkNorm::HeadAfterRope);
        let rotation =
            HeadRotation { rope: angles.map(|angles| (self.rope_style(), angles)), norms, norm_last };
        let q = self.graph.value("q", q_size, RowSet::All);
        self.graph.push(
            label("rope_kv"),
            Action::RopeKv { layer: cached, heads, rotation, qkv, unfinished: None, q: Some(q) },
        );
        let attended = self.graph.value("attn", q_size, RowSet::All);
        let sinks = match attention.sinks {
            true => {
                let name = format!("{}blk.{layer}.attn_sinks.weight", self.prefix);
                Some(self.tensors.vector(&name, &[heads.count], 0.0, 1.0)?)
            }
            false => None,
        };
        let attend = Attend {
            layer: cached,
            heads,
            window: attention.window,
            q,
            rotation: None,
            position_bias: self.position_bias,
            query_factors: self.query_factors.filter(|_| attention.scaled_by.is_some()),
            sinks,
            across: false,
            out: attended,
        };
        self.graph.push(label("attention"), Action::Attend(attend));
        let projected = self.project(layer, attended, ["attn_output", "attn_output"], config.hidden_size)?;
        Ok(self.summed(&label("attn_output"), projected))
    }

    /// The queries of each head are multiplied by the matrix of its keys, attend to latent rows, and what they find is
    /// multiplied by the matrix of its values.
    fn attend_latent(&mut self, layer: usize, x: Value) -> Result<Value, PlanError> {
        let config = self.config;
        let (Some(latent), Some(&angles)) = (config.latent, self.angles.first()) else {
            return Err(PlanError::Unsupported("latent attention without its sizes, or without RoPE".into()));
        };
        let (heads, rope) = (config.head_count, config.rope.dims);
        if heads > MAX_EXPERTS {
            return Err(PlanError::Unsupported(format!(
                "latent attention of {heads} heads; at most {MAX_EXPERTS} are supported"
            )));
        }
        let of_layer = |part: &str| format!("{}blk.{layer}.{part}.weight", self.prefix);
        let label = |part: &str| format!("layer.{layer}.{part}");

        let (q_a, q_norm, kv_norm) =
            (of_layer("attn_q_a"), of_layer("attn_q_a_norm"), of_layer("attn_kv_a_norm"));
        let mut q_in = (x, "attn_q", "q");
        if self.tensors.has(&q_a) {
            let rank = latent.query_rank.unwrap_or(0);
            let part = self.part(layer, "attn_q_a", "q_a", [rank, self.graph.cols(x)])?;
            let made = self.graph.value("q_a", rank, RowSet::All);
            self.product(x, part, Columns { of: made, first: 0 });
            let norm = Norm { epsilon: LATENT_EPSILON, ..self.tensors.norm(&q_norm, &[rank])? };
            let out = self.graph.value("q_a_normed", rank, RowSet::All);
            self.graph.push(label("q_a_norm"), Action::Norm { norm, x: made, rows: RowSet::All, out });
            q_in = (out, "attn_q_b", "q_b");
        }
        let (from, tensor, name) = q_in;
        let size = heads * (latent.plain + rope);
        let part = self.part(layer, tensor, name, [size, self.graph.cols(from)])?;
        let heads_q = self.graph.value("q_heads", size, RowSet::All);
        self.product(from, part, Columns { of: heads_q, first: 0 });

        let part = self.part(layer, "attn_kv_a_mqa", "kv_a", [latent.size + rope, self.graph.cols(x)])?;
        let made = self.graph.value("kv_a", latent.size + rope, RowSet::All);
        self.product(x, part, Columns { of: made, first: 0 });
        let norm = Norm { epsilon: LATENT_EPSILON, ..self.tensors.norm(&kv_norm, &[latent.size])? };
        self.graph.push(label("latent_kv"), Action::LatentKv { layer, norm, x: made, angles });

        let keys = self.head_part(layer, "k_b", [heads, latent.size, latent.plain])?;
        let values = self.head_part(layer, "v_b", [heads, latent.values, latent.size])?;
        let each = RowCount::Times(heads);
        let apart = self.graph.counted("heads_apart", latent.plain, each);
        let starts = self.graph.counted("head_starts", heads + 1, RowCount::One);
        let sorted = Sorted { count: heads, top: heads, starts };
        self.graph.push(label("heads_apart"), Action::HeadsApart { x: heads_q, out: apart, starts });
        let absorbed = self.graph.counted("q_latent", latent.size, each);
        let product = Action::ExpertProduct { x: apart, sorted, part: keys, packed: false, out: absorbed };
        self.graph.push(label("k_b"), product);
        let q = self.graph.value("q", heads * (latent.size + rope), RowSet::All);
        let queries = Action::LatentQueries { x: absorbed, q: heads_q, angles, out: q };
        self.graph.push(label("latent_queries"), queries);
        let found = self.graph.counted("attn_latent", latent.size, each);
        self.graph.push(label("attention"), Action::LatentAttend { layer, q, out: found });
        let made = self.graph.counted("attn_heads", latent.values, each);
        let product = Action::ExpertProduct { x: found, sorted, part: values, packed: false, out: made };
        self.graph.push(label("v_b"), product);
        let attended = self.graph.value("attn", heads * latent.values, RowSet::All);
        let together = Action::HeadsTogether { x: made, heads, out: attended };
        self.graph.push(label("heads_together"), together);
        let projected = self.project(layer, attended, ["attn_output", "attn_output"], config.hidden_size)?;
        Ok(self.summed(&label("attn_output"), projected))
    }

    /// A matrix for each head, one after the other.
    fn head_part(&mut self, layer: usize, name: &str, shape: [usize; 3]) -> Result<Part, PlanError> {
        let label = format!("layer.{layer}.{name}");
        self.tensors.stacked(&format!("{}blk.{layer}.attn_{name}", self.prefix), label, shape)
    }

    fn attend_across(&mut self, layer: usize, x: Value) -> Result<Value, PlanError> {
        let config = self.config;
        let heads = Heads::of(config);
        let shape = [heads.q_size(), self.graph.cols(x)];
        let part = self.part(layer, "cross_attn_q", "cross_q", shape)?;
        let q = self.graph.value("q", heads.q_size(), RowSet::All);
        self.product(x, part, Columns { of: q, first: 0 });
        let attended = self.graph.value("attn", heads.q_size(), RowSet::All);
        let attend = Attend {
            layer,
            heads,
            window: None,
            q,
            rotation: None,
            position_bias: None,
            query_factors: None,
            sinks: None,
            across: true,
            out: attended,
        };
        self.graph.push(format!("layer.{layer}.cross_attention"), Action::Attend(attend));
        self.project(layer, attended, ["cross_attn_output", "cross_output"], config.hidden_size)
    }

    /// Projects back to the hidden size.
    pub fn project(
        &mut self,
        layer: usize,
        x: Value,
        [tensor, label]: [&str; 2],
        outputs: usize,
    ) -> Result<Value, PlanError> {
        let part = self.part(layer, tensor, label, [outputs, self.graph.cols(x)])?;
        let out = self.graph.value("projected", outputs, RowSet::All);
        self.product(x, part, Columns { of: out, first: 0 });
        Ok(out)
    }

    /// A product whose output heads are normalized with separate weights for each head.
    fn normed_product(
        &mut self,
        layer: usize,
        name: &str,
        (x, part, out): (Value, Part, Columns),
        [heads, dim]: [usize; 2],
    ) -> Result<(), PlanError> {
        let weight = format!("blk.{layer}.attn_{name}_norm.weight");
        let shape: &[usize] =
            if self.tensors.dimensions(&weight) == 1 { &[heads * dim] } else { &[heads, dim] };
        let norm = self.tensors.norm(&weight, shape)?;
        let raw = self.graph.value(format!("{name}_raw"), heads * dim, RowSet::All);
        self.product(x, part, Columns { of: raw, first: 0 });
        let x = Columns { of: raw, first: 0 };
        let label = format!("layer.{layer}.{name}_norm");
        self.graph.push(label, Action::HeadNorm { norm, heads, dim, x, out });
        Ok(())
    }

    /// Norms of rows of which every rank has a part: the squares of all are added up over the ranks at once.
    fn norm_parts(&mut self, layer: usize, parts: &[(&str, Value, Columns)]) -> Result<(), PlanError> {
        if parts.is_empty() {
            return Ok(());
        }
        let squares = self.graph.value("squares", parts.len(), RowSet::All);
        for (column, (name, x, _)) in parts.iter().enumerate() {
            let out = Columns { of: squares, first: column };
            self.graph.push(format!("layer.{layer}.{name}_squares"), Action::SumSquares { x: *x, out });
        }
        let sums = self.summed(&format!("layer.{layer}.squares"), squares);
        for (column, &(name, x, out)) in parts.iter().enumerate() {
            let cols = self.graph.cols(x);
            let weight = format!("blk.{layer}.attn_{name}_norm.weight");
            let norm = self.tensors.norm(&weight, &[cols])?;
            if norm.kind == NormKind::Layer || norm.bias.is_some() {
                return Err(PlanError::Unsupported(format!("{weight}: ranks share only RMS norms of rows")));
            }
            // Keys that several ranks have are as often in the sum.
            let summed = cols * self.tensors.ranks();
            let sums = Columns { of: sums, first: column };
            let action = Action::NormPart { norm, summed, x, sums, out };
            self.graph.push(format!("layer.{layer}.{name}_norm"), action);
        }
        Ok(())
    }

    fn head_norms(&mut self, layer: usize, heads: Heads) -> Result<[BufferId; 2], PlanError> {
        let mut norm = |part: &str| {
            let norm = self.tensors.norm(&format!("blk.{layer}.attn_{part}_norm.weight"), &[heads.dim])?;
            Ok::<_, PlanError>(norm.weight)
        };
        Ok([norm("q")?, norm("k")?])
    }

    /// Norms without weights, which are norms with ones.
    fn plain_norms(&mut self, heads: Heads) -> [BufferId; 2] {
        let buffers = &mut self.tensors.buffers;
        let ones =
            *self.ones.get_or_insert_with(|| buffers.constant("attention.ones", &vec![1f32; heads.dim]));
        [ones; 2]
    }

    fn rope_index(&self, rotation: Rotation) -> usize {
        match rotation {
            Rotation::Global => 0,
            Rotation::Local => self.ropes.len() - 1,
        }
    }

    fn rope_style(&self) -> RopeStyle {
        self.card.rope_style(self.config)
    }

    fn feed(&mut self, layer: usize, x: Value, kind: FeedForwardKind) -> Result<Value, PlanError> {
        let fed = self.feed_of(layer, x, kind, ("", self.config.ffn_size))?;
        Ok(self.summed(&format!("layer.{layer}.ffn_down"), fed))
    }

    /// A sum over all ranks, if several share the model.
    fn summed(&mut self, label: &str, x: Value) -> Value {
        if !self.tensors.is_shared() {
            return x;
        }
        let out = self.graph.value("summed", self.graph.cols(x), RowSet::All);
        self.graph.push(format!("{label}.sum"), Action::AllReduce { x, residual: None, out, defers: None });
        out
    }

    /// A feed-forward part whose tensors and labels end with `suffix`.
    fn feed_of(
        &mut self,
        layer: usize,
        x: Value,
        kind: FeedForwardKind,
        (suffix, ffn): (&str, usize),
    ) -> Result<Value, PlanError> {
        let config = self.config;
        let activation = self.activation();
        let inputs = self.graph.cols(x);
        let mut half = |name: &str| {
            let full = format!("ffn_{name}{suffix}");
            let part = self.part(layer, &full, &full, [ffn, inputs])?;
            let out = self.graph.value(name, ffn, RowSet::All);
            self.product(x, part, Columns { of: out, first: 0 });
            Ok::<_, PlanError>(out)
        };
        let out = match kind {
            FeedForwardKind::Gated => {
                let (gate, up) = (half("gate")?, half("up")?);
                let out = self.graph.value("act", ffn, RowSet::All);
                let glu = Action::Glu { activation, gate, up, out };
                self.graph.push(format!("layer.{layer}.ffn_act{suffix}"), glu);
                out
            }
            // Only experts of these families are of this kind.
            FeedForwardKind::Clamped => {
                return Err(PlanError::MissingTensor(format!("blk.{layer}.ffn_gate_inp.weight")));
            }
            FeedForwardKind::Plain => {
                let up = half("up")?;
                let out = self.graph.value("act", ffn, RowSet::All);
                let activate =
                    Action::Activate { activation, x: up, unfinished: None, rows: RowSet::All, out };
                self.graph.push(format!("layer.{layer}.ffn_act{suffix}"), activate);
                out
            }
        };
        let down = format!("ffn_down{suffix}");
        self.project(layer, out, [&down, &down], config.hidden_size)
    }

    /// A router, and the experts that it chooses: rows are sorted by expert, multiplied, and added up where they were.
    fn experts(&mut self, layer: usize, x: Value) -> Result<Value, PlanError> {
        let config = self.config;
        let experts = config.experts.ok_or_else(|| {
            let router = format!("blk.{layer}.ffn_gate_inp.weight");
            PlanError::Unsupported(format!(
                "{router} is a router, but the file does not say how many experts there are"
            ))
        })?;
        let (count, top, ffn) = (experts.count, experts.used, experts.ffn_size);
        let inputs = self.graph.cols(x);
        let label = |part: &str| format!("layer.{layer}.{part}");

        let router = self.part(layer, "ffn_gate_inp", "router", [count, inputs])?.in_order()?;
        let logits = self.graph.value("router", count, RowSet::All);
        self.product(x, router, Columns { of: logits, first: 0 });
        let correction = format!("{}blk.{layer}.exp_probs_b.bias", self.prefix);
        let bias = match self.tensors.has(&correction) {
            true => Some(self.tensors.vector(&correction, &[count], 0.0, 1.0)?),
            false => None,
        };
        // The shared expert does not wait for the experts of the host.
        let shared = self.shared_expert(layer, x)?;
        let rest = self.graph.side;
        self.graph.side = self.sides.of_experts(layer);
        let picks = self.graph.value("picks", top, RowSet::All);
        let shares = self.graph.value("shares", top, RowSet::All);
        self.graph.push(label("route"), Action::Route { experts, logits, bias, picks, shares });
        let (x, shares) = match experts.router.weighs_inputs {
            true => self.weigh_inputs(&label("weigh_inputs"), x, shares),
            false => (x, shares),
        };

        let gate = self.expert_part(layer, "gate", [count, ffn, inputs])?;
        let up = self.expert_part(layer, "up", [count, ffn, inputs])?;
        let down = self.expert_part(layer, "down", [count, config.hidden_size, ffn])?;
        if gate.bias.is_some() != up.bias.is_some() {
            let problem =
                format!("layer {layer}: only one of the gate and up matrices of experts has a bias");
            return Err(PlanError::Unsupported(problem));
        }
        if gate.matrix.dtype != up.matrix.dtype {
            let types = format!("{} and {}", gate.matrix.dtype, up.matrix.dtype);
            let problem = format!(
                "layer {layer}: the gate and up matrices of experts are {types}; they have to be alike"
            );
            return Err(PlanError::Unsupported(problem));
        }
        let sorted_x = self.graph.counted("sorted", inputs, RowCount::Times(top));
        let starts = self.graph.counted("starts", count + 1, RowCount::One);
        let routed = Routed { count, top, by: RoutedBy::Starts(starts) };
        let sorted = Sorted { count, top, starts };
        let places = self.graph.value("places", top, RowSet::All);
        let readers = vec![Read::Unhalved(gate.matrix.dtype)];
        let gather = Action::Gather { picks, x, readers, experts: count, out: sorted_x, starts, places };
        self.graph.push(label("gather"), gather);
        let glu = match self.card.feed {
            FeedForwardKind::Clamped => GluKind::Clamped,
            FeedForwardKind::Gated | FeedForwardKind::Plain => GluKind::Plain(self.activation()),
        };
        let act = self.graph.counted("experts_act", ffn, RowCount::Times(top));
        let glu = Action::ExpertGlu { glu, x: sorted_x, routed, gate, up, packed: false, out: act };
        self.graph.push(label("experts_glu"), glu);
        let y = self.graph.counted("experts_out", config.hidden_size, RowCount::Times(top));
        let product = Action::ExpertProduct { x: act, sorted, part: down, packed: false, out: y };
        self.graph.push(label("experts_down"), product);

        let out = self.graph.value("projected", config.hidden_size, RowSet::All);
        self.graph.push(label("combine"), Action::Combine { y, places, shares, shared, residual: None, out });
        self.graph.side = rest;
        Ok(self.summed(&label("combine"), out))
    }

    /// Rows times their shares, and the shares that are left for what experts give.
    fn weigh_inputs(&mut self, label: &str, x: Value, shares: Value) -> (Value, Value) {
        let out = self.graph.value("weighed", self.graph.cols(x), RowSet::All);
        let left = self.graph.value("shares_left", 1, RowSet::All);
        self.graph.push(label, Action::WeighInputs { x, shares, out, left });
        (out, left)
    }

    /// The matrices of a layer's experts, one after the other.
    fn expert_part(&mut self, layer: usize, name: &str, shape: [usize; 3]) -> Result<Part, PlanError> {
        let label = format!("layer.{layer}.experts_{name}");
        self.tensors.stacked(&format!("{}blk.{layer}.ffn_{name}_exps", self.prefix), label, shape)
    }

    /// The expert that all rows share and the logits of its gate, as far as the layer has them.
    fn shared_expert(&mut self, layer: usize, x: Value) -> Result<Option<(Value, Option<Value>)>, PlanError> {
        let name = |part: &str| format!("{}blk.{layer}.{part}.weight", self.prefix);
        let Some(ffn) = self.tensors.rows(&name("ffn_up_shexp"))? else { return Ok(None) };
        let gate_name = name("ffn_gate_inp_shexp");
        let shared = self.feed_of(layer, x, FeedForwardKind::Gated, ("_shexp", ffn))?;
        if !self.tensors.has(&gate_name) {
            return Ok(Some((shared, None)));
        }
        let inputs = self.graph.cols(x);
        let label = format!("layer.{layer}.shared_gate");
        let matrix = self.tensors.row(&gate_name, inputs)?;
        let gate = self.graph.value("shared_gate", 1, RowSet::All);
        let part = Part { label, matrix, bias: None, order: None };
        self.product(x, part, Columns { of: gate, first: 0 });
        Ok(Some((shared, Some(gate))))
    }
}
