//! Lowers blocks to plain operations: the first pass of the lowering. It does not depend on the device or on the number
//! of rows.

use akunu_arch::tower::{Attention, Block, BlockKind, FeedForwardKind, QkNorm, Rotation, State, Tower};
use akunu_arch::{Activation, ModelConfig, RopeStyle};

use super::graph::{
    Action, Attend, Columns, Graph, HeadRotation, Heads, Part, PositionBias, Product, QueryFactors,
    TokenTypes, Value,
};
use super::weights::{Matrix, RopeTable, Tensors, position_bias, query_factors};
use crate::ops::RowSet;
use crate::plan::PlanError;
use crate::{BufferId, Card};

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
    /// What the names of the tower's tensors begin with.
    prefix: &'static str,
    graph: Graph,
    /// The output of each block of the tower.
    states: Vec<Value>,
    /// cos and sin of each set of RoPE frequencies.
    angles: Vec<Value>,
}

impl<'a, 'w> Blocks<'a, 'w> {
    pub fn new(
        config: &'a ModelConfig,
        card: &'static Card,
        (tensors, context): (&'a mut Tensors<'w>, usize),
        embedding: Option<Matrix>,
        ropes: &'a [RopeTable],
    ) -> Result<Blocks<'a, 'w>, PlanError> {
        let position_bias = position_bias(tensors, config.head_count)?;
        let query_factors = query_factors(config, context, tensors.buffers);
        let (graph, states, angles) = (Graph::default(), vec![], vec![]);
        Ok(Blocks {
            config,
            card,
            tensors,
            embedding,
            ropes,
            position_bias,
            query_factors,
            prefix: "",
            graph,
            states,
            angles,
        })
    }

    /// Lowers the whole tower. The returned value contains its last hidden states.
    pub fn lower(mut self, tower: &Tower) -> Result<(Graph, Value), PlanError> {
        self.prefix = tower.prefix;
        for block in &tower.blocks {
            let prefix = block.layer.map_or(String::new(), |layer| format!("layer.{layer}."));
            let label = |part: &str| format!("{prefix}{part}");
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
                BlockKind::Feed { x, kind } => self.feed(block.layer.unwrap_or(0), self.state(*x), *kind)?,
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
        Ok((self.graph, last))
    }

    fn state(&self, state: State) -> Value {
        self.states[state.0]
    }

    fn embed(&mut self, scale: f32) -> Result<Value, PlanError> {
        let table = self.embedding.ok_or_else(|| PlanError::MissingTensor("token_embd.weight".into()))?;
        let out = self.graph.value("hidden", self.config.hidden_size, RowSet::All);
        self.graph.push("embed", Action::Embed { table, scale, out });
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
        let types = match self.tensors.rows("token_types.weight") {
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
    fn part(
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
    fn product(&mut self, x: Value, part: Part, out: Columns) {
        let label = part.label.clone();
        let product = Product { out, ..Product::plain(x, part, out.of) };
        self.graph.push(label, Action::Product(product));
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
        for (name, first, outputs, count) in parts {
            let of = |part: &str| format!("{}blk.{layer}.attn_{part}", self.prefix);
            let (beside, name_of, label) = (of("v"), of(name), label(name));
            let part = self.tensors.part_beside(&beside, &name_of, label, [outputs, inputs])?;
            let to = Columns { of: qkv, first };
            match attention.qk_norm {
                Some(QkNorm::PerHeadWeights) => {
                    self.normed_product(layer, name, (x, part, to), [count, heads.dim])?
                }
                Some(QkNorm::Row) => self.normed_product(layer, name, (x, part, to), [1, outputs])?,
                Some(QkNorm::Head) | None => self.product(x, part, to),
            }
        }
        let part = self.part(layer, "attn_v", "v", [kv_size, inputs])?;
        self.product(x, part, Columns { of: qkv, first: q_size + kv_size });
        let norms = match attention.qk_norm {
            Some(QkNorm::Head) => Some(self.head_norms(layer, heads)?),
            _ => None,
        };
        let angles = attention.rotation.map(|rotation| self.angles[self.rope_index(rotation)]);
        let rotation = HeadRotation { rope: angles.map(|angles| (self.rope_style(), angles)), norms };
        let q = self.graph.value("q", q_size, RowSet::All);
        self.graph.push(
            label("rope_kv"),
            Action::RopeKv { layer: cached, heads, rotation, qkv, unfinished: None, q: Some(q) },
        );
        let attended = self.graph.value("attn", q_size, RowSet::All);
        let attend = Attend {
            layer: cached,
            heads,
            window: attention.window,
            q,
            rotation: None,
            position_bias: self.position_bias,
            query_factors: self.query_factors,
            across: false,
            out: attended,
        };
        self.graph.push(label("attention"), Action::Attend(attend));
        self.project(layer, attended, ["attn_output", "attn_output"], config.hidden_size)
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
            across: true,
            out: attended,
        };
        self.graph.push(format!("layer.{layer}.cross_attention"), Action::Attend(attend));
        self.project(layer, attended, ["cross_attn_output", "cross_output"], config.hidden_size)
    }

    /// Projects back to the hidden size.
    fn project(
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
        let shape: &[usize] = if heads == 1 { &[dim] } else { &[heads, dim] };
        let norm = self.tensors.norm(&format!("blk.{layer}.attn_{name}_norm.weight"), shape)?;
        let raw = self.graph.value(format!("{name}_raw"), heads * dim, RowSet::All);
        self.product(x, part, Columns { of: raw, first: 0 });
        let x = Columns { of: raw, first: 0 };
        let label = format!("layer.{layer}.{name}_norm");
        self.graph.push(label, Action::HeadNorm { norm, heads, dim, x, out });
        Ok(())
    }

    fn head_norms(&mut self, layer: usize, heads: Heads) -> Result<[BufferId; 2], PlanError> {
        let mut norm = |part: &str| {
            let norm = self.tensors.norm(&format!("blk.{layer}.attn_{part}_norm.weight"), &[heads.dim])?;
            Ok::<_, PlanError>(norm.weight)
        };
        Ok([norm("q")?, norm("k")?])
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
        let config = self.config;
        let activation = self.activation();
        let (inputs, ffn) = (self.graph.cols(x), config.ffn_size);
        let mut half = |name: &str| {
            let part = self.part(layer, &format!("ffn_{name}"), &format!("ffn_{name}"), [ffn, inputs])?;
            let out = self.graph.value(name, ffn, RowSet::All);
            self.product(x, part, Columns { of: out, first: 0 });
            Ok::<_, PlanError>(out)
        };
        let out = match kind {
            FeedForwardKind::Gated => {
                let (gate, up) = (half("gate")?, half("up")?);
                let out = self.graph.value("act", ffn, RowSet::All);
                let glu = Action::Glu { activation, gate, up, out };
                self.graph.push(format!("layer.{layer}.ffn_act"), glu);
                out
            }
            FeedForwardKind::Plain => {
                let up = half("up")?;
                let out = self.graph.value("act", ffn, RowSet::All);
                let activate =
                    Action::Activate { activation, x: up, unfinished: None, rows: RowSet::All, out };
                self.graph.push(format!("layer.{layer}.ffn_act"), activate);
                out
            }
        };
        self.project(layer, out, ["ffn_down", "ffn_down"], config.hidden_size)
    }
}
