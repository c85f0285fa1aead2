//! Writes the source texts of kernels to subfolders of FOLDER: `texts FOLDER [MODEL...]`.
//!
//! - `every`: the CUDA text of every function that the test models and every weight type launch;
//! - `kinds`: one of each kind, whatever its shapes;
//! - `few`: the smallest selection of these that covers every variant value of each kernel;
//! - `metal`: the Metal text of each kind that Apple's chips launch.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a tool for contributors")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use akunu_arch::open_model;
use akunu_kernels::{
    Chip, Cover, Function, Work, cuda_text, emulated_text, launches, metal_text, repack, weights,
};
use akunu_plan::ops::{
    self, AddParams, AllGatherParams, AttentionParams, ElementParams, EmbedParams, ExpertParams, GluKind,
    GluMatmulParams, HeadNormParams, MatmulParams, NormParams, NormPartParams, QkvParams, RoundParams,
    SumSquaresParams, UnpackParams,
};
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::{
    Activation, BufferId, Capabilities, DType, Device, DispatchCommand, DispatchTable, FewRows, Kernel,
    KvType, MatmulForm, NormKind, OutputForms, PlanOptions, Rope, RopeStyle, RowBounds, RowSet, TableIo,
    plan,
};

const NVIDIA: Chip =
    Chip { tensor_cores: true, warpgroups: true, copies: true, ..Chip::plain(132, 226 << 10) };
/// Threadgroup memory is 32 KiB.
const APPLE7: Chip = Chip { tiles: true, ..Chip::plain(8, 32 << 10) };
const APPLE9: Chip = Chip { bf16_tiles: true, ..APPLE7 };
/// One of several ranks in different processes.
const REMOTE: Chip = Chip { gathered_ranks: 2, ..NVIDIA };

/// Names by text, and texts up to shapes.
#[derive(Default)]
struct Texts {
    every: BTreeMap<String, String>,
    kinds: BTreeMap<String, String>,
    few: BTreeMap<String, String>,
    seen: BTreeSet<String>,
    cover: Cover,
    metal: BTreeMap<String, String>,
}

type Add = fn(&mut Texts, &Function);

fn add_cuda(texts: &mut Texts, function: &Function) {
    let (text, name) = (cuda_text(function), &function.name);
    if texts.seen.insert(emulated_text(function)) {
        texts.kinds.insert(text.clone(), name.clone());
        if texts.cover.takes(&[function]) {
            texts.few.insert(text.clone(), name.clone());
        }
    }
    texts.every.insert(text, name.clone());
}

fn add_metal(texts: &mut Texts, function: &Function) {
    texts.metal.entry(metal_text(function)).or_insert_with(|| function.name.clone());
}

fn write(folder: &Path, extension: &str, texts: &BTreeMap<String, String>) {
    std::fs::create_dir_all(folder).unwrap();
    for (i, (text, name)) in texts.iter().enumerate() {
        std::fs::write(folder.join(format!("{i:04}_{name}.{extension}")), text).unwrap();
    }
}

fn add_table(texts: &mut Texts, table: &DispatchTable) {
    let chips = [(NVIDIA, add_cuda as Add), (APPLE7, add_metal), (APPLE9, add_metal)];
    add_table_for(texts, table, &chips);
}

fn add_table_for(texts: &mut Texts, table: &DispatchTable, chips: &[(Chip, Add)]) {
    for (chip, add) in chips {
        for (index, command) in table.commands.iter().enumerate() {
            match launches(table, index, chip) {
                Ok(works) => {
                    works.iter().filter_map(Work::launch).for_each(|launch| add(texts, &launch.function))
                }
                Err(missing) => println!("{missing}"),
            }
            for weight in weights(command) {
                repack(&weight).iter().for_each(|launch| add(texts, &launch.function));
            }
        }
    }
}

/// One of three combinations of passes and cache types, selected by `turn`.
fn add_model(texts: &mut Texts, turn: usize, path: &Path) {
    let model = open_model(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let reference = ReferenceDevice::new();
    let device = ReferenceDevice::like(&Capabilities {
        folds: true,
        half_products: turn.is_multiple_of(3).then_some(FewRows::all(64)),
        ..reference.capabilities().clone()
    });
    let passes = [(KvType::F16, 512, true), (KvType::Q8_0, 8, true), (KvType::F32, 64, false)];
    let (kv, prefill_rows, fuse) = passes[turn % 3];
    let options = PlanOptions {
        context: 4096,
        slots: 1,
        kv,
        kv_bytes: None,
        prefill_rows,
        prefill_logit_rows: 1,
        chain: 8,
        windows: 1,
        beams: 1,
        word_times: false,
        fuse,
        keep_inputs: false,
        host: akunu_plan::OnHost::default(),
        stages: Vec::new(),
        stream_rows: None,
    };
    // A head may not be a whole number of the cache type's blocks.
    let Ok(plan) = plan(&*model, device.capabilities(), &options) else { return };
    for (_, table) in plan.tables.iter() {
        add_table(texts, table);
    }
}

/// A table of one command without buffers.
fn table(kernel: Kernel, params: impl bytemuck::NoUninit, rows: usize) -> DispatchTable {
    let bindings = kernel.bindings().into_iter().map(|_| BufferId(0));
    DispatchTable {
        name: "one",
        commands: vec![DispatchCommand::new(kernel, bindings, params)],
        labels: vec!["one".into()],
        rows,
        logit_rows: 1,
        steps: 1,
        io: TableIo::new([BufferId(0); 4]),
        bounds: RowBounds::one_sequence(1, 4096).into(),
        streams: akunu_plan::Streams::default(),
    }
}

/// A type's kernels in the shapes of a common model.
fn add_type(texts: &mut Texts, weight: DType) {
    let q8 = weight.is_quantised();
    add_table(
        texts,
        &table(
            Kernel::Embed(ops::Embed { weight, part: false }),
            EmbedParams { cols: 4096, vocab: 128_256, scale: 1.0 },
            1,
        ),
    );
    if weight != DType::F32 {
        let params = UnpackParams { inputs: 4096, outputs: 14336 };
        add_table(texts, &table(Kernel::Unpack(ops::Unpack { weight }), params, 512));
    }
    for rows in [1, 16, 512] {
        let form = MatmulForm::for_rows(rows);
        let (activation, out) = (Activation::Silu, if q8 { OutputForms::Q8 } else { OutputForms::F32 });
        let folds = if form == MatmulForm::Gemm { &[false][..] } else { &[false, true] };
        for &scaled in folds {
            let (bias, norm) = (false, scaled.then_some(out));
            let plain = ops::Matmul::plain(weight, form);
            let kernel = Kernel::Matmul(ops::Matmul { residual: true, norm, ..plain });
            let [inputs, outputs, out_stride] = [4096; 3];
            let params = MatmulParams { inputs, outputs, out_stride, soft_cap: 0.0, epsilon: 1e-5 };
            add_table(texts, &table(kernel, params, rows));
            if !scaled {
                let op = ops::Matmul { bias: true, activation: Some(Activation::GeluErf), out, ..plain };
                add_table(texts, &table(Kernel::Matmul(op), params, rows));
            }
            let params = QkvParams { inputs: 4096, q: 4096, k: 1024, v: 1024 };
            add_table(texts, &table(Kernel::Qkv(ops::Qkv { weight, form, q8, bias, scaled }), params, rows));
            let kernel = Kernel::GluMatmul(ops::GluMatmul { weight, form, q8, activation, out, scaled });
            add_table(texts, &table(kernel, GluMatmulParams { inputs: 4096, outputs: 14336 }, rows));
        }
    }
}

/// Row kernels that the test models' tables may lack.
fn add_rows(texts: &mut Texts) {
    let (activation, input) = (Activation::GeluErf, ops::InputForm::F32);
    let op = ops::Activate { activation, input, out: OutputForms::Both, rows: RowSet::All };
    add_table(texts, &table(Kernel::Activate(op), ElementParams { cols: 4096 }, 512));
    add_table(texts, &table(Kernel::Add(ops::Add), AddParams { cols: 4096, scale: 1.0 }, 512));
    add_table(texts, &table(Kernel::Reorder(ops::Reorder), ElementParams { cols: 4096 }, 512));
    for (kind, bias) in [(NormKind::Rms, false), (NormKind::Layer, false), (NormKind::Layer, true)] {
        for out in [OutputForms::Both, OutputForms::F32AndF16] {
            let norm = Kernel::Norm(ops::Norm { kind, bias, out, rows: RowSet::All, pick: false });
            add_table(texts, &table(norm, NormParams { cols: 4096, epsilon: 1e-5 }, 512));
        }
        let heads = Kernel::HeadNorm(ops::HeadNorm { kind, bias });
        let (head_dim, epsilon, in_stride, out_stride) = (128, 1e-5, 6144, 4096);
        let params = HeadNormParams { heads: 32, head_dim, epsilon, in_stride, out_stride };
        add_table(texts, &table(heads, params, 512));
    }
    let params = SumSquaresParams { cols: 3072, out_stride: 2 };
    add_table(texts, &table(Kernel::SumSquares(ops::SumSquares), params, 512));
    let params = NormPartParams { cols: 3072, summed: 6144, epsilon: 1e-5, sum_stride: 2, out_stride: 4096 };
    add_table(texts, &table(Kernel::NormPart(ops::NormPart), params, 512));
}

/// What ranks exchange, by kernels and by a library.
fn add_ranks(texts: &mut Texts) {
    let params = NormParams { cols: 4096, epsilon: 1e-5 };
    for (rows, norm) in [(1, Some(OutputForms::Q8)), (512, None)] {
        let reduce = Kernel::AllReduce(ops::AllReduce { residual: true, norm });
        let sum = table(reduce, params, rows);
        add_table_for(texts, &sum, &[(NVIDIA, add_cuda), (REMOTE, add_cuda)]);
        // A product of one row sends what is added up. Q4_K streams.
        for weight in [DType::Q4_0, DType::Q4K, DType::BF16].into_iter().filter(|_| rows == 1) {
            let op = ops::Matmul::plain(weight, MatmulForm::Gemv);
            let params =
                MatmulParams { inputs: 4096, outputs: 4096, out_stride: 4096, ..MatmulParams::default() };
            let mut both = table(Kernel::Matmul(op), params, 1);
            both.commands.extend(sum.commands.clone());
            add_table_for(texts, &both, &[(NVIDIA, add_cuda)]);
        }
    }
    let gather =
        table(Kernel::AllGather(ops::AllGather), AllGatherParams { cols: 64_128, total: 128_256 }, 1);
    add_table_for(texts, &gather, &[(NVIDIA, add_cuda), (REMOTE, add_cuda)]);
}

/// f16 rows and products of them, in the same shapes.
fn add_halves(texts: &mut Texts) {
    let (activation, out, rows) = (Activation::GeluErf, OutputForms::F16, RowSet::All);
    for input in [ops::InputForm::F32, ops::InputForm::F16 { bias: true }] {
        let op = ops::Activate { activation, input, out, rows };
        add_table(texts, &table(Kernel::Activate(op), ElementParams { cols: 14336 }, 512));
    }
    let glu = Kernel::Glu(ops::Glu { activation: Activation::Silu, out });
    add_table(texts, &table(glu, ElementParams { cols: 14336 }, 512));
    add_table(
        texts,
        &table(
            Kernel::Round(ops::Round { input: ops::InputForm::F32, out: OutputForms::F16 }),
            RoundParams { cols: 4096, times: 1 },
            512,
        ),
    );
    for (bias, residual, f16) in [(false, true, false), (true, false, false), (false, false, true)] {
        let params =
            MatmulParams { inputs: 4096, outputs: 4096, out_stride: 4096, ..MatmulParams::default() };
        let op = ops::HalfMatmul { weight: DType::F16, bias, residual, f16, rows: RowSet::All };
        add_table(texts, &table(Kernel::HalfMatmul(op), params, 512));
    }
}

/// Products with packed weights, whose kernels depend on the number of rows.
fn add_packed(texts: &mut Texts, weight: DType) {
    for rows in [64, 128, 512] {
        for outputs in [4096, 14336] {
            let params =
                MatmulParams { inputs: 4096, outputs, out_stride: outputs, ..MatmulParams::default() };
            for [bias, residual, f16] in [[outputs == 4096, true, false], [false, false, outputs == 4096]] {
                let op = ops::HalfMatmul { weight, bias, residual, f16, rows: RowSet::All };
                add_table(texts, &table(Kernel::HalfMatmul(op), params, rows));
            }
        }
        let halves = [DType::F16, DType::BF16].into_iter().filter(|_| weight == DType::Q4_0);
        for weight in halves {
            let params =
                MatmulParams { inputs: 4096, outputs: 32000, out_stride: 32000, ..MatmulParams::default() };
            let [bias, residual, f16] = [false; 3];
            let op = ops::HalfMatmul { weight, bias, residual, f16, rows: RowSet::Logits };
            add_table(texts, &table(Kernel::HalfMatmul(op), params, rows));
        }
        let params = QkvParams { inputs: 4096, q: 4096, k: 1024, v: 1024 };
        add_table(texts, &table(Kernel::HalfQkv(ops::HalfQkv { weight }), params, rows));
        let params = ExpertParams { inputs: 4096, outputs: 14336, experts: 8, top: 2 };
        let glu = GluKind::Plain(Activation::Silu);
        add_table(texts, &table(ops::HalfExpertGlu { weight, glu }.into(), params, 4 * rows));
        let params = ExpertParams { inputs: 14336, outputs: 4096, ..params };
        add_table(texts, &table(ops::HalfExpertMatmul { weight }.into(), params, 4 * rows));
    }
}

fn add_attention(texts: &mut Texts, head_dim: u32) {
    let (heads, kv_heads, positions, rope_dims) = (32, 8, 4096, head_dim);
    let params = AttentionParams {
        heads,
        kv_heads,
        head_dim,
        positions,
        scale: 0.1,
        rope_dims,
        epsilon: 1e-5,
        ..AttentionParams::default()
    };
    let rope = Some(Rope { style: Some(RopeStyle::Interleaved), qk_norm: false });
    for (rows, rope, out) in [
        (1, None, OutputForms::Q8),
        (512, None, OutputForms::Q8),
        (2048, None, OutputForms::F16),
        (1, rope, OutputForms::Q8),
    ] {
        let op = ops::Attention { rope, ..ops::Attention::plain(KvType::F16, out) };
        add_table(texts, &table(Kernel::Attention(op), params, rows));
        if rope.is_none() && rows < 2048 {
            let (op, params) = (
                ops::Attention { paged: true, ..ops::Attention::plain(KvType::Q8_0, out) },
                AttentionParams { block: 64, ..params },
            );
            add_table(texts, &table(Kernel::Attention(op), params, rows));
        }
        let (op, params) =
            (ops::Attention { chunked: true, ..op }, AttentionParams { window: 1024, ..params });
        add_table(texts, &table(Kernel::Attention(op), params, rows));
    }
}

fn test_models() -> Vec<PathBuf> {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    let list = |folder: &str| std::fs::read_dir(testdata.join(folder)).unwrap().map(|e| e.unwrap().path());
    let mut models: Vec<PathBuf> =
        list("models").chain(list("mlx")).chain(list("quantised")).chain(list("gguf")).collect();
    models.retain(|path| path.join("config.json").exists() || path.extension().is_some_and(|e| e == "gguf"));
    models.sort();
    models
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(PathBuf::from);
    let folder = arguments.next().unwrap();
    let asked: Vec<PathBuf> = arguments.collect();
    let mut texts = Texts::default();
    if asked.is_empty() {
        let affine = akunu_format::Affine::all()
            .filter(|a| a.group() == 64 && a.scales() == akunu_format::ScaleType::F16)
            .map(DType::Affine);
        add_rows(&mut texts);
        add_ranks(&mut texts);
        add_halves(&mut texts);
        for weight in
            [DType::Q4_0, DType::Q8_0, DType::Q4K, DType::Q5K, DType::Q6K, DType::MXFP4, DType::IQ3S]
        {
            add_packed(&mut texts, weight);
        }
        [64, 128].into_iter().for_each(|head_dim| add_attention(&mut texts, head_dim));
        let fp8 = akunu_format::Fp8::ALL.map(DType::Fp8);
        DType::ALL.into_iter().chain(affine).chain(fp8).for_each(|dtype| add_type(&mut texts, dtype));
        test_models().iter().enumerate().for_each(|(i, path)| add_model(&mut texts, i, path));
    }
    asked.iter().for_each(|path| (0..3).for_each(|turn| add_model(&mut texts, turn, path)));
    write(&folder.join("every"), "cu", &texts.every);
    write(&folder.join("kinds"), "cu", &texts.kinds);
    write(&folder.join("few"), "cu", &texts.few);
    write(&folder.join("metal"), "metal", &texts.metal);
    println!(
        "{} functions of {} kinds, for which {} stand; {} for Metal",
        texts.every.len(),
        texts.kinds.len(),
        texts.few.len(),
        texts.metal.len()
    );
}
