//! Attention.

use std::ops::Range;

use akunu_plan::ops::{self, AttentionParams, HeadScoresParams};
use akunu_plan::{Kernel, KvType, OutputForms, Row, ScaledBy, halves};

use crate::case::{Case, Shape, Spec, spec};
use crate::data::{f32s, outputs, pick, poison, values, weight_rows};
use crate::rows::OUTS;

/// Positions of a block of the cache.
pub(crate) const BLOCK: u32 = 64;

/// (heads, kv heads, head dim)
pub(crate) const HEADS: [(u32, u32, u32); 13] = [
    (5, 1, 48),
    (6, 1, 64),
    (14, 2, 40),
    (4, 4, 4),
    (2, 1, 6),
    (4, 2, 8),
    (4, 1, 64),
    (3, 1, 80),
    (8, 1, 96),
    (2, 2, 128),
    (2, 1, 256),
    (8, 2, 32),
    (40, 1, 16),
];

pub(crate) fn kv_types(head_dim: u32) -> Vec<KvType> {
    [KvType::F32, KvType::F16, KvType::Q8_0]
        .into_iter()
        .filter(|kv| kv.row_bytes(head_dim as usize).is_some())
        .collect()
}

/// A cache with random values in every position.
pub(crate) fn cache(kv: KvType, seed: u64, kv_heads: u32, positions: u32, dim: u32) -> Vec<u8> {
    weight_rows(kv.dtype(), seed, (kv_heads * positions) as usize, dim as usize)
}

/// A cache in blocks of `block` positions for `logical` ones: its positions, one block more than there are logical ones,
/// and a table in which no block follows the one before it.
pub(crate) fn in_blocks(logical: u32, block: u32) -> (u32, Vec<u8>) {
    let count = (logical / block + 1).next_multiple_of(2) + 1;
    let table: Vec<u32> = (0..logical / block).map(|i| (i * (count / 2) + 1) % count).collect();
    (count * block, bytemuck::cast_slice(&table).to_vec())
}

/// Queries of the rows `part` of `rows`, a cache, and outputs.
fn queries_and_cache(
    params: &AttentionParams,
    kv: KvType,
    out: OutputForms,
    rows: usize,
    part: &Range<usize>,
) -> Vec<Vec<u8>> {
    let AttentionParams { heads, kv_heads, head_dim, positions, .. } = *params;
    let cols = (heads * head_dim) as usize;
    let mut data = vec![
        pick(&f32s(&values(44, rows * cols)), rows, part),
        cache(kv, 45, kv_heads, positions, head_dim),
        cache(kv, 46, kv_heads, positions, head_dim),
    ];
    data.extend(outputs(out, part.len(), cols));
    data
}

/// Rows of two sequences of `context` positions each; `first` is the position of the first row.
pub(crate) fn mixed_rows(n: usize, first: u32, context: u32) -> Vec<Row> {
    let start_of = |i: usize| if i >= n * 2 / 3 { context } else { 0 };
    (0..n).map(|i| Row::causal(0, first + i as u32, start_of(i))).collect()
}

/// Rows of two sequences from position `first` on.
#[derive(Clone, Copy)]
pub struct Seen {
    pub rows: usize,
    pub first: u32,
    pub window: u32,
    pub soft_cap: f32,
    /// Positions that share a query factor; 0 for no factors.
    pub factor_step: u32,
    /// Whether the cache is in blocks.
    pub paged: bool,
}

/// One row and many, within a segment and across several, at their boundaries, with windows that begin in the middle.
const SEEN: [Seen; 8] = [
    Seen { rows: 1, first: 0, window: 0, soft_cap: 0.0, factor_step: 0, paged: false },
    Seen { rows: 1, first: 255, window: 0, soft_cap: 0.0, factor_step: 100, paged: false },
    Seen { rows: 1, first: 1100, window: 0, soft_cap: 0.0, factor_step: 0, paged: false },
    Seen { rows: 1, first: 700, window: 100, soft_cap: 20.0, factor_step: 0, paged: false },
    Seen { rows: 19, first: 40, window: 0, soft_cap: 0.0, factor_step: 8, paged: false },
    Seen { rows: 11, first: 505, window: 33, soft_cap: 5.0, factor_step: 3, paged: false },
    Seen { rows: 5, first: 254, window: 0, soft_cap: 7.0, factor_step: 0, paged: false },
    Seen { rows: 70, first: 210, window: 120, soft_cap: 0.0, factor_step: 0, paged: false },
];

pub fn attention() -> Vec<Spec> {
    let mut specs = vec![];
    for (i, (heads, kv_heads, dim)) in HEADS.into_iter().enumerate() {
        for (j, kv) in kv_types(dim).into_iter().enumerate() {
            for (k, seen) in SEEN.into_iter().enumerate() {
                // The longer ones for every other shape.
                if (seen.first > 1000 || seen.rows > 50) && (i + j + k) % 2 == 0 {
                    continue;
                }
                // Factors are kernels of their own, which the emulator compiles for each shape.
                let factor_step = if (i + j) % 3 == 0 { seen.factor_step } else { 0 };
                let seen = Seen { factor_step, paged: (j + k) % 3 > 0, ..seen };
                let whole = (heads / kv_heads * dim).is_multiple_of(32);
                let out = if whole { OUTS[(i + seen.rows) % 3] } else { OutputForms::F32 };
                specs.push(attend((heads, kv_heads, dim), kv, seen, out));
            }
        }
    }
    specs
}

/// Starting at 1, like those of models.
pub fn query_factors(count: u32) -> Vec<u8> {
    f32s(&(0..count).map(|n| 1.0 + 0.1 * (1.0 + n as f32).ln()).collect::<Vec<_>>())
}

/// By what factors are found that `step` positions share, if there are any.
pub(crate) fn scaled_by(step: u32, chunked: bool) -> Option<ScaledBy> {
    let by = if chunked { ScaledBy::Length } else { ScaledBy::Position };
    (step > 0).then_some(by)
}

/// Attention of rows of several sequences: of each, the number of its rows and the position of the first.
pub fn attend_each(
    (heads, kv_heads, dim): (u32, u32, u32),
    (window, paged): (u32, bool),
    (kv, out): (KvType, OutputForms),
    sequences: &'static [(usize, u32)],
) -> Spec {
    let rows = sequences.iter().map(|(count, _)| count).sum();
    let longest = sequences.iter().map(|&(count, first)| first + count as u32).max().unwrap_or(0);
    let alignment = if paged { BLOCK } else { 16 };
    let context = longest.next_multiple_of(alignment);
    let logical = sequences.len() as u32 * context;
    let in_what = if paged { " in blocks" } else { "" };
    let name = format!(
        "attention {heads}/{kv_heads}x{dim} of {} sequences, {kv:?}, window {window}{in_what}",
        sequences.len()
    );
    spec(name, rows, move |part| {
        let (positions, table) = if paged { in_blocks(logical, BLOCK) } else { (logical, vec![]) };
        let scale = 3.0 / (dim as f32).sqrt();
        let params = AttentionParams {
            heads,
            kv_heads,
            head_dim: dim,
            positions,
            block: if paged { BLOCK } else { 0 },
            scale,
            window,
            ..AttentionParams::default()
        };
        let mut data = queries_and_cache(&params, kv, out, rows, &part);
        data.extend(paged.then_some(table));
        let numbered = sequences.iter().zip(0..);
        let of_each = numbered.flat_map(|(&(count, first), slot)| {
            (first..first + count as u32).map(move |position| Row::causal(0, position, slot * context))
        });
        let all: Vec<Row> = of_each.collect();
        let shape = Shape::sequences(all[part].to_vec(), context, logical, alignment);
        let op = ops::Attention { paged, ..ops::Attention::plain(kv, out) };
        Case::new(Kernel::Attention(op), params, shape, data)
    })
}

/// The rows of [`attention`], with a sink for each head.
pub fn attention_with_sinks() -> Vec<Spec> {
    let mut specs = vec![];
    for (i, (heads, kv_heads, dim)) in HEADS.into_iter().enumerate() {
        for (j, kv) in kv_types(dim).into_iter().enumerate() {
            for (k, seen) in SEEN.into_iter().enumerate().filter(|(k, _)| (i + j + k) % 3 == 0) {
                let seen = Seen { factor_step: 0, paged: k % 2 == 0, ..seen };
                let whole = (heads / kv_heads * dim).is_multiple_of(32);
                let out = if whole { OUTS[(i + seen.rows) % 3] } else { OutputForms::F32 };
                specs.push(attend_with_sinks((heads, kv_heads, dim), kv, seen, out));
            }
        }
    }
    specs
}

/// Rows within a chunk and in several: the first of a chunk, which sees itself only, and the last; chunks shorter than a
/// segment, longer ones, and of one position.
pub fn attention_in_chunks() -> Vec<Spec> {
    const SEEN: [Seen; 6] = [
        Seen { rows: 1, first: 700, window: 100, soft_cap: 0.0, factor_step: 0, paged: false },
        Seen { rows: 1, first: 599, window: 300, soft_cap: 20.0, factor_step: 100, paged: true },
        Seen { rows: 19, first: 40, window: 16, soft_cap: 0.0, factor_step: 8, paged: true },
        Seen { rows: 11, first: 505, window: 33, soft_cap: 5.0, factor_step: 3, paged: false },
        Seen { rows: 70, first: 210, window: 120, soft_cap: 0.0, factor_step: 0, paged: true },
        Seen { rows: 5, first: 6, window: 1, soft_cap: 0.0, factor_step: 0, paged: false },
    ];
    let mut specs = vec![];
    for (i, (heads, kv_heads, dim)) in HEADS.into_iter().enumerate() {
        for (j, kv) in kv_types(dim).into_iter().enumerate() {
            for (_, seen) in SEEN.into_iter().enumerate().filter(|(k, _)| (i + j + k) % 3 == 0) {
                let whole = (heads / kv_heads * dim).is_multiple_of(32);
                let out = if whole { OUTS[(i + seen.rows) % 3] } else { OutputForms::F32 };
                specs.push(attend_in_chunks((heads, kv_heads, dim), kv, seen, out));
            }
        }
    }
    specs
}

/// Some of each size next to the scores; one that takes nearly all, and one that takes nothing.
fn sinks(heads: usize) -> Vec<f32> {
    let mut sinks: Vec<f32> = values(48, heads).into_iter().map(|sink| 4.0 * sink).collect();
    sinks[0] = 15.0;
    if let Some(sink) = sinks.get_mut(2) {
        *sink = f32::NEG_INFINITY;
    }
    sinks
}

pub fn attend(shape: (u32, u32, u32), kv: KvType, seen: Seen, out: OutputForms) -> Spec {
    attend_as(shape, (kv, Beside::Nothing), seen, out)
}

/// Over a cache in f16 that is not in blocks, whose keys grow along the text: the scores of a query rise by 7 over 64
/// positions, or by three quarters or half of that, not at all, or fall.
pub fn attend_rising(shape: (u32, u32, u32), seen: Seen, sinks: bool, out: OutputForms) -> Spec {
    let (heads, _, dim) = shape;
    let seen = Seen { soft_cap: 0.0, factor_step: 0, paged: false, ..seen };
    let beside = if sinks { Beside::Sinks } else { Beside::Nothing };
    let attend = attend_as(shape, (KvType::F16, beside), seen, out);
    spec(format!("{} rising", attend.name), seen.rows, move |part| {
        let mut case = (attend.build)(part.clone());
        let (keys, ..) = case.keys.expect("attention reads keys");
        // The binding before.
        let queries = keys - 1;
        let each = 7.0 / 64.0 / (3.0 / (dim as f32).sqrt());
        let context = (seen.first + seen.rows as u32 + 5).next_multiple_of(16) as usize;
        for (place, key) in case.buffers[keys].chunks_mut(dim as usize * 2).enumerate() {
            halves::store(&[(place % context) as f32 * each], 1.0, &mut key[..2]);
        }
        let first = part.start * heads as usize;
        for (i, query) in case.buffers[queries].chunks_mut(dim as usize * 4).enumerate() {
            let growth: f32 = [1.0, 0.75, 0.5, 0.0, -1.0][(first + i) % 5];
            query[..4].copy_from_slice(&growth.to_le_bytes());
        }
        case
    })
}

pub fn attend_with_sinks(shape: (u32, u32, u32), kv: KvType, seen: Seen, out: OutputForms) -> Spec {
    attend_as(shape, (kv, Beside::Sinks), seen, out)
}

/// The window is a chunk, and factors follow the number of positions.
pub fn attend_in_chunks(shape: (u32, u32, u32), kv: KvType, seen: Seen, out: OutputForms) -> Spec {
    attend_as(shape, (kv, Beside::Chunks), seen, out)
}

#[derive(Clone, Copy, PartialEq)]
enum Beside {
    Nothing,
    Sinks,
    Chunks,
}

fn attend_as(
    (heads, kv_heads, dim): (u32, u32, u32),
    (kv, beside): (KvType, Beside),
    seen: Seen,
    out: OutputForms,
) -> Spec {
    let (has_sinks, chunked) = (beside == Beside::Sinks, beside == Beside::Chunks);
    let Seen { rows, first, window, soft_cap, factor_step, paged } = seen;
    let in_what = if paged { " in blocks" } else { "" };
    let with = match beside {
        Beside::Nothing => "",
        Beside::Sinks => " with sinks",
        Beside::Chunks => " in chunks",
    };
    let name = format!(
        "attention {heads}/{kv_heads}x{dim} {kv:?} rows {rows} at {first} window {window}{in_what}{with}"
    );
    spec(name, rows, move |part| {
        let alignment = if paged { BLOCK } else { 16 };
        let context = (first + rows as u32 + 5).next_multiple_of(alignment);
        let (positions, table) = if paged { in_blocks(2 * context, BLOCK) } else { (2 * context, vec![]) };
        let scale = 3.0 / (dim as f32).sqrt();
        let params = AttentionParams {
            heads,
            kv_heads,
            head_dim: dim,
            positions,
            block: if paged { BLOCK } else { 0 },
            scale,
            soft_cap,
            window,
            factor_step,
            factors: context.checked_div(factor_step).map_or(0, |last| last + 1),
            ..AttentionParams::default()
        };
        let mut data = queries_and_cache(&params, kv, out, rows, &part);
        data.extend((factor_step > 0).then(|| query_factors(params.factors)));
        data.extend(has_sinks.then(|| f32s(&sinks(heads as usize))));
        data.extend(paged.then_some(table));
        let rows = mixed_rows(rows, first, context)[part].to_vec();
        let shape = Shape::sequences(rows, context, 2 * context, alignment);
        let (query_factors, sinks) = (scaled_by(factor_step, chunked), has_sinks);
        let op = ops::Attention { query_factors, chunked, sinks, paged, ..ops::Attention::plain(kv, out) };
        Case::new(Kernel::Attention(op), params, shape, data)
    })
}

/// Rows to which their whole text is visible, or a window around them; texts of different lengths are adjacent in one
/// cache, the later ones at other positions of it than of the pass.
pub fn whole_texts() -> Vec<Spec> {
    const LENGTHS: [u32; 5] = [5, 33, 1, 16, 70];
    let mut specs = vec![];
    for (i, (heads, kv_heads, dim)) in HEADS.into_iter().enumerate() {
        for (j, kv) in kv_types(dim).into_iter().enumerate() {
            let windows = [(0, 0, 0), (9, 8, 0), (40, 0, 0), (1, 30, 0), (0, 0, 20), (0, 0, 128)];
            for (k, (window, ahead, reach)) in windows.into_iter().enumerate() {
                // A bias is a kernel of its own, which the emulator compiles for each shape.
                if reach > 0 && (i + j) % 3 != 0 {
                    continue;
                }
                let whole = (heads / kv_heads * dim).is_multiple_of(32);
                let out = if whole { OUTS[(i + j) % 3] } else { OutputForms::F32 };
                // The longest text for every fourth, since it takes as long as all others together.
                let lengths = if (i + j + k) % 4 == 0 { &LENGTHS[..] } else { &LENGTHS[..4] };
                specs.push(texts((heads, kv_heads, dim), kv, lengths, [window, ahead, reach], out));
            }
        }
    }
    // A bias across several segments.
    specs.push(texts((4, 2, 64), KvType::F16, &[3, 300], [0, 0, 128], OutputForms::F32));
    specs
}

pub fn texts(
    (heads, kv_heads, dim): (u32, u32, u32),
    kv: KvType,
    lengths: &[u32],
    [window, ahead, reach]: [u32; 3],
    out: OutputForms,
) -> Spec {
    let mut all = vec![];
    let mut start = 0u32;
    for len in lengths {
        start = start.next_multiple_of(16);
        all.extend((0..*len).map(|position| Row { token: 0, position, kv_len: *len, start }));
        start += len;
    }
    let rows = all.len();
    let longest = lengths.iter().max().copied().unwrap_or(1);
    let name = format!(
        "attention of texts {heads}/{kv_heads}x{dim} {kv:?} window {window} ahead {ahead} reach {reach}"
    );
    spec(name, rows, move |part| {
        let positions = start.next_multiple_of(16);
        let params = AttentionParams {
            heads,
            kv_heads,
            head_dim: dim,
            positions,
            scale: 3.0 / (dim as f32).sqrt(),
            window,
            ahead,
            reach,
            ..AttentionParams::default()
        };
        let mut data = queries_and_cache(&params, kv, out, rows, &part);
        data.extend((reach > 0).then(|| f32s(&values(43, (heads * params.bias_cols()) as usize))));
        let shape = Shape::sequences(all[part].to_vec(), longest, positions, 16);
        let op = ops::Attention { position_bias: reach > 0, ..ops::Attention::plain(kv, out) };
        Case::new(Kernel::Attention(op), params, shape, data)
    })
}

/// Scores of single heads, of rows that see all positions, some, or more than have scores.
pub fn head_scores() -> Vec<Spec> {
    let mut specs = vec![];
    for (i, (heads, kv_heads, dim)) in HEADS.into_iter().enumerate() {
        for (j, kv) in kv_types(dim).into_iter().enumerate() {
            let count = [37, 16, 100][(i + j) % 3];
            for head in [0, heads - 1] {
                specs.push(scores_of((heads, kv_heads, dim), head, kv, count));
            }
        }
    }
    specs.push(scores_of((2, 2, 64), 1, KvType::F16, 1500));
    specs
}

pub(crate) fn scores_of((heads, kv_heads, dim): (u32, u32, u32), head: u32, kv: KvType, count: u32) -> Spec {
    let window = (count + 3).next_multiple_of(16);
    let rows: Vec<Row> = [(count, 0), (count, window), (1, window), (count + 3, 0), (count / 2, window)]
        .map(|(kv_len, start)| Row { token: 0, position: kv_len - 1, kv_len, start })
        .into();
    let name = format!("scores of head {head} of {heads}/{kv_heads}x{dim} {kv:?} for {count}");
    spec(name, rows.len(), move |part| {
        let (positions, out_stride, cols) = (2 * window, count + 5, (heads * dim) as usize);
        let scale = 1.0 / (dim as f32).sqrt();
        let params =
            HeadScoresParams { heads, kv_heads, head_dim: dim, positions, scale, head, count, out_stride };
        let data = vec![
            pick(&f32s(&values(72, rows.len() * cols)), rows.len(), &part),
            cache(kv, 73, kv_heads, positions, dim),
            poison(part.len() * out_stride as usize * 4),
        ];
        let shape = Shape::sequences(rows[part].to_vec(), window, positions, 16);
        Case::new(Kernel::HeadScores(ops::HeadScores { kv }), params, shape, data)
    })
}
