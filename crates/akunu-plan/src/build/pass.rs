//! The forward pass, for any number of rows.

use super::scratch::{Activation, Form, Scratch};
use super::weights::{Layer, Matrix, ModelWeights};
use super::{Buffers, Context, bind, table_io};
use crate::ops::{
    AnglesOperands, AnglesParams, Argmax, ArgmaxOperands, ArgmaxParams, Attention, AttentionOperands,
    AttentionParams, ElementParams, Embed, EmbedOperands, EmbedParams, F32, Glu, GluMatmul,
    GluMatmulOperands, GluMatmulParams, GluOperands, Matmul, MatmulOperands, MatmulParams, NormAdd,
    NormAddOperands, NormParams, Op, Qkv, QkvOperands, QkvParams, Queries, RmsNorm, RmsNormOperands,
    RopeAngles, RopeKv, RopeKvOperands, RopeKvParams, Round, RoundOperands, RowSet,
};
use crate::plan::PlanError;
use crate::table::Binding;
use crate::{BufferId, DispatchCommand, DispatchTable, MatmulForm, NormOut, Rope, RowMeaning, TableIo};

pub(super) struct Spec<'a> {
    pub name: &'static str,
    pub rows: usize,
    pub logit_rows: usize,
    pub steps: usize,
    /// The table that unpacks weights, beside which this one does not. Inputs and outputs are the same.
    pub beside: Option<&'a DispatchTable>,
}

pub(super) fn build(
    context: &Context<'_>,
    weights: &ModelWeights,
    spec: &Spec<'_>,
    buffers: &mut Buffers,
) -> Result<DispatchTable, PlanError> {
    let (io, logit_rows) = match spec.beside {
        Some(table) => (table.io, table.logit_rows),
        None => {
            let logit_rows = spec.logit_rows.min(spec.rows);
            let sizes = [spec.rows, logit_rows, spec.steps, context.config.vocab_size];
            (table_io(buffers, spec.name, sizes)?, logit_rows)
        }
    };
    let form = MatmulForm::for_rows(spec.rows);
    let in_halves = spec.beside.is_none() && context.in_halves(spec.rows);
    let scratch = Scratch::new(context, weights, (spec.name, spec.rows, logit_rows, in_halves), buffers)?;
    let mut pass = Pass {
        context,
        scratch,
        io,
        logit_rows,
        form,
        in_halves,
        commands: Vec::new(),
        labels: Vec::new(),
        scaled: false,
    };
    pass.embed(weights);
    for (index, layer) in weights.layers.iter().enumerate() {
        pass.attention_block(index, layer);
        pass.feed_forward_block(index, layer, weights.layers.get(index + 1));
    }
    pass.logits(weights, spec.steps);
    let Pass { commands, labels, .. } = pass;
    Ok(DispatchTable {
        name: spec.name,
        commands,
        labels,
        rows: spec.rows,
        logit_rows,
        steps: spec.steps,
        io,
        bounds: context.bounds(RowMeaning::Token),
    })
}

pub(super) struct Pass<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) scratch: Scratch,
    io: TableIo,
    logit_rows: usize,
    form: MatmulForm,
    in_halves: bool,
    commands: Vec<DispatchCommand>,
    labels: Vec<String>,
    /// The last product has begun the next norm: `normed` is not yet divided by rms, and its consumers are scaled.
    scaled: bool,
}

impl Pass<'_> {
    pub(super) fn push(&mut self, label: String, command: DispatchCommand) {
        self.commands.push(command);
        self.labels.push(label);
    }

    fn embed(&mut self, weights: &ModelWeights) {
        let config = self.context.config;
        let scale = match self.context.arch.scaled_embeddings {
            true => (config.hidden_size as f32).sqrt(),
            false => 1.0,
        };
        let matrix = &weights.embedding;
        let operands = EmbedOperands {
            embedding: bind::weight(matrix),
            rows: bind::rows(self.io.rows),
            out: bind::f32s(self.scratch.hidden[0]),
        };
        let params = EmbedParams { cols: config.hidden_size as u32, vocab: config.vocab_size as u32, scale };
        self.push("embed".into(), Embed { weight: matrix.dtype }.command(operands, params));

        for (i, rope) in weights.ropes.iter().enumerate() {
            let operands = AnglesOperands {
                frequencies: bind::f32s(rope.buffer),
                rows: bind::rows(self.io.rows),
                angles: bind::f32s(self.scratch.angles[i]),
            };
            let params =
                AnglesParams { pairs: (config.rope.dims / 2) as u32, magnitude: rope.frequencies.magnitude };
            let label = ["rope_angles", "rope_angles.local"][i];
            self.push(label.into(), RopeAngles.command(operands, params));
        }
    }

    /// Norm, Q·K·V, rotation and cache write, attention, output projection with the residual.
    fn attention_block(&mut self, index: usize, layer: &Layer) {
        let label = |part: &str| format!("layer.{index}.{part}");
        let [input, output] = self.scratch.hidden;
        let parts = [&layer.q, &layer.k, &layer.v];
        if !self.scaled {
            self.rms_norm(label("attn_norm"), input, layer.attn_norm, &parts);
        }
        if layer.qkv_bias.is_none() && self.all_in_halves(&parts) {
            self.qkv_in_halves(&label("qkv"), parts);
        } else if !self.in_halves && self.context.fuses(&parts) {
            self.qkv_fused(label("qkv"), layer);
        } else {
            self.qkv_apart(index, layer);
        }
        if let Some(q) = self.scratch.q {
            self.rope_kv(label("rope_kv"), index, layer, q);
        }
        self.attention(index, layer);
        let to = Projection {
            matrix: &layer.output,
            bias: layer.output_bias,
            post_norm: layer.post_attn_norm,
            inputs: self.context.config.head_count * self.context.config.head_dim,
            next: self.begun(layer.ffn_norm, &[&layer.gate, &layer.up]),
        };
        self.project([label("attn_output"), label("post_attn_norm")], self.scratch.attn, to, [input, output]);
    }

    /// Norm, gate·up with the activation, down projection with the residual.
    fn feed_forward_block(&mut self, index: usize, layer: &Layer, next: Option<&Layer>) {
        let label = |part: &str| format!("layer.{index}.{part}");
        let [output, input] = self.scratch.hidden;
        if !self.scaled {
            self.rms_norm(label("ffn_norm"), input, layer.ffn_norm, &[&layer.gate, &layer.up]);
        }
        if !self.in_halves && self.context.fuses(&[&layer.gate, &layer.up]) {
            self.glu_fused(label("ffn_glu"), layer);
        } else {
            self.glu_apart(index, layer);
        }
        let to = Projection {
            matrix: &layer.down,
            bias: None,
            post_norm: layer.post_ffn_norm,
            inputs: self.context.config.ffn_size,
            next: next.and_then(|l| self.begun(l.attn_norm, &[&l.q, &l.k, &l.v])),
        };
        self.project([label("ffn_down"), label("post_ffn_norm")], self.scratch.act, to, [input, output]);
    }

    fn rms_norm(&mut self, label: String, x: BufferId, weight: BufferId, consumers: &[&Matrix]) {
        let out = self.context.out_form(consumers, self.in_halves);
        let operands = RmsNormOperands {
            x: bind::f32s(x),
            weight: bind::f32s(weight),
            out: bind::forms(out, self.scratch.normed),
            logit_rows: None,
        };
        self.push(label, RmsNorm { out, rows: RowSet::All }.command(operands, self.norm_params()));
    }

    /// A norm that the product before it may begin.
    fn begun(&self, weight: BufferId, consumers: &[&Matrix]) -> Option<Begun> {
        let squares = self.scratch.squares?;
        Some(Begun { weight, out: self.context.out_form(consumers, self.in_halves), squares })
    }

    /// What a product of a row that is not yet divided binds.
    fn squares(&self) -> Option<F32<Binding>> {
        self.scratch.squares.filter(|_| self.scaled).map(bind::f32s)
    }

    fn qkv_fused(&mut self, label: String, layer: &Layer) {
        let (q, k, v) = (&layer.q, &layer.k, &layer.v);
        let input = self.form_of(q);
        let [q_size, kv_size] = self.qkv_sizes();
        let op = Qkv {
            weight: q.dtype,
            form: self.form,
            q8: input == Form::Q8,
            bias: layer.qkv_bias.is_some(),
            scaled: self.scaled,
        };
        let bias = |part: usize| layer.qkv_bias.map(|biases| bind::f32s(biases[part]));
        let operands = QkvOperands {
            x: bind::input(self.scratch.normed, input),
            q_weight: bind::weight(q),
            k_weight: bind::weight(k),
            v_weight: bind::weight(v),
            out: bind::f32s(self.scratch.qkv),
            q_bias: bias(0),
            k_bias: bias(1),
            v_bias: bias(2),
            squares: self.squares(),
        };
        let params = QkvParams {
            inputs: self.context.config.hidden_size as u32,
            q: q_size as u32,
            k: kv_size as u32,
            v: kv_size as u32,
        };
        self.push(label, op.command(operands, params));
    }

    fn qkv_apart(&mut self, index: usize, layer: &Layer) {
        let [q_size, kv_size] = self.qkv_sizes();
        let bias = |i: usize| layer.qkv_bias.map(|b| b[i]);
        let parts = [
            ("q", &layer.q, bias(0), 0, q_size),
            ("k", &layer.k, bias(1), q_size, kv_size),
            ("v", &layer.v, bias(2), q_size + kv_size, kv_size),
        ];
        for (name, matrix, bias, start, outputs) in parts {
            let params = MatmulParams {
                inputs: self.context.config.hidden_size as u32,
                outputs: outputs as u32,
                out_stride: (q_size + 2 * kv_size) as u32,
                ..MatmulParams::default()
            };
            let to =
                Target { bias, squares: self.squares(), ..Target::plain(self.scratch.qkv, start as u64 * 4) };
            self.matmul(format!("layer.{index}.{name}"), self.scratch.normed, matrix, to, params);
        }
    }

    fn rope(&self, layer: &Layer) -> Rope {
        let style = self.context.arch.rope_style(self.context.config);
        Rope { style, qk_norm: layer.qk_norm.is_some() }
    }

    fn rope_kv(&mut self, label: String, index: usize, layer: &Layer, q: BufferId) {
        let config = self.context.config;
        let Rope { style, qk_norm } = self.rope(layer);
        let (k_cache, v_cache) = self.context.kv.layer(index);
        let operands = RopeKvOperands {
            qkv: bind::f32s(self.scratch.qkv),
            angles: bind::f32s(self.scratch.angles[layer.rope]),
            rows: bind::rows(self.io.rows),
            q: bind::f32s(q),
            k_cache,
            v_cache,
            q_norm: layer.qk_norm.map(|[q, _]| bind::f32s(q)),
            k_norm: layer.qk_norm.map(|[_, k]| bind::f32s(k)),
        };
        let params = RopeKvParams {
            heads: config.head_count as u32,
            kv_heads: config.kv_head_count as u32,
            head_dim: config.head_dim as u32,
            rope_dims: config.rope.dims as u32,
            capacity: self.context.kv.positions,
            epsilon: config.norm_epsilon,
        };
        let op = RopeKv { style, qk_norm, kv: self.context.options.kv };
        self.push(label, op.command(operands, params));
    }

    /// Over what `rope_kv` left, or with all that it would have done.
    fn attention(&mut self, index: usize, layer: &Layer) {
        let (context, config) = (self.context, self.context.config);
        let wanted = context.out_form(&[&layer.output], self.in_halves);
        let own = if context.attention_rounds_to(wanted) { wanted } else { NormOut::F32 };
        let rope = if self.scratch.q.is_none() { Some(self.rope(layer)) } else { None };
        let (k_cache, v_cache) = context.kv.layer(index);
        let norm = |part: usize| rope.and(layer.qk_norm).map(|norms| bind::f32s(norms[part]));
        let operands = AttentionOperands {
            q: Queries(bind::f32s(self.scratch.q.unwrap_or(self.scratch.qkv))),
            k_cache,
            v_cache,
            rows: bind::rows(self.io.rows),
            out: bind::forms(own, self.scratch.attn),
            angles: rope.map(|_| bind::f32s(self.scratch.angles[layer.rope])),
            q_norm: norm(0),
            k_norm: norm(1),
        };
        let params = AttentionParams {
            heads: config.head_count as u32,
            kv_heads: config.kv_head_count as u32,
            head_dim: config.head_dim as u32,
            capacity: context.kv.positions,
            scale: config.attention_scale.unwrap_or(1.0 / (config.head_dim as f32).sqrt()),
            soft_cap: config.attention_soft_cap.unwrap_or(0.0),
            window: layer.window.unwrap_or(0) as u32,
            rope_dims: if rope.is_some() { config.rope.dims as u32 } else { 0 },
            epsilon: if rope.is_some() { config.norm_epsilon } else { 0.0 },
        };
        let op = Attention { kv: context.options.kv, out: own, rope };
        self.push(format!("layer.{index}.attention"), op.command(operands, params));
        if own != wanted {
            self.round_attention(index, wanted);
        }
    }

    /// Rounds what attention left in f32 to the form that the output projection reads.
    fn round_attention(&mut self, index: usize, wanted: NormOut) {
        let config = self.context.config;
        let x = bind::forms(NormOut::F32, self.scratch.attn)
            .f32
            .unwrap_or_else(|| panic!("attention writes f32"));
        let params = ElementParams { cols: (config.head_count * config.head_dim) as u32 };
        let (form, name) = match wanted.f16() {
            true => (NormOut::F16, "attn_halve"),
            false => (NormOut::Q8, "attn_quantise"),
        };
        let out = bind::forms(form, self.scratch.attn);
        let command = Round { out: form }.command(RoundOperands { x, out }, params);
        self.push(format!("layer.{index}.{name}"), command);
    }

    fn glu_fused(&mut self, label: String, layer: &Layer) {
        let config = self.context.config;
        let (gate, up) = (&layer.gate, &layer.up);
        let input = self.form_of(gate);
        let out = self.context.out_form(&[&layer.down], self.in_halves);
        let op = GluMatmul {
            weight: gate.dtype,
            form: self.form,
            q8: input == Form::Q8,
            activation: self.activation(),
            out,
            scaled: self.scaled,
        };
        let operands = GluMatmulOperands {
            x: bind::input(self.scratch.normed, input),
            gate_weight: bind::weight(gate),
            up_weight: bind::weight(up),
            out: bind::forms(out, self.scratch.act),
            squares: self.squares(),
        };
        let params = GluMatmulParams { inputs: config.hidden_size as u32, outputs: config.ffn_size as u32 };
        self.push(label, op.command(operands, params));
    }

    fn glu_apart(&mut self, index: usize, layer: &Layer) {
        let config = self.context.config;
        let Some(halves) = self.scratch.gate_up else { return };
        for (name, matrix, out) in [("gate", &layer.gate, halves[0]), ("up", &layer.up, halves[1])] {
            let params = MatmulParams {
                inputs: config.hidden_size as u32,
                outputs: config.ffn_size as u32,
                out_stride: config.ffn_size as u32,
                ..MatmulParams::default()
            };
            let to = Target { squares: self.squares(), ..Target::plain(out, 0) };
            self.matmul(format!("layer.{index}.ffn_{name}"), self.scratch.normed, matrix, to, params);
        }
        let out = self.context.out_form(&[&layer.down], self.in_halves);
        let operands = GluOperands {
            gate: bind::f32s(halves[0]),
            up: bind::f32s(halves[1]),
            out: bind::forms(out, self.scratch.act),
        };
        let params = ElementParams { cols: config.ffn_size as u32 };
        let op = Glu { activation: self.activation(), out };
        self.push(format!("layer.{index}.ffn_act"), op.command(operands, params));
    }

    /// Back to the hidden state: with the residual added in the product's epilogue, which may begin the next norm, or after a
    /// norm of its own.
    fn project(
        &mut self,
        [label, norm_label]: [String; 2],
        x: Activation,
        to: Projection<'_>,
        [residual, output]: [BufferId; 2],
    ) {
        let hidden = self.context.config.hidden_size as u32;
        let inputs = to.inputs as u32;
        let params = MatmulParams { inputs, outputs: hidden, out_stride: hidden, ..MatmulParams::default() };
        let (Some(norm), Some(projected)) = (to.post_norm, self.scratch.projected) else {
            let epsilon = if to.next.is_some() { self.context.config.norm_epsilon } else { 0.0 };
            self.scaled = to.next.is_some();
            let residual = Some(residual);
            let target = Target { bias: to.bias, residual, norm: to.next, ..Target::plain(output, 0) };
            self.matmul(label, x, to.matrix, target, MatmulParams { epsilon, ..params });
            return;
        };
        let target = Target { bias: to.bias, ..Target::plain(projected, 0) };
        self.matmul(label, x, to.matrix, target, params);
        let operands = NormAddOperands {
            x: bind::f32s(projected),
            weight: bind::f32s(norm),
            residual: bind::f32s(residual),
            out: bind::f32s(output),
        };
        self.push(norm_label, NormAdd.command(operands, self.norm_params()));
    }

    fn matmul(&mut self, label: String, x: Activation, matrix: &Matrix, to: Target, params: MatmulParams) {
        let input = self.form_of(matrix);
        if let Form::F16 = input {
            return self.matmul_in_halves(label, x, matrix, to, params);
        }
        let op = Matmul {
            weight: matrix.dtype,
            form: self.form,
            q8: input == Form::Q8,
            bias: to.bias.is_some(),
            residual: to.residual.is_some(),
            rows: RowSet::All,
            scaled: to.squares.is_some(),
            norm: to.norm.map(|norm| norm.out),
        };
        let operands = MatmulOperands {
            x: bind::input(x, input),
            weight: bind::weight(matrix),
            out: to.out,
            bias: to.bias.map(bind::f32s),
            residual: to.residual.map(bind::f32s),
            squares: to.squares,
            norm_weight: to.norm.map(|norm| bind::f32s(norm.weight)),
            normed: to.norm.map(|norm| bind::forms(norm.out, self.scratch.normed)),
            out_squares: to.norm.map(|norm| bind::f32s(norm.squares)),
        };
        self.push(label, op.command(operands, params));
    }

    /// Output norm, vocabulary projection and the best token, for the rows that ask.
    fn logits(&mut self, weights: &ModelWeights, steps: usize) {
        let config = self.context.config;
        let output = &weights.output;
        // Few rows ask, and the output matrix is large: it is not unpacked.
        let (out, input) = (self.context.out_form(&[output], false), self.context.form_of(output, false));
        let operands = RmsNormOperands {
            x: bind::f32s(self.scratch.hidden[0]),
            weight: bind::f32s(weights.output_norm),
            out: bind::forms(out, self.scratch.picked),
            logit_rows: Some(bind::u32s(self.io.logit_rows)),
        };
        let op = RmsNorm { out, rows: RowSet::Logits };
        self.push("output_norm".into(), op.command(operands, self.norm_params()));

        let op = Matmul {
            weight: output.dtype,
            form: MatmulForm::for_rows(self.logit_rows),
            q8: input == Form::Q8,
            bias: false,
            residual: false,
            rows: RowSet::Logits,
            scaled: false,
            norm: None,
        };
        let operands = MatmulOperands {
            x: bind::input(self.scratch.picked, input),
            weight: bind::weight(output),
            out: bind::f32s(self.io.logits),
            bias: None,
            residual: None,
            squares: None,
            norm_weight: None,
            normed: None,
            out_squares: None,
        };
        let vocab = config.vocab_size as u32;
        let params = MatmulParams {
            inputs: config.hidden_size as u32,
            outputs: vocab,
            out_stride: vocab,
            soft_cap: config.logit_soft_cap.unwrap_or(0.0),
            epsilon: 0.0,
        };
        self.push("logits".into(), op.command(operands, params));

        let operands = ArgmaxOperands {
            logits: bind::f32s(self.io.logits),
            tokens: bind::u32s(self.io.tokens),
            rows: bind::rows(self.io.rows),
            logit_rows: bind::u32s(self.io.logit_rows),
        };
        let params = ArgmaxParams { vocab, advance: u32::from(steps > 1) };
        self.push("argmax".into(), Argmax.command(operands, params));
    }

    pub(super) fn form_of(&self, matrix: &Matrix) -> Form {
        self.context.form_of(matrix, self.in_halves)
    }

    fn norm_params(&self) -> NormParams {
        let config = self.context.config;
        NormParams { cols: config.hidden_size as u32, epsilon: config.norm_epsilon }
    }

    fn activation(&self) -> crate::Activation {
        self.context.config.activation.unwrap_or(self.context.arch.activation)
    }

    /// Outputs of Q, and of K or V.
    pub(super) fn qkv_sizes(&self) -> [usize; 2] {
        let config = self.context.config;
        [config.head_count * config.head_dim, config.kv_head_count * config.head_dim]
    }
}

/// Where a matrix product's output goes, at which byte, and what is done to it on the way.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub out: F32<Binding>,
    pub bias: Option<BufferId>,
    pub residual: Option<BufferId>,
    squares: Option<F32<Binding>>,
    norm: Option<Begun>,
}

impl Target {
    pub(super) fn plain(buffer: BufferId, offset: u64) -> Target {
        Target { out: F32(Binding { buffer, offset }), bias: None, residual: None, squares: None, norm: None }
    }
}

/// A norm that a product begins: `normed` in the form that its consumers want, and the squares for them.
#[derive(Clone, Copy)]
struct Begun {
    weight: BufferId,
    out: NormOut,
    squares: BufferId,
}

/// A product that leads back to the hidden state.
struct Projection<'a> {
    matrix: &'a Matrix,
    bias: Option<BufferId>,
    post_norm: Option<BufferId>,
    inputs: usize,
    /// The norm that follows it.
    next: Option<Begun>,
}
