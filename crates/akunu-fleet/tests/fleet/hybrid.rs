//! The test models with a part of them on the host, compared with float64 logits from Hugging Face transformers.

use std::path::Path;

use akunu_arch::{WeightProvider, open_model};
use akunu_device_testing::goldens::{self, Division};
use akunu_fixtures::Dequantised;
use akunu_fleet::Hybrid;
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::{Device, FewRows, KvType, OnHost, Side};
use akunu_testing::{fewest_or, some_of};

use crate::common::cpu;
use crate::models::{folders, name};

/// A reference device that plans as a GPU does, and the CPU.
fn folding() -> Box<dyn Device> {
    let plain = ReferenceDevice::new();
    let like = akunu_plan::Capabilities {
        folds: true,
        half_products: Some(FewRows::all(4)),
        ..plain.capabilities().clone()
    };
    Box::new(Hybrid::new(Box::new(ReferenceDevice::like(&like)), Box::new(cpu(2))))
}

/// Each part on the host computed there, and streamed to the device in passes of so many rows.
fn divisions(model: &dyn WeightProvider, stream_rows: usize) -> Vec<Division> {
    let of = |host| {
        [None, Some(stream_rows)].map(|stream_rows| Division { host, stream_rows, ..Division::default() })
    };
    splits(model).into_iter().flat_map(of).collect()
}

/// Parts of a model on the host: some layers or all, experts or none, and both.
fn splits(model: &dyn WeightProvider) -> Vec<OnHost> {
    let (layers, has_experts) = (model.config().layer_count, model.config().experts.is_some());
    let experts = if has_experts { layers } else { 0 };
    let mut all = vec![
        OnHost { layers: 1, experts: 0 },
        OnHost { layers, experts: 0 },
        OnHost { layers: 0, experts },
        OnHost { layers: 1, experts },
    ];
    all.retain(|host| !host.is_nothing());
    all.dedup();
    all
}

#[test]
fn models_with_parts_on_the_host_match_float64_goldens() {
    let mut count = 0;
    for folder in some_of(folders("models"), 3) {
        let model = Dequantised::as_stored(&*open_model(&folder).unwrap());
        for (split, chunk) in divisions(&model, 2).into_iter().zip([7, 7, 1, 3, 1, 3, 7, 7]) {
            let golden = folder.join("golden.json");
            // Products in half precision are not as exact.
            let (kv, most) = (KvType::F32, if chunk > 4 { 4e-3 } else { 1e-5 });
            let worst = goldens::worst(&model, &mut folding, &golden, (chunk, kv, split)).unwrap();
            assert!(worst < most, "{} with {split:?}, {chunk} rows: {worst:.2e}", name(&folder));
            count += 1;
        }
    }
    assert!(count > fewest_or(8, 20, 20), "{count}");
}

/// The device's own products are those of a plan without a host, so the bits of what it computes are the same, and the host
/// computes what the CPU alone does.
#[test]
fn a_cpu_beside_a_cpu_has_the_bits_of_one() {
    let ids: Vec<u32> = (1..20).collect();
    for folder in some_of([folders("quantised"), folders("models")].concat(), 3) {
        let model = open_model(&folder).unwrap();
        let of = |device: &mut dyn Device, host| {
            goldens::logits(&*model, device, &ids, (5, KvType::F16, host)).map(|logits| logits.concat())
        };
        let Ok(alone) = of(&mut cpu(2), Division::default()) else { continue };
        for split in divisions(&*model, 5) {
            let mut hybrid = Hybrid::new(Box::new(cpu(2)), Box::new(cpu(2)));
            let found = of(&mut hybrid, split).unwrap();
            let same = alone.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same && alone.len() == found.len(), "{} with {split:?}", name(&folder));
        }
    }
}

/// To the byte, on both sides.
#[test]
fn both_sides_allocate_what_was_planned() {
    for folder in some_of([folders("quantised"), folders("models")].concat(), 3) {
        let model = open_model(&folder).unwrap();
        for split in divisions(&*model, 1) {
            let mut hybrid = Hybrid::new(Box::new(ReferenceDevice::new()), Box::new(cpu(2)));
            let options = goldens::options(40, 600, KvType::F16, split);
            let Ok(plan) = akunu_plan::plan(&*model, hybrid.capabilities(), &options) else { continue };
            akunu_plan::load(&plan, &*model, &mut hybrid, &mut akunu_plan::unwatched).unwrap();
            let found = [hybrid.allocated_bytes(), hybrid.bytes_of(Side::Host).unwrap()];
            let planned = [plan.memory.allocated(), plan.memory.host_work];
            assert_eq!(found, planned, "{} with {split:?}", name(&folder));
        }
    }
}

/// Blocks are not shorter than the groups of keys of either side.
#[test]
fn short_contexts_are_in_blocks_that_both_sides_have() {
    let model = open_model(&folders("models")[0]).unwrap();
    for (context, split) in
        (1..9).flat_map(|context| divisions(&*model, 1).into_iter().map(move |s| (context, s)))
    {
        let mut hybrid = Hybrid::new(Box::new(ReferenceDevice::new()), Box::new(cpu(1)));
        let options = goldens::options(context, context, KvType::F16, split);
        let plan = akunu_plan::plan(&*model, hybrid.capabilities(), &options).unwrap();
        akunu_plan::load(&plan, &*model, &mut hybrid, &mut akunu_plan::unwatched).unwrap();
    }
}

/// Keys, blocks and forms of rows differ between an emulated GPU and the CPU.
#[cfg(all(unix, any(target_arch = "x86_64", target_arch = "aarch64")))]
#[test]
fn emulated_gpus_leave_parts_to_the_cpu() {
    use akunu_emulated::Emulator;

    if akunu_emulated::skipped() {
        return;
    }
    type Make = fn() -> Emulator;
    let cases: [(&str, usize, Make); 6] = [
        ("qwen3-moe-hd64", 7, Emulator::cuda),
        ("gpt-oss", 1, Emulator::default),
        ("deepseek-v3-hd32", 7, Emulator::cuda),
        ("deepseek-v2-lite", 1, Emulator::cuda),
        ("gemma2-hd64-softcap", 7, Emulator::default),
        ("llama4-hd32", 7, Emulator::cuda),
    ];
    for (case, (name, chunk, gpu)) in cases.into_iter().enumerate().step_by(fewest_or(4, 1, 1)) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name);
        let model = Dequantised::as_stored(&*open_model(&folder).unwrap());
        let mut open = || -> Box<dyn Device> {
            Box::new(Hybrid::new(Box::new(gpu().device().unwrap()), Box::new(cpu(2))))
        };
        let all = splits(&model);
        let split = all[case % all.len()];
        for stream_rows in [None, Some(1)].into_iter().take(chunk.min(2)) {
            let pass = (chunk, KvType::F32, Division { host: split, stream_rows, ..Division::default() });
            let worst = goldens::worst(&model, &mut open, &folder.join("golden.json"), pass).unwrap();
            assert!(worst < 1e-5, "{name} with {pass:?}: {worst:.2e}");
        }
    }
}

/// Command by command, with products in half precision on the GPU.
#[cfg(all(unix, any(target_arch = "x86_64", target_arch = "aarch64")))]
#[test]
fn commands_on_both_sides_agree_with_the_reference() {
    use akunu_emulated::Emulator;

    if akunu_emulated::skipped() {
        return;
    }
    let tokens: Vec<u32> = (1..42).collect();
    let names = ["deepseek-v3-hd32", "qwen2-moe-shared", "llama4-hd32"];
    for name in names.into_iter().take(fewest_or(1, 3, 3)) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name);
        let model = open_model(&folder).unwrap();
        for split in splits(&*model).into_iter().step_by(2) {
            let gpu = Emulator::cuda().with_half_products(4).device().unwrap();
            let mut device = Hybrid::new(Box::new(gpu), Box::new(cpu(2)));
            let division = Division { host: split, stream_rows: Some(2), ..Division::default() };
            let options = goldens::options(64, 40, KvType::F16, division);
            let plan = akunu_plan::plan(&*model, device.capabilities(), &options).unwrap();
            let report =
                akunu_plan::verify::verify(&plan, &*model, &mut device, &tokens, &mut |_, _| ()).unwrap();
            assert!(report.first_bad().is_none(), "{name} with {split:?}: {:?}", report.first_bad());
        }
    }
}

#[test]
fn what_cannot_be_split_is_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models/llama-hd64-gqa2");
    let model = open_model(&folder).unwrap();
    let ids = [1, 2, 3];
    let refused = |device: &mut dyn Device, host| {
        goldens::logits(&*model, device, &ids, (3, KvType::F16, host)).unwrap_err()
    };
    let alone = refused(&mut ReferenceDevice::new(), OnHost { layers: 1, experts: 0 });
    assert!(alone.contains("no CPU beside this device"), "{alone}");
    let without_experts = refused(&mut *folding(), OnHost { layers: 0, experts: 1 });
    assert!(without_experts.contains("no experts"), "{without_experts}");
    let too_many = refused(&mut *folding(), OnHost { layers: 1000, experts: 0 });
    assert!(too_many.contains("1000 layers"), "{too_many}");
}
