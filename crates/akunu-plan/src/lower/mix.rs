//! Layers that mix positions through a state (Mamba 2): their operations, and the commands of these.

use akunu_arch::MambaFacts;

use super::blocks::Blocks;
use super::emit::Emitter;
use super::graph::{Action, Columns, Value};
use super::weights::Norm;
use crate::ops::{
    F32, Op, RowSet, StateConv, StateConvOperands, StateConvParams, StateScan, StateScanOperands,
    StateScanParams,
};
use crate::plan::PlanError;

/// The columns of what a layer's first product gives: z of all heads, the channels of the convolution, dt of each head.
struct Mixed {
    channels: usize,
    dt: usize,
}

impl Mixed {
    fn of(facts: MambaFacts) -> Mixed {
        Mixed { channels: facts.inner(), dt: facts.inner() + facts.channels() }
    }
}

impl Blocks<'_, '_> {
    pub(super) fn mix(&mut self, layer: usize, x: Value) -> Result<Value, PlanError> {
        let Some(facts) = self.config.mamba else {
            let reason = format!("layer {layer} has a state, but the file does not say how large it is");
            return Err(PlanError::Unsupported(reason));
        };
        if self.tensors.is_shared() {
            let reason = "layers with a state cannot be cut between ranks; --pipeline-parallel gives each device whole \
                          layers instead";
            return Err(PlanError::Unsupported(reason.into()));
        }
        let shape = [facts.mixed(), self.graph.cols(x)];
        let mixed = self.graph.value("mixed", facts.mixed(), RowSet::All);
        let part = self.part(layer, "ssm_in", "ssm_in", shape)?;
        self.product(x, part, Columns { of: mixed, first: 0 });
        let label = |part: &str| format!("layer.{layer}.{part}");
        let tensor = |part: &str| format!("{}blk.{layer}.{part}", self.prefix);
        let weight = self.tensors.numbers(&tensor("ssm_conv1d.weight"), facts.channels() * facts.taps)?;
        let bias = self.tensors.bias(&tensor("ssm_conv1d.bias"), facts.channels())?;
        let [decay, skip, dt_bias] = ["ssm_a.weight", "ssm_d.weight", "ssm_dt.bias"].map(tensor);
        let decay = self.tensors.numbers(&decay, facts.heads)?;
        let skip = self.tensors.numbers(&skip, facts.heads)?;
        let dt_bias = self.tensors.numbers(&dt_bias, facts.heads)?;
        let weights = self.tensors.numbers(&tensor("ssm_norm.weight"), facts.inner())?;
        let convolved = self.graph.value("convolved", facts.channels(), RowSet::All);
        let conv = Action::StateConv { layer, facts, mixed, weight, bias, out: convolved };
        self.graph.push(label("state_conv"), conv);
        let read = self.graph.value("scanned", facts.inner(), RowSet::All);
        let scan = Action::StateScan { layer, facts, x: convolved, mixed, decay, skip, dt_bias, out: read };
        self.graph.push(label("state_scan"), scan);
        let norm =
            Norm { kind: self.card.norm, weight: weights, bias: None, epsilon: self.config.norm_epsilon };
        let normed = self.graph.value("normed", facts.inner(), RowSet::All);
        let action = match facts.groups {
            1 => Action::Norm { norm, x: read, rows: RowSet::All, out: normed },
            heads => {
                let [x, out] = [read, normed].map(|of| Columns { of, first: 0 });
                Action::HeadNorm { norm, heads, dim: facts.inner() / heads, x, out }
            }
        };
        self.graph.push(label("ssm_norm"), action);
        self.project(layer, normed, ["ssm_out", "ssm_out"], self.config.hidden_size)
    }
}

impl Emitter<'_> {
    pub(super) fn with_state(&mut self, label: &str, action: &Action) {
        let states = self.shape.context.states.as_ref();
        let (slots, block) = states.map_or((0, 0), |states| (states.slots, states.block));
        let (kept, blocks) = (states.is_some(), states.map(|states| states.table()));
        let of_layer = |layer: usize| states.and_then(|states| states.layer(layer));
        let command = match *action {
            Action::StateConv { layer, facts, mixed, weight, bias, out } => {
                let operands = StateConvOperands {
                    x: self.f32s(mixed),
                    weight: F32(weight.into()),
                    bias: bias.map(|bias| F32(bias.into())),
                    rows: self.rows(),
                    state: of_layer(layer).map(|[inputs, _]| F32(inputs)),
                    blocks,
                    out: self.f32s(out),
                };
                let params = StateConvParams {
                    channels: facts.channels() as u32,
                    taps: facts.taps as u32,
                    stride: self.cols(mixed),
                    first: Mixed::of(facts).channels as u32,
                    slots,
                    block,
                };
                StateConv { bias: bias.is_some(), kept }.command(operands, params)
            }
            Action::StateScan { layer, facts, x, mixed, decay, skip, dt_bias, out } => {
                let operands = StateScanOperands {
                    x: self.f32s(x),
                    mixed: self.f32s(mixed),
                    decay: F32(decay.into()),
                    skip: F32(skip.into()),
                    dt_bias: F32(dt_bias.into()),
                    rows: self.rows(),
                    state: of_layer(layer).map(|[_, state]| F32(state)),
                    blocks,
                    out: self.f32s(out),
                };
                let params = StateScanParams {
                    heads: facts.heads as u32,
                    head_dim: facts.head_dim as u32,
                    state_size: facts.state_size as u32,
                    groups: facts.groups as u32,
                    stride: self.cols(mixed),
                    gate: 0,
                    dt: Mixed::of(facts).dt as u32,
                    slots,
                    block,
                };
                StateScan { kept }.command(operands, params)
            }
            _ => return,
        };
        self.push(label, command);
    }
}
