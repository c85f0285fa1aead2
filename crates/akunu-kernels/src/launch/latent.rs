//! Latent attention.

use akunu_plan::RopeStyle;
use akunu_plan::ops::{
    HeadsApart, HeadsApartParams, HeadsTogether, HeadsTogetherParams, LatentAttention, LatentAttentionParams,
    LatentKv, LatentKvParams, LatentQueries, LatentQueriesParams,
};

use crate::function::source;
use crate::{Launch, MissingKernel, Source};

use super::Shape;
use super::cache::{KV, ROPE, kv_number};
use super::rows::ROWS;

static LATENT: Source = source!("latent.h");

/// Rows up to which a threadgroup has a single head, so that there are more of them.
const FEW_ROWS: u32 = 8;

impl Shape<'_> {
    pub(super) fn latent_kv(&self, LatentKv { style, kv, .. }: LatentKv) -> Launch {
        let p: LatentKvParams = self.command.params();
        let dim = p.latent + p.rope_dims;
        self.launch("latent_kv", vec![&KV, &ROPE, &LATENT], &format!("_{}x{}", p.latent, p.rope_dims))
            .variant([("KV_TYPE", kv_number(kv)), ("LATENT_ROWS", 1)])
            .constants([("HEAD_DIM", dim), ("LATENT", p.latent), ("ROPE_DIMS", p.rope_dims)])
            .constants([("POSITIONS", p.positions)])
            .variant([("BLOCK", p.block)])
            .style(Some(style))
            .shared(dim * 4)
            .over([self.rows, 1, 1], 32)
    }

    pub(super) fn heads_apart(&self, HeadsApart { out }: HeadsApart) -> Result<Launch, MissingKernel> {
        self.not_f16(out)?;
        let p: HeadsApartParams = self.command.params();
        let sizes = [self.rows * p.heads, p.dim];
        Ok(self.elementwise("heads_apart", &[&ROWS, &LATENT], sizes, |builder| {
            builder.variant([("HEAD_STRIDE", p.stride)]).constants([("HEADS", p.heads)]).out(out)
        }))
    }

    pub(super) fn heads_together(
        &self,
        HeadsTogether { out }: HeadsTogether,
    ) -> Result<Launch, MissingKernel> {
        self.not_f16(out)?;
        let p: HeadsTogetherParams = self.command.params();
        let sizes = [self.rows, p.heads * p.dim];
        Ok(self.elementwise("heads_together", &[&ROWS, &LATENT], sizes, |builder| {
            builder.variant([("EACH_HEAD", p.dim)]).out(out)
        }))
    }

    pub(super) fn latent_queries(&self, LatentQueries { style }: LatentQueries) -> Launch {
        let p: LatentQueriesParams = self.command.params();
        let sizes = [self.rows, p.heads * (p.latent + p.rope_dims)];
        self.elementwise("latent_queries", &[&ROPE, &LATENT], sizes, |builder| {
            builder
                .variant([("PLAIN", p.plain)])
                .constants([("HEADS", p.heads), ("LATENT", p.latent), ("ROPE_DIMS", p.rope_dims)])
                .constants([("STYLE", u32::from(style == RopeStyle::Interleaved))])
        })
    }

    pub(super) fn latent_attention(&self, op: LatentAttention) -> Result<Launch, MissingKernel> {
        self.not_f16(op.out)?;
        let p: LatentAttentionParams = self.command.params();
        let dim = p.latent + p.rope_dims;
        let (tile, simds) = if self.rows > FEW_ROWS && p.heads > 1 { (2, 4) } else { (1, 8) };
        let bytes = |tile: u32, simds: u32| (tile * dim + simds * tile * (p.latent + 2)) * 4;
        let fits = [(tile, simds), (1, 4), (1, 2), (1, 1)];
        let fits = fits.into_iter().find(|(tile, simds)| bytes(*tile, *simds) <= self.chip.shared_bytes);
        let (tile, simds) = fits.ok_or_else(|| self.missing(format!("latent rows of {dim}")))?;
        Ok(self
            .launch(
                "latent_attention",
                vec![&KV, &ROWS, &LATENT],
                &format!("_{}_{}x{}_{tile}", p.heads, p.latent, p.rope_dims),
            )
            .variant([("KV_TYPE", kv_number(op.kv)), ("HEAD_TILE", tile)])
            .variant([("KEY_PIECES", dim.div_ceil(32)), ("VALUE_PIECES", p.latent.div_ceil(32))])
            .constants([("HEADS", p.heads), ("HEAD_DIM", dim), ("LATENT", p.latent), ("COLS", p.latent)])
            .constants([("POSITIONS", p.positions)])
            .variant([("BLOCK", p.block)])
            .out(op.out)
            .shared(bytes(tile, simds).next_multiple_of(16))
            .over([p.heads.div_ceil(tile), self.rows, 1], simds * 32))
    }
}
