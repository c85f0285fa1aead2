//! The commands of latent attention.

use akunu_arch::LatentFacts;

use super::emit::Emitter;
use super::graph::Action;
use crate::ops::{
    F32, HeadsApart, HeadsApartOperands, HeadsApartParams, HeadsTogether, HeadsTogetherOperands,
    HeadsTogetherParams, LatentAttention, LatentAttentionOperands, LatentAttentionParams, LatentKv,
    LatentKvOperands, LatentKvParams, LatentQueries, LatentQueriesOperands, LatentQueriesParams, Op,
};

impl Emitter<'_> {
    pub(super) fn latent(&mut self, label: &str, action: &Action) {
        let context = self.shape.context;
        let (config, style) = (context.config, context.arch.rope_style(context.config));
        let Some(LatentFacts { size, plain, .. }) = config.latent else { return };
        let [heads, latent, plain, rope_dims] =
            [config.head_count, size, plain, config.rope.dims].map(|n| n as u32);
        let command = match *action {
            Action::LatentKv { layer, norm, x, angles } => {
                let (kv, _, cache) = context.cache(layer);
                let operands = LatentKvOperands {
                    x: self.f32s(x),
                    norm: F32(norm.weight.into()),
                    angles: self.f32s(angles),
                    rows: self.rows(),
                    cache,
                    blocks: kv.table(),
                };
                let params = LatentKvParams {
                    latent,
                    rope_dims,
                    positions: kv.positions,
                    block: kv.block,
                    epsilon: norm.epsilon,
                };
                let op = LatentKv { style, kv: context.options.kv, paged: kv.blocks.is_some() };
                op.command(operands, params)
            }
            Action::HeadsApart { x, out, starts } => {
                let forms = self.forms.written(out);
                let operands = HeadsApartOperands {
                    x: self.f32s(x),
                    out: self.bind_forms(forms, out),
                    starts: self.indices(starts),
                };
                let params = HeadsApartParams { heads, stride: plain + rope_dims, dim: plain };
                HeadsApart { out: forms }.command(operands, params)
            }
            Action::LatentQueries { x, q, angles, out } => {
                let operands = LatentQueriesOperands {
                    x: self.f32s(x),
                    q: self.f32s(q),
                    angles: self.f32s(angles),
                    out: self.f32s(out),
                };
                LatentQueries { style }
                    .command(operands, LatentQueriesParams { heads, latent, plain, rope_dims })
            }
            Action::LatentAttend { layer, q, out } => {
                let (kv, _, cache) = context.cache(layer);
                let forms = self.forms.written(out);
                let operands = LatentAttentionOperands {
                    q: self.f32s(q),
                    cache,
                    rows: self.rows(),
                    out: self.bind_forms(forms, out),
                    blocks: kv.table(),
                };
                let params = LatentAttentionParams {
                    heads,
                    latent,
                    rope_dims,
                    positions: kv.positions,
                    block: kv.block,
                    scale: context.attention_scale(),
                };
                let op = LatentAttention { kv: context.options.kv, out: forms, paged: kv.blocks.is_some() };
                op.command(operands, params)
            }
            Action::HeadsTogether { x, heads, out } => {
                let forms = self.forms.written(out);
                let operands = HeadsTogetherOperands { x: self.f32s(x), out: self.bind_forms(forms, out) };
                let dim = self.cols(x);
                HeadsTogether { out: forms }
                    .command(operands, HeadsTogetherParams { heads: heads as u32, dim })
            }
            _ => return,
        };
        self.push(label, command);
    }
}
