//! What tests of devices share: each op in the shapes in which it is tested, on the CPU and in the emulator alike,
//! sampling on any device, and a device that fails. It is a dev-dependency only.
//!
//! The shapes of an op are in the module of its kind, in a list that [`specs`] or [`cases`] has.
#![allow(clippy::unwrap_used, reason = "a test fails where one of its cases cannot be made")]
#![allow(missing_debug_implementations, reason = "nothing prints a case")]

pub mod attention;
pub mod cache;
mod case;
mod data;
pub mod experts;
mod failing;
pub mod folded;
pub mod goldens;
mod halves;
mod late;
pub mod latent;
pub mod matrices;
pub mod rows;
pub mod sampled;
pub mod small;
pub mod state;

pub use case::{Case, POISON, Shape, Spec, Work};
pub use data::{f32s, poison, q8_row, to_f32s, values, weight_rows, weights};
pub use failing::FailingDevice;
pub use halves::{eights, halves, packed, picked};
pub use late::LateDevice;

/// Every op of all devices that works on rows, for any part of them.
pub fn specs() -> Vec<Spec> {
    let mut all = matrices::matrices();
    all.extend(experts::routes());
    all.extend(rows::along_rows());
    all.extend(cache::rope());
    all.extend(cache::rope_before_norms());
    all.extend(latent::writes());
    all.extend(attention::attention());
    all.extend(attention::attention_with_sinks());
    all.extend(attention::attention_in_chunks());
    all.extend(attention::whole_texts());
    all.extend(attention::head_scores());
    all
}

/// Ops over rows that request logits, moves in the cache, and ops that depend on all rows of a pass.
pub fn cases() -> Vec<Case> {
    let mut all = asking();
    all.extend(cache::moves());
    all.extend(rows::of_audio());
    all.extend(experts::experts());
    all.extend(latent::latent());
    all.extend(state::states());
    all
}

/// Ops over rows that request logits.
pub fn asking() -> Vec<Case> {
    let mut all = rows::asking();
    all.push(matrices::asking());
    all
}
