//! Plans of several devices with some of the layers each.

use akunu_arch::WeightProvider;
use akunu_plan::{
    BufferId, BufferKind, Capabilities, DType, FewRows, InPlace, ModelPlan, OnHost, PlanOptions, Side,
    even_stages, plan,
};

use crate::common::{FakeModel, capabilities, config, family, model, options};

fn layered(count: usize) -> FakeModel {
    model(akunu_arch::ModelConfig { layer_count: count, ..config("llama") }, |_| DType::Q8_0)
}

fn gpu() -> Capabilities {
    Capabilities {
        in_place: InPlace::Nothing,
        folds: true,
        half_products: Some(FewRows::all(4)),
        ..capabilities()
    }
}

/// Devices that begin at these layers.
fn staged(model: &FakeModel, begins: &[usize]) -> ModelPlan {
    let with = Capabilities { stages: vec![gpu(); begins.len()], ..gpu() };
    plan(model, &with, &PlanOptions { stages: begins.to_vec(), chain: 1, ..options() }).expect("a plan")
}

fn name_of(plan: &ModelPlan, id: BufferId) -> String {
    let name = &plan.buffers[id.index()].name;
    // The cache of each device is its own, at other offsets.
    if plan.buffers[id.index()].kind == BufferKind::Kv { "cache".into() } else { name.clone() }
}

/// All commands, without the devices that run them.
fn commands(plan: &ModelPlan) -> Vec<String> {
    let tables = plan.tables.iter().flat_map(|(_, table)| table.commands.iter().zip(&table.labels));
    tables
        .map(|(command, label)| {
            let bound: Vec<String> =
                command.bindings().iter().map(|binding| name_of(plan, binding.buffer)).collect();
            format!("{label} {} {:?} {}", command.kernel.name(), command.params, bound.join(" "))
        })
        .collect()
}

#[test]
fn the_commands_are_those_of_one_device() {
    for of in [
        layered(4),
        model(family("gemma3"), |_| DType::Q4_0),
        model(family("gpt-oss"), |name| if name.ends_with(".weight") { DType::Q8_0 } else { DType::F32 }),
    ] {
        let layers = of.config().layer_count;
        let one = staged(&of, &[]);
        for begins in [vec![1], vec![layers - 1], (1..layers).collect()] {
            let several = staged(&of, &begins);
            assert_eq!(commands(&several), commands(&one), "{begins:?}");
        }
    }
}

/// Layer by layer, with the embedding on the first one and the output on the last.
#[test]
fn each_device_has_its_layers_and_what_they_use() {
    let of = layered(5);
    let (one, plan) = (staged(&of, &[]), staged(&of, &[2, 3]));
    for (_, table) in plan.tables.iter() {
        let sides: Vec<Side> = table.commands.iter().map(|command| command.side).collect();
        let in_order = [Side::Stage(0), Side::Stage(1), Side::Device];
        let mut seen = sides.clone();
        seen.dedup();
        assert_eq!(seen, in_order, "{}", table.name);
    }
    let side = |name: &str| {
        let buffer = plan.buffers.iter().find(|buffer| buffer.name == name).unwrap();
        [Side::Stage(0), Side::Stage(1), Side::Device].map(|side| buffer.home.has(side))
    };
    for (name, expected) in [
        // It is also the output.
        ("token_embd.weight", [true, false, true]),
        ("blk.1.ffn_up.weight", [true, false, false]),
        ("blk.2.ffn_up.weight", [false, true, false]),
        ("blk.3.attn_q.weight", [false, false, true]),
        ("output_norm.weight", [false, false, true]),
        ("kv.stage0_k", [true, false, false]),
        ("kv.stage1_v", [false, true, false]),
        ("kv.k", [false, false, true]),
        ("kv.blocks", [true; 3]),
        ("prefill.rows", [true; 3]),
    ] {
        assert_eq!(side(name), expected, "{name}");
    }
    let kv: Vec<u64> = plan.memory_of_devices().map(|memory| memory.kv).collect();
    assert_eq!(kv, [2, 1, 2].map(|layers| one.memory.kv / 5 * layers));
    assert_eq!(plan.cache.other_layers, 3);
    let whole = plan.whole_memory();
    assert_eq!(whole.tables, plan.memory.tables);
    // No other matrix is on two devices; norms between two of them may be.
    let twice = of.tensor("token_embd.weight").unwrap().bytes as u64;
    assert!(whole.weights_copied - one.memory.weights_copied - twice < 5 * 4 * 256);
}

#[test]
fn layers_are_shared_out_by_their_bytes() {
    let even = |layers: usize, memory: &[u64]| even_stages(&layered(layers), memory).unwrap();
    assert_eq!(even(4, &[1]), Vec::<usize>::new());
    assert_eq!(even(8, &[1, 1]), [4]);
    assert_eq!(even(4, &[1; 4]), [1, 2, 3]);
    // The ends have the embedding and the output, too.
    assert_eq!(even(30, &[1, 1, 1]), [10, 20]);
    // Three quarters of the memory, three quarters of the layers.
    assert!(even(16, &[3, 1])[0].abs_diff(12) <= 1);
    let refused = even_stages(&layered(2), &[1; 3]).unwrap_err().to_string();
    assert!(refused.contains("3 devices cannot share out the 2 layers"), "{refused}");
}

/// The best of all ways to cut.
#[test]
fn no_other_cut_leaves_more_memory() {
    let of = layered(7);
    let bytes = |layer: usize| -> u64 {
        let name = format!("blk.{layer}.");
        of.tensors().iter().filter(|tensor| tensor.name.starts_with(&name)).map(|t| t.bytes as u64).sum()
    };
    let size = |name: &str| of.tensor(name).unwrap().bytes as u64;
    // The embedding is also the output.
    let embedding = size("token_embd.weight");
    let ends = [embedding, embedding + size("output_norm.weight")];
    for memory in [[5u64, 3, 2], [1, 1, 1], [1, 9, 1], [2, 3, 7]] {
        let fullest = |a: usize, b: usize| {
            let of = |from: usize, to: usize| (from..to).map(bytes).sum::<u64>();
            let used = [of(0, a) + ends[0], of(a, b), of(b, 7) + ends[1]];
            used.iter().zip(memory).map(|(used, of)| *used as f64 / of as f64).fold(0.0, f64::max)
        };
        let least = (1..6).flat_map(|a| (a + 1..7).map(move |b| fullest(a, b))).fold(f64::INFINITY, f64::min);
        let found = even_stages(&of, &memory).unwrap();
        assert_eq!(fullest(found[0], found[1]), least, "{memory:?}: {found:?}");
    }
}

#[test]
fn stages_that_cannot_be_are_refused() {
    let of = layered(3);
    let refused = |devices: usize, change: &dyn Fn(PlanOptions) -> PlanOptions, ranks: usize| {
        let with = Capabilities {
            stages: vec![gpu(); devices],
            ranks,
            host: Some(Box::new(capabilities())),
            ..gpu()
        };
        plan(&of, &with, &change(options())).unwrap_err().to_string()
    };
    let at = |begins: &'static [usize]| move |options| PlanOptions { stages: begins.to_vec(), ..options };
    for begins in [&[0][..], &[3], &[9]] {
        let message = refused(1, &at(begins), 1);
        assert!(message.contains("each of 2 devices needs a layer"), "{message}");
    }
    assert!(refused(2, &at(&[2, 1]), 1).contains("each of 3 devices needs a layer"));
    assert!(refused(2, &at(&[1]), 1).contains("layers for 2 devices were planned, and there are 3"));
    assert!(refused(0, &at(&[1]), 1).contains("there are 1"));
    assert!(refused(1, &at(&[1]), 2).contains("at the same time"));
    let host = |options| PlanOptions { host: OnHost { layers: 1, experts: 0 }, ..at(&[2])(options) };
    assert!(refused(1, &host, 1).contains("a model on several devices cannot leave layers"));
}
