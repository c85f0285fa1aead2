//! Attention within chunks, and queries that are scaled by the number of positions.

use akunu_plan::ops::{Attention, AttentionParams, Counts, Op};
use akunu_plan::{EntryBounds, KvType, OutputForms, Row, RowBounds, ScaledBy};

fn in_chunks() -> Attention {
    Attention { chunked: true, ..Attention::plain(KvType::F16, OutputForms::F32) }
}

#[test]
fn a_row_sees_its_own_chunk_up_to_itself() {
    let p = AttentionParams { window: 8, ..AttentionParams::default() };
    let seen = |position| in_chunks().seen(&p, &Row::causal(0, position, 0));
    let expected = [(0, 0..1), (7, 0..8), (8, 8..9), (9, 8..10), (23, 16..24), (24, 24..25)];
    for (position, expected) in expected {
        assert_eq!(seen(position), expected, "{position}");
        // The cache keeps what a window of that size sees.
        let window = Attention { chunked: false, ..in_chunks() }.seen(&p, &Row::causal(0, position, 0));
        assert!(window.start <= seen(position).start && window.end == seen(position).end);
    }
}

#[test]
fn factors_follow_the_position_or_the_number_of_positions() {
    let p = AttentionParams { factor_step: 4, factors: 3, ..AttentionParams::default() };
    let factors = |by| [0, 2, 3, 4, 6, 7, 11, 100].map(|position| p.factor(by, position));
    assert_eq!(factors(ScaledBy::Position), [0, 0, 0, 1, 1, 1, 2, 2]);
    assert_eq!(factors(ScaledBy::Length), [0, 0, 1, 1, 1, 2, 2, 2]);
    assert_eq!(p.factor(ScaledBy::Length, u32::MAX), 2);
}

#[test]
fn chunks_need_a_size_and_end_at_the_row() {
    let bounds = EntryBounds::Rows(RowBounds::one_sequence(1, 1));
    let counts = Counts { rows: 1, logit_rows: 0, steps: 1, bounds };
    let p = AttentionParams { heads: 1, kv_heads: 1, head_dim: 4, ..AttentionParams::default() };
    for (window, ahead) in [(0, 0), (8, 1)] {
        let error = in_chunks().extents(&AttentionParams { window, ahead, ..p }, &counts).unwrap_err();
        assert_eq!(error, format!("chunks of {window} positions, and {ahead} after a row's own"));
    }
}
