//! Small shapes of every op, for Miri, which takes some thousand times as long as a processor. Products of rows have each
//! type of weights; products that take the same loops, gated ones and those of experts, have every third.

use std::collections::HashSet;

use akunu_plan::ops::GluKind;
use akunu_plan::{Activation, DType, KvType, OutputForms};

use crate::attention::{self, Seen, attend, attend_in_chunks, attend_with_sinks};
use crate::case::{Case, Spec};
use crate::data::dtypes;
use crate::rows::{self, ACTIVATIONS, OUTS};
use crate::{cache, experts, latent, matrices, state};

/// Rows that are packed before they are multiplied.
const PACKED: usize = 7;

/// Ops with weights: one row, and rows that are packed.
pub fn with_weights() -> Vec<Spec> {
    let mut specs = vec![];
    for (i, dtype) in dtypes().into_iter().enumerate() {
        let inputs = if dtype.block_len() == 1 { 7 } else { dtype.block_len() };
        specs.push(matrices::matmul(dtype, 1, (inputs, 5), i % 2 == 0, i % 3 == 0));
        // Whole tiles of 16 outputs have the same loops for all types.
        let outs = if i % 3 == 1 { 17 } else { 3 };
        specs.push(matrices::matmul(dtype, PACKED, (inputs, outs), i % 2 == 1, i % 3 == 1));
        if i % 3 == 0 {
            let turn = i / 3;
            specs.push(matrices::glu_matmul(dtype, 1, inputs, 32, ACTIVATIONS[turn % 5], OUTS[turn % 3]));
        }
    }
    // It has the loops of products, over three matrices.
    specs.push(matrices::qkv(DType::F16, 1, 7, true));
    specs.push(matrices::qkv(DType::Q8_0, PACKED, 32, false));
    specs.extend(first_of_each(rows::along_rows().into_iter().filter(|spec| spec.name.starts_with("embed"))));
    specs
}

/// Products of rows that are sorted by expert.
pub fn of_experts() -> Vec<Case> {
    let mut cases = vec![];
    for (i, dtype) in dtypes().into_iter().skip(1).step_by(3).enumerate() {
        let inputs = if dtype.block_len() == 1 { 7 } else { dtype.block_len() };
        let routed = [(1, 3, 2), (PACKED, 2, 1)][i % 2];
        cases.push(experts::expert_matmul(dtype, routed, [inputs, 5], i % 3 == 0));
        let glu = if i % 4 == 0 { GluKind::Clamped } else { GluKind::Plain(Activation::Silu) };
        cases.push(experts::expert_glu(
            dtype,
            routed,
            [inputs, 32],
            (glu, OUTS[i % 3]),
            (i % 3 == 1, i % 4 == 2),
        ));
    }
    for form in OUTS {
        cases.push(experts::gather(5, 32, (4, 2), form));
    }
    cases.push(experts::weigh_inputs(5, 37));
    cases.push(experts::combine(5, 37, 2, [true, true, true]));
    cases.push(experts::expert_sum(DType::Q4_0, (2, 3, 2), [32, 5], (true, [true, true, true])));
    cases
}

/// Attention and what writes the cache that it reads, in each type of cache.
pub fn of_the_cache() -> Vec<Spec> {
    let (one, many) = (
        Seen { rows: 1, first: 20, window: 0, soft_cap: 0.0, factor_step: 8, paged: false },
        Seen { rows: 5, first: 30, window: 17, soft_cap: 5.0, factor_step: 0, paged: true },
    );
    let mut specs = vec![];
    for kv in [KvType::F32, KvType::F16, KvType::Q8_0] {
        specs.push(attend((2, 1, 32), kv, one, OutputForms::Both));
        specs.push(attend((4, 2, 32), kv, many, OutputForms::F32));
        specs.push(attend_with_sinks((2, 1, 32), kv, many, OutputForms::Q8));
        specs.push(attend_in_chunks((2, 1, 32), kv, Seen { factor_step: 4, ..many }, OutputForms::F32));
        specs.push(attention::texts((2, 1, 32), kv, &[5, 1, 10], [4, 3, 0], OutputForms::F32));
        specs.push(attention::texts((2, 1, 32), kv, &[3, 7], [0, 0, 5], OutputForms::F32));
        specs.push(attention::scores_of((2, 1, 32), 1, kv, 16));
    }
    specs.extend(first_of_each(cache::rope()));
    specs.extend(first_of_each(cache::rope_before_norms()));
    specs
}

/// Latent attention and what goes before and after it, in each type of cache.
pub fn of_latents() -> Vec<Case> {
    let mut cases: Vec<Case> = first_of_each(latent::writes()).map(|spec| spec.whole()).collect();
    for (i, kv) in [KvType::F32, KvType::F16, KvType::Q8_0].into_iter().enumerate() {
        cases.push(latent::attention((kv, OUTS[i], i % 2 == 0), [[1, 3], [3, 2]][i % 2], 13, [64, 32]));
        cases.push(latent::apart(OUTS[i], [2, 3], [64, 96]));
        cases.push(latent::together(OUTS[i], [2, 4], 24));
        cases.extend(latent::moves(kv, 96, 32));
    }
    cases.push(latent::queries([2, 3], [20, 10, 8]));
    cases
}

/// Other ops of rows.
pub fn along_rows() -> Vec<Spec> {
    let along = rows::along_rows().into_iter().filter(|spec| !spec.name.starts_with("embed"));
    first_of_each(along.chain(experts::routes())).collect()
}

/// Other ops that depend on the rows of a pass, and moves in the cache.
pub fn other_cases() -> Vec<Case> {
    let mut cases = rows::asking();
    cases.push(matrices::asking());
    cases.extend(rows::of_audio());
    cases.extend(cache::moves_of((2, 1, 32)));
    cases.push(state::conv(&[(0, 14, 3), (1, 0, 1)], [5, 3], true, true));
    cases.push(state::scan(&[(0, 14, 3), (1, 0, 1)], [2, 17, 3, 1], true));
    cases
}

/// The first of specs whose names differ in numbers only.
fn first_of_each(specs: impl IntoIterator<Item = Spec>) -> impl Iterator<Item = Spec> {
    let mut seen = HashSet::new();
    let words = |name: &str| {
        let is_number = |word: &&str| word.trim_start_matches('[').starts_with(|c: char| c.is_ascii_digit());
        let words = name.split(' ').filter(|word| !is_number(word));
        words.collect::<Vec<_>>().join(" ")
    };
    specs.into_iter().filter(move |spec| seen.insert(words(&spec.name)))
}
