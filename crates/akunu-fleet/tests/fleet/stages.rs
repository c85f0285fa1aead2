//! The test models on several devices with some of the layers each, compared with one device to the bit.

use akunu_arch::{WeightProvider, open_model};
use akunu_device_testing::FailingDevice;
use akunu_device_testing::goldens::{self, Division};
use akunu_fleet::Hybrid;
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::{Capabilities, Device, DeviceError, FewRows, KvType, PlanOptions, Side, even_stages};
use akunu_testing::{fewest_or, some_of};

use crate::common::cpu;
use crate::models::{folders, name};

type Open = fn() -> Result<Box<dyn Device>, DeviceError>;

fn one_cpu() -> Result<Box<dyn Device>, DeviceError> {
    Ok(Box::new(cpu(2)))
}

/// A reference device that plans as a GPU does.
fn folding() -> Result<Box<dyn Device>, DeviceError> {
    let plain = ReferenceDevice::new();
    let like =
        Capabilities { folds: true, half_products: Some(FewRows::all(4)), ..plain.capabilities().clone() };
    Ok(Box::new(ReferenceDevice::like(&like)))
}

/// The logits of all positions on so many devices; an error says why the model cannot be planned.
fn logits(model: &dyn WeightProvider, open: Open, devices: usize, chunk: usize) -> Result<Vec<f32>, String> {
    let ids: Vec<u32> = (1..20).collect();
    let pass = (chunk, KvType::F16, Division { devices, ..Division::default() });
    let found = match devices {
        1 => goldens::logits(model, &mut *open().unwrap(), &ids, pass),
        _ => goldens::logits(model, &mut Hybrid::stages(devices, move |_| open()).unwrap(), &ids, pass),
    };
    found.map(|logits| logits.concat())
}

#[test]
fn layers_on_several_devices_have_the_bits_of_one() {
    let mut count = 0;
    for folder in some_of([folders("models"), folders("quantised")].concat(), 3) {
        let model = open_model(&folder).unwrap();
        for (open, chunk) in
            [(one_cpu as Open, 5), (one_cpu as Open, 1), (folding as Open, 7), (folding as Open, 1)]
        {
            let Ok(alone) = logits(&*model, open, 1, chunk) else { continue };
            for devices in 2..=model.config().layer_count.min(4) {
                let found = logits(&*model, open, devices, chunk).unwrap();
                let same = alone.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same && alone.len() == found.len(), "{} on {devices} devices", name(&folder));
                count += 1;
            }
        }
    }
    assert!(count > fewest_or(8, 20, 20), "{count}");
}

/// To the byte, on each device.
#[test]
fn each_device_allocates_what_was_planned() {
    let mut compared = 0;
    for folder in some_of([folders("models"), folders("quantised")].concat(), 3) {
        let model = open_model(&folder).unwrap();
        let devices = model.config().layer_count.min(3);
        let mut staged = Hybrid::stages(devices, |_| one_cpu()).unwrap();
        let stages = even_stages(&*model, &vec![1; devices]).unwrap();
        let options = PlanOptions { stages, ..goldens::options(40, 600, KvType::F16, Division::default()) };
        let Ok(plan) = akunu_plan::plan(&*model, staged.capabilities(), &options) else { continue };
        akunu_plan::load(&plan, &*model, &mut staged, &mut akunu_plan::unwatched).unwrap();
        let sides = (0..plan.stages.len() as u8).map(Side::Stage).chain([Side::Device]);
        let found: Vec<u64> = sides.map(|side| staged.bytes_of(side).unwrap()).collect();
        let planned = plan.memory_of_devices().map(|memory| memory.allocated());
        assert_eq!(found, planned.collect::<Vec<_>>(), "{}", name(&folder));
        assert_eq!(staged.allocated_bytes(), plan.whole_memory().allocated());
        compared += 1;
    }
    assert!(compared >= 5, "{compared} models");
}

#[test]
fn devices_that_cannot_be_opened_or_are_of_several_kinds_are_refused() {
    let refused = |count: usize, open: fn(usize) -> Result<Box<dyn Device>, DeviceError>| {
        Hybrid::stages(count, open).unwrap_err().to_string()
    };
    for index in [0, 2] {
        let open: fn(usize) -> Result<Box<dyn Device>, DeviceError> = match index {
            0 => |index| if index == 0 { Err(DeviceError::Cancelled) } else { one_cpu() },
            _ => |index| if index == 2 { Err(DeviceError::Cancelled) } else { one_cpu() },
        };
        assert!(refused(3, open).contains("cancelled"));
    }
    let mixed = refused(2, |index| if index == 0 { one_cpu() } else { folding() });
    assert!(mixed.contains("of one kind"), "{mixed}");
    for count in [0, 17] {
        assert!(refused(count, |_| one_cpu()).contains("has to be 1 to 16"));
    }
}

#[test]
fn a_device_that_fails_or_panics_is_named() {
    let model = open_model(&folders("models")[0]).unwrap();
    let plan_of = |device: &dyn Device| {
        let stages = even_stages(&*model, &[1, 1]).unwrap();
        let options = PlanOptions { stages, ..goldens::options(16, 4, KvType::F16, Division::default()) };
        akunu_plan::plan(&*model, device.capabilities(), &options).unwrap()
    };
    for (failing, panics) in [(0, false), (1, false), (0, true), (1, true)] {
        let mut staged = Hybrid::stages(2, move |index| {
            let device = FailingDevice::new(one_cpu()?);
            if index == failing {
                let switch = if panics { device.panicking() } else { device.failing() };
                switch.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            Ok(Box::new(device))
        })
        .unwrap();
        let plan = plan_of(&staged);
        let loaded = akunu_plan::load(&plan, &*model, &mut staged, &mut akunu_plan::unwatched).unwrap();
        let rows = [akunu_plan::Row::causal(1, 0, 0)];
        let submission = akunu_plan::Submission {
            entries: akunu_plan::Entries::Rows(&rows),
            logit_rows: &[0],
            steps: 1,
            stop: &[],
            cancel: None,
        };
        let mut run = || {
            let replay = loaded.replays[akunu_plan::PassKind::Decode];
            staged.replay(replay, submission).and_then(|()| staged.wait()).map(drop)
        };
        let failed = run().unwrap_err().to_string();
        let reason = if panics { "it panicked" } else { "it failed on purpose" };
        assert!(failed.contains(&format!("device {failing} of 2: ")) && failed.contains(reason), "{failed}");
        // The switch is off again. What a device was doing when it panicked is half done.
        let again = run().map_err(|error| error.to_string());
        match panics {
            true => assert_eq!(again, Err(failed)),
            false => again.unwrap(),
        }
    }
}

/// Rewrites that join the layers of two devices have the bits of kernels that join those of one.
#[cfg(all(unix, any(target_arch = "x86_64", target_arch = "aarch64")))]
#[test]
fn layers_on_emulated_gpus_have_the_bits_of_one() {
    use akunu_emulated::Emulator;

    if akunu_emulated::skipped() {
        return;
    }
    let cuda: Open = || Ok(Box::new(Emulator::cuda().device()?));
    let metal: Open = || Ok(Box::new(Emulator::default().device()?));
    let cases = [
        ("llama-hd64-gqa2", cuda, 1),
        ("llama-hd64-gqa2", metal, 7),
        ("gemma2-hd64-softcap", cuda, 7),
        ("qwen3-moe-hd64", cuda, 1),
        ("deepseek-v3-hd32", metal, 1),
        ("llama4-hd32", cuda, 7),
    ];
    for (model, open, chunk) in cases.into_iter().step_by(fewest_or(5, 1, 1)) {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(model);
        let weights = open_model(&folder).unwrap();
        let alone = logits(&*weights, open, 1, chunk).unwrap();
        for devices in (2..=weights.config().layer_count.min(4)).step_by(fewest_or(2, 1, 1)) {
            let found = logits(&*weights, open, devices, chunk).unwrap();
            let same = alone.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same && alone.len() == found.len(), "{model} on {devices} devices");
        }
    }
}
