//! Guarantees of a plan: exact memory sizes, and errors that name the cause.

#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;

use crate::common::{FakeModel, affine, capabilities, config, family, model, options};
use akunu_arch::WindowPattern;
use akunu_format::DType;
use akunu_plan::mock::{Call, MockDevice};
use akunu_plan::ops::AttentionParams;
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::{
    BufferKind, Capabilities, Device, DispatchCommand, Entries, FewRows, InPlace, Kernel, KvType, Move,
    PlanOptions, Row, Submission, extents, load, plan, unwatched,
};

fn refusal(model: &FakeModel, options: &PlanOptions) -> String {
    plan(model, &capabilities(), options).unwrap_err().to_string()
}

#[test]
fn the_device_allocates_what_was_planned() {
    for name in ["llama", "gemma3"] {
        for in_place in [InPlace::All, InPlace::Nothing] {
            for kv in [KvType::F32, KvType::F16, KvType::Q8_0] {
                let model = model(family(name), |_| DType::Q8_0);
                let capabilities = Capabilities {
                    in_place,
                    workspace_bytes: 77,
                    workspace_row_bytes: 0,
                    streaming_bytes: 0,
                    ranks: 1,
                    host: None,
                    stages: Vec::new(),
                    half_products: (kv == KvType::F16).then_some(FewRows::all(16)),
                    ..capabilities()
                };
                let plan =
                    plan(&model, &capabilities, &PlanOptions { kv, prefill_rows: 20, ..options() }).unwrap();
                let mut device = MockDevice::new(capabilities);
                load(&plan, &model, &mut device, &mut unwatched).unwrap();
                assert_eq!(device.allocated_bytes(), plan.memory.allocated());
                let imports = device.calls.iter().filter(|c| matches!(c, Call::Import { .. })).count();
                let weights =
                    plan.buffers.iter().filter(|b| matches!(b.kind, BufferKind::Weight { .. })).count();
                assert_eq!(imports, weights);
            }
        }
    }
}

#[test]
fn loading_reports_the_bytes_of_weights_and_can_be_cancelled_at_any_report() {
    let model = model(family("llama"), |_| DType::Q8_0);
    let capabilities = Capabilities { in_place: InPlace::Nothing, ..capabilities() };
    let plan = plan(&model, &capabilities, &options()).unwrap();
    let mut reports = Vec::new();
    let mut device = MockDevice::new(capabilities.clone());
    let all = &mut |done, total| {
        reports.push((done, total));
        ControlFlow::Continue(())
    };
    load(&plan, &model, &mut device, all).unwrap();
    let weights: Vec<u64> = plan
        .buffers
        .iter()
        .filter(|buffer| matches!(buffer.kind, BufferKind::Weight { .. }))
        .map(|buffer| buffer.bytes)
        .collect();
    let total: u64 = weights.iter().sum();
    let mut expected = vec![(0, total)];
    expected.extend(weights.iter().scan(0, |done, bytes| {
        *done += bytes;
        Some((*done, total))
    }));
    let prepared = device.calls.iter().filter(|call| matches!(call, Call::Prepare { .. })).count();
    expected.extend(vec![(total, total); prepared]);
    assert_eq!(reports, expected);
    assert!(prepared > 0);
    for stop in [0, 1, weights.len(), reports.len() - 1] {
        let mut count = 0;
        let mut device = MockDevice::new(capabilities.clone());
        let until = &mut |_, _| {
            count += 1;
            if count > stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let error = load(&plan, &model, &mut device, until).unwrap_err();
        assert!(matches!(error, akunu_plan::DeviceError::Cancelled), "{error}");
        assert_eq!(count, stop + 1);
        let imports = device.calls.iter().filter(|call| matches!(call, Call::Import { .. })).count();
        assert_eq!(imports, stop.min(weights.len()));
    }
}

#[test]
fn affine_weights_take_their_packed_bytes_and_no_more() {
    for in_place in [InPlace::All, InPlace::Nothing] {
        let model = model(family("qwen2"), |_| affine(4, 64));
        let capabilities = Capabilities { in_place, ..capabilities() };
        let plan = plan(&model, &capabilities, &options()).unwrap();
        let mut device = MockDevice::new(capabilities);
        load(&plan, &model, &mut device, &mut unwatched).unwrap();
        assert_eq!(device.allocated_bytes(), plan.memory.allocated());

        let of = |vectors: bool| model.tensors.iter().filter(move |t| (t.shape.len() == 1) == vectors);
        let packed: u64 = of(false).map(|t| t.stored_bytes() as u64).sum();
        let weights: u64 = of(false).map(|t| (t.rows() * t.cols()) as u64).sum();
        // 4 bits, and an f16 scale and offset per 64: 4.5 bits per weight.
        assert_eq!(packed * 16, weights * 9);
        let vectors: u64 = of(true).map(|t| t.cols() as u64 * 4).sum();
        let memory = plan.memory;
        let expected = if in_place == InPlace::All { (packed, vectors) } else { (0, packed + vectors) };
        assert_eq!((memory.weights_in_place, memory.weights_copied), expected);
        // One import for each plane, with exactly its bytes.
        let imported: u64 = device
            .calls
            .iter()
            .map(|call| if let Call::Import { bytes, .. } = call { *bytes as u64 } else { 0 })
            .sum();
        assert_eq!(imported, packed);
    }
}

#[test]
fn the_reference_allocates_what_was_planned() {
    let model = model(family("qwen3"), |_| DType::Q8_0);
    let mut device = ReferenceDevice::new();
    let plan = plan(&model, device.capabilities(), &options()).unwrap();
    load(&plan, &model, &mut device, &mut unwatched).unwrap();
    assert_eq!(device.allocated_bytes(), plan.memory.allocated());
}

#[test]
fn a_table_takes_entries_of_its_own_kind_and_within_its_bounds() {
    let model = model(config("llama"), |_| DType::F16);
    let mut device = MockDevice::new(capabilities());
    let plan = plan(&model, &capabilities(), &options()).unwrap();
    let loaded = load(&plan, &model, &mut device, &mut unwatched).unwrap();
    let mut replay = |replay, entries: Entries<'_>| {
        let submission = Submission { entries, logit_rows: &[], steps: 1, stop: &[], cancel: None };
        device.replay(replay, submission).map_err(|error| error.to_string())
    };
    // Two slots of 32 positions.
    let (copy, row) = (Move { from: 0, to: 32, len: 32 }, Row::causal(0, 31, plan.slot_start(1)));
    replay(*loaded.replays.kv_copy(), Entries::Moves(&[copy])).unwrap();
    replay(*loaded.replays.prefill(), Entries::Rows(&[row])).unwrap();
    let refusals = [
        (*loaded.replays.kv_copy(), Entries::Rows(&[row]), "table kv_copy takes moves, not rows"),
        (*loaded.replays.prefill(), Entries::Moves(&[copy]), "table prefill takes rows, not moves"),
        (
            *loaded.replays.kv_shift(),
            Entries::Moves(&[copy]),
            "move 0, of 32 positions from 0 on to 32, is not valid for table kv_shift",
        ),
        (
            *loaded.replays.prefill(),
            Entries::Rows(&[Row::causal(0, 32, 0)]),
            "row 0 has token 0, position 32 or start 0 outside the model's bounds",
        ),
        (*loaded.replays.kv_copy(), Entries::Moves(&[copy; 2]), "submission of 2 rows"),
    ];
    for (table, entries, expected) in refusals {
        let refusal = replay(table, entries).unwrap_err();
        assert!(refusal.contains(expected), "{refusal}");
    }

    let (shift, copy) = (plan.tables.kv_shift(), plan.tables.kv_copy());
    for (table, command) in
        [(plan.tables.prefill(), shift), (copy, shift), (shift, copy), (copy, plan.tables.prefill())]
    {
        let error = extents(table, &command.commands[0]).unwrap_err();
        assert!(error.contains(&format!("the entries of table {}", table.name)), "{error}");
    }
}

#[test]
fn kv_bytes_follow_the_cache_type() {
    let bytes = |kv| {
        let model = model(config("llama"), |_| DType::F16);
        plan(&model, &capabilities(), &PlanOptions { kv, ..options() }).unwrap().memory.kv
    };
    // 2 (K, V) · 2 layers · 2 heads · 2 slots of 32 positions · 64 elements
    assert_eq!(bytes(KvType::F32), 2 * 2 * 2 * 2 * 32 * 64 * 4);
    assert_eq!(bytes(KvType::F16), 2 * 2 * 2 * 2 * 32 * 64 * 2);
    assert_eq!(bytes(KvType::Q8_0), 2 * 2 * 2 * 2 * 32 * 64 / 32 * 34);
}

#[test]
fn an_unknown_architecture_is_refused_with_the_known_ones() {
    let text = refusal(&model(config("mamba"), |_| DType::F16), &options());
    assert!(text.contains("\"mamba\"") && text.contains("llama") && text.contains("gemma3"), "{text}");
}

#[test]
fn missing_misshapen_mistyped_and_unknown_tensors_are_named() {
    let mut m = model(config("llama"), |_| DType::F16);
    m.tensors.retain(|t| t.name != "blk.1.ffn_up.weight");
    assert!(refusal(&m, &options()).contains("blk.1.ffn_up.weight is missing"));

    let mut m = model(config("llama"), |_| DType::F16);
    m.tensors.iter_mut().find(|t| t.name == "blk.0.attn_k.weight").unwrap().shape = vec![64, 256];
    let text = refusal(&m, &options());
    assert!(
        text.contains("blk.0.attn_k.weight") && text.contains("[64, 256]") && text.contains("[128, 256]")
    );

    let mut m = model(config("llama"), |_| DType::F16);
    m.tensors.iter_mut().find(|t| t.name == "blk.0.attn_norm.weight").unwrap().dtype = DType::Q8_0;
    assert!(refusal(&m, &options()).contains("blk.0.attn_norm.weight is Q8_0"));

    let mut m = model(config("llama"), |_| DType::F16);
    let mut extra = m.tensors[2].clone();
    extra.name = "blk.0.ffn_gate_exps.weight".into();
    m.tensors.push(extra);
    assert!(refusal(&m, &options()).contains("blk.0.ffn_gate_exps.weight"));

    let qwen = model(config("qwen3"), |_| DType::F16);
    let mut m = FakeModel { config: config("qwen3"), ..model(config("llama"), |_| DType::F16) };
    assert!(refusal(&m, &options()).contains("attn_q_norm.weight is missing"));
    m.config = config("llama");
    assert!(plan(&m, &capabilities(), &options()).is_ok());
    assert!(plan(&qwen, &capabilities(), &options()).is_ok());
}

#[test]
fn shapes_that_no_table_fits_are_refused() {
    let with = |change: &dyn Fn(&mut akunu_arch::ModelConfig)| {
        let mut m = model(config("llama"), |_| DType::F16);
        change(&mut m.config);
        m
    };
    assert!(
        refusal(&with(&|c| c.head_count = 3), &options())
            .contains("3 heads are not a multiple of 2 KV heads")
    );
    assert!(refusal(&with(&|c| c.kv_head_count = 0), &options()).contains("KV head count is 0"));
    assert!(refusal(&with(&|c| c.rope.dims = 66), &options()).contains("RoPE over 66 dimensions"));
    assert!(refusal(&with(&|c| c.rope.dims = 7), &options()).contains("RoPE over 7 dimensions"));
    let q8 = PlanOptions { kv: KvType::Q8_0, ..options() };
    assert!(refusal(&with(&|c| (c.head_dim, c.rope.dims) = (40, 40)), &q8).contains("use --kv-type f16"));
    let huge = PlanOptions { context: usize::MAX, ..options() };
    assert!(refusal(&with(&|_| {}), &huge).contains("context must be from 1"));
    let many = PlanOptions { context: i32::MAX as usize, slots: 3, ..options() };
    assert!(refusal(&with(&|_| {}), &many).contains("more than 4294967295 cache positions"));
}

#[test]
fn windows_follow_the_file_first_and_the_family_second() {
    let windows = |name: &str, pattern: WindowPattern, layers: usize| -> Vec<u32> {
        let mut config = family(name);
        config.layer_count = layers;
        config.window = Some(akunu_arch::Window { size: 8, pattern });
        let plan = plan(&model(config, |_| DType::F16), &capabilities(), &options()).unwrap();
        let attends = |c: &&DispatchCommand| matches!(c.kernel, Kernel::Attention(_));
        let commands = plan.tables.decode().commands.iter().filter(attends);
        commands.map(|c| c.params::<AttentionParams>().window).collect()
    };
    assert_eq!(windows("gemma2", WindowPattern::Unstated, 4), [8, 0, 8, 0]);
    assert_eq!(windows("gemma3", WindowPattern::Unstated, 7), [8, 8, 8, 8, 8, 0, 8]);
    assert_eq!(windows("gemma3", WindowPattern::FullEvery(3), 4), [8, 8, 0, 8]);
    assert_eq!(windows("llama", WindowPattern::Unstated, 2), [8, 8]);
    assert_eq!(windows("qwen3", WindowPattern::Layers(vec![false, true]), 2), [0, 8]);
}

/// `config.json` may state any number.
#[test]
fn windows_beyond_any_context_hide_nothing() {
    for size in [u32::MAX as usize, 1 << 32, (1 << 32) + 4] {
        let mut config = family("llama");
        config.window = Some(akunu_arch::Window { size, pattern: WindowPattern::Unstated });
        let plan = plan(&model(config, |_| DType::F16), &capabilities(), &options()).unwrap();
        let commands = &plan.tables.decode().commands;
        let attends = commands.iter().find(|c| matches!(c.kernel, Kernel::Attention(_))).unwrap();
        assert_eq!(attends.params::<AttentionParams>().window, u32::MAX, "{size}");
    }
}
