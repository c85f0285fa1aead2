//! Snapshots of tables, and properties of every table.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use crate::common::{affine, capabilities, config, family, model, options};
use akunu_arch::{Pooling, WeightProvider, open_model};
use akunu_plan::ops::InputForm;
use akunu_plan::{
    Access, Capabilities, Card, DType, DispatchCommand, DispatchTable, EncodeOptions, EncodeOutput, FewRows,
    Kernel, KvType, ModelPlan, PackedRows, PassKind, PlanOptions, RowSet, extents, plan, plan_encoder,
};

const FAMILIES: [&str; 7] = ["llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3"];

fn planned(family_name: &str, dtype: impl Fn(&str) -> DType, options: &PlanOptions) -> ModelPlan {
    plan(&model(family(family_name), dtype), &capabilities(), options).unwrap()
}

#[test]
fn every_family_has_a_row_and_a_snapshot() {
    for name in FAMILIES {
        assert!(Card::find(name).is_some());
        for fuse in [true, false] {
            let plan = planned(name, |_| DType::Q4_0, &PlanOptions { fuse, ..options() });
            let kind = if fuse { "fused" } else { "apart" };
            insta::assert_snapshot!(
                format!("{name}_{kind}_decode"),
                plan.tables.decode().render(&plan.buffers)
            );
            insta::assert_snapshot!(
                format!("{name}_{kind}_prefill"),
                plan.tables.prefill().render(&plan.buffers)
            );
        }
    }
}

/// The golden models of a folder in `testdata`, by name.
fn goldens(folder: &str) -> Vec<(String, Box<dyn WeightProvider>)> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(folder);
    let mut models: Vec<_> = std::fs::read_dir(all)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, open_model(&path).unwrap())
        })
        .collect();
    models.sort_by(|a, b| a.0.cmp(&b.0));
    models
}

/// Snapshots of the decode table of each golden whose family is not listed above, and of the table of each encoder.
/// Every family must have one.
#[test]
fn every_golden_has_a_snapshot_and_every_family_a_golden() {
    let mut seen: Vec<&str> = FAMILIES.to_vec();
    for (name, model) in goldens("models") {
        let card = Card::find(&model.config().architecture).unwrap();
        if FAMILIES.contains(&card.gguf_name()) {
            continue;
        }
        seen.extend(card.names);
        let options = PlanOptions { kv: KvType::F32, ..options() };
        let plan = plan(&*model, &capabilities(), &options).unwrap();
        insta::assert_snapshot!(format!("golden_{name}"), plan.tables.decode().render(&plan.buffers));
    }
    for (name, model) in goldens("encoders") {
        seen.extend(Card::find(&model.config().architecture).unwrap().names);
        let output = match model.tensor("cls.output.weight") {
            Some(_) => EncodeOutput::Scores,
            None => EncodeOutput::Vectors(model.config().embedding.pooling.unwrap_or(Pooling::Last)),
        };
        let options = EncodeOptions { longest: 20, rows: 30, texts: 4, kv: KvType::F32, output, fuse: true };
        let plan = plan_encoder(&*model, &capabilities(), &options).unwrap();
        insta::assert_snapshot!(format!("encoder_{name}"), plan.table.render(&plan.buffers));
    }
    let Some(path) = akunu_testing::data("a_snapshot_of_whisper", "golden/tiny_whisper.safetensors") else {
        return;
    };
    let whisper = open_model(&path).unwrap();
    seen.push("whisper");
    let plan =
        plan(&*whisper, &capabilities(), &PlanOptions { kv: KvType::F32, slots: 6, beams: 2, ..options() })
            .unwrap();
    for kind in [PassKind::Encode, PassKind::Decode] {
        let text = plan.tables[kind].render(&plan.buffers);
        insta::assert_snapshot!(format!("whisper_{}", kind.name()), text);
    }
    for card in akunu_plan::CARDS {
        assert!(card.names.iter().any(|name| seen.contains(name)), "{:?} has no snapshot", card.names);
    }
}

#[test]
fn queries_that_are_not_rotated_are_written_by_their_product_where_attention_reads_them() {
    let (_, model) = goldens("encoders").into_iter().find(|(name, _)| name == "bert-mean").unwrap();
    let output = EncodeOutput::Vectors(Pooling::Mean);
    let options = EncodeOptions { longest: 20, rows: 30, texts: 4, kv: KvType::F16, output, fuse: true };
    let capabilities = Capabilities { half_products: Some(FewRows::all(16)), ..capabilities() };
    let table = plan_encoder(&*model, &capabilities, &options).unwrap().table;
    let mut layers = 0;
    for (commands, labels) in table.commands.windows(5).zip(table.labels.windows(5)) {
        let [q, .., writes, attends] = commands else { panic!("five commands") };
        if !matches!(attends.kernel, Kernel::Attention(_)) {
            continue;
        }
        let Kernel::RopeKv(op) = writes.kernel else { panic!("{labels:?}") };
        assert!(!op.queries && labels[0].ends_with(".q"), "{labels:?}");
        let place = |command: &DispatchCommand, name: &str| {
            let slot = command.kernel.bindings().iter().position(|slot| slot.name == name).unwrap();
            command.bindings[slot]
        };
        assert_eq!(place(q, "out"), place(attends, "q"), "{labels:?}");
        layers += 1;
    }
    assert_eq!(layers, model.config().layer_count);
}

/// Norms are folded into products and RoPE into attention, except Gemma's norms before the residual, and without
/// fusion.
#[test]
fn devices_with_folding_get_folded_tables_of_few_rows() {
    let folding = Capabilities { folds: true, ..capabilities() };
    for name in FAMILIES {
        let model = model(family(name), |_| DType::Q4_0);
        let folded = plan(&model, &folding, &options()).unwrap();
        insta::assert_snapshot!(
            format!("{name}_folded_decode"),
            folded.tables.decode().render(&folded.buffers)
        );
        for options in
            [PlanOptions { fuse: false, ..options() }, PlanOptions { prefill_rows: 17, ..options() }]
        {
            let plain = plan(&model, &capabilities(), &options).unwrap();
            let folded = plan(&model, &folding, &options).unwrap();
            let render = |plan: &ModelPlan| plan.tables.prefill().render(&plan.buffers);
            assert_eq!(render(&folded), render(&plain));
        }
    }
    let dtype = |name: &str| match name {
        n if n.ends_with("attn_v.weight") => DType::Q6K,
        n if n.starts_with("blk.1") && n.ends_with("ffn_up.weight") => DType::F16,
        _ => DType::Q4K,
    };
    let mixed = plan(&model(family("llama"), dtype), &folding, &options()).unwrap();
    insta::assert_snapshot!("llama_mixed_folded_decode", mixed.tables.decode().render(&mixed.buffers));
    let planes = plan(&model(family("qwen2"), |_| affine(4, 64)), &folding, &options()).unwrap();
    insta::assert_snapshot!("qwen2_affine_folded_decode", planes.tables.decode().render(&planes.buffers));
}

#[test]
fn mixed_dtypes_fuse_only_where_they_agree() {
    let dtype = |name: &str| match name {
        n if n.ends_with("attn_v.weight") => DType::Q6K,
        n if n.starts_with("blk.1") && n.ends_with("ffn_up.weight") => DType::F16,
        "token_embd.weight" => DType::F16,
        _ => DType::Q4K,
    };
    let plan = planned("llama", dtype, &options());
    insta::assert_snapshot!("llama_mixed_decode", plan.tables.decode().render(&plan.buffers));
}

/// Three bindings per weight; fused if bits, groups and scale types are equal.
#[test]
fn affine_weights_bind_their_planes() {
    let dtype = |name: &str| match name {
        n if n.starts_with("blk.1") && n.ends_with("ffn_up.weight") => affine(6, 64),
        n if n.starts_with("blk.1") && n.ends_with("attn_k.weight") => DType::F16,
        _ => affine(4, 64),
    };
    let plan = planned("qwen2", dtype, &options());
    insta::assert_snapshot!("qwen2_affine_decode", plan.tables.decode().render(&plan.buffers));
}

#[test]
fn cache_maintenance_has_a_command_a_layer() {
    let plan = planned("gemma3", |_| DType::F16, &options());
    insta::assert_snapshot!("gemma3_kv_shift", plan.tables.kv_shift().render(&plan.buffers));
    insta::assert_snapshot!("gemma3_kv_copy", plan.tables.kv_copy().render(&plan.buffers));
}

#[test]
fn a_32_layer_llama_takes_at_most_8_commands_a_layer_and_5_folded() {
    let mut config = config("llama");
    config.layer_count = 32;
    let model = model(config, |_| DType::Q4_0);
    // The first norm has no product before it.
    let folded = plan(&model, &Capabilities { folds: true, ..capabilities() }, &options()).unwrap();
    let in_layers = folded.tables.decode().labels.iter().filter(|l| l.starts_with("layer.")).count();
    assert_eq!((in_layers, folded.tables.decode().commands.len()), (5 * 32 + 1, 5 * 32 + 1 + 5));
    let plan = plan(&model, &capabilities(), &options()).unwrap();
    for table in [plan.tables.decode(), plan.tables.prefill()] {
        let in_layers = table.labels.iter().filter(|l| l.starts_with("layer.")).count();
        assert!(in_layers <= 8 * 32, "{}: {in_layers} commands in 32 layers", table.name);
        assert!(table.commands.len() <= in_layers + 5);
    }
}

/// A plan for a prompt of more than 16 rows, multiplied in half precision.
fn in_halves(family_name: &str, dtype: impl Fn(&str) -> DType) -> ModelPlan {
    let capabilities = Capabilities { half_products: Some(FewRows::all(16)), ..capabilities() };
    let options = PlanOptions { prefill_rows: 20, ..options() };
    plan(&model(family(family_name), dtype), &capabilities, &options).unwrap()
}

#[test]
fn half_precision_prompts_convert_weights_except_f32_and_logits() {
    let dtype = |name: &str| match name {
        n if n.ends_with("attn_v.weight") => DType::Q6K,
        n if n.starts_with("blk.1") && n.ends_with("ffn_up.weight") => DType::F32,
        n if n.starts_with("blk.1") && n.ends_with("attn_output.weight") => DType::BF16,
        _ => DType::Q4K,
    };
    let plan = in_halves("llama", dtype);
    insta::assert_snapshot!("llama_halves_prefill", plan.tables.prefill().render(&plan.buffers));
    let biased = in_halves("qwen2", |_| DType::Q8_0);
    insta::assert_snapshot!("qwen2_halves_prefill", biased.tables.prefill().render(&biased.buffers));
    let in_f16 = |kernel: Kernel| matches!(kernel, Kernel::HalfMatmul(_) | Kernel::Unpack(_));
    assert!(!plan.tables.decode().commands.iter().any(|c| in_f16(c.kernel)));
}

#[test]
fn an_activation_finishes_what_the_product_before_it_leaves_in_f16() {
    let all = goldens("models");
    let capabilities = Capabilities { half_products: Some(FewRows::all(16)), ..capabilities() };
    let options = PlanOptions { prefill_rows: 20, ..options() };
    for (name, leaves) in
        [("starcoder2-window", true), ("gpt-neox-pythia", true), ("qwen3-hd128-gqa2", false)]
    {
        let (_, model) = all.iter().find(|(other, _)| other == name).unwrap();
        let plan = plan(&**model, &capabilities, &options).unwrap();
        let table = plan.tables.prefill();
        if name == "starcoder2-window" {
            insta::assert_snapshot!("starcoder2_halves_prefill", table.render(&plan.buffers));
        }
        let kernels = table.commands.iter().map(|command| command.kernel);
        let products = kernels.clone().filter(|k| matches!(k, Kernel::HalfMatmul(op) if op.f16)).count();
        let activations = kernels.filter(|k| matches!(k, Kernel::Activate(op) if op.input.f16())).count();
        assert!(products == activations && (products > 0) == leaves, "{name}: {products}, {activations}");
    }
}

#[test]
fn keys_and_values_that_nothing_changes_stay_in_f16_until_the_cache() {
    let (_, model) = goldens("encoders").into_iter().find(|(name, _)| name == "bert-cls").unwrap();
    let output = EncodeOutput::Vectors(Pooling::First);
    let capabilities = Capabilities { half_products: Some(FewRows::all(16)), ..capabilities() };
    for kv in [KvType::F16, KvType::F32, KvType::Q8_0] {
        let options = EncodeOptions { longest: 20, rows: 30, texts: 4, kv, output, fuse: true };
        let Ok(plan) = plan_encoder(&*model, &capabilities, &options) else {
            assert_eq!(kv, KvType::Q8_0, "heads of 12 are not whole blocks");
            continue;
        };
        if kv == KvType::F16 {
            insta::assert_snapshot!("encoder_halves_bert-cls", plan.table.render(&plan.buffers));
        }
        let caches = plan.table.commands.iter().filter_map(|command| match command.kernel {
            Kernel::RopeKv(op) => Some(op.input),
            _ => None,
        });
        assert!(caches.clone().count() > 0 && caches.eq([InputForm::F16 { bias: true }; 2]), "{kv:?}");
    }
}

#[test]
fn few_rows_have_a_table_without_conversion() {
    let of = |weights: DType, half_products, prefill_rows| {
        let capabilities = Capabilities { half_products, ..capabilities() };
        let options = PlanOptions { prefill_rows, prefill_logit_rows: 100, ..options() };
        plan(&model(family("llama"), |_| weights), &capabilities, &options).unwrap()
    };
    let few = Some(FewRows { scaled: 64, shifted: 48, floats: 32 });
    let tables = of(DType::Q4_0, few, 128).tables;
    let small = tables.get(PassKind::SmallPrefill).unwrap();
    let unpacks = |c: &DispatchCommand| matches!(c.kernel, Kernel::HalfMatmul(_) | Kernel::Unpack(_));
    assert!(tables.prefill().commands.iter().any(unpacks) && !small.commands.iter().any(unpacks));
    assert_eq!((small.io, small.logit_rows), (tables.prefill().io, tables.prefill().logit_rows));
    let most = small.rows;
    for (rows, kind) in [
        (1, PassKind::Decode),
        (2, PassKind::SmallPrefill),
        (most, PassKind::SmallPrefill),
        (most + 1, PassKind::Prefill),
        (128, PassKind::Prefill),
    ] {
        assert_eq!(tables.kind_for(rows), kind, "{rows} rows");
        assert_eq!(tables[kind].name, kind.name());
    }
    for other in [of(DType::Q4_0, few, most), of(DType::Q4_0, None, 128)] {
        assert!(other.tables.get(PassKind::SmallPrefill).is_none());
    }
    for (weights, rows) in [(DType::Q4_0, 64), (DType::Q4_1, 48), (DType::BF16, 32)] {
        assert_eq!(of(weights, few, 128).tables[PassKind::SmallPrefill].rows, rows, "{weights:?}");
    }
    // Weights that are f16 need no conversion, for any number of rows.
    for rows in [2, 128] {
        let tables = of(DType::F16, few, rows).tables;
        assert!(tables.get(PassKind::SmallPrefill).is_none());
        assert!(tables.prefill().commands.iter().any(unpacks));
        assert!(!tables.prefill().commands.iter().any(|c| matches!(c.kernel, Kernel::Unpack(_))));
    }
}

#[test]
fn packed_weights_have_a_table_between_few_rows_and_converted_weights() {
    let of = |weights: fn(&str) -> DType, prefill_rows| {
        let half_products = Some(FewRows { scaled: 128, shifted: 96, floats: 64 });
        let packed_products = Some(PackedRows { few: 32, most: 512 });
        let capabilities = Capabilities { half_products, packed_products, ..capabilities() };
        let options = PlanOptions { prefill_rows, prefill_logit_rows: 100, ..options() };
        plan(&model(family("llama"), weights), &capabilities, &options).unwrap().tables
    };
    let q4 = |_: &str| DType::Q4_0;
    for (rows, small, middle) in [
        (2, None, None),
        (32, None, None),
        (33, Some(32), None),
        (512, Some(32), None),
        (513, Some(32), Some(512)),
        (2048, Some(32), Some(512)),
    ] {
        let tables = of(q4, rows);
        let rows_of = |kind| tables.get(kind).map(|table| table.rows);
        assert_eq!(rows_of(PassKind::SmallPrefill), small, "{rows}");
        assert_eq!(rows_of(PassKind::MiddlePrefill), middle, "{rows}");
        for most in [small, middle].into_iter().flatten() {
            let kind = tables.kind_for(most);
            assert_eq!(tables[kind].rows, most);
            assert!(tables[tables.kind_for(most + 1)].rows > most);
        }
        assert_eq!(tables[tables.kind_for(rows)].rows, rows);
    }
    let packed = |c: &DispatchCommand| matches!(c.kernel, Kernel::HalfQkv(_));
    let converted = |c: &DispatchCommand| matches!(c.kernel, Kernel::Unpack(_));
    let tables = of(q4, 513);
    let middle = tables.get(PassKind::MiddlePrefill).unwrap();
    assert!(middle.commands.iter().any(packed) && !middle.commands.iter().any(converted));
    assert!(tables.prefill().commands.iter().any(converted));
    assert!(of(q4, 300).prefill().commands.iter().any(packed));
    // Weights of which some are not quantised are converted as before, and f32 is not multiplied in f16.
    let mixed: fn(&str) -> DType = |name| if name.contains("ffn_down") { DType::BF16 } else { DType::Q4_0 };
    let tables = of(mixed, 513);
    assert_eq!(tables[PassKind::SmallPrefill].rows, 64);
    assert!(tables.get(PassKind::MiddlePrefill).is_none());
    let tables = of(|_| DType::F32, 513);
    assert!(tables.get(PassKind::SmallPrefill).is_none() && tables.get(PassKind::MiddlePrefill).is_none());
}

#[test]
fn logits_of_16_bits_meet_rows_in_the_order_of_lanes_where_other_rows_are_f16() {
    let of = |name: &str, output: DType| {
        let half_products = Some(FewRows::all(16));
        let packed_products = Some(PackedRows { few: 32, most: 64 });
        let capabilities = Capabilities { half_products, packed_products, ..capabilities() };
        let options = PlanOptions { prefill_rows: 100, prefill_logit_rows: 8, ..options() };
        let of_outputs = |name: &str| name.starts_with("output.") || name.starts_with("token_embd.");
        let weights = move |name: &str| if of_outputs(name) { output } else { DType::Q4_0 };
        plan(&model(family(name), weights), &capabilities, &options).unwrap().tables
    };
    let packed = |table: &DispatchTable| {
        let is_packed =
            |c: &DispatchCommand| matches!(c.kernel, Kernel::HalfMatmul(op) if op.rows == RowSet::Logits);
        table.commands.iter().any(is_packed)
    };
    for output in [DType::BF16, DType::F16] {
        let tables = of("llama", output);
        assert!(packed(tables.prefill()) && packed(&tables[PassKind::MiddlePrefill]), "{output}");
        assert!(!packed(&tables[PassKind::SmallPrefill]) && !packed(tables.decode()), "{output}");
        assert!(!packed(of("gemma2", output).prefill()), "logits with a cap");
    }
    for output in [DType::F32, DType::Q8_0] {
        assert!(!packed(of("llama", output).prefill()), "{output}");
    }
}

#[test]
fn converted_weights_are_not_overwritten_before_use() {
    let plan = in_halves("gemma2", |_| DType::Q4_0);
    let mut fresh = Vec::new();
    for (command, label) in plan.tables.prefill().commands.iter().zip(&plan.tables.prefill().labels) {
        match command.kernel {
            Kernel::Unpack(_) => fresh.push(command.bindings()[command.bindings().len() - 1].offset),
            Kernel::HalfMatmul(_) => {
                assert!(!fresh.is_empty(), "{label}");
                assert!(fresh[0] == 0 && fresh.windows(2).all(|w| w[0] < w[1]), "{label}");
                fresh.clear();
            }
            _ => {}
        }
    }
    assert!(fresh.is_empty());
}

#[test]
fn no_command_reads_what_it_writes() {
    for name in FAMILIES {
        for (fuse, folds) in [(true, false), (false, false), (true, true)] {
            for dtype in [DType::Q5K, affine(4, 32)] {
                let capabilities = Capabilities { folds, ..capabilities() };
                let options = PlanOptions { fuse, ..options() };
                let plan = plan(&model(family(name), |_| dtype), &capabilities, &options).unwrap();
                let halves = in_halves(name, |_| dtype);
                for table in [plan.tables.decode(), plan.tables.prefill(), halves.tables.prefill()] {
                    for (command, label) in table.commands.iter().zip(&table.labels) {
                        let slots = command.kernel.bindings();
                        for (slot, binding) in slots.iter().zip(command.bindings()) {
                            let others = slots.iter().zip(command.bindings());
                            let same = others.filter(|(_, b)| b.buffer == binding.buffer).count();
                            assert!(slot.access == Access::Read || same == 1, "{label}: {}", slot.name);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_binding_lies_within_its_buffer_and_read_only_ones_are_never_written() {
    for (name, dtype) in
        FAMILIES.map(|name| (name, DType::Q8_0)).into_iter().chain([("qwen2", affine(3, 128))])
    {
        let folding = |folds| {
            let folding = Capabilities { folds, ..capabilities() };
            plan(&model(family(name), |_| dtype), &folding, &options()).unwrap()
        };
        for plan in [folding(false), folding(true), in_halves(name, |_| dtype)] {
            for (_, table) in plan.tables.iter() {
                for command in &table.commands {
                    let extents = extents(table, command).unwrap();
                    assert_eq!(extents.len(), command.bindings().len());
                    let slots = command.kernel.bindings();
                    for ((slot, binding), bytes) in slots.iter().zip(command.bindings()).zip(extents) {
                        let buffer = &plan.buffers[binding.buffer.index()];
                        assert!(binding.offset + bytes <= buffer.bytes, "{}", buffer.name);
                        let writes = slot.access != Access::Read;
                        assert!(!writes || !buffer.kind.is_read_only(), "{}", buffer.name);
                    }
                }
            }
        }
    }
}

#[test]
fn names_of_buffers_are_unique_and_kernel_names_tell_variants_apart() {
    let mut kernels = std::collections::HashMap::new();
    for name in FAMILIES {
        for dtype in [DType::Q4_0, DType::BF16, affine(4, 32), affine(4, 64), affine(8, 32)] {
            for folds in [false, true] {
                let capabilities = Capabilities { folds, ..capabilities() };
                let plan = plan(&model(family(name), |_| dtype), &capabilities, &options()).unwrap();
                let mut names: Vec<&str> = plan.buffers.iter().map(|b| b.name.as_str()).collect();
                names.sort_unstable();
                names.windows(2).for_each(|w| assert_ne!(w[0], w[1]));
                for command in plan.tables.decode().commands.iter().chain(&plan.tables.prefill().commands) {
                    let bindings = command.kernel.bindings();
                    let before = kernels.insert(command.kernel.name(), bindings.clone());
                    assert!(before.is_none_or(|b| b == bindings), "{}", command.kernel.name());
                }
            }
        }
    }
}

/// The table builder is driven by cards: none of its files may name an architecture.
#[test]
fn no_source_of_the_builder_names_an_architecture() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/lower");
    let names = ["llama", "qwen", "gemma", "mistral", "smol", "phi", "bert", "whisper"];
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap().to_lowercase();
        for name in names {
            assert!(!text.contains(name), "{} says \"{name}\"", path.display());
        }
        files += 1;
    }
    assert!(files >= 4);
}
