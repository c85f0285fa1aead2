//! Plans for chips without having them.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use crate::common::{checked_in, options};
use akunu::{ChipChoice, DeviceChoice, DispatchTable, EngineOptions, Model, ModelPlan};
use akunu_plan::{Kernel, PassKind};

fn planned(model: &Model, chip: &str) -> ModelPlan {
    let options = EngineOptions { context: Some(2048), ..options(DeviceChoice::Auto) };
    let capabilities = chip.parse::<ChipChoice>().unwrap().capabilities(None);
    akunu::plan(model, &capabilities, &options).unwrap()
}

fn model(path: &Path) -> Model {
    Model::open(path).unwrap()
}

fn render(plan: &ModelPlan, table: &DispatchTable) -> String {
    table.render(&plan.buffers)
}

#[test]
fn tables_for_cuda_and_metal_match_their_snapshots() {
    let model = model(&checked_in("gguf/mixed-k.gguf"));
    let cuda = planned(&model, "cuda");
    insta::assert_snapshot!("cuda_decode", render(&cuda, cuda.tables.decode()));
    insta::assert_snapshot!("cuda_prefill", render(&cuda, cuda.tables.prefill()));
    let middle = cuda.tables.get(PassKind::MiddlePrefill).unwrap();
    insta::assert_snapshot!("cuda_middle_prefill", render(&cuda, middle));
    let metal = planned(&model, "metal");
    assert_eq!(render(&metal, metal.tables.decode()), render(&cuda, cuda.tables.decode()));
    insta::assert_snapshot!("metal_prefill", render(&metal, metal.tables.prefill()));
}

#[test]
fn gpus_fuse_norms_into_matmuls_and_cpus_do_not() {
    for name in ["llama-hd64-gqa2", "gemma2-hd64-softcap", "phi3-hd96-window", "qwen3-hd128-gqa2"] {
        let model = model(&checked_in("models").join(name));
        let commands = |chip: &str| planned(&model, chip).tables.decode().commands.len();
        assert_eq!(commands("cuda"), commands("metal:m4-pro"), "{name}");
        assert_eq!(commands("cpu"), commands("reference"), "{name}");
        assert!(commands("cuda") < commands("cpu"), "{name}");
    }
}

#[test]
fn long_prompts_multiply_in_f16_on_a_card_with_a_library_for_that() {
    let model = model(&checked_in("gguf/mixed-k.gguf"));
    let in_f16 = |chip: &str| {
        let tables = planned(&model, chip).tables;
        let is_half = |kernel: Kernel| matches!(kernel, Kernel::HalfMatmul(_) | Kernel::Unpack(_));
        (tables.prefill().commands.iter().any(|command| is_half(command.kernel)), tables.prefill().rows)
    };
    assert_eq!(in_f16("cuda"), (true, 2048));
    assert_eq!(in_f16("cuda:h200-noblas"), (false, 512));
    assert_eq!(in_f16("metal"), (false, 512));
    assert_eq!(in_f16("metal:m3-max"), (false, 1024));
}

#[test]
fn every_chip_has_a_plan() {
    let model = Model::embedded().unwrap();
    for chip in ChipChoice::all() {
        let plan = planned(&model, &chip.to_string());
        assert!(plan.memory.allocated() > 0, "{chip}");
    }
}
