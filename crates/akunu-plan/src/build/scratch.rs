//! One set of working buffers for a table, reused by all its layers.

use super::weights::{Matrix, ModelWeights};
use super::{Buffers, Context, size};
use crate::plan::PlanError;
use crate::{BufferId, BufferKind, DType, KvType, NormOut, halves, q8};

/// An activation in the forms that its consumers read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Activation {
    pub f32: Option<BufferId>,
    pub q8: Option<BufferId>,
    /// Numbers and scales.
    pub f16: Option<[BufferId; 2]>,
}

/// Which of them a product reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    F32,
    Q8,
    F16,
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
    pub unpacked: Option<BufferId>, // f16 of the weights of one product, where products are of f16
}

impl Scratch {
    pub(super) fn new(
        context: &Context<'_>,
        weights: &ModelWeights,
        (name, rows, logit_rows, in_halves): (&str, usize, usize, bool),
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
        let mut activation = |field: &str, rows, cols: usize, out: NormOut| {
            let mut scaled = || {
                let numbers = add(&format!("{field}_f16"), rows, cols * 2)?;
                Ok::<_, PlanError>([numbers, add(&format!("{field}_scales"), rows, 4)?])
            };
            let f16 = out.f16().then(&mut scaled).transpose()?;
            Ok::<_, PlanError>(Activation {
                f32: out.f32().then(|| add(field, rows, cols * 4)).transpose()?,
                q8: out.q8().then(|| add(&format!("{field}_q8"), rows, q8::row_bytes(cols))).transpose()?,
                f16,
            })
        };
        let all = |consumers: &[&Matrix]| context.out_form(consumers, in_halves);
        let normed = activation("normed", rows, hidden, all(&of_norm.collect::<Vec<_>>()))?;
        let mut attn = activation("attn", rows, q_size, all(&of_attn))?;
        let act = activation("act", rows, ffn, all(&layers.iter().map(|l| &l.down).collect::<Vec<_>>()))?;
        let picked = activation("picked", logit_rows, hidden, context.out_form(&[&weights.output], false))?;
        if !context.attention_rounds_to(all(&of_attn)) && attn.f32.is_none() {
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
            gate_up: match layers.iter().all(|l| !in_halves && context.fuses(&[&l.gate, &l.up])) {
                true => None,
                false => Some([add("gate", rows, ffn * 4)?, add("up", rows, ffn * 4)?]),
            },
            act,
            picked,
            unpacked: match in_halves {
                true => Some(add("unpacked", hidden, qkv_size.max(ffn) * 2)?),
                false => None,
            },
        })
    }
}

impl Context<'_> {
    /// Whether products of as many rows are of f16.
    pub(super) fn in_halves(&self, rows: usize) -> bool {
        let config = self.config;
        let q_size = config.head_count * config.head_dim;
        let whole =
            [config.hidden_size, q_size, config.ffn_size].iter().all(|n| n.is_multiple_of(halves::WHOLE));
        self.half_products.is_some_and(|few| rows > few) && whole
    }

    pub(super) fn form_of(&self, matrix: &Matrix, in_halves: bool) -> Form {
        if in_halves && matrix.dtype != DType::F32 {
            return Form::F16;
        }
        if self.q8_activations && matrix.dtype.is_quantised() { Form::Q8 } else { Form::F32 }
    }

    /// The forms that one command has to write for these consumers.
    pub(super) fn out_form(&self, consumers: &[&Matrix], in_halves: bool) -> NormOut {
        let has = |form| consumers.iter().any(|m| self.form_of(m, in_halves) == form);
        match (has(Form::F32), has(Form::Q8), has(Form::F16)) {
            (true, true, _) => NormOut::Both,
            (false, true, _) => NormOut::Q8,
            (true, _, true) => NormOut::F32AndF16,
            (false, _, true) => NormOut::F16,
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

    /// Attention is dealt out by KV head, so it sees no whole row. It can round its own output to int8 where that gives whole blocks, and to
    /// f16 where its values are f16 already, so that no row needs a scale.
    pub(super) fn attention_rounds_to(&self, out: NormOut) -> bool {
        let group = self.config.head_count / self.config.kv_head_count;
        let whole = (group * self.config.head_dim).is_multiple_of(q8::BLOCK);
        (!out.q8() || whole) && (!out.f16() || self.options.kv == KvType::F16)
    }
}
