//! Ranks as emulated GPUs, which exchange what they have computed in kernels.

use std::path::Path;
use std::sync::Arc;

use akunu_arch::open_model;
use akunu_device_testing::goldens;
use akunu_emulated::Emulator;
use akunu_fixtures::Dequantised;
use akunu_fleet::Fleet;
use akunu_plan::{Device, Group, KvType, Member, OnHost};
use akunu_testing::{Cases, cases, fewest_or};

use crate::models::{all_match, counts, folders};

/// Makes an emulated GPU of some kind.
type Make = fn() -> Emulator;

fn ranks(count: usize, gpu: Make) -> Box<dyn Device> {
    let open = Arc::new(move |member: Member| Ok(Box::new(gpu().in_group(&member)?) as Box<dyn Device>));
    Box::new(Fleet::open(Group::members(count, 1), open).unwrap())
}

/// The same, whose numbers a library gathers, as it does for ranks in several processes.
fn gathering(count: usize, gpu: Make) -> Box<dyn Device> {
    let open = Arc::new(move |member: Member| Ok(Box::new(gpu().gathering(&member)?) as Box<dyn Device>));
    Box::new(Fleet::open(Group::members(count, 1), open).unwrap())
}

fn worst(name: &str, chunk: usize, open: &mut dyn FnMut() -> Box<dyn Device>) -> f64 {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name);
    let model = Dequantised::as_stored(&*open_model(&folder).unwrap());
    let golden = folder.join("golden.json");
    goldens::worst(&model, open, &golden, (chunk, KvType::F32, OnHost::default())).unwrap()
}

#[test]
fn emulated_ranks_match_float64_goldens() {
    if akunu_emulated::skipped() {
        return;
    }
    let cases: [(&str, usize, usize, Make); 7] = [
        ("llama-hd64-gqa2", 2, 1, Emulator::cuda),
        ("falcon-40b", 8, 7, Emulator::cuda),
        ("olmo2", 2, 7, Emulator::cuda),
        ("llama-hd64-gqa2", 2, 7, Emulator::cuda),
        ("qwen2-moe-shared", 3, 1, Emulator::default),
        ("gemma2-hd64-softcap", 4, 7, Emulator::default),
        ("llama4-hd32", 3, 7, Emulator::cuda),
    ];
    for (name, count, chunk, gpu) in cases.into_iter().take(fewest_or(1, 7, 7)) {
        let worst = worst(name, chunk, &mut || ranks(count, gpu));
        assert!(worst < 1e-5, "{name} on {count} ranks, chunks of {chunk}: {worst:.2e}");
    }
}

/// Some models on a number of ranks each; with all cases, each model on 2, 3, 4 and 8.
#[test]
fn models_match_on_numbers_of_emulated_ranks() {
    if akunu_emulated::skipped() {
        return;
    }
    let step = if cases() == Cases::All { 1 } else { fewest_or(50, 25, 9) };
    for (index, folder) in folders("models").into_iter().enumerate().step_by(step) {
        let gpu = if index % 2 == 0 { Emulator::default } else { Emulator::cuda };
        for count in counts(&folder, index) {
            all_match(count, [folder.clone()].into_iter(), &mut || ranks(count, gpu));
        }
    }
}

#[test]
fn emulated_ranks_of_several_processes_match_float64_goldens() {
    if akunu_emulated::skipped() {
        return;
    }
    let cases: [(&str, usize, usize, Make); 4] = [
        ("llama-hd64-gqa2", 2, 7, Emulator::cuda),
        ("minimax-m2", 2, 1, Emulator::cuda),
        ("qwen2-moe-shared", 3, 1, Emulator::default),
        ("gemma2-hd64-softcap", 4, 7, Emulator::cuda),
    ];
    for (name, count, chunk, gpu) in cases.into_iter().take(fewest_or(1, 2, 4)) {
        let worst = worst(name, chunk, &mut || gathering(count, gpu));
        assert!(worst < 1e-5, "{name} on {count} ranks, chunks of {chunk}: {worst:.2e}");
    }
}
