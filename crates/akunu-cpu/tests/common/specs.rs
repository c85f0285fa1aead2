//! Every kernel over all types and odd shapes.

use akunu_plan::ops;
use akunu_plan::ops::*;
use akunu_plan::{
    Activation, DType, Kernel, KvType, MatmulForm, Move, MoveKind, OutputForms, RopeStyle, Row, RowSet,
    halves, q8,
};

use super::*;

pub(super) const ACTIVATIONS: [Activation; 5] =
    [Activation::Silu, Activation::GeluTanh, Activation::GeluErf, Activation::Tanh, Activation::Relu];
pub(super) const OUTS: [OutputForms; 3] = [OutputForms::F32, OutputForms::Q8, OutputForms::Both];

pub(super) fn spec(name: String, rows: usize, build: impl Fn(Range<usize>) -> Case + 'static) -> Spec {
    Spec { name, rows, build: Box::new(build) }
}

/// Poisoned outputs in the requested forms.
pub(super) fn outputs(out: OutputForms, rows: usize, cols: usize) -> Vec<Vec<u8>> {
    let mut data = vec![];
    if out.f32() {
        data.push(poison(rows * cols * 4));
    }
    if out.q8() {
        data.push(poison(rows * q8::row_bytes(cols)));
    }
    if out.f16() {
        data.extend([poison(rows * cols * 2), poison(rows * 4)]);
    }
    data
}

/// (inputs, outputs) that suit a type, odd ones among them.
fn shapes(dtype: DType) -> Vec<(usize, usize)> {
    match dtype.block_len() {
        1 => vec![(1, 1), (7, 5), (64, 33), (100, 16), (576, 35), (1030, 20)],
        64 => vec![(64, 1), (128, 17), (320, 33), (576, 35), (1088, 20)],
        128 => vec![(128, 1), (384, 17), (640, 33), (1152, 20)],
        32 => vec![(32, 1), (64, 17), (288, 40), (512, 16), (576, 35), (832, 5), (1056, 20)],
        _ => vec![(256, 1), (512, 33), (768, 20), (1280, 7)],
    }
}

pub(super) fn input(dtype: DType, seed: u64, rows: usize, cols: usize) -> Vec<u8> {
    if dtype.is_quantised() { q8_rows(seed, rows, cols) } else { f32s(&values(seed, rows * cols)) }
}

pub fn matmul(dtype: DType, rows: usize, (inputs, outs): (usize, usize), bias: bool, residual: bool) -> Spec {
    let name = format!("matmul {dtype} {rows}x{inputs}x{outs} bias {bias} residual {residual}");
    spec(name, rows, move |part| {
        let q8 = dtype.is_quantised();
        let kernel = Kernel::Matmul(ops::Matmul {
            weight: dtype,
            form: MatmulForm::for_rows(part.len()),
            q8,
            bias,
            residual,
            rows: RowSet::All,
            scaled: false,
            norm: None,
        });
        let soft_cap = if outs == 33 { 3.0 } else { 0.0 };
        let stride = outs + usize::from(outs == 20) * 3;
        let params = MatmulParams {
            inputs: inputs as u32,
            outputs: outs as u32,
            out_stride: stride as u32,
            soft_cap,
            epsilon: 0.0,
        };
        let mut data = vec![pick(&input(dtype, 1, rows, inputs), rows, &part)];
        data.extend(weights(dtype, 2, outs, inputs));
        data.push(poison(part.len() * stride * 4));
        if bias {
            data.push(f32s(&values(3, outs)));
        }
        if residual {
            data.push(pick(&f32s(&values(4, rows * stride)), rows, &part));
        }
        Case::new(kernel, params, Shape::rows(part.len()), data)
    })
}

fn qkv(dtype: DType, rows: usize, inputs: usize, bias: bool) -> Spec {
    spec(format!("qkv {dtype} {rows}x{inputs} bias {bias}"), rows, move |part| {
        let form = MatmulForm::for_rows(part.len());
        let kernel =
            Kernel::Qkv(ops::Qkv { weight: dtype, form, q8: dtype.is_quantised(), bias, scaled: false });
        let sizes = [48, 20, 12];
        let params = QkvParams { inputs: inputs as u32, q: sizes[0], k: sizes[1], v: sizes[2] };
        let mut data = vec![pick(&input(dtype, 5, rows, inputs), rows, &part)];
        data.extend((0..3).flat_map(|i| weights(dtype, 6 + i, sizes[i as usize] as usize, inputs)));
        data.push(poison(part.len() * 80 * 4));
        if bias {
            data.extend((0..3).map(|i| f32s(&values(9 + i, sizes[i as usize] as usize))));
        }
        Case::new(kernel, params, Shape::rows(part.len()), data)
    })
}

pub fn glu_matmul(
    dtype: DType,
    rows: usize,
    inputs: usize,
    outs: usize,
    activation: Activation,
    out: OutputForms,
) -> Spec {
    spec(format!("glu_matmul {dtype} {rows}x{inputs}x{outs} {activation:?} {out:?}"), rows, move |part| {
        let form = MatmulForm::for_rows(part.len());
        let kernel = Kernel::GluMatmul(ops::GluMatmul {
            weight: dtype,
            form,
            q8: dtype.is_quantised(),
            activation,
            out,
            scaled: false,
        });
        let params = GluMatmulParams { inputs: inputs as u32, outputs: outs as u32 };
        let mut data = vec![pick(&input(dtype, 12, rows, inputs), rows, &part)];
        data.extend((0..2).flat_map(|i| weights(dtype, 13 + i, outs, inputs)));
        data.extend(outputs(out, part.len(), outs));
        Case::new(kernel, params, Shape::rows(part.len()), data)
    })
}

pub fn matrices() -> Vec<Spec> {
    let mut specs = vec![];
    for dtype in dtypes() {
        for (i, shape) in shapes(dtype).into_iter().enumerate() {
            for (j, rows) in [1, 2, 3, 7, 17, 64].into_iter().enumerate() {
                specs.push(matmul(dtype, rows, shape, (i + j) % 2 == 0, (i + j) % 3 == 0));
            }
        }
        let inputs = match dtype.block_len() {
            1 | 32 => 288,
            64 => 320,
            len => 2 * len,
        };
        for rows in [1, 3, 9] {
            specs.push(qkv(dtype, rows, inputs, rows == 3));
            specs.push(glu_matmul(dtype, rows, inputs, 96, ACTIVATIONS[rows % 3], OUTS[rows / 3 % 3]));
        }
        specs.push(glu_matmul(dtype, 5, inputs, 41, Activation::Silu, OutputForms::F32));
    }
    // More of both than any instruction set's panels hold.
    for dtype in [DType::Q4_0, DType::Q4_1, DType::Q2K, DType::Q4K, DType::Q6K] {
        specs.push(matmul(dtype, 50, (2816, 20), false, false));
        specs.push(matmul(dtype, 291, (512, 20), true, true));
    }
    specs.push(matmul(DType::Q4_0, 130, (64, 20), true, true));
    specs.push(matmul(DType::F16, 130, (40, 20), true, true));
    // More rows than share one unpacking of the weights.
    specs.push(matmul(DType::Q4_0, 530, (64, 20), true, true));
    specs
}

/// Products of one row with more inputs than fit in registers, and more outputs than all threadgroups compute at once.
pub fn long_rows() -> Vec<Spec> {
    let mut specs = vec![];
    for dtype in dtypes() {
        specs.push(matmul(dtype, 1, (8192, 72), true, true));
        specs.push(glu_matmul(dtype, 1, 4096, 352, Activation::Silu, OUTS[1 + specs.len() % 2]));
        specs.push(qkv(dtype, 1, 1024, true));
        // A few iterations of 32 blocks, and a partial one.
        let inputs = if dtype.block_len() == 1 { 1048 } else { 4096 + dtype.block_len().max(64) };
        specs.push(matmul(dtype, 1, (inputs, 20), true, false));
    }
    specs.push(matmul(DType::BF16, 1, (132, 9), false, false));
    for dtype in [DType::Q3K, DType::Q4K, DType::Q6K] {
        specs.extend(
            [(4096, 128), (14336, 32), (2048, 1000)].map(|shape| matmul(dtype, 1, shape, false, true)),
        );
        specs.push(glu_matmul(dtype, 1, 11008, 96, Activation::Silu, OutputForms::F32));
    }
    specs
}

/// Products of many rows and outputs, for kernels that divide both into large tiles.
pub fn large_matrices() -> Vec<Spec> {
    let mut specs = vec![];
    for dtype in [DType::Q4_0, DType::Q4_1, DType::Q8_0, DType::IQ4NL] {
        specs.push(matmul(dtype, 150, (288, 260), true, true));
    }
    for dtype in [DType::Q2K, DType::Q4K, DType::Q6K] {
        specs.push(matmul(dtype, 150, (256, 260), false, true));
    }
    for dtype in [DType::F16, DType::BF16] {
        specs.push(matmul(dtype, 150, (104, 260), true, true));
        specs.push(matmul(dtype, 21, (576, 20), true, false));
        specs.push(qkv(dtype, 70, 64, true));
        specs.push(glu_matmul(dtype, 70, 72, 75, Activation::Silu, OutputForms::F32));
    }
    // With few rows, and enough outputs for the wide tiles of kernels for few rows.
    specs.push(matmul(DType::Q4_0, 5, (288, 600), true, true));
    specs.push(matmul(DType::Q6K, 37, (512, 520), false, true));
    for (rows, outs) in [(18, 160), (70, 352), (300, 544)] {
        specs.push(glu_matmul(DType::Q4_0, rows, 96, outs, Activation::Silu, OutputForms::Both));
        specs.push(glu_matmul(DType::Q2K, rows, 256, outs, Activation::GeluTanh, OutputForms::Q8));
    }
    for dtype in dtypes().into_iter().filter(|dtype| dtype.is_quantised()) {
        let inputs = if dtype.block_len() == 32 { 160 } else { 256 };
        specs.push(qkv(dtype, 40, inputs, dtype == DType::Q4_0));
        specs.push(glu_matmul(dtype, 33, inputs, 41, Activation::Silu, OutputForms::F32));
    }
    specs
}

/// f16 rows of ordinary values, with scales of every kind, and the scales.
fn half_rows(seed: u64, rows: usize, cols: usize) -> [Vec<u8>; 2] {
    let mut numbers = vec![0; rows * cols * 2];
    for (row, to) in values(seed, rows * cols).chunks(cols).zip(numbers.chunks_mut(cols * 2)) {
        halves::store(row, 1.0, to);
    }
    let scales: Vec<f32> = (0..rows).map(|row| [1.0, 1.0, 64.0, 0.001_953_125][row % 4]).collect();
    [numbers, f32s(&scales)]
}

fn unpack(weight: DType, inputs: usize, outs: usize) -> Spec {
    spec(format!("unpack {weight} {outs}x{inputs}"), 1, move |_| {
        let mut data = weights(weight, 60, outs, inputs);
        data.push(poison(outs * inputs * 2));
        let params = UnpackParams { inputs: inputs as u32, outputs: outs as u32 };
        Case::new(Kernel::Unpack(ops::Unpack { weight }), params, Shape::rows(1), data)
    })
}

fn half_matmul(rows: usize, inputs: usize, outs: usize, bias: bool, residual: bool) -> Spec {
    spec(format!("half_matmul {rows}x{inputs}x{outs} bias {bias} residual {residual}"), rows, move |part| {
        let stride = outs + usize::from(outs == 20) * 3;
        let params = MatmulParams {
            inputs: inputs as u32,
            outputs: outs as u32,
            out_stride: stride as u32,
            ..MatmulParams::default()
        };
        let [numbers, scales] = half_rows(61, rows, inputs);
        let [weights, _] = half_rows(62, outs, inputs);
        let mut data = vec![pick(&numbers, rows, &part), pick(&scales, rows, &part), weights];
        data.push(poison(part.len() * stride * 4));
        if bias {
            data.push(f32s(&values(63, outs)));
        }
        if residual {
            data.push(pick(&f32s(&values(64, rows * stride)), rows, &part));
        }
        Case::new(
            Kernel::HalfMatmul(ops::HalfMatmul { bias, residual }),
            params,
            Shape::rows(part.len()),
            data,
        )
    })
}

/// Rows of f16, with scales and without; weights of f16; their products.
pub fn halves() -> Vec<Spec> {
    let mut specs = vec![];
    for (shape, out) in [((4, 2, 40), OutputForms::F16), ((3, 1, 80), OutputForms::F32AndF16)] {
        let seen = Seen { rows: 5, first: 20, window: 0, soft_cap: 0.0, factor_step: 0 };
        specs.push(attend(shape, KvType::F16, seen, out));
    }
    specs.extend(super::rows::in_halves());
    for dtype in dtypes().into_iter().filter(|dtype| *dtype != DType::F32) {
        for (inputs, outs) in shapes(dtype).into_iter().filter(|(inputs, _)| inputs.is_multiple_of(8)) {
            specs.push(unpack(dtype, inputs, outs));
        }
    }
    for (i, (rows, inputs, outs)) in [(17, 64, 33), (40, 96, 20), (19, 8, 5)].into_iter().enumerate() {
        for turn in 0..4 {
            specs.push(half_matmul(rows, inputs, outs, (turn + i) % 2 == 0, turn >= 2));
        }
    }
    specs
}

/// Kernels over rows that request logits.
pub fn asking() -> Vec<Case> {
    let mut cases = super::rows::asking();
    let kernel = Kernel::Matmul(ops::Matmul {
        weight: DType::Q8_0,
        form: MatmulForm::Gemv,
        q8: true,
        bias: false,
        residual: false,
        rows: RowSet::Logits,
        scaled: false,
        norm: None,
    });
    let data = vec![q8_rows(33, 3, 64), weight_rows(DType::Q8_0, 34, 50, 64), poison(3 * 50 * 4)];
    let params = MatmulParams { inputs: 64, outputs: 50, out_stride: 50, soft_cap: 0.5, epsilon: 0.0 };
    cases.push(Case::new(kernel, params, Shape::rows(7).asking(vec![0, 3, 5]), data));
    for (vocab, advance) in [(5, 0), (16, 1), (1003, 1)] {
        let mut logits = values(35, 4 * vocab);
        // A tie, a maximum at the very end, and a NaN.
        logits[1] = 9.0;
        logits[3] = 9.0;
        logits[2 * vocab - 1] = 9.0;
        logits[2 * vocab + 2] = f32::NAN;
        let shape = Shape::tokens((0..6).map(|i| Row::causal(0, i, 0)).collect(), vocab as u32, 9);
        let shape = shape.asking(vec![0, 2, 3, 5]);
        let params = ArgmaxParams { vocab: vocab as u32, advance };
        cases.push(Case::new(Kernel::Argmax(ops::Argmax), params, shape, vec![f32s(&logits)]));
        // One row, which several workers share.
        for row in 0..4 {
            let one = f32s(&logits[row * vocab..(row + 1) * vocab]);
            let shape = Shape::tokens(vec![Row::causal(0, 7, 0)], vocab as u32, 9).asking(vec![0]);
            cases.push(Case::new(Kernel::Argmax(ops::Argmax), params, shape, vec![one]));
        }
    }
    cases
}

/// (heads, kv heads, head dim)
pub(super) const HEADS: [(u32, u32, u32); 13] = [
    (5, 1, 48),
    (6, 1, 64),
    (14, 2, 40),
    (4, 4, 4),
    (2, 1, 6),
    (4, 2, 8),
    (4, 1, 64),
    (3, 1, 80),
    (8, 1, 96),
    (2, 2, 128),
    (2, 1, 256),
    (8, 2, 32),
    (40, 1, 16),
];

pub(super) fn kv_types(head_dim: u32) -> Vec<KvType> {
    [KvType::F32, KvType::F16, KvType::Q8_0]
        .into_iter()
        .filter(|kv| kv.row_bytes(head_dim as usize).is_some())
        .collect()
}

/// A cache with random values in every position.
pub(super) fn cache(kv: KvType, seed: u64, kv_heads: u32, positions: u32, dim: u32) -> Vec<u8> {
    weight_rows(kv.dtype(), seed, (kv_heads * positions) as usize, dim as usize)
}

/// Rows of two sequences of `context` positions each; `first` is the position of the first row.
fn mixed_rows(n: usize, first: u32, context: u32) -> Vec<Row> {
    let start_of = |i: usize| if i >= n * 2 / 3 { context } else { 0 };
    (0..n).map(|i| Row::causal(0, first + i as u32, start_of(i))).collect()
}

pub fn rope() -> Vec<Spec> {
    let mut specs = vec![];
    for (i, (heads, kv_heads, dim)) in HEADS.into_iter().enumerate() {
        for kv in kv_types(dim) {
            for (style, qk_norm, rotates) in [
                (RopeStyle::HalfSplit, i % 2 == 0, true),
                (RopeStyle::Interleaved, i % 2 == 1, true),
                (RopeStyle::HalfSplit, false, false),
            ] {
                let rows = [1, 5][i % 2];
                specs.push(spec(
                    format!("rope {heads}/{kv_heads}x{dim} {kv:?} {style:?} rotates {rotates}"),
                    rows,
                    move |part| {
                        let dims = match rotates {
                            true if dim >= 80 => dim / 2,
                            true => dim,
                            false => 0,
                        };
                        let (context, positions) = (16, 32);
                        let params = RopeKvParams {
                            heads,
                            kv_heads,
                            head_dim: dim,
                            rope_dims: dims,
                            positions,
                            epsilon: 1e-6,
                        };
                        let cols = ((heads + 2 * kv_heads) * dim) as usize;
                        let angles: Vec<f32> = values(41, rows * dims as usize / 2)
                            .iter()
                            .flat_map(|a| [(a * 9.0).cos(), (a * 9.0).sin()])
                            .collect();
                        let bytes = (kv_heads * positions) as usize * kv.row_bytes(dim as usize).unwrap();
                        let mut data = vec![
                            pick(&f32s(&values(40, rows * cols)), rows, &part),
                            pick(&f32s(&angles), rows, &part),
                            poison(part.len() * (heads * dim) as usize * 4),
                            poison(bytes),
                            poison(bytes),
                        ];
                        if qk_norm {
                            data.extend([f32s(&values(42, dim as usize)), f32s(&values(43, dim as usize))]);
                        }
                        let shape = Shape::sequences(
                            mixed_rows(rows, 7, context)[part].to_vec(),
                            context,
                            positions,
                            16,
                        );
                        Case::new(Kernel::RopeKv(ops::RopeKv { style, qk_norm, kv }), params, shape, data)
                    },
                ));
            }
        }
    }
    specs
}

/// Rows of two sequences from position `first` on.
#[derive(Clone, Copy)]
pub struct Seen {
    pub rows: usize,
    pub first: u32,
    pub window: u32,
    pub soft_cap: f32,
    /// Positions that share a query factor; 0 for no factors.
    pub factor_step: u32,
}

/// One row and many, within a segment and across several, at their boundaries, with windows that begin in the middle.
const SEEN: [Seen; 8] = [
    Seen { rows: 1, first: 0, window: 0, soft_cap: 0.0, factor_step: 0 },
    Seen { rows: 1, first: 255, window: 0, soft_cap: 0.0, factor_step: 100 },
    Seen { rows: 1, first: 1100, window: 0, soft_cap: 0.0, factor_step: 0 },
    Seen { rows: 1, first: 700, window: 100, soft_cap: 20.0, factor_step: 0 },
    Seen { rows: 19, first: 40, window: 0, soft_cap: 0.0, factor_step: 8 },
    Seen { rows: 11, first: 505, window: 33, soft_cap: 5.0, factor_step: 3 },
    Seen { rows: 5, first: 254, window: 0, soft_cap: 7.0, factor_step: 0 },
    Seen { rows: 70, first: 210, window: 120, soft_cap: 0.0, factor_step: 0 },
];

pub fn attention() -> Vec<Spec> {
    let mut specs = vec![];
    for (i, (heads, kv_heads, dim)) in HEADS.into_iter().enumerate() {
        for (j, kv) in kv_types(dim).into_iter().enumerate() {
            for (k, seen) in SEEN.into_iter().enumerate() {
                // The longer ones for every other shape.
                if (seen.first > 1000 || seen.rows > 50) && (i + j + k) % 2 == 0 {
                    continue;
                }
                // Factors are kernels of their own, which the emulator compiles for each shape.
                let factor_step = if (i + j) % 3 == 0 { seen.factor_step } else { 0 };
                let seen = Seen { factor_step, ..seen };
                let whole = (heads / kv_heads * dim).is_multiple_of(32);
                let out = if whole { OUTS[(i + seen.rows) % 3] } else { OutputForms::F32 };
                specs.push(attend((heads, kv_heads, dim), kv, seen, out));
            }
        }
    }
    specs
}

/// Starting at 1, like those of models.
pub fn query_factors(count: u32) -> Vec<u8> {
    f32s(&(0..count).map(|n| 1.0 + 0.1 * (1.0 + n as f32).ln()).collect::<Vec<_>>())
}

pub fn attend((heads, kv_heads, dim): (u32, u32, u32), kv: KvType, seen: Seen, out: OutputForms) -> Spec {
    let Seen { rows, first, window, soft_cap, factor_step } = seen;
    let name = format!("attention {heads}/{kv_heads}x{dim} {kv:?} rows {rows} at {first} window {window}");
    spec(name, rows, move |part| {
        let context = (first + rows as u32 + 5).next_multiple_of(16);
        let positions = 2 * context;
        let scale = 3.0 / (dim as f32).sqrt();
        let params = AttentionParams {
            heads,
            kv_heads,
            head_dim: dim,
            positions,
            scale,
            soft_cap,
            window,
            factor_step,
            factors: if factor_step > 0 { context.div_ceil(factor_step) } else { 0 },
            ..AttentionParams::default()
        };
        let cols = (heads * dim) as usize;
        let mut data = vec![
            pick(&f32s(&values(44, rows * cols)), rows, &part),
            cache(kv, 45, kv_heads, positions, dim),
            cache(kv, 46, kv_heads, positions, dim),
        ];
        data.extend(outputs(out, part.len(), cols));
        data.extend((factor_step > 0).then(|| query_factors(params.factors)));
        let shape = Shape::sequences(mixed_rows(rows, first, context)[part].to_vec(), context, positions, 16);
        let op = ops::Attention { query_factors: factor_step > 0, ..ops::Attention::plain(kv, out) };
        Case::new(Kernel::Attention(op), params, shape, data)
    })
}

/// Rows to which their whole text is visible, or a window around them; texts of different lengths are adjacent in one
/// cache, the later ones at other positions of it than of the pass.
pub fn whole_texts() -> Vec<Spec> {
    const LENGTHS: [u32; 5] = [5, 33, 1, 16, 70];
    let mut specs = vec![];
    for (i, (heads, kv_heads, dim)) in HEADS.into_iter().enumerate() {
        for (j, kv) in kv_types(dim).into_iter().enumerate() {
            for (window, ahead, reach) in
                [(0, 0, 0), (9, 8, 0), (40, 0, 0), (1, 30, 0), (0, 0, 20), (0, 0, 128)]
            {
                // A bias is a kernel of its own, which the emulator compiles for each shape.
                if reach > 0 && (i + j) % 3 != 0 {
                    continue;
                }
                let whole = (heads / kv_heads * dim).is_multiple_of(32);
                let out = if whole { OUTS[(i + j) % 3] } else { OutputForms::F32 };
                specs.push(texts((heads, kv_heads, dim), kv, &LENGTHS, [window, ahead, reach], out));
            }
        }
    }
    // A bias across several segments.
    specs.push(texts((4, 2, 64), KvType::F16, &[3, 600], [0, 0, 128], OutputForms::F32));
    specs
}

pub fn texts(
    (heads, kv_heads, dim): (u32, u32, u32),
    kv: KvType,
    lengths: &[u32],
    [window, ahead, reach]: [u32; 3],
    out: OutputForms,
) -> Spec {
    let mut all = vec![];
    let mut start = 0u32;
    for len in lengths {
        start = start.next_multiple_of(16);
        all.extend((0..*len).map(|position| Row { token: 0, position, kv_len: *len, start }));
        start += len;
    }
    let rows = all.len();
    let longest = lengths.iter().max().copied().unwrap_or(1);
    let name = format!(
        "attention of texts {heads}/{kv_heads}x{dim} {kv:?} window {window} ahead {ahead} reach {reach}"
    );
    spec(name, rows, move |part| {
        let positions = start.next_multiple_of(16);
        let params = AttentionParams {
            heads,
            kv_heads,
            head_dim: dim,
            positions,
            scale: 3.0 / (dim as f32).sqrt(),
            window,
            ahead,
            reach,
            ..AttentionParams::default()
        };
        let cols = (heads * dim) as usize;
        let mut data = vec![
            pick(&f32s(&values(44, rows * cols)), rows, &part),
            cache(kv, 45, kv_heads, positions, dim),
            cache(kv, 46, kv_heads, positions, dim),
        ];
        data.extend(outputs(out, part.len(), cols));
        data.extend((reach > 0).then(|| f32s(&values(43, (heads * params.bias_cols()) as usize))));
        let shape = Shape::sequences(all[part].to_vec(), longest, positions, 16);
        let op = ops::Attention { position_bias: reach > 0, ..ops::Attention::plain(kv, out) };
        Case::new(Kernel::Attention(op), params, shape, data)
    })
}

pub fn cache_moves() -> Vec<Case> {
    let mut cases = vec![];
    for (_, kv_heads, dim) in HEADS {
        for kv in kv_types(dim) {
            let positions = 96;
            let params = KvMoveParams { kv_heads, head_dim: dim, rope_dims: dim, positions };
            let caches =
                || vec![cache(kv, 47, kv_heads, positions, dim), cache(kv, 48, kv_heads, positions, dim)];
            for style in [RopeStyle::HalfSplit, RopeStyle::Interleaved] {
                let mut data = caches();
                let frequencies: Vec<f32> = (0..dim / 2).map(|i| 0.7_f32.powi(i as i32)).collect();
                data.push(f32s(&frequencies));
                // In a sequence that begins at 32, the first 3 positions stay and the next 5 are removed.
                let moved = Move { from: 40, to: 35, len: 19 };
                let kernel = Kernel::KvShift(ops::KvShift { style, kv });
                cases.push(Case::new(kernel, params, Shape::moves(moved, MoveKind::Shift, positions), data));
            }
            // Whole groups of keys, and from the middle of one group to the middle of another.
            for moved in [Move { from: 64, to: 0, len: 29 }, Move { from: 3, to: 40, len: 34 }] {
                let shape = Shape::moves(moved, MoveKind::Copy, positions);
                cases.push(Case::new(Kernel::KvCopy(ops::KvCopy { kv }), params, shape, caches()));
            }
        }
    }
    cases
}
