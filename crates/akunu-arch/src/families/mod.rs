//! One file per family. A new family is listed here, and named nowhere else.

mod bert;
mod cohere;
mod deepseek;
mod dots1;
mod ernie4_5_moe;
mod exaone;
mod falcon;
mod gemma;
mod gemma2;
mod gemma3;
mod glm4;
mod glm4_moe;
mod gpt_oss;
mod gptneox;
mod granite;
mod granite_hybrid;
mod granite_moe;
mod hunyuan_moe;
mod internlm2;
mod llama;
mod llama4;
mod minimax_m2;
mod mistral3;
mod modern_bert;
mod mpnet;
mod nomic_bert;
mod olmo2;
mod olmoe;
mod phi2;
mod phi3;
mod phimoe;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_moe;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;
mod whisper;

use crate::Card;

pub static CARDS: &[&Card] = &[
    &llama::CARD,
    &qwen2::CARD,
    &qwen3::CARD,
    &qwen2_moe::CARD,
    &qwen3_moe::CARD,
    &gemma::CARD,
    &gemma2::CARD,
    &gemma3::CARD,
    &phi3::CARD,
    &cohere::CARD,
    &cohere::COHERE2,
    &deepseek::CARD,
    &dots1::CARD,
    &ernie4_5_moe::CARD,
    &exaone::CARD,
    &falcon::CARD,
    &glm4::CARD,
    &glm4::GLM,
    &glm4_moe::CARD,
    &gpt_oss::CARD,
    &gptneox::CARD,
    &granite_hybrid::CARD,
    &granite::CARD,
    &granite_moe::CARD,
    &hunyuan_moe::CARD,
    &internlm2::CARD,
    &llama4::CARD,
    &olmo2::CARD,
    &olmoe::CARD,
    &minimax_m2::CARD,
    &phi2::CARD,
    &phimoe::CARD,
    &seed_oss::CARD,
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
