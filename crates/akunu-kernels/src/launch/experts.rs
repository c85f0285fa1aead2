//! Mixtures of experts, except for their products.

use akunu_plan::ops::{Combine, CombineParams, ElementParams, Gather, GatherParams, Route, RouteParams};
use akunu_plan::{GroupRank, Scores};

use crate::Source;
use crate::function::source;

use super::{Launch, Shape};

static ROUTE: Source = source!("route.h");
static GATHER: Source = source!("gather.h");
static WEIGH_INPUTS: Source = source!("weigh_inputs.h");
static COMBINE: Source = source!("combine.h");

/// Threads of a threadgroup that sorts, and the most picks that are sorted in one launch.
const THREADS: u32 = 256;

impl Shape<'_> {
    pub(super) fn route(&self, op: Route) -> Launch {
        let p: RouteParams = self.command.params();
        let scores = match op.scores {
            Scores::Softmax => 0,
            Scores::Sigmoid => 1,
            Scores::SparseMixer => 2,
        };
        let ranked = if op.groups == Some(GroupRank::TwoBest) { 2 } else { 1 };
        self.launch("route", vec![&ROUTE], &format!("_{}_of_{}", p.top, p.experts))
            .variant([("PER_LANE", p.experts.div_ceil(32).next_power_of_two())])
            .variant([("SCORES", scores)])
            .constants([("EXPERTS", p.experts), ("CHOSEN", p.top), ("NORMALISED", u32::from(op.normalised))])
            .constants([("BY_SCORE", u32::from(op.by_score())), ("CORRECTED", u32::from(op.corrected))])
            .constants([("GROUPS", p.groups), ("USED", p.groups_used), ("RANKED", ranked)])
            .shared((p.groups * 4).next_multiple_of(16))
            .over([self.rows, 1, 1], 32)
    }

    pub(super) fn weigh_inputs(&self) -> Launch {
        let p: ElementParams = self.command.params();
        self.elementwise("weigh_inputs", &[&WEIGH_INPUTS], [self.rows, p.cols], |builder| builder)
    }

    pub(super) fn gather(&self, Gather { form }: Gather) -> Vec<Launch> {
        let p: GatherParams = self.command.params();
        let launch = |entry, groups, shared| {
            self.launch(entry, vec![&GATHER], &format!("_{entry}_{}", p.cols))
                .constants([("COLS", p.cols), ("EXPERTS", p.experts), ("CHOSEN", p.top)])
                .out(form)
                .shared(shared)
                .over([groups, 1, 1], THREADS)
        };
        let picks = self.rows * p.top;
        match picks {
            ..=THREADS => vec![launch("gather_few", picks, THREADS * 4 + 128)],
            _ => vec![launch("sort_picks", p.experts, 256), launch("gather_rows", picks, 0)],
        }
    }

    pub(super) fn combine(&self, Combine { shared, gated, residual }: Combine) -> Launch {
        let p: CombineParams = self.command.params();
        self.elementwise("combine", &[&COMBINE], [self.rows, p.cols], |builder| {
            builder.constants([
                ("CHOSEN", p.top),
                ("SHARED", u32::from(shared)),
                ("GATED", u32::from(gated)),
                ("RESIDUAL", u32::from(residual)),
            ])
        })
    }
}
