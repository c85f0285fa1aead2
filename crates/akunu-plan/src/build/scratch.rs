//! One set of working buffers for a table, reused by all its layers.

use super::weights::{Matrix, ModelWeights};
use super::{Buffers, Context, size};
use crate::plan::PlanError;
use crate::{BufferId, BufferKind, NormOut, q8};

/// An activation in the forms that its consumers read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Activation {
    pub f32: Option<BufferId>,
    pub q8: Option<BufferId>,
}

#[derive(Debug)]
pub(super) struct Scratch {
    pub hidden: [BufferId; 2], // [rows][hidden], each layer's halves write them in turn
    pub angles: Vec<BufferId>, // [rows][rope dims / 2][cos, sin], one for each set of frequencies
    pub normed: Activation,    // [rows][hidden]
    pub squares: Option<BufferId>, // [rows][hidden / 32], where products begin the next norm
    pub qkv: BufferId,         // [rows][(heads + 2 · kv heads) · head dim]
    pub q: Option<BufferId>,   // [rows][heads · head dim], rotated, where attention does not do that
    pub attn: Activation,      // [rows][heads · head dim]
    pub projected: Option<BufferId>, // [rows][hidden], where a norm stands before the residual
    pub gate_up: Option<[BufferId; 2]>, // [rows][ffn], where gate and up are not fused
    pub act: Activation,       // [rows][ffn]
    pub picked: Activation,    // [logit rows][hidden]
}

impl Scratch {
    pub(super) fn new(
        context: &Context<'_>,
        weights: &ModelWeights,
        (name, rows, logit_rows): (&str, usize, usize),
        buffers: &mut Buffers,
    ) -> Result<Scratch, PlanError> {
        let config = context.config;
        let (hidden, ffn) = (config.hidden_size, config.ffn_size);
        let q_size = config.head_count * config.head_dim;
        let qkv_size = q_size + 2 * config.kv_head_count * config.head_dim;
        let layers = &weights.layers;
        let of_norm = layers.iter().flat_map(|l| [&l.q, &l.k, &l.v, &l.gate, &l.up]);
        let of_attn: Vec<&Matrix> = layers.iter().map(|l| &l.output).collect();

        let mut add = |field: &str, rows: usize, row_bytes: usize| {
            let bytes = size(&[rows, row_bytes])?;
            Ok::<_, PlanError>(buffers.add(format!("{name}.{field}"), bytes, BufferKind::Scratch))
        };
        let mut activation =
            |field: &str, rows, cols: usize, consumers: &mut dyn Iterator<Item = &Matrix>| {
                let (f32, q8) = forms(context, consumers);
                Ok::<_, PlanError>(Activation {
                    f32: f32.then(|| add(field, rows, cols * 4)).transpose()?,
                    q8: q8.then(|| add(&format!("{field}_q8"), rows, q8::row_bytes(cols))).transpose()?,
                })
            };
        let normed = activation("normed", rows, hidden, &mut of_norm.into_iter())?;
        let mut attn = activation("attn", rows, q_size, &mut of_attn.into_iter())?;
        let act = activation("act", rows, ffn, &mut layers.iter().map(|l| &l.down))?;
        let picked = activation("picked", logit_rows, hidden, &mut std::iter::once(&weights.output))?;
        if attn.q8.is_some() && !context.attention_writes_q8() && attn.f32.is_none() {
            attn.f32 = Some(add("attn", rows, q_size * 4)?);
        }
        Ok(Scratch {
            hidden: [add("hidden_a", rows, hidden * 4)?, add("hidden_b", rows, hidden * 4)?],
            angles: (0..weights.ropes.len())
                .map(|i| add(&format!("angles.{i}"), rows, config.rope.dims * 4))
                .collect::<Result<_, _>>()?,
            normed,
            squares: match context.folds_norms(rows) {
                true => Some(add("squares", rows, hidden / q8::BLOCK * 4)?),
                false => None,
            },
            qkv: add("qkv", rows, qkv_size * 4)?,
            q: match context.folds && rows == 1 {
                true => None,
                false => Some(add("q", rows, q_size * 4)?),
            },
            attn,
            projected: match context.arch.post_norms {
                true => Some(add("projected", rows, hidden * 4)?),
                false => None,
            },
            gate_up: match layers.iter().all(|l| context.fuses(&[&l.gate, &l.up])) {
                true => None,
                false => Some([add("gate", rows, ffn * 4)?, add("up", rows, ffn * 4)?]),
            },
            act,
            picked,
        })
    }
}

/// Whether any consumer reads f32, and whether any reads int8 blocks.
fn forms(context: &Context<'_>, consumers: &mut dyn Iterator<Item = &Matrix>) -> (bool, bool) {
    consumers.fold((false, false), |(f32, q8), m| {
        let wants_q8 = context.wants_q8(m);
        (f32 | !wants_q8, q8 | wants_q8)
    })
}

impl Context<'_> {
    pub(super) fn wants_q8(&self, matrix: &Matrix) -> bool {
        self.q8_activations && matrix.dtype.is_quantised()
    }

    /// The forms that one command has to write for these consumers.
    pub(super) fn out_form(&self, consumers: &[&Matrix]) -> NormOut {
        match forms(self, &mut consumers.iter().copied()) {
            (true, true) => NormOut::Both,
            (false, true) => NormOut::Q8,
            _ => NormOut::F32,
        }
    }

    /// One command may serve these: same dtype, and fusing is not switched off.
    pub(super) fn fuses(&self, matrices: &[&Matrix]) -> bool {
        self.options.fuse && matrices.windows(2).all(|pair| pair[0].dtype == pair[1].dtype)
    }

    /// Products that add the residual begin the next norm, and those after it end it, in tables of one row (with more, a norm costs little
    /// beside its products, and these are free to go another way): not where a projection has a norm of its own before the residual.
    fn folds_norms(&self, rows: usize) -> bool {
        let whole = self.config.hidden_size.is_multiple_of(q8::BLOCK);
        self.folds && rows == 1 && !self.arch.post_norms && whole
    }

    /// Attention is dealt out by KV head; it can round its own output where that gives whole blocks.
    pub(super) fn attention_writes_q8(&self) -> bool {
        let group = self.config.head_count / self.config.kv_head_count;
        (group * self.config.head_dim).is_multiple_of(q8::BLOCK)
    }
}
