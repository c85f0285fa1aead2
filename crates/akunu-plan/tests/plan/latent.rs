//! The cache of latent attention: its bytes, and what passes read of it.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use crate::common::{capabilities, options};
use akunu_arch::{WeightProvider, open_model};
use akunu_plan::{Cost, Entries, KvType, ModelPlan, Move, PlanOptions, Row, plan};

/// Two layers; rows of the cache have 64 and 32 numbers for 3 heads.
fn model(name: &str) -> Box<dyn WeightProvider> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models");
    open_model(&folder.join(name)).unwrap()
}

fn planned(kv: KvType) -> ModelPlan {
    plan(&*model("deepseek-v3-hd32"), &capabilities(), &PlanOptions { kv, ..options() }).unwrap()
}

#[test]
fn all_heads_share_a_row() {
    for kv in [KvType::F32, KvType::F16, KvType::Q8_0] {
        let plan = planned(kv);
        // 2 layers · 2 slots of 32 positions
        assert_eq!(plan.memory.kv, (2 * 2 * 32 * kv.row_bytes(64 + 32).unwrap()) as u64);
        let names = plan.buffers.iter().filter(|buffer| buffer.name.starts_with("kv."));
        assert_eq!(names.map(|buffer| &*buffer.name).collect::<Vec<_>>(), ["kv.latent", "kv.blocks"]);
    }
}

#[test]
fn rows_of_a_sequence_read_a_position_once() {
    let plan = planned(KvType::F16);
    let row = 2 * KvType::F16.row_bytes(96).unwrap() as u64;
    let attention = |rows: &[Row]| -> Cost {
        let table = plan.tables.prefill();
        let labels = table.labels.iter().zip(&table.commands);
        let of = labels.filter(|(label, _)| label.ends_with(".attention"));
        of.map(|(_, command)| command.cost(Entries::Rows(rows), 1)).sum()
    };
    let rows = |start: u32, positions: std::ops::Range<u32>| -> Vec<Row> {
        positions.map(|position| Row::causal(0, position, start)).collect()
    };
    // Scores over 96 numbers and sums of 64, for 3 heads in 2 layers.
    let pair = 2 * 2 * 3 * (96 + 64);
    for (rows, positions, pairs) in [
        (rows(0, 9..10), 10, 10),
        (rows(0, 4..7), 7, 18),
        ([rows(32, 9..10), rows(0, 4..7)].concat(), 17, 28),
    ] {
        let cost = attention(&rows);
        assert_eq!((cost.kv_bytes, cost.f32_ops), (positions * row, pairs * pair), "{rows:?}");
    }
    let moved = [Move { from: 7, to: 3, len: 13 }];
    assert_eq!(plan.tables.kv_shift().cost(Entries::Moves(&moved), 0).kv_bytes, 13 * row);
    assert_eq!(plan.tables.kv_copy().cost(Entries::Moves(&moved), 0).kv_bytes, 13 * row);
}

#[test]
fn rows_that_are_not_whole_blocks_cannot_be_q8_0() {
    let options = PlanOptions { kv: KvType::Q8_0, ..options() };
    let error = plan(&*model("deepseek-v2-lite"), &capabilities(), &options).unwrap_err().to_string();
    assert!(error.contains("needs a head size that is a multiple of 32, but this model's is 28"), "{error}");
}
