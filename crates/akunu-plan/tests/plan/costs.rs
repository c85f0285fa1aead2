//! The costs of passes, compared with counts made independently.

#![allow(clippy::unwrap_used)]

use crate::common::{affine, capabilities, config, family, model, options};
use akunu_plan::{BufferKind, Cost, DType, Entries, KvType, ModelPlan, Move, PlanOptions, Row, plan};

fn planned(name: &str, dtype: DType, options: &PlanOptions) -> ModelPlan {
    plan(&model(family(name), |_| dtype), &capabilities(), options).unwrap()
}

fn rows(start: u32, positions: std::ops::Range<u32>) -> Vec<Row> {
    positions.map(|position| Row::causal(0, position, start)).collect()
}

/// The cost of the commands whose label ends with `label`.
fn cost(plan: &ModelPlan, label: &str, rows: &[Row]) -> Cost {
    let table = plan.tables.prefill();
    let commands = table.commands.iter().zip(&table.labels).filter(|(_, l)| l.ends_with(label));
    commands.map(|(command, _)| command.cost(Entries::Rows(rows), 1)).sum()
}

#[test]
fn a_pass_reads_every_matrix_once_and_of_the_embedding_a_row_for_each_token() {
    for dtype in [DType::F16, DType::Q4_0, DType::Q6K, affine(4, 64)] {
        for fuse in [true, false] {
            for name in ["llama", "gemma3", "phi3"] {
                let plan = planned(name, dtype, &PlanOptions { fuse, ..options() });
                let matrices = plan.buffers.iter().filter(|b| matches!(b.kind, BufferKind::Weight { .. }));
                // The embedding is tied, so it is read completely as the output matrix.
                let all: u64 = matrices.map(|b| b.bytes).sum();
                let embedding_row = dtype.row_bytes(config(name).hidden_size).unwrap() as u64;
                for count in [1, 7] {
                    let found = plan.tables.prefill().cost(Entries::Rows(&rows(0, 0..count)), 1);
                    assert_eq!(found.weight_bytes, all + u64::from(count) * embedding_row, "{name} {dtype}");
                }
            }
        }
    }
}

#[test]
fn a_row_multiplies_and_adds_once_for_each_weight() {
    let c = config("llama");
    let layer = c.hidden_size * (2 * c.head_count + 2 * c.kv_head_count) * c.head_dim
        + 3 * c.hidden_size * c.ffn_size;
    let products = |rows: usize| (2 * (rows * c.layer_count * layer + c.hidden_size * c.vocab_size)) as u64;
    for (dtype, q8) in [(DType::Q4_0, true), (DType::BF16, false)] {
        let plan = planned("llama", dtype, &options());
        for count in [1, 16] {
            let found = plan.tables.prefill().cost(Entries::Rows(&rows(0, 0..count)), 1);
            let attention = cost(&plan, ".attention", &rows(0, 0..count));
            let (with, without) =
                if q8 { (found.int8_ops, found.f32_ops) } else { (found.f32_ops, found.int8_ops) };
            let attention_ops = if q8 { 0 } else { attention.f32_ops };
            assert_eq!(with - attention_ops, products(count as usize));
            assert_eq!(without, if q8 { attention.f32_ops } else { 0 });
        }
    }
    // No logit rows: no vocabulary projection.
    let plan = planned("llama", DType::Q4_0, &options());
    assert_eq!(
        plan.tables.prefill().commands.iter().rev().nth(1).unwrap().cost(Entries::Rows(&rows(0, 0..4)), 0),
        Cost::default()
    );
}

#[test]
fn shared_positions_of_attention_count_once() {
    let c = config("llama");
    let pair = (4 * c.head_count * c.head_dim * c.layer_count) as u64;
    for kv in [KvType::F32, KvType::F16, KvType::Q8_0] {
        let plan = planned("llama", DType::F16, &PlanOptions { kv, ..options() });
        let position = (2 * c.kv_head_count * c.layer_count * kv.row_bytes(c.head_dim).unwrap()) as u64;
        let check = |rows: &[Row], positions: u64, pairs: u64| {
            let found = cost(&plan, ".attention", rows);
            assert_eq!((found.kv_bytes, found.f32_ops), (positions * position, pairs * pair), "{rows:?}");
        };
        check(&rows(0, 9..10), 10, 10);
        // A chunk of a prompt: 5 + 6 + 7 positions, 7 of them distinct.
        check(&rows(0, 4..7), 7, 18);
        // Another sequence shares no positions.
        check(&[rows(32, 9..10), rows(0, 4..7)].concat(), 17, 28);
    }
}

#[test]
fn a_window_limits_the_positions_that_are_read() {
    let mut c = family("gemma3");
    c.layer_count = 1;
    let plan = plan(&model(c.clone(), |_| DType::F16), &capabilities(), &options()).unwrap();
    let position = (2 * c.kv_head_count * KvType::F16.row_bytes(c.head_dim).unwrap()) as u64;
    let seen = |rows: &[Row]| cost(&plan, ".attention", rows).kv_bytes / position;
    assert_eq!(seen(&rows(0, 3..4)), 4);
    assert_eq!(seen(&rows(0, 20..21)), 8);
    // 13..=20 and 14..=21.
    assert_eq!(seen(&rows(0, 20..22)), 9);
    // Two windows that do not overlap.
    assert_eq!(seen(&[rows(0, 8..9), rows(0, 30..31)].concat()), 16);
}

#[test]
fn cache_moves_read_the_moved_positions() {
    let plan = planned("llama", DType::F16, &options());
    let c = config("llama");
    let position = (2 * c.kv_head_count * c.layer_count * KvType::F16.row_bytes(c.head_dim).unwrap()) as u64;
    // 20 positions, of which 4 after the first 3 are dropped.
    let shift = Move { from: 7, to: 3, len: 13 };
    assert_eq!(plan.tables.kv_shift().cost(Entries::Moves(&[shift]), 0).kv_bytes, 13 * position);
    let copy = Move { from: 0, to: 32, len: 9 };
    assert_eq!(plan.tables.kv_copy().cost(Entries::Moves(&[copy]), 0).kv_bytes, 9 * position);
}
