//! Tests of `launches`, without compiling anything.

#![allow(clippy::unwrap_used, reason = "tests")]

use akunu_kernels::{Chip, Launch, cuda_text, launches, metal_text};
use akunu_plan::ops::{self, AttentionParams, MatmulParams, NormParams};
use akunu_plan::{
    BufferId, DType, DispatchCommand, DispatchTable, Kernel, KvType, MatmulForm, NormKind, OutputForms, Rope,
    RopeStyle, RowBounds, RowSet, TableIo,
};

const CHIP: Chip = Chip { tensor_cores: true, copies: true, ..Chip::plain(132, 200 << 10) };

fn table(kernel: Kernel, params: impl bytemuck::NoUninit, rows: usize) -> DispatchTable {
    let bindings = kernel.bindings().into_iter().map(|_| BufferId(0));
    DispatchTable {
        name: "test",
        commands: vec![DispatchCommand::new(kernel, bindings, params)],
        labels: vec!["test".into()],
        rows,
        logit_rows: 1,
        steps: 1,
        io: TableIo::new([BufferId(0); 4]),
        bounds: RowBounds::one_sequence(1, 1).into(),
        streams: akunu_plan::Streams::default(),
    }
}

const NORM: ops::Norm =
    ops::Norm { kind: NormKind::Rms, bias: false, out: OutputForms::Q8, rows: RowSet::All, pick: false };

/// An Apple chip.
const TILED: Chip = Chip { tiles: true, ..Chip::plain(10, 32 << 10) };

/// The launch of a table's only command.
fn launch(table: &DispatchTable) -> Launch {
    let works = launches(table, 0, &CHIP).unwrap();
    works[0].launch().unwrap().clone()
}

#[test]
fn a_function_is_the_same_for_every_layer_and_another_for_other_shapes() {
    let kernel = Kernel::Norm(NORM);
    let of = |cols, rows, epsilon| {
        let table = table(kernel, NormParams { cols, epsilon }, rows);
        launch(&table)
    };
    let norm = of(2048, 1, 1e-5);
    assert_eq!(norm.function, of(2048, 7, 1e-6).function);
    assert_ne!(norm.function, of(4096, 1, 1e-5).function);
    assert_eq!((norm.groups, norm.threads), ([1, 1, 1], 512));
    assert_eq!(of(2048, 7, 1e-5).groups, [1, 7, 1]);
}

#[test]
fn a_text_has_its_symbol_its_constants_and_its_arguments() {
    let kernel = Kernel::Norm(NORM);
    let table = table(kernel, NormParams { cols: 96, epsilon: 1e-5 }, 1);
    let launch = launch(&table);
    let text = cuda_text(&launch.function);
    for part in ["rms_norm_q8_96(\n    u8* a0,", "#define COLS 96u", "in.weight = a1;", "in.out_q8 = a2;"] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
}

#[test]
fn functions_that_differ_in_shapes_have_one_text_for_metal() {
    let kernel = Kernel::Norm(NORM);
    let of = |cols| launch(&table(kernel, NormParams { cols, epsilon: 1e-5 }, 1)).function;
    let text = metal_text(&of(96));
    assert_eq!(text, metal_text(&of(80)));
    for part in [
        "constant unsigned int COLS [[function_constant(0)]];",
        "kernel void launched(\n    device u8* a0 [[buffer(0)]],",
        "constant Params& params [[buffer(5)]],",
        "in.out_q8 = a2;",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
}

#[test]
fn a_product_that_begins_a_norm_has_a_block_of_outputs_a_group_and_is_for_few_rows() {
    let params = MatmulParams {
        inputs: 2048,
        outputs: 2048,
        out_stride: 2048,
        epsilon: 1e-5,
        ..MatmulParams::default()
    };
    let of = |rows: usize, norm| {
        let plain = ops::Matmul::plain(DType::Q4_0, MatmulForm::for_rows(rows));
        let kernel = Kernel::Matmul(ops::Matmul { residual: true, norm, ..plain });
        let table = table(kernel, params, rows);
        launches(&table, 0, &CHIP)
    };
    for rows in [1, 2, 9, 16] {
        let works = of(rows, Some(OutputForms::Q8)).unwrap();
        let launch = works[0].launch().unwrap();
        assert_eq!(launch.groups, [64, 1, 1], "{rows} rows");
        // Each row of a block is stored by one SIMD group.
        assert!(launch.threads / 32 >= rows as u32);
    }
    assert!(of(17, None).is_ok());
    assert!(of(17, Some(OutputForms::Q8)).unwrap_err().to_string().contains("no part in norms"));
}

#[test]
fn f32_weights_of_many_rows_are_multiplied_on_tensor_cores_where_tiles_fill_the_gpu() {
    let of = |rows: usize, outputs: u32| {
        let kernel = Kernel::Matmul(ops::Matmul::plain(DType::F32, MatmulForm::for_rows(rows)));
        let params = MatmulParams { inputs: 2048, outputs, out_stride: outputs, ..MatmulParams::default() };
        let function = launch(&table(kernel, params, rows)).function;
        let tiles = function.variant.iter().find(|(name, _)| *name == "ROW_TILES");
        (function.entry, tiles.map(|(_, tiles)| *tiles))
    };
    assert_eq!(of(2048, 2048), ("gemm_tf32", Some(4)));
    // A router, with many rows and with few.
    assert_eq!(of(2048, 128), ("gemm_tf32", Some(1)));
    assert_eq!(of(512, 128), ("gemv", None));
    assert_eq!(of(32, 2048), ("gemv", None));
    // A gate has one output.
    assert_eq!(of(8192, 1), ("gemv", None));
}

#[test]
fn attention_rotates_heads_for_one_row_only() {
    let rope = Some(Rope { style: Some(RopeStyle::HalfSplit), qk_norm: true });
    let kernel =
        Kernel::Attention(ops::Attention { rope, ..ops::Attention::plain(KvType::F16, OutputForms::Q8) });
    let params = AttentionParams {
        heads: 8,
        kv_heads: 2,
        head_dim: 128,
        positions: 4096,
        rope_dims: 128,
        ..AttentionParams::default()
    };
    let of = |rows| {
        let table = table(kernel, params, rows);
        launches(&table, 0, &CHIP)
    };
    assert!(of(1).is_ok());
    assert!(of(2).unwrap_err().to_string().contains("several rows"));
}

#[test]
fn tiles_are_for_many_rows_and_fit_the_memory_of_a_group() {
    let params = MatmulParams { inputs: 4096, outputs: 1000, out_stride: 1000, ..MatmulParams::default() };
    let matmul = |weight: DType, rows: usize| {
        let kernel = Kernel::Matmul(ops::Matmul::plain(weight, MatmulForm::for_rows(rows)));
        table(kernel, params, rows)
    };
    let params = AttentionParams { heads: 12, kv_heads: 3, positions: 4096, ..AttentionParams::default() };
    let attention = |kv: KvType, head_dim: u32, rows: usize| {
        let kernel = Kernel::Attention(ops::Attention::plain(kv, OutputForms::Q8));
        table(kernel, AttentionParams { head_dim, ..params }, rows)
    };
    let launch = |table: DispatchTable| {
        let works = launches(&table, 0, &TILED).unwrap();
        let launch = works[0].launch().unwrap().clone();
        assert!(
            launch.shared_bytes <= TILED.shared_bytes,
            "{}: {}",
            launch.function.name,
            launch.shared_bytes
        );
        launch
    };
    for weight in DType::ALL {
        let groups = [1, 8, 9, 17, 40, 512].map(|rows| {
            let launch = launch(matmul(weight, rows));
            (launch.function.entry, launch.groups)
        });
        let tiles = |down| ("gemm_tiles", [down, 16, 1]);
        assert_eq!(groups[2..], [tiles(1), tiles(1), tiles(1), tiles(8)]);
        assert!(groups[..2].iter().all(|(entry, _)| *entry == "gemv"));
    }
    for kv in [KvType::F32, KvType::F16, KvType::Q8_0] {
        for head_dim in [64, 96, 128, 256] {
            let entries = [16, 17, 512].map(|rows| launch(attention(kv, head_dim, rows)).function.entry);
            assert_eq!(entries, ["attention", "attention_tiles", "attention_tiles"], "{kv:?} {head_dim}");
        }
    }
}

/// Whether a product sends its outputs to the other ranks, and whether the sum after it expects that.
#[test]
fn what_a_product_sends_is_what_the_sum_after_it_expects() {
    let op = ops::Matmul::plain(DType::Q4_0, MatmulForm::Gemv);
    let pair = |op: ops::Matmul, [outputs, out_stride, cols]: [u32; 3], rows: usize| {
        let params = MatmulParams { inputs: 2048, outputs, out_stride, ..MatmulParams::default() };
        let mut both = table(Kernel::Matmul(op), params, rows);
        let sum = Kernel::AllReduce(ops::AllReduce { residual: true, norm: None });
        both.commands.extend(table(sum, NormParams { cols, epsilon: 0.0 }, rows).commands);
        both
    };
    let of = |table: &DispatchTable, chip: &Chip| {
        [(0, "SENDS"), (1, "SENT")].map(|(index, name)| {
            let works = launches(table, index, chip).unwrap();
            works.iter().filter_map(|work| work.launch()).any(|l| l.function.variant.contains(&(name, 1)))
        })
    };
    let whole = [4096; 3];
    for chip in [CHIP, Chip::plain(4, 48 << 10)] {
        assert_eq!(of(&pair(op, whole, 1), &chip), [true; 2]);
        assert_eq!(of(&pair(op, [16 << 10; 3], 1), &chip), [true; 2]);
    }
    let small = ops::Matmul { form: MatmulForm::Small, ..op };
    let of_logits = ops::Matmul { rows: RowSet::Logits, ..op };
    let begins_norm = ops::Matmul { norm: Some(OutputForms::F32), ..op };
    let mut elsewhere = pair(op, whole, 1);
    let sum = elsewhere.commands.pop().unwrap();
    elsewhere.commands.push(DispatchCommand::new(
        sum.kernel,
        [1, 2, 3].map(BufferId),
        NormParams { cols: 4096, epsilon: 0.0 },
    ));
    for other in [
        pair(small, whole, 2),
        pair(of_logits, whole, 1),
        pair(begins_norm, whole, 1),
        pair(op, [4097; 3], 1),
        pair(op, [4096, 4128, 4096], 1),
        pair(op, [4096, 4096, 2048], 1),
        pair(op, [(16 << 10) + 2; 3], 1),
        elsewhere,
    ] {
        assert_eq!(of(&other, &CHIP), [false; 2], "{:?}", other.commands);
    }
    assert_eq!(of(&pair(op, whole, 1), &Chip { gathered_ranks: 2, ..CHIP }), [false; 2]);
}
