//! One file per family. A new family is listed here, and named nowhere else.

mod bert;
mod cohere;
mod exaone;
mod falcon;
mod gemma;
mod gemma2;
mod gemma3;
mod glm4;
mod gptneox;
mod granite;
mod internlm2;
mod llama;
mod mistral3;
mod modern_bert;
mod mpnet;
mod nomic_bert;
mod olmo2;
mod phi2;
mod phi3;
mod qwen2;
mod qwen3;
mod smollm3;
mod stablelm;
mod starcoder2;
mod whisper;

use crate::Card;

pub static CARDS: &[&Card] = &[
    &llama::CARD,
    &qwen2::CARD,
    &qwen3::CARD,
    &gemma::CARD,
    &gemma2::CARD,
    &gemma3::CARD,
    &phi3::CARD,
    &cohere::CARD,
    &cohere::COHERE2,
    &exaone::CARD,
    &falcon::CARD,
    &glm4::CARD,
    &glm4::GLM,
    &gptneox::CARD,
    &granite::CARD,
    &internlm2::CARD,
    &olmo2::CARD,
    &phi2::CARD,
    &smollm3::CARD,
    &stablelm::CARD,
    &mistral3::CARD,
    &starcoder2::CARD,
    &bert::CARD,
    &mpnet::CARD,
    &nomic_bert::CARD,
    &modern_bert::CARD,
    &whisper::CARD,
];
