//! Emits the operations of a graph as commands: one each, or several if the device lacks a kernel for it.

use akunu_arch::ExpertFacts;
use akunu_arch::tower::Rotation;

use super::KvLayout;
use super::forms::{Shape, ValueForms, unhalved};
use super::graph::{
    Action, Attend, Columns, Form, Graph, HeadRotation, Heads, Part, Product, Routed, RoutedBy, RowCount,
    TokenTypes, Unfinished, Value,
};
use super::pass::Products;
use super::place::{Placed, Places};
use super::weights::{Matrix, Norm, RopeTable};
use crate::ops::{
    self, AcrossRows, AcrossRowsOperands, AcrossRowsParams, Activate, ActivateOperands, Add, AddOperands,
    AddParams, AddPositions, AddPositionsOperands, AddPositionsParams, AllGather, AllGatherOperands,
    AllGatherParams, AllReduce, AllReduceOperands, AnglesOperands, AnglesParams, Argmax, ArgmaxOperands,
    ArgmaxParams, Attention, AttentionOperands, AttentionParams, Combine, CombineOperands, CombineParams,
    ElementParams, Embed, EmbedOperands, EmbedParams, ExpertGlu, ExpertGluOperands, ExpertMatmul,
    ExpertMatmulOperands, ExpertParams, ExpertSum, ExpertSumOperands, F16, F32, Forms, Gather,
    GatherOperands, GatherParams, Glu, GluMatmul, GluMatmulOperands, GluMatmulParams, GluOperands,
    HalfExpertGlu, HalfExpertGluOperands, HalfExpertMatmul, HalfExpertMatmulOperands, HeadNorm,
    HeadNormOperands, HeadNormParams, HeadScores, HeadScoresOperands, HeadScoresParams, Indices, Input,
    InputForm, Matmul, MatmulOperands, MatmulParams, NormAdd, NormAddOperands, NormOperands, NormParams,
    NormPart, NormPartOperands, NormPartParams, Op, Order, Pool, PoolKind, PoolOperands, Q8, Qkv,
    QkvOperands, QkvParams, Queries, Reorder, ReorderOperands, RopeAngles, RopeKv, RopeKvOperands,
    RopeKvParams, Rounding, Route, RouteOperands, RouteParams, Routing, RowSet, Rows, SumSquares,
    SumSquaresOperands, SumSquaresParams, U32, Unfold, UnfoldOperands, UnfoldParams, WeighInputs,
    WeighInputsOperands, Weight,
};
use crate::table::Binding;
use crate::{BufferId, DispatchCommand, MatmulForm, OutputForms, Rope, Side, TableIo};

pub(super) struct Emitter<'a> {
    pub shape: Shape<'a>,
    pub graph: &'a Graph,
    pub forms: &'a ValueForms,
    pub places: &'a Places,
    pub ropes: &'a [RopeTable],
    pub io: TableIo,
    /// The f16 weights of one product, for tables that multiply in half precision.
    pub unpacked: Option<BufferId>,
    /// Whether the last command advances the rows.
    pub advances: bool,
    pub commands: Vec<DispatchCommand>,
    pub labels: Vec<String>,
    /// Of the commands that are pushed next.
    pub side: Side,
}

impl From<&Matrix> for Weight<Binding> {
    fn from(matrix: &Matrix) -> Weight<Binding> {
        Weight {
            quants: matrix.buffer.into(),
            scales_offsets: matrix.scales_offsets.map(|plane| plane.map(Binding::from)),
        }
    }
}

impl<'a> Emitter<'a> {
    pub fn emit(&mut self) {
        let graph = self.graph;
        for step in &graph.steps {
            self.side = step.side;
            self.action(&step.label, &step.action);
            for value in step.action.writes() {
                self.round(&step.label, value);
            }
        }
    }

    pub(super) fn push(&mut self, label: impl Into<String>, command: DispatchCommand) {
        self.commands.push(DispatchCommand { side: self.side, ..command });
        self.labels.push(label.into());
    }

    fn action(&mut self, label: &str, action: &Action) {
        match action {
            Action::Embed { table, scale, out } => self.embed(label, table, *scale, *out),
            Action::Angles { frequencies, out } => self.angles(label, *frequencies, *out),
            Action::Norm { norm, x, rows, out } => self.norm(label, norm, *x, *rows, *out),
            Action::Product(product) => self.product(label, product),
            Action::Glu { activation, gate, up, out } => {
                let forms = self.forms.written(*out);
                let operands = GluOperands {
                    gate: self.f32s(*gate),
                    up: self.f32s(*up),
                    out: self.bind_forms(forms, *out),
                };
                let op = Glu { activation: *activation, out: forms };
                self.push(label, op.command(operands, self.elements(*out)));
            }
            Action::GluProduct { activation, x, gate, up, out, deferred } => {
                let forms = self.forms.written(*out);
                let (input, q8) = self.input(*x, gate);
                let op = GluMatmul {
                    weight: gate.dtype,
                    form: MatmulForm::for_rows(self.shape.rows),
                    q8,
                    activation: *activation,
                    out: forms,
                    scaled: deferred.is_some(),
                };
                let operands = GluMatmulOperands {
                    x: input,
                    gate_weight: gate.into(),
                    up_weight: up.into(),
                    out: self.bind_forms(forms, *out),
                    squares: deferred.map(|squares| self.f32s(squares)),
                };
                let params = GluMatmulParams { inputs: self.cols(*x), outputs: self.cols(*out) };
                self.push(label, op.command(operands, params));
            }
            Action::AcrossRows => {
                let context = self.shape.context;
                let across = self.across();
                let params = AcrossRowsParams {
                    own: context.kv.slot_positions * context.options.beams as u32,
                    slot: across.slot_positions,
                    count: context.encoder_positions(),
                    positions: across.positions,
                };
                let operands = AcrossRowsOperands { rows: self.rows(), out: self.across_rows() };
                self.push(label, AcrossRows.command(operands, params));
            }
            Action::Unfold { x, frames, middle, out } => {
                let operands = UnfoldOperands { x: self.f32s(*x), rows: self.rows(), out: self.f32s(*out) };
                let params = UnfoldParams {
                    cols: self.cols(*out) / 3,
                    frames: *frames as u32,
                    middle: *middle as u32,
                };
                self.push(label, Unfold.command(operands, params));
            }
            Action::Reorder { x, order, out } => {
                let order = Order((*order).into());
                let operands = ReorderOperands { x: self.f32s(*x), order, out: self.f32s(*out) };
                self.push(label, Reorder.command(operands, self.elements(*out)));
            }
            Action::AddPositions { x, positions, types, out } => {
                self.add_positions(label, *x, (*positions, *types), *out);
            }
            Action::HeadNorm { norm, heads, dim, x, out } => {
                let operands = HeadNormOperands {
                    x: self.columns(*x),
                    weight: F32(norm.weight.into()),
                    bias: norm.bias.map(|bias| F32(bias.into())),
                    out: self.columns(*out),
                };
                let params = HeadNormParams {
                    heads: *heads as u32,
                    head_dim: *dim as u32,
                    epsilon: norm.epsilon,
                    in_stride: self.cols(x.of),
                    out_stride: self.cols(out.of),
                };
                let op = HeadNorm { kind: norm.kind, bias: norm.bias.is_some() };
                self.push(label, op.command(operands, params));
            }
            Action::SumSquares { x, out } => {
                let operands = SumSquaresOperands { x: self.f32s(*x), out: self.columns(*out) };
                let params = SumSquaresParams { cols: self.cols(*x), out_stride: self.cols(out.of) };
                self.push(label, SumSquares.command(operands, params));
            }
            Action::NormPart { norm, summed, x, sums, out } => {
                let operands = NormPartOperands {
                    x: self.f32s(*x),
                    squares: self.columns(*sums),
                    weight: F32(norm.weight.into()),
                    out: self.columns(*out),
                };
                let params = NormPartParams {
                    cols: self.cols(*x),
                    summed: *summed as u32,
                    epsilon: norm.epsilon,
                    sum_stride: self.cols(sums.of),
                    out_stride: self.cols(out.of),
                };
                self.push(label, NormPart.command(operands, params));
            }
            Action::Activate { activation, x, unfinished, rows, out } => {
                let forms = self.forms.written(*out);
                let unfinished = unfinished.as_ref();
                let input = unfinished.map_or(InputForm::F32, Unfinished::form);
                let op = Activate { activation: *activation, input, out: forms, rows: *rows };
                let operands = ActivateOperands {
                    x: unfinished.is_none().then(|| self.f32s(*x)),
                    x_f16: unfinished.map(|_| self.f16s(*x)),
                    x_scales: unfinished.map(|left| self.scales(left.scales_of)),
                    bias: unfinished.and_then(|left| left.biases.first()).map(|bias| F32((*bias).into())),
                    out: self.bind_forms(forms, *out),
                };
                self.push(label, op.command(operands, self.elements(*out)));
            }
            Action::Pool { kind, x, out } => {
                let operands = PoolOperands {
                    x: self.f32s(*x),
                    logit_rows: U32(self.io.logit_rows.into()),
                    rows: (*kind == PoolKind::Mean).then(|| self.rows()),
                    out: self.f32s(*out),
                };
                self.push(label, Pool { kind: *kind }.command(operands, self.elements(*out)));
            }
            Action::Route { experts, logits, bias, picks, shares } => {
                let operands = RouteOperands {
                    logits: self.f32s(*logits),
                    bias: bias.map(|bias| F32(bias.into())),
                    picks: self.indices(*picks),
                    shares: self.f32s(*shares),
                };
                let (op, params) = route(experts, bias.is_some());
                self.push(label, op.command(operands, params));
            }
            Action::WeighInputs { x, shares, out, left } => {
                let operands = WeighInputsOperands {
                    x: self.f32s(*x),
                    shares: self.f32s(*shares),
                    out: self.f32s(*out),
                    left: self.f32s(*left),
                };
                self.push(label, WeighInputs.command(operands, self.elements(*x)));
            }
            Action::Gather { picks, x, readers: _, experts, out, starts, places } => {
                let form = self.forms.written(*out);
                let operands = GatherOperands {
                    picks: self.indices(*picks),
                    x: self.bind_forms(form, *x),
                    out: self.bind_forms(form, *out),
                    starts: self.indices(*starts),
                    places: self.indices(*places),
                };
                let params =
                    GatherParams { cols: self.cols(*x), experts: *experts as u32, top: self.cols(*picks) };
                self.push(label, Gather { form }.command(operands, params));
            }
            Action::ExpertGlu { glu, x, routed, gate, up, packed: true, out } => {
                let operands = HalfExpertGluOperands {
                    x: self.f16s(*x),
                    x_scales: self.scales(*x),
                    starts: self.indices(routed.by.value()),
                    gate_weight: (&gate.matrix).into(),
                    up_weight: (&up.matrix).into(),
                    out: self.f32s(*out),
                };
                let op = HalfExpertGlu { weight: gate.matrix.dtype, glu: *glu };
                let experts = [routed.count, routed.top];
                self.push(label, op.command(operands, self.expert_params(*x, experts, *out)));
            }
            Action::ExpertGlu { glu, x, routed, gate, up, packed: false, out } => {
                let forms = self.forms.written(*out);
                let (input, q8) = self.input(*x, &gate.matrix);
                let (routing, picked) = self.routing(routed);
                let bias = |part: &Part| part.bias.map(|bias| F32(bias.into()));
                let operands = ExpertGluOperands {
                    x: input,
                    routing,
                    gate_weight: (&gate.matrix).into(),
                    up_weight: (&up.matrix).into(),
                    out: self.bind_forms(forms, *out),
                    gate_bias: bias(gate),
                    up_bias: bias(up),
                };
                let op = ExpertGlu {
                    weight: gate.matrix.dtype,
                    q8,
                    bias: gate.bias.is_some(),
                    glu: *glu,
                    out: forms,
                    picked,
                };
                self.push(
                    label,
                    op.command(operands, self.expert_params(*x, [routed.count, routed.top], *out)),
                );
            }
            Action::ExpertProduct { x, sorted, part, packed: true, out } => {
                let operands = HalfExpertMatmulOperands {
                    x: self.f16s(*x),
                    x_scales: self.scales(*x),
                    starts: self.indices(sorted.starts),
                    weight: (&part.matrix).into(),
                    out: self.f32s(*out),
                };
                let op = HalfExpertMatmul { weight: part.matrix.dtype };
                let experts = [sorted.count, sorted.top];
                self.push(label, op.command(operands, self.expert_params(*x, experts, *out)));
            }
            Action::ExpertProduct { x, sorted, part, packed: false, out } => {
                let (input, q8) = self.input(*x, &part.matrix);
                let operands = ExpertMatmulOperands {
                    x: input,
                    starts: self.indices(sorted.starts),
                    weight: (&part.matrix).into(),
                    out: self.f32s(*out),
                    bias: part.bias.map(|bias| F32(bias.into())),
                };
                let op = ExpertMatmul { weight: part.matrix.dtype, q8, bias: part.bias.is_some() };
                let experts = [sorted.count, sorted.top];
                self.push(label, op.command(operands, self.expert_params(*x, experts, *out)));
            }
            Action::ExpertSum { x, experts, picks, shares, part, shared, residual, out } => {
                let (input, q8) = self.input(*x, &part.matrix);
                let gate = shared.and_then(|(_, gate)| gate);
                let operands = ExpertSumOperands {
                    x: input,
                    picks: self.indices(*picks),
                    shares: self.f32s(*shares),
                    weight: (&part.matrix).into(),
                    out: self.f32s(*out),
                    bias: part.bias.map(|bias| F32(bias.into())),
                    shared: shared.map(|(shared, _)| self.f32s(shared)),
                    gate: gate.map(|gate| self.f32s(gate)),
                    residual: residual.map(|residual| self.f32s(residual)),
                };
                let op = ExpertSum {
                    weight: part.matrix.dtype,
                    q8,
                    bias: part.bias.is_some(),
                    shared: shared.is_some(),
                    gated: gate.is_some(),
                    residual: residual.is_some(),
                };
                let experts = [*experts, self.graph.cols(*picks)];
                self.push(label, op.command(operands, self.expert_params(*x, experts, *out)));
            }
            Action::Combine { y, places, shares, shared, residual, out } => {
                let gate = shared.and_then(|(_, gate)| gate);
                let operands = CombineOperands {
                    y: self.f32s(*y),
                    places: self.indices(*places),
                    shares: self.f32s(*shares),
                    out: self.f32s(*out),
                    shared: shared.map(|(shared, _)| self.f32s(shared)),
                    gate: gate.map(|gate| self.f32s(gate)),
                    residual: residual.map(|residual| self.f32s(residual)),
                };
                let op =
                    Combine { shared: shared.is_some(), gated: gate.is_some(), residual: residual.is_some() };
                let params = CombineParams { cols: self.cols(*out), top: self.cols(*places) };
                self.push(label, op.command(operands, params));
            }
            Action::Add { residual, x, scale, out } => {
                let operands =
                    AddOperands { x: self.f32s(*x), residual: self.f32s(*residual), out: self.f32s(*out) };
                self.push(label, Add.command(operands, AddParams { cols: self.cols(*out), scale: *scale }));
            }
            Action::NormAdd { norm, x, residual, out } => {
                let operands = NormAddOperands {
                    x: self.f32s(*x),
                    weight: F32(norm.weight.into()),
                    residual: self.f32s(*residual),
                    out: self.f32s(*out),
                };
                self.push(label, NormAdd.command(operands, self.norm_params(norm, *x)));
            }
            Action::RopeKv { layer, heads, rotation, qkv, unfinished, q } => {
                self.rope_kv(label, (*layer, *heads), rotation, (*qkv, unfinished.as_ref(), *q));
            }
            Action::Attend(attend) => self.attend(label, attend),
            Action::LatentKv { .. }
            | Action::HeadsApart { .. }
            | Action::LatentQueries { .. }
            | Action::LatentAttend { .. }
            | Action::HeadsTogether { .. } => self.latent(label, action),
            Action::StateConv { .. } | Action::StateScan { .. } => self.with_state(label, action),
            Action::HeadScores { layer, head, q, out } => {
                let context = self.shape.context;
                let (across, heads) = (self.across(), Heads::of(context.config));
                let operands = HeadScoresOperands {
                    q: self.f32s(*q),
                    k_cache: across.layer(*layer).0,
                    rows: self.across_rows(),
                    out: self.columns(*out),
                };
                let params = HeadScoresParams {
                    heads: heads.count as u32,
                    kv_heads: heads.kv as u32,
                    head_dim: heads.dim as u32,
                    positions: across.positions,
                    scale: context.attention_scale(),
                    head: *head as u32,
                    count: context.encoder_positions(),
                    out_stride: self.cols(out.of),
                };
                self.push(label, HeadScores { kv: context.options.kv }.command(operands, params));
            }
            Action::Argmax { logits, vocab } => {
                let operands = ArgmaxOperands {
                    logits: self.f32s(*logits),
                    tokens: U32(self.io.tokens.into()),
                    rows: self.rows(),
                    logit_rows: U32(self.io.logit_rows.into()),
                };
                let params = ArgmaxParams { vocab: *vocab as u32, advance: u32::from(self.advances) };
                self.push(label, Argmax.command(operands, params));
            }
            Action::AllReduce { x, residual, out, defers } => {
                let norm = defers.map(|defers| self.forms.written(defers.normed));
                let op = AllReduce { residual: residual.is_some(), norm };
                let operands = AllReduceOperands {
                    x: self.f32s(*x),
                    out: self.f32s(*out),
                    residual: residual.map(|residual| self.f32s(residual)),
                    norm_weight: defers.map(|defers| F32(defers.norm.weight.into())),
                    normed: defers.zip(norm).map(|(defers, forms)| self.bind_forms(forms, defers.normed)),
                    out_squares: defers.map(|defers| self.f32s(defers.squares)),
                };
                let epsilon = defers.map_or(0.0, |defers| defers.norm.epsilon);
                self.push(label, op.command(operands, NormParams { cols: self.cols(*out), epsilon }));
            }
            Action::AllGather { x, out } => {
                let operands = AllGatherOperands { x: self.f32s(*x), out: self.f32s(*out) };
                let params = AllGatherParams { cols: self.cols(*x), total: self.cols(*out) };
                self.push(label, AllGather.command(operands, params));
            }
        }
    }

    fn add_positions(
        &mut self,
        label: &str,
        x: Value,
        (positions, types): (Option<(BufferId, usize)>, Option<TokenTypes>),
        out: Value,
    ) {
        let per_row = types.is_some_and(|types| types.count > 1);
        let kind = match types {
            None => ops::TokenTypes::None,
            Some(_) if per_row => ops::TokenTypes::PerRow,
            Some(_) => ops::TokenTypes::First,
        };
        let operands = AddPositionsOperands {
            x: self.f32s(x),
            rows: self.rows(),
            positions: positions.map(|(table, _)| F32(table.into())),
            types: types.map(|types| F32(types.buffer.into())),
            segments: self.io.segments.filter(|_| per_row).map(|segments| U32(segments.into())),
            out: self.f32s(out),
        };
        let params = AddPositionsParams {
            cols: self.cols(out),
            count: positions.map_or(0, |(_, count)| count as u32),
            kinds: types.map_or(0, |types| types.count as u32),
        };
        let op = AddPositions { positions: positions.is_some(), types: kind };
        self.push(label, op.command(operands, params));
    }

    fn embed(&mut self, label: &str, table: &Matrix, scale: f32, out: Value) {
        let operands = EmbedOperands { embedding: table.into(), rows: self.rows(), out: self.f32s(out) };
        let params = EmbedParams { cols: self.cols(out), vocab: table.rows as u32, scale };
        let op = Embed { weight: table.dtype, part: self.shape.context.ranks > 1 };
        self.push(label, op.command(operands, params));
    }

    fn angles(&mut self, label: &str, frequencies: Rotation, out: Value) {
        let table = self.rope_table(frequencies);
        let operands = AnglesOperands {
            frequencies: F32(table.buffer.into()),
            rows: self.rows(),
            angles: self.f32s(out),
        };
        let params = AnglesParams { pairs: self.cols(out) / 2, magnitude: table.frequencies.magnitude };
        self.push(label, RopeAngles.command(operands, params));
    }

    fn norm(&mut self, label: &str, norm: &Norm, x: Value, rows: RowSet, out: Value) {
        let forms = self.forms.written(out);
        let pick = rows == RowSet::Logits && self.graph.values[x.0].rows == RowCount::Of(RowSet::All);
        let operands = NormOperands {
            x: self.f32s(x),
            weight: F32(norm.weight.into()),
            bias: norm.bias.map(|bias| F32(bias.into())),
            out: self.bind_forms(forms, out),
            logit_rows: pick.then(|| U32(self.io.logit_rows.into())),
        };
        let op = ops::Norm { kind: norm.kind, bias: norm.bias.is_some(), out: forms, rows, pick };
        self.push(label, op.command(operands, self.norm_params(norm, x)));
    }

    fn product(&mut self, label: &str, product: &Product) {
        let forms = product.parts.iter().map(|part| self.shape.form_of(product.reads(part.matrix.dtype)));
        let in_halves = forms.clone().all(|form| form == Form::F16);
        match &product.parts[..] {
            [part] if in_halves && self.shape.products == Products::Eights && !product.packed => {
                self.eight_product(label, product, part);
            }
            _ if in_halves => self.half_product(label, product),
            [part] => self.matmul(label, product, part),
            parts => self.qkv(label, product, parts),
        }
    }

    fn matmul(&mut self, label: &str, product: &Product, part: &Part) {
        let matrix = &part.matrix;
        let (x, q8) = self.product_input(product, matrix);
        let rows = if product.rows == RowSet::All { self.shape.rows } else { self.shape.logit_rows };
        let normed = product.defers.map(|defers| self.forms.written(defers.normed));
        let forms = self.forms.written(product.out.of);
        let op = Matmul {
            weight: matrix.dtype,
            form: MatmulForm::for_rows(rows),
            q8,
            bias: part.bias.is_some(),
            residual: product.residual.is_some(),
            rows: product.rows,
            scaled: product.deferred.is_some(),
            norm: normed,
            activation: product.activation,
            out: forms,
        };
        let f32 = forms.f32().then(|| self.columns(product.out));
        let operands = MatmulOperands {
            x,
            weight: matrix.into(),
            out: Forms { f32, ..self.bind_forms(forms, product.out.of) },
            bias: part.bias.map(|bias| F32(bias.into())),
            residual: product.residual.map(|residual| self.f32s(residual)),
            squares: product.deferred.map(|squares| self.f32s(squares)),
            norm_weight: product.defers.map(|defers| F32(defers.norm.weight.into())),
            normed: product.defers.zip(normed).map(|(defers, forms)| self.bind_forms(forms, defers.normed)),
            out_squares: product.defers.map(|defers| self.f32s(defers.squares)),
        };
        let params = MatmulParams {
            epsilon: product.defers.map_or(0.0, |defers| defers.norm.epsilon),
            ..self.matmul_params(product, matrix)
        };
        self.push(label, op.command(operands, params));
    }

    fn qkv(&mut self, label: &str, product: &Product, parts: &[Part]) {
        let [q, k, v] = parts else { panic!("{label}: {} products are joined, and not three", parts.len()) };
        let (x, q8) = self.product_input(product, &q.matrix);
        let op = Qkv {
            weight: q.matrix.dtype,
            form: MatmulForm::for_rows(self.shape.rows),
            q8,
            bias: q.bias.is_some(),
            scaled: product.deferred.is_some(),
        };
        let bias = |part: &Part| part.bias.map(|bias| F32(bias.into()));
        let operands = QkvOperands {
            x,
            q_weight: (&q.matrix).into(),
            k_weight: (&k.matrix).into(),
            v_weight: (&v.matrix).into(),
            out: self.columns(product.out),
            q_bias: bias(q),
            k_bias: bias(k),
            v_bias: bias(v),
            squares: product.deferred.map(|squares| self.f32s(squares)),
        };
        let [q, k, v] = [q, k, v].map(|part| part.matrix.rows as u32);
        self.push(label, op.command(operands, QkvParams { inputs: self.cols(product.x), q, k, v }));
    }

    pub(super) fn matmul_params(&self, product: &Product, matrix: &Matrix) -> MatmulParams {
        MatmulParams {
            inputs: self.cols(product.x),
            outputs: matrix.rows as u32,
            out_stride: self.cols(product.out.of),
            soft_cap: product.soft_cap,
            epsilon: 0.0,
        }
    }

    fn rope_kv(
        &mut self,
        label: &str,
        (layer, heads): (usize, Heads),
        rotation: &HeadRotation,
        (qkv, unfinished, q): (Value, Option<&Unfinished>, Option<Value>),
    ) {
        let context = self.shape.context;
        let (kv, k_cache, v_cache) = context.cache(layer);
        let norm = |part: usize| rotation.norms.map(|norms| F32(norms[part].into()));
        let bias =
            |part: usize| unfinished.and_then(|left| left.biases.get(part)).map(|bias| F32((*bias).into()));
        let operands = RopeKvOperands {
            qkv: unfinished.is_none().then(|| self.f32s(qkv)),
            x_f16: unfinished.map(|_| self.f16s(qkv)),
            x_scales: unfinished.map(|left| self.scales(left.scales_of)),
            k_bias: bias(0),
            v_bias: bias(1),
            angles: rotation.angles().map(|angles| self.f32s(angles)),
            rows: self.rows(),
            q: q.map(|q| self.f32s(q)),
            k_cache,
            v_cache,
            q_norm: norm(0),
            k_norm: norm(1),
            blocks: kv.table(),
        };
        let params = RopeKvParams {
            heads: if q.is_some() { heads.count as u32 } else { 0 },
            kv_heads: heads.kv as u32,
            head_dim: heads.dim as u32,
            rope_dims: self.rope_dims(rotation),
            positions: kv.positions,
            block: kv.block,
            epsilon: context.config.norm_epsilon,
        };
        let op = RopeKv {
            style: rotation.rope.map(|(style, _)| style),
            qk_norm: rotation.norms.is_some(),
            norm_last: rotation.norm_last,
            kv: context.options.kv,
            input: unfinished.map_or(InputForm::F32, Unfinished::form),
            queries: q.is_some(),
            paged: kv.blocks.is_some(),
        };
        self.push(label, op.command(operands, params));
    }

    fn attend(&mut self, label: &str, attend: &Attend) {
        let context = self.shape.context;
        let config = context.config;
        let forms = self.forms.written(attend.out);
        let rotation = attend.rotation.as_ref();
        let ((kv, k_cache, v_cache), rows) = match attend.across {
            true => {
                let kv = self.across();
                let (k_cache, v_cache) = kv.layer(attend.layer);
                ((kv, k_cache, v_cache), self.across_rows())
            }
            false => (context.cache(attend.layer), self.rows()),
        };
        let norm = |part: usize| rotation.and_then(|r| r.norms).map(|norms| F32(norms[part].into()));
        let operands = AttentionOperands {
            q: Queries(self.f32s(attend.q)),
            k_cache,
            v_cache,
            rows,
            out: self.bind_forms(forms, attend.out),
            angles: rotation.and_then(HeadRotation::angles).map(|angles| self.f32s(angles)),
            q_norm: norm(0),
            k_norm: norm(1),
            position_bias: attend.position_bias.map(|bias| F32(bias.buffer.into())),
            query_factors: attend.query_factors.map(|factors| F32(factors.buffer.into())),
            sinks: attend.sinks.map(|sinks| F32(sinks.into())),
            blocks: kv.table(),
        };
        let heads = attend.heads;
        let params = AttentionParams {
            heads: heads.count as u32,
            kv_heads: heads.kv as u32,
            head_dim: heads.dim as u32,
            positions: kv.positions,
            block: kv.block,
            scale: context.attention_scale(),
            soft_cap: config.attention_soft_cap.unwrap_or(0.0),
            window: attend.window.map_or(0, |window| saturated(window.behind)),
            ahead: attend.window.map_or(0, |window| saturated(window.ahead)),
            rope_dims: rotation.map_or(0, |rotation| self.rope_dims(rotation)),
            epsilon: if rotation.is_some() { config.norm_epsilon } else { 0.0 },
            reach: attend.position_bias.map_or(0, |bias| bias.reach as u32),
            factor_step: attend.query_factors.map_or(0, |factors| saturated(factors.step)),
            factors: attend.query_factors.map_or(0, |factors| factors.count as u32),
            across: if attend.across { context.encoder_positions() } else { 0 },
        };
        let rope =
            rotation.map(|r| Rope { style: r.rope.map(|(style, _)| style), qk_norm: r.norms.is_some() });
        let op = Attention {
            kv: context.options.kv,
            out: forms,
            rope,
            position_bias: attend.position_bias.is_some(),
            query_factors: attend.query_factors.map(|factors| factors.by),
            chunked: attend.window.is_some_and(|window| window.chunked),
            sinks: attend.sinks.is_some(),
            paged: kv.blocks.is_some(),
        };
        self.push(label, op.command(operands, params));
    }

    /// How a product finds the experts of its rows, and whether by picks.
    fn routing(&self, routed: &Routed) -> (Routing<Binding>, bool) {
        match routed.by {
            RoutedBy::Starts(starts) => (Routing::Starts(self.indices(starts)), false),
            RoutedBy::Picks(picks) => (Routing::Picks(self.indices(picks)), true),
        }
    }

    fn expert_params(&self, x: Value, [experts, top]: [usize; 2], out: Value) -> ExpertParams {
        ExpertParams {
            inputs: self.cols(x),
            outputs: self.cols(out),
            experts: experts as u32,
            top: top as u32,
        }
    }

    pub(super) fn cols(&self, value: Value) -> u32 {
        self.graph.cols(value) as u32
    }

    pub(super) fn elements(&self, value: Value) -> ElementParams {
        ElementParams { cols: self.cols(value) }
    }

    fn norm_params(&self, norm: &Norm, x: Value) -> NormParams {
        NormParams { cols: self.cols(x), epsilon: norm.epsilon }
    }

    fn rope_table(&self, rotation: Rotation) -> &RopeTable {
        match rotation {
            Rotation::Global => &self.ropes[0],
            Rotation::Local => &self.ropes[self.ropes.len() - 1],
        }
    }

    fn rope_dims(&self, rotation: &HeadRotation) -> u32 {
        if rotation.rope.is_some() { self.shape.context.config.rope.dims as u32 } else { 0 }
    }

    /// The cache of the encoder's states. Present if the model has an encoder.
    fn across(&self) -> &'a KvLayout {
        self.shape
            .context
            .across
            .as_ref()
            .unwrap_or_else(|| panic!("{} has no encoder's states", self.shape.name))
    }

    /// Present if anything attends to them.
    fn across_rows(&self) -> Rows<Binding> {
        let across = self.io.across.unwrap_or_else(|| panic!("{} attends to no encoder", self.shape.name));
        Rows(across.into())
    }

    pub(super) fn rows(&self) -> Rows<Binding> {
        Rows(self.io.rows.into())
    }

    pub(super) fn f32s(&self, value: Value) -> F32<Binding> {
        F32(need(self.places[&value].f32, "f32", value).into())
    }

    pub(super) fn indices(&self, value: Value) -> Indices<Binding> {
        let F32(binding) = self.f32s(value);
        Indices(binding)
    }

    pub(super) fn columns(&self, columns: Columns) -> F32<Binding> {
        let F32(Binding { buffer, .. }) = self.f32s(columns.of);
        F32(Binding { buffer, offset: columns.first as u64 * 4 })
    }

    pub(super) fn f16_columns(&self, columns: Columns) -> F16<Binding> {
        let F16(Binding { buffer, .. }) = self.f16s(columns.of);
        F16(Binding { buffer, offset: columns.first as u64 * 2 })
    }

    fn product_input(&self, product: &Product, matrix: &Matrix) -> (Input<Binding>, bool) {
        match self.shape.form_of(product.reads(matrix.dtype)) {
            Form::Q8 => (Input::Q8(self.q8s(product.x)), true),
            Form::F32 | Form::F16 => (Input::F32(self.f32s(product.x)), false),
        }
    }

    /// The input of a product that does not multiply in half precision.
    fn input(&self, x: Value, matrix: &Matrix) -> (Input<Binding>, bool) {
        match unhalved(matrix.dtype) {
            Form::Q8 => (Input::Q8(self.q8s(x)), true),
            _ => (Input::F32(self.f32s(x)), false),
        }
    }

    fn q8s(&self, value: Value) -> Q8<Binding> {
        Q8(need(self.places[&value].q8, "q8", value).into())
    }

    pub(super) fn f16s(&self, value: Value) -> F16<Binding> {
        F16(need(self.places[&value].f16, "f16", value).into())
    }

    /// The scales of its f16 rows.
    pub(super) fn scales(&self, value: Value) -> F32<Binding> {
        F32(need(self.places[&value].scales, "scaled", value).into())
    }

    /// The bindings of these forms.
    pub(super) fn bind_forms(&self, forms: OutputForms, value: Value) -> Forms<Binding> {
        let Placed { f32, q8, .. } = self.places[&value];
        Forms {
            f32: forms.f32().then(|| F32(need(f32, "f32", value).into())),
            q8: forms.q8().then(|| Q8(need(q8, "q8", value).into())),
            f16: forms.f16().then(|| match forms.eights() {
                true => self.eights(value),
                false => (self.f16s(value), self.scales(value)),
            }),
            rounding: Rounding::of(forms),
        }
    }
}

/// `place` has allocated every value in the forms that are written and read.
pub(super) fn need<T>(buffer: Option<T>, form: &str, value: Value) -> T {
    buffer.unwrap_or_else(|| panic!("{value:?} has no buffer for its {form} form"))
}

fn route(experts: &ExpertFacts, corrected: bool) -> (Route, RouteParams) {
    let (router, [groups, used]) = (experts.router, experts.groups);
    let op = Route {
        scores: router.scores,
        normalised: experts.normalised,
        corrected,
        groups: (groups > 1).then_some(router.rank),
    };
    let params = RouteParams {
        experts: experts.count as u32,
        top: experts.used as u32,
        groups: groups as u32,
        groups_used: used as u32,
        scale: experts.scale,
        epsilon: if experts.normalised { router.epsilon } else { 0.0 },
        tolerance: router.tolerance,
    };
    (op, params)
}

/// A number of positions. A file may state more than any context has, which are as good as all.
fn saturated(count: usize) -> u32 {
    count.try_into().unwrap_or(u32::MAX)
}
