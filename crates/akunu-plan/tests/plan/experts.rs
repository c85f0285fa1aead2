//! Mixtures of experts: the commands of a layer, what they read, and files that contradict themselves.

#![allow(clippy::unwrap_used)]

use crate::common::{FakeModel, capabilities, config, family, model, options};
use akunu_arch::{ExpertFacts, WeightProvider};
use akunu_format::DType;
use akunu_plan::ops::{Counts, Op, Route, RouteParams};
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::{
    Binding, Capabilities, Device, DispatchTable, Entries, EntryBounds, FewRows, GroupRank, InPlace, Kernel,
    ModelPlan, OnHost, PackedRows, PassKind, PlanOptions, Row, RowBounds, Scores, Side, Submission, load,
    plan, unwatched,
};

fn mixture() -> FakeModel {
    model(family("qwen2moe"), |name| if name.contains("gate_inp") { DType::F32 } else { DType::Q8_0 })
}

fn planned(model: &FakeModel) -> ModelPlan {
    plan(model, &capabilities(), &options()).unwrap()
}

fn refusal(model: &FakeModel) -> String {
    plan(model, &capabilities(), &options()).unwrap_err().to_string()
}

fn tensor<'m>(model: &'m mut FakeModel, name: &str) -> &'m mut akunu_format::TensorInfo {
    model.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
}

fn labels(table: &DispatchTable, layer: usize) -> Vec<&str> {
    let prefix = format!("layer.{layer}.");
    table.labels.iter().filter_map(|label| label.strip_prefix(&prefix)).collect()
}

#[test]
fn layers_with_a_router_are_mixtures_and_others_are_dense() {
    let plan = planned(&mixture());
    assert!(labels(plan.tables.decode(), 0).contains(&"ffn_glu"));
    assert_eq!(from_router(plan.tables.prefill()), WITH_SORTED_ROWS);
}

const WITH_SORTED_ROWS: [&str; 9] = [
    "router",
    "ffn_glu_shexp",
    "ffn_down_shexp",
    "shared_gate",
    "route",
    "gather",
    "experts_glu",
    "experts_down",
    "combine",
];

fn from_router(table: &DispatchTable) -> Vec<&str> {
    labels(table, 1).into_iter().skip_while(|label| *label != "router").collect()
}

#[test]
fn one_row_finds_its_experts_by_picks_unless_inputs_are_kept_or_nothing_is_fused() {
    let model = mixture();
    let plan_with = |options: &PlanOptions| plan(&model, &capabilities(), options).unwrap();
    let by_picks =
        ["router", "ffn_glu_shexp", "ffn_down_shexp", "shared_gate", "route", "experts_glu", "experts_down"];
    let one = plan_with(&PlanOptions { prefill_rows: 1, ..options() });
    assert_eq!(from_router(one.tables.prefill()), by_picks);
    assert_eq!(from_router(one.tables.decode()), by_picks);
    let two = plan_with(&PlanOptions { prefill_rows: 2, ..options() });
    assert_eq!(from_router(two.tables.prefill()), WITH_SORTED_ROWS);
    let kept = PlanOptions { prefill_rows: 1, keep_inputs: true, ..options() };
    let unfused = PlanOptions { fuse: false, ..options() };
    for options in [kept, unfused] {
        assert!(labels(plan_with(&options).tables.decode(), 1).contains(&"gather"), "{options:?}");
    }
}

#[test]
fn a_row_reads_the_experts_that_it_is_routed_to_and_many_rows_all() {
    let plan = planned(&mixture());
    let table = plan.tables.prefill();
    let at = table.labels.iter().position(|label| label == "layer.1.experts_down").unwrap();
    let one = (DType::Q8_0.row_bytes(96).unwrap() * 256) as u64;
    for (count, experts) in [(1, 2), (2, 4), (3, 5), (16, 5)] {
        let rows: Vec<Row> = (0..count).map(|i| Row::causal(0, i, 0)).collect();
        let cost = table.commands[at].cost(Entries::Rows(&rows), 1);
        assert_eq!(cost.weight_bytes, experts * one, "{count} rows");
        assert_eq!(cost.int8_ops, u64::from(count) * 2 * 2 * 96 * 256, "{count} rows");
    }
}

#[test]
fn contradictions_are_refused_by_the_name_of_the_tensor() {
    let mut router = mixture();
    tensor(&mut router, "blk.1.ffn_gate_inp.weight").shape = vec![4, 256];
    assert!(refusal(&router).contains("blk.1.ffn_gate_inp.weight"), "{}", refusal(&router));

    let mut fewer = mixture();
    tensor(&mut fewer, "blk.1.ffn_down_exps.weight").shape = vec![4, 256, 96];
    assert!(refusal(&fewer).contains("blk.1.ffn_down_exps.weight"), "{}", refusal(&fewer));

    let mut missing = mixture();
    missing.tensors.retain(|tensor| tensor.name != "blk.1.ffn_up_exps.weight");
    assert!(refusal(&missing).contains("blk.1.ffn_up_exps.weight"), "{}", refusal(&missing));

    let mixed = model(family("qwen2moe"), |name| match name {
        "blk.1.ffn_up_exps.weight" => DType::Q8_0,
        _ => DType::F32,
    });
    assert!(refusal(&mixed).contains("F32 and Q8_0"), "{}", refusal(&mixed));

    let mut silent = mixture();
    silent.config.experts = None;
    assert!(refusal(&silent).contains("blk.1.ffn_gate_inp.weight is a router"), "{}", refusal(&silent));

    let mut without_router = mixture();
    without_router.tensors.retain(|tensor| tensor.name != "blk.1.ffn_gate_inp.weight");
    assert!(refusal(&without_router).contains("blk.1.ffn_gate.weight"), "{}", refusal(&without_router));

    let mut dense = model(config("llama"), |_| DType::F32);
    dense.config.experts = Some(ExpertFacts { ffn_size: 8, ..mixture().config.experts.unwrap() });
    plan(&dense, &capabilities(), &options()).unwrap();
}

/// The layers of gpt-oss: experts with biases, and attention with sinks.
fn with_sinks() -> FakeModel {
    let is_float = |name: &str| name.contains("gate_inp") || name.ends_with(".bias");
    model(family("gpt-oss"), |name| if is_float(name) { DType::F32 } else { DType::Q8_0 })
}

#[test]
fn sinks_and_biases_of_experts_are_operands() {
    let plan = planned(&with_sinks());
    let table = plan.tables.decode();
    let names = |label: &str| {
        let at = table.labels.iter().position(|found| found == label).unwrap();
        table.commands[at].kernel.name()
    };
    assert_eq!(names("layer.0.attention"), "attention_f16_sinks_paged_q8");
    assert_eq!(names("layer.1.experts_glu"), "experts_clamped_glu_q8_0_bias_picked_q8");
    assert_eq!(names("layer.1.experts_down"), "experts_sum_q8_0_bias_add");
}

#[test]
fn sinks_and_biases_of_other_shapes_are_refused_by_name() {
    for (name, shape) in [
        ("blk.1.attn_sinks.weight", &[5][..]),
        ("blk.1.attn_sinks.weight", &[1, 4]),
        ("blk.0.ffn_gate_inp.bias", &[4]),
        ("blk.0.ffn_up_exps.bias", &[5, 64]),
        ("blk.0.ffn_gate_exps.bias", &[5 * 96]),
        ("blk.1.ffn_down_exps.bias", &[4, 256]),
        ("blk.1.attn_output.bias", &[255]),
    ] {
        let mut model = with_sinks();
        tensor(&mut model, name).shape = shape.to_vec();
        assert!(refusal(&model).contains(name), "{name}: {}", refusal(&model));
    }
    for name in ["blk.0.attn_sinks.weight", "blk.0.post_attention_norm.weight", "blk.1.ffn_gate_inp.weight"] {
        let mut model = with_sinks();
        model.tensors.retain(|tensor| tensor.name != name);
        assert!(refusal(&model).contains(name), "{name}: {}", refusal(&model));
    }
    let mut uneven = with_sinks();
    uneven.tensors.retain(|tensor| tensor.name != "blk.0.ffn_up_exps.bias");
    assert!(
        refusal(&uneven).contains("only one of the gate and up matrices of experts has a bias"),
        "{}",
        refusal(&uneven)
    );
    let mut packed = with_sinks();
    tensor(&mut packed, "blk.0.attn_sinks.weight").dtype = DType::Q8_0;
    assert!(refusal(&packed).contains("blk.0.attn_sinks.weight"), "{}", refusal(&packed));
}

#[test]
fn biases_of_experts_are_read_and_checked() {
    let with = |name: &str, shape: &[usize]| {
        let mut model = mixture();
        let like = tensor(&mut model, "blk.1.attn_norm.weight").clone();
        model.tensors.push(akunu_format::TensorInfo {
            name: name.to_string(),
            shape: shape.to_vec(),
            bytes: 4 * shape.iter().product::<usize>(),
            ..like
        });
        model
    };
    let correction = "blk.1.exp_probs_b.bias";
    let plan = planned(&with(correction, &[5]));
    let table = plan.tables.decode();
    let at = table.labels.iter().position(|label| label == "layer.1.route").unwrap();
    assert_eq!(table.commands[at].kernel.name(), "route_corrected");
    for shape in [&[4][..], &[6], &[1, 5], &[0]] {
        assert!(refusal(&with(correction, shape)).contains(correction), "{shape:?}");
    }
    // A bias of the router's logits is one of its product.
    let plan = planned(&with("blk.1.ffn_gate_inp.bias", &[5]));
    let table = plan.tables.decode();
    let at = table.labels.iter().position(|label| label == "layer.1.router").unwrap();
    assert!(table.commands[at].kernel.name().contains("bias"), "{}", table.commands[at].kernel.name());
    assert!(refusal(&with("blk.1.ffn_gate_inp.bias", &[4])).contains("blk.1.ffn_gate_inp.bias"));
}

#[test]
fn contradictory_routers_have_no_extents() {
    let counts =
        Counts { rows: 3, logit_rows: 0, steps: 1, bounds: EntryBounds::Rows(RowBounds::one_sequence(1, 1)) };
    let plain = Route { scores: Scores::Sigmoid, normalised: true, corrected: false, groups: None };
    let params = RouteParams { experts: 12, top: 3, groups: 1, groups_used: 1, ..RouteParams::default() };
    let problem = |op: Route, p: RouteParams| op.extents(&p, &counts).unwrap_err();
    assert!(plain.extents(&params, &counts).is_ok());
    let grouped = |groups, groups_used| RouteParams { groups, groups_used, ..params };
    let by_two = Route { groups: Some(GroupRank::TwoBest), ..plain };
    assert!(by_two.extents(&grouped(4, 1), &counts).is_ok());
    assert_eq!(problem(by_two, grouped(0, 0)), "0 of 0 groups of 12 experts");
    assert_eq!(problem(by_two, grouped(5, 2)), "2 of 5 groups of 12 experts");
    assert_eq!(problem(by_two, grouped(4, 5)), "5 of 4 groups of 12 experts");
    assert_eq!(problem(by_two, grouped(6, 1)), "3 experts of 1 groups of 2");
    assert_eq!(problem(by_two, grouped(12, 3)), "the two best experts of groups of one");
    assert_eq!(problem(plain, grouped(4, 1)), "4 groups, but nothing to rank them by");
    let mixer = Route { scores: Scores::SparseMixer, ..plain };
    assert_eq!(problem(mixer, params), "a sparse mixer has neither normalised shares nor biases nor groups");
}

/// The bytes of a binding's buffer.
fn read(
    device: &mut ReferenceDevice,
    loaded: &akunu_plan::Loaded,
    binding: Binding,
    count: usize,
) -> Vec<u32> {
    let mut bytes = vec![0; count * 4];
    device.download(loaded.buffers[binding.buffer.index()], binding.offset, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// A router of NaN or of infinities chooses experts that there are, and its rows' logits are NaN.
#[test]
fn a_hostile_router_chooses_experts_that_there_are() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
        let mut model = mixture();
        let router = model.tensors.iter().find(|tensor| tensor.name == "blk.1.ffn_gate_inp.weight").unwrap();
        let (offset, bytes) = (router.offset, router.bytes);
        let mut all = model.regions[0].bytes().to_vec();
        for number in all[offset..offset + bytes].chunks_exact_mut(4) {
            number.copy_from_slice(&value.to_le_bytes());
        }
        model.regions = vec![akunu_format::Region::from_vec(all)];
        let plan = planned(&model);
        let mut device = ReferenceDevice::like(&capabilities());
        let loaded = load(&plan, &model, &mut device, &mut unwatched).unwrap();
        for (kind, rows) in [(PassKind::Prefill, 3), (PassKind::Decode, 1)] {
            let rows: Vec<Row> = (0..rows).map(|i| Row::causal(i, i, 0)).collect();
            let logit_rows = [rows.len() as u32 - 1];
            let submission = Submission {
                entries: Entries::Rows(&rows),
                logit_rows: &logit_rows,
                steps: 1,
                stop: &[],
                cancel: None,
            };
            device.replay(loaded.replays[kind], submission).unwrap();
            let table = &plan.tables[kind];
            let at = table.labels.iter().position(|label| label == "layer.1.route").unwrap();
            let command = &table.commands[at];
            let p: RouteParams = command.params();
            let picks = read(&mut device, &loaded, command.bindings()[1], rows.len() * p.top as usize);
            for row in picks.chunks(p.top as usize) {
                assert!(row.iter().all(|pick| *pick < p.experts), "{value}: {picks:?}");
                assert_ne!(row[0], row[1], "{value}");
            }
            let logits = read(&mut device, &loaded, table.io.logits.into(), plan.config.vocab_size);
            let is_nan = logits.iter().all(|bits| f32::from_bits(*bits).is_nan());
            // The largest finite weights may overflow, or not.
            assert!(is_nan || value.is_finite(), "{value}");
        }
    }
}

/// What experts read is read as int8 and f32 by all; other products multiply in half precision.
#[test]
fn routers_and_shared_experts_do_not_multiply_in_half_precision() {
    let capabilities = Capabilities { half_products: Some(FewRows::all(16)), ..capabilities() };
    let options = PlanOptions { prefill_rows: 20, ..options() };
    for router in [DType::F32, DType::BF16] {
        let model =
            model(family("qwen2moe"), |name| if name.contains("gate_inp") { router } else { DType::Q8_0 });
        let plan = plan(&model, &capabilities, &options).unwrap();
        let table = plan.tables.prefill();
        let halved = |label: &str| {
            let labelled = table.labels.iter().zip(&table.commands).filter(|(other, _)| *other == label);
            let kernels: Vec<Kernel> = labelled.map(|(_, command)| command.kernel).collect();
            assert_eq!(kernels.len(), 1, "{label}");
            matches!(kernels[0], Kernel::HalfMatmul(_))
        };
        for label in ["router", "ffn_gate_shexp", "ffn_up_shexp", "shared_gate"] {
            assert!(!halved(&format!("layer.1.{label}")), "{label}");
        }
        for label in ["layer.1.attn_output", "layer.1.ffn_down_shexp", "layer.0.ffn_down"] {
            assert!(halved(label), "{label}");
        }
    }
}

/// The layers of a mixture whose weights are random, and whose rows are whole groups of lanes.
fn random_mixture(weights: fn(&str) -> DType) -> FakeModel {
    let mut config = family("qwen2moe");
    let facts = config.experts.unwrap();
    config.experts = Some(ExpertFacts { ffn_size: 128, shared_ffn_size: Some(256), ..facts });
    let mut model = model(config, weights);
    let mut all = model.regions[0].bytes().to_vec();
    let mut state = 1_u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    for tensor in &model.tensors {
        let bytes = &mut all[tensor.offset..tensor.offset + tensor.bytes];
        match tensor.dtype {
            DType::F32 => bytes.chunks_exact_mut(4).for_each(|number| {
                number.copy_from_slice(&(f32::from(random()) / 256.0).to_le_bytes());
            }),
            // A scale of 0.001, and codes.
            _ => bytes.chunks_exact_mut(34).for_each(|block| {
                block.fill_with(&mut random);
                block[..2].copy_from_slice(&[0x19, 0x14]);
            }),
        }
    }
    model.regions = vec![akunu_format::Region::from_vec(all)];
    model
}

fn in_f32(name: &str) -> DType {
    if name.contains("gate_inp") || name.contains("norm") { DType::F32 } else { DType::Q8_0 }
}

fn packing() -> Capabilities {
    let half_products = Some(FewRows::all(16));
    Capabilities { half_products, packed_products: Some(PackedRows { few: 8, most: 16 }), ..capabilities() }
}

/// The logits of a prompt of as many rows as the prefill table has, on the reference.
fn logits_of_prompt(model: &FakeModel, capabilities: &Capabilities, rows: usize) -> Vec<f32> {
    let plan =
        plan(model, capabilities, &PlanOptions { prefill_rows: rows, context: 512, ..options() }).unwrap();
    let mut device = ReferenceDevice::like(capabilities);
    let loaded = load(&plan, model, &mut device, &mut unwatched).unwrap();
    let rows: Vec<Row> = (0..rows as u32).map(|i| Row::causal(i * 7 % 40, i, 0)).collect();
    let submission = Submission {
        entries: Entries::Rows(&rows),
        logit_rows: &[rows.len() as u32 - 1],
        steps: 1,
        stop: &[],
        cancel: None,
    };
    device.replay(loaded.replays[PassKind::Prefill], submission).unwrap();
    let logits = plan.tables.prefill().io.logits.into();
    read(&mut device, &loaded, logits, plan.config.vocab_size).into_iter().map(f32::from_bits).collect()
}

#[test]
fn experts_with_many_rows_are_multiplied_packed_and_give_the_same() {
    let model = random_mixture(in_f32);
    // Five experts, of which a row has two: 64 rows each.
    let with = |rows, capabilities: &Capabilities| {
        plan(&model, capabilities, &PlanOptions { prefill_rows: rows, context: 512, ..options() }).unwrap()
    };
    let kernels = |plan: &ModelPlan| -> Vec<String> {
        let table = plan.tables.prefill();
        let of_layer =
            table.labels.iter().zip(&table.commands).filter_map(|(label, command)| {
                Some((label.strip_prefix("layer.1.")?, command.kernel.name()))
            });
        let of_experts = of_layer.skip_while(|(label, _)| *label != "router");
        of_experts.map(|(label, kernel)| format!("{label}: {kernel}")).collect()
    };
    let packed = kernels(&with(160, &packing()));
    assert_eq!(
        packed,
        [
            "router: gemm_f32",
            "ffn_gate_shexp: half_gemm_q8_0",
            "ffn_up_shexp: half_gemm_q8_0",
            "ffn_act_shexp: silu_glu_f16",
            "ffn_down_shexp.unpack: unpack_q8_0",
            "ffn_down_shexp: half_gemm_f16",
            "shared_gate: gemm_f32",
            "route: route",
            "gather: gather_f16_lanes",
            "experts_glu: half_experts_silu_glu_q8_0",
            "experts_act_halve: halve_lanes",
            "experts_down: half_experts_q8_0",
            "combine: combine_shared_gated_add",
        ]
    );
    assert!(!kernels(&with(159, &packing())).iter().any(|kernel| kernel.contains("half_experts")));
    // A router that is not f32 reads int8, and no operation writes this beside f16.
    let quantised = random_mixture(|name| if name.contains("norm") { DType::F32 } else { DType::Q8_0 });
    let plan =
        plan(&quantised, &packing(), &PlanOptions { prefill_rows: 160, context: 512, ..options() }).unwrap();
    assert!(!kernels(&plan).iter().any(|kernel| kernel.contains("half_experts")));

    let [found, expected] = [packing(), capabilities()].map(|of| logits_of_prompt(&model, &of, 160));
    let most = expected.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
    // Rows of int8 are within 3% of these, and another order of elements is not.
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() < 0.03 * most, "{found} {expected}");
    }
}

/// Every byte of the experts' weights is on the host, and every other one on the device.
#[test]
fn experts_on_the_host_are_in_its_memory_only() {
    let model = mixture();
    let host = || Some(Box::new(capabilities()));
    let gpu = Capabilities { in_place: InPlace::Nothing, host: host(), ..capabilities() };
    let whole = plan(&model, &gpu, &options()).unwrap();
    let layers = model.config().layer_count;
    let on_host = OnHost { layers: 0, experts: layers };
    let split = plan(&model, &gpu, &PlanOptions { host: on_host, ..options() }).unwrap();
    let experts: u64 =
        model.tensors().iter().filter(|t| t.name.contains("_exps.")).map(|t| t.bytes as u64).sum();
    assert!(experts > 0 && split.memory.host_weights == experts, "{experts}");
    assert_eq!(split.memory.weights_copied + experts, whole.memory.weights_copied);
    assert_eq!(split.memory.kv, whole.memory.kv);
    let sides: Vec<(&str, Side)> = split
        .tables
        .decode()
        .labels
        .iter()
        .zip(&split.tables.decode().commands)
        .filter_map(|(label, command)| Some((label.strip_prefix("layer.1.")?, command.side)))
        .collect();
    let hosts = ["route", "experts_glu", "experts_down"];
    assert!(sides.iter().all(|(label, side)| hosts.contains(label) == (*side == Side::Host)), "{sides:?}");

    let on_host = OnHost { layers: 1, experts: 0 };
    let split = plan(&model, &gpu, &PlanOptions { host: on_host, ..options() }).unwrap();
    assert_eq!(split.memory.kv * layers as u64, whole.memory.kv * (layers as u64 - 1));
    assert_eq!(split.cache.other_layers, 1);
    let refused = plan(&model, &capabilities(), &PlanOptions { host: on_host, ..options() }).unwrap_err();
    assert!(refused.to_string().contains("no CPU beside this device"), "{refused}");
}
