//! The forward pass, for any number of rows.

use super::scratch::{Activation, Form, Scratch};
use super::weights::{Layer, Matrix, ModelWeights};
use super::{Buffers, Context, table_io};
use crate::params::{
    AnglesParams, ArgmaxParams, AttentionParams, ElementParams, EmbedParams, GluMatmulParams, MatmulParams,
    NormParams, QkvParams, RopeKvParams,
};
use crate::plan::PlanError;
use crate::{
    BufferId, CommandBuilder, DispatchCommand, DispatchTable, Kernel, MatmulForm, NormOut, Patch, Rope,
    RowMeaning, RowSet, TableIo,
};

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
        rows: spec.rows,
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
    pub(super) rows: usize,
    logit_rows: usize,
    form: MatmulForm,
    in_halves: bool,
    commands: Vec<DispatchCommand>,
    labels: Vec<String>,
    /// The last product has begun the next norm: `normed` is not yet divided by rms, and its consumers are scaled.
    scaled: bool,
}

impl Pass<'_> {
    pub(super) fn push(&mut self, label: String, command: CommandBuilder) {
        self.commands.push(command.build());
        self.labels.push(label);
    }

    fn embed(&mut self, weights: &ModelWeights) {
        let config = self.context.config;
        let scale = match self.context.arch.scaled_embeddings {
            true => (config.hidden_size as f32).sqrt(),
            false => 1.0,
        };
        let matrix = &weights.embedding;
        let command = CommandBuilder::new(Kernel::Embed { weight: matrix.dtype });
        let command = bind_matrix(command, matrix)
            .bind(self.io.rows)
            .bind(self.scratch.hidden[0])
            .params(EmbedParams { cols: config.hidden_size as u32, vocab: config.vocab_size as u32, scale })
            .grid(1, self.rows)
            .patch(Patch::TokenOffset);
        self.push("embed".into(), command);

        for (i, rope) in weights.ropes.iter().enumerate() {
            let command = CommandBuilder::new(Kernel::RopeAngles)
                .bind(rope.buffer)
                .bind(self.io.rows)
                .bind(self.scratch.angles[i])
                .params(AnglesParams {
                    pairs: (config.rope.dims / 2) as u32,
                    magnitude: rope.frequencies.magnitude,
                })
                .grid(config.rope.dims / 2, self.rows)
                .patch(Patch::Position);
            self.push(["rope_angles", "rope_angles.local"][i].into(), command);
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
        let command = CommandBuilder::new(Kernel::RmsNorm { out, rows: RowSet::All }).bind(x).bind(weight);
        let command = bind_outputs(command, out, self.scratch.normed)
            .params(self.norm_params())
            .grid(1, self.rows)
            .patch(Patch::Rows);
        self.push(label, command);
    }

    /// A norm that the product before it may begin.
    fn begun(&self, weight: BufferId, consumers: &[&Matrix]) -> Option<Begun> {
        let squares = self.scratch.squares?;
        Some(Begun { weight, out: self.context.out_form(consumers, self.in_halves), squares })
    }

    /// What a product of a row that is not yet divided binds.
    fn squares(&self) -> Option<BufferId> {
        self.scratch.squares.filter(|_| self.scaled)
    }

    fn qkv_fused(&mut self, label: String, layer: &Layer) {
        let config = self.context.config;
        let (q, k, v) = (&layer.q, &layer.k, &layer.v);
        let input = self.form_of(q);
        let [q_size, kv_size] = self.qkv_sizes();
        let (form, bias, scaled) = (self.form, layer.qkv_bias.is_some(), self.scaled);
        let kernel = Kernel::Qkv { weight: q.dtype, form, q8: input == Form::Q8, bias, scaled };
        let mut command = CommandBuilder::new(kernel).bind(input_of(self.scratch.normed, input));
        for matrix in [q, k, v] {
            command = bind_matrix(command, matrix);
        }
        command = command.bind(self.scratch.qkv);
        for bias in layer.qkv_bias.iter().flatten() {
            command = command.bind(*bias);
        }
        let command = command
            .bind_if(self.squares())
            .params(QkvParams {
                inputs: config.hidden_size as u32,
                q: q_size as u32,
                k: kv_size as u32,
                v: kv_size as u32,
            })
            .grid(q_size + 2 * kv_size, self.rows)
            .patch(Patch::Rows);
        self.push(label, command);
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
        let kernel = Kernel::RopeKv { style, qk_norm, kv: self.context.options.kv };
        let kv = self.context.kv;
        let mut command = CommandBuilder::new(kernel)
            .bind(self.scratch.qkv)
            .bind(self.scratch.angles[layer.rope])
            .bind(self.io.rows)
            .bind(q)
            .bind_at(kv.k, kv.layer_offset(index))
            .bind_at(kv.v, kv.layer_offset(index));
        for norm in layer.qk_norm.iter().flatten() {
            command = command.bind(*norm);
        }
        let command = command
            .params(RopeKvParams {
                heads: config.head_count as u32,
                kv_heads: config.kv_head_count as u32,
                head_dim: config.head_dim as u32,
                rope_dims: config.rope.dims as u32,
                capacity: self.context.kv.positions,
                epsilon: config.norm_epsilon,
            })
            .grid(config.head_count + 2 * config.kv_head_count, self.rows)
            .patch(Patch::Position);
        self.push(label, command);
    }

    /// Over what `rope_kv` left, or with all that it would have done.
    fn attention(&mut self, index: usize, layer: &Layer) {
        let (context, config) = (self.context, self.context.config);
        let wanted = context.out_form(&[&layer.output], self.in_halves);
        let own = if context.attention_rounds_to(wanted) { wanted } else { NormOut::F32 };
        let kv = context.kv;
        let rope = if self.scratch.q.is_none() { Some(self.rope(layer)) } else { None };
        let command = CommandBuilder::new(Kernel::Attention { kv: context.options.kv, out: own, rope })
            .bind(self.scratch.q.unwrap_or(self.scratch.qkv))
            .bind_at(kv.k, kv.layer_offset(index))
            .bind_at(kv.v, kv.layer_offset(index))
            .bind(self.io.rows);
        let mut command = bind_outputs(command, own, self.scratch.attn);
        if rope.is_some() {
            command = command.bind(self.scratch.angles[layer.rope]);
            command = layer.qk_norm.into_iter().flatten().fold(command, CommandBuilder::bind);
        }
        let command = command
            .params(AttentionParams {
                heads: config.head_count as u32,
                kv_heads: config.kv_head_count as u32,
                head_dim: config.head_dim as u32,
                capacity: kv.positions,
                scale: config.attention_scale.unwrap_or(1.0 / (config.head_dim as f32).sqrt()),
                soft_cap: config.attention_soft_cap.unwrap_or(0.0),
                window: layer.window.unwrap_or(0) as u32,
                rope_dims: if rope.is_some() { config.rope.dims as u32 } else { 0 },
                epsilon: if rope.is_some() { config.norm_epsilon } else { 0.0 },
            })
            .grid(config.kv_head_count, self.rows)
            .patch(Patch::PositionAndKvLen);
        self.push(format!("layer.{index}.attention"), command);
        if own != wanted {
            let cols = config.head_count * config.head_dim;
            let (kernel, out, name) = match wanted.f16() {
                true => (Kernel::Halve, NormOut::F16, "attn_halve"),
                false => (Kernel::Quantise, NormOut::Q8, "attn_quantise"),
            };
            let command = CommandBuilder::new(kernel).bind(input_of(self.scratch.attn, Form::F32));
            let command = bind_outputs(command, out, self.scratch.attn)
                .params(ElementParams { cols: cols as u32 })
                .grid(cols, self.rows)
                .patch(Patch::Rows);
            self.push(format!("layer.{index}.{name}"), command);
        }
    }

    fn glu_fused(&mut self, label: String, layer: &Layer) {
        let config = self.context.config;
        let (gate, up) = (&layer.gate, &layer.up);
        let input = self.form_of(gate);
        let (q8, out) = (input == Form::Q8, self.context.out_form(&[&layer.down], self.in_halves));
        let (weight, form, activation, scaled) = (gate.dtype, self.form, self.activation(), self.scaled);
        let kernel = Kernel::GluMatmul { weight, form, q8, activation, out, scaled };
        let command = CommandBuilder::new(kernel).bind(input_of(self.scratch.normed, input));
        let command = bind_matrix(bind_matrix(command, gate), up);
        let command = bind_outputs(command, out, self.scratch.act)
            .bind_if(self.squares())
            .params(GluMatmulParams { inputs: config.hidden_size as u32, outputs: config.ffn_size as u32 })
            .grid(config.ffn_size, self.rows)
            .patch(Patch::Rows);
        self.push(label, command);
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
        let command = CommandBuilder::new(Kernel::Glu { activation: self.activation(), out })
            .bind(halves[0])
            .bind(halves[1]);
        let command = bind_outputs(command, out, self.scratch.act)
            .params(ElementParams { cols: config.ffn_size as u32 })
            .grid(config.ffn_size, self.rows)
            .patch(Patch::Rows);
        self.push(format!("layer.{index}.ffn_act"), command);
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
        let command = CommandBuilder::new(Kernel::NormAdd)
            .bind(projected)
            .bind(norm)
            .bind(residual)
            .bind(output)
            .params(self.norm_params())
            .grid(1, self.rows)
            .patch(Patch::Rows);
        self.push(norm_label, command);
    }

    fn matmul(&mut self, label: String, x: Activation, matrix: &Matrix, to: Target, params: MatmulParams) {
        let input = self.form_of(matrix);
        if let Form::F16 = input {
            return self.matmul_in_halves(label, x, matrix, to, params);
        }
        let kernel = Kernel::Matmul {
            weight: matrix.dtype,
            form: self.form,
            q8: input == Form::Q8,
            bias: to.bias.is_some(),
            residual: to.residual.is_some(),
            rows: RowSet::All,
            scaled: to.squares.is_some(),
            norm: to.norm.map(|norm| norm.out),
        };
        let (out, offset) = to.out;
        let mut command = bind_matrix(CommandBuilder::new(kernel).bind(input_of(x, input)), matrix)
            .bind_at(out, offset)
            .bind_if(to.bias)
            .bind_if(to.residual)
            .bind_if(to.squares);
        if let Some(Begun { weight, out, squares }) = to.norm {
            command = bind_outputs(command.bind(weight), out, self.scratch.normed).bind(squares);
        }
        let command = command.params(params).grid(params.outputs as usize, self.rows).patch(Patch::Rows);
        self.push(label, command);
    }

    /// Output norm, vocabulary projection and the best token, for the rows that ask.
    fn logits(&mut self, weights: &ModelWeights, steps: usize) {
        let config = self.context.config;
        let output = &weights.output;
        // Few rows ask, and the output matrix is large: it is not unpacked.
        let (out, input) = (self.context.out_form(&[output], false), self.context.form_of(output, false));
        let command = CommandBuilder::new(Kernel::RmsNorm { out, rows: RowSet::Logits })
            .bind(self.scratch.hidden[0])
            .bind(weights.output_norm);
        let command = bind_outputs(command, out, self.scratch.picked)
            .bind(self.io.logit_rows)
            .params(self.norm_params())
            .grid(1, self.logit_rows)
            .patch(Patch::LogitRows);
        self.push("output_norm".into(), command);

        let kernel = Kernel::Matmul {
            weight: output.dtype,
            form: MatmulForm::for_rows(self.logit_rows),
            q8: input == Form::Q8,
            bias: false,
            residual: false,
            rows: RowSet::Logits,
            scaled: false,
            norm: None,
        };
        let vocab = config.vocab_size as u32;
        let command = CommandBuilder::new(kernel).bind(input_of(self.scratch.picked, input));
        let command = bind_matrix(command, output)
            .bind(self.io.logits)
            .params(MatmulParams {
                inputs: config.hidden_size as u32,
                outputs: vocab,
                out_stride: vocab,
                soft_cap: config.logit_soft_cap.unwrap_or(0.0),
                epsilon: 0.0,
            })
            .grid(config.vocab_size, self.logit_rows)
            .patch(Patch::LogitRows);
        self.push("logits".into(), command);

        let command = CommandBuilder::new(Kernel::Argmax)
            .bind(self.io.logits)
            .bind(self.io.tokens)
            .bind(self.io.rows)
            .bind(self.io.logit_rows)
            .params(ArgmaxParams { vocab, advance: u32::from(steps > 1) })
            .grid(1, self.logit_rows)
            .patch(Patch::ArgmaxOutput);
        self.push("argmax".into(), command);
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
    pub out: (BufferId, u64),
    pub bias: Option<BufferId>,
    pub residual: Option<BufferId>,
    squares: Option<BufferId>,
    norm: Option<Begun>,
}

impl Target {
    pub(super) fn plain(out: BufferId, offset: u64) -> Target {
        Target { out: (out, offset), bias: None, residual: None, squares: None, norm: None }
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

/// Scratch allocates the forms that some layer's consumers want, so the one asked for is there.
pub(super) fn input_of(activation: Activation, form: Form) -> BufferId {
    let buffer = match form {
        Form::F32 => activation.f32,
        Form::Q8 => activation.q8,
        Form::F16 => activation.f16.map(|[numbers, _]| numbers),
    };
    buffer.unwrap_or_else(|| panic!("scratch lacks the {form:?} form of {activation:?}"))
}

/// The scales of the f16 form.
pub(super) fn scales_of(activation: Activation) -> BufferId {
    match activation.f16 {
        Some([_, scales]) => scales,
        None => panic!("scratch lacks the scales of {activation:?}"),
    }
}

/// All planes, in order.
pub(super) fn bind_matrix(command: CommandBuilder, matrix: &Matrix) -> CommandBuilder {
    matrix.scales_offsets.into_iter().flatten().fold(command.bind(matrix.buffer), CommandBuilder::bind)
}

fn bind_outputs(mut command: CommandBuilder, out: NormOut, to: Activation) -> CommandBuilder {
    if out.f32() {
        command = command.bind(input_of(to, Form::F32));
    }
    if out.q8() {
        command = command.bind(input_of(to, Form::Q8));
    }
    if out.f16() {
        command = command.bind(input_of(to, Form::F16)).bind(scales_of(to));
    }
    command
}
