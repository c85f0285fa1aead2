//! One file a family. A new one is listed here, and named nowhere else.

mod gemma;
mod gemma2;
mod gemma3;
mod llama;
mod phi3;
mod qwen2;
mod qwen3;

use crate::Card;

pub static CARDS: &[&Card] =
    &[&llama::CARD, &qwen2::CARD, &qwen3::CARD, &gemma::CARD, &gemma2::CARD, &gemma3::CARD, &phi3::CARD];
