//! Commands with parts of a deferred norm, or with the rotation.

use akunu_plan::ops;
use akunu_plan::ops::*;
use akunu_plan::{Activation, DType, Kernel, KvType, MatmulForm, OutputForms, Rope, RopeStyle, Row};

use crate::attention::{BLOCK, HEADS, cache, in_blocks, kv_types, query_factors, scaled_by};
use crate::case::{Case, Shape, Spec, spec};
use crate::data::{dtypes, f32s, input, outputs, poison, values, weights};

/// Plausible sums of squares of a row of `cols`, one for each block of 32.
fn squares(seed: u64, rows: usize, cols: usize) -> Vec<u8> {
    let squares: Vec<f32> = values(seed, rows * cols / 32).iter().map(|v| v * v * 32.0 + 0.5).collect();
    f32s(&squares)
}

struct Product {
    dtype: DType,
    rows: usize,
    inputs: usize,
    outs: usize,
}

impl Product {
    fn name(&self, what: &str) -> String {
        format!("{what} {} {}x{}x{}", self.dtype, self.rows, self.inputs, self.outs)
    }

    fn form(&self) -> MatmulForm {
        MatmulForm::for_rows(self.rows)
    }

    fn input(&self) -> Vec<u8> {
        input(self.dtype, 1, self.rows, self.inputs)
    }

    fn squares(&self) -> Vec<u8> {
        squares(2, self.rows, self.inputs)
    }
}

/// A product that may start the deferred norm of its output and may finish that of its input.
fn matmul(p: Product, bias: bool, scaled: bool, norm: Option<OutputForms>) -> Spec {
    let name = p.name(&format!("matmul scaled {scaled} norm {norm:?} bias {bias}"));
    spec(name, p.rows, move |_| {
        let Product { dtype: weight, rows, inputs, outs } = p;
        let residual = norm.is_some();
        let plain = ops::Matmul::plain(weight, p.form());
        let kernel = Kernel::Matmul(ops::Matmul { bias, residual, scaled, norm, ..plain });
        let (inputs, outputs) = (inputs as u32, outs as u32);
        let epsilon = if norm.is_some() { 0.25 } else { 0.0 };
        let params = MatmulParams { inputs, outputs, out_stride: outputs, soft_cap: 0.0, epsilon };
        let mut data = vec![p.input()];
        data.extend(weights(weight, 3, outs, p.inputs));
        data.push(poison(rows * outs * 4));
        data.extend(bias.then(|| f32s(&values(4, outs))));
        data.extend(residual.then(|| f32s(&values(5, rows * outs))));
        data.extend(scaled.then(|| p.squares()));
        if let Some(out) = norm {
            data.push(f32s(&values(6, outs)));
            data.extend(crate::data::outputs(out, rows, outs));
            data.push(poison(rows * outs / 32 * 4));
        }
        Case::new(kernel, params, Shape::rows(rows), data)
    })
}

fn qkv(p: Product, bias: bool) -> Spec {
    spec(p.name("qkv scaled"), p.rows, move |_| {
        let (weight, q8) = (p.dtype, p.dtype.is_quantised());
        let kernel = Kernel::Qkv(ops::Qkv { weight, form: p.form(), q8, bias, scaled: true });
        let sizes = [48, 20, 12];
        let params = QkvParams { inputs: p.inputs as u32, q: sizes[0], k: sizes[1], v: sizes[2] };
        let mut data = vec![p.input()];
        data.extend((0..3).flat_map(|i| weights(weight, 7 + i, sizes[i as usize] as usize, p.inputs)));
        data.push(poison(p.rows * 80 * 4));
        if bias {
            data.extend((0..3).map(|i| f32s(&values(10 + i, sizes[i as usize] as usize))));
        }
        data.push(p.squares());
        Case::new(kernel, params, Shape::rows(p.rows), data)
    })
}

fn glu(p: Product, activation: Activation, out: OutputForms) -> Spec {
    spec(p.name(&format!("glu scaled {out:?}")), p.rows, move |_| {
        let (weight, q8, scaled) = (p.dtype, p.dtype.is_quantised(), true);
        let kernel =
            Kernel::GluMatmul(ops::GluMatmul { weight, form: p.form(), q8, activation, out, scaled });
        let params = GluMatmulParams { inputs: p.inputs as u32, outputs: p.outs as u32 };
        let mut data = vec![p.input()];
        data.extend((0..2).flat_map(|i| weights(weight, 13 + i, p.outs, p.inputs)));
        data.extend(outputs(out, p.rows, p.outs));
        data.push(p.squares());
        Case::new(kernel, params, Shape::rows(p.rows), data)
    })
}

/// Products of up to 16 rows with a part in deferred norms: all combinations for a few types, one each for the other
/// types, because the epilogue is the same for all. A lane has one of a row's sums of squares, or two.
pub fn matrices() -> Vec<Spec> {
    let outs = [OutputForms::F32, OutputForms::Q8, OutputForms::Both];
    let mut specs = vec![];
    for (i, dtype) in dtypes().into_iter().enumerate() {
        let small = match dtype.block_len() {
            1 | 32 => 288,
            64 => 320,
            len => 2 * len,
        };
        let mut of_type = vec![];
        for (j, (rows, inputs)) in
            [(1, small), (3, small), (16, small), (1, 1280), (6, small)].into_iter().enumerate()
        {
            let product = |outs| Product { dtype, rows, inputs, outs };
            let form = outs[(i + j) % 3];
            of_type.push(matmul(product(if j == 3 { 160 } else { 96 }), j % 2 == 1, false, Some(form)));
            of_type.push(matmul(product(32), false, true, Some(form)));
            of_type.push(matmul(product(37), true, true, None));
            of_type.push(qkv(product(80), j % 2 == 0));
            of_type.push(glu(product(64), Activation::Silu, form));
            of_type.push(glu(product(41), Activation::GeluTanh, OutputForms::F32));
        }
        if ![DType::Q4_0, DType::Q6K, DType::F16].contains(&dtype) {
            of_type = vec![of_type.swap_remove(i % of_type.len())];
        }
        specs.extend(of_type);
    }
    specs
}

/// Products of one row with a part in deferred norms, of a few iterations of 32 blocks and a partial one.
pub fn long_rows() -> Vec<Spec> {
    let mut specs = vec![];
    let types = [(DType::Q4_0, 4160), (DType::Q6K, 4352), (DType::F16, 1056), (DType::F32, 544)];
    for (dtype, inputs) in types {
        let product = |outs| Product { dtype, rows: 1, inputs, outs };
        specs.push(matmul(product(96), true, false, Some(OutputForms::Both)));
        specs.push(matmul(product(32), false, true, Some(OutputForms::Q8)));
        specs.push(matmul(product(37), true, true, None));
        specs.push(qkv(product(80), true));
        specs.push(glu(product(64), Activation::Silu, OutputForms::Q8));
        specs.push(glu(product(41), Activation::GeluTanh, OutputForms::F32));
    }
    specs
}

/// The row, and the window. The own position is the last one, or not; alone in its split of the positions, or the only
/// one.
const SEEN: [(Row, u32); 6] = [
    (Row { token: 0, position: 0, kv_len: 1, start: 4 }, 0),
    (Row { token: 0, position: 40, kv_len: 41, start: 0 }, 0),
    (Row { token: 0, position: 300, kv_len: 301, start: 304 }, 33),
    (Row { token: 0, position: 256, kv_len: 257, start: 0 }, 0),
    (Row { token: 0, position: 1100, kv_len: 1101, start: 13 }, 0),
    (Row { token: 0, position: 17, kv_len: 600, start: 0 }, 0),
];

pub fn attention() -> Vec<Spec> {
    let mut specs = vec![];
    for (i, (heads, kv_heads, dim)) in HEADS.into_iter().enumerate() {
        for (j, kv) in kv_types(dim).into_iter().enumerate() {
            for (k, seen) in SEEN.into_iter().enumerate() {
                if seen.0.kv_len > 400 && (i + j + k) % 2 == 0 {
                    continue;
                }
                let styles = [Some(RopeStyle::HalfSplit), Some(RopeStyle::Interleaved), None];
                let rope = Rope { style: styles[(i + k) % 3], qk_norm: (i + j) % 2 == 0 };
                let whole = (heads / kv_heads * dim).is_multiple_of(32);
                let all = [OutputForms::Q8, OutputForms::F32, OutputForms::Both];
                let out = if whole { all[(i + j + k) % 3] } else { OutputForms::F32 };
                let chunked = seen.1 > 0 && (i + j) % 2 == 0;
                specs.push(attend((heads, kv_heads, dim), (kv, rope, out), (seen, chunked), (j + k) % 3 > 0));
            }
        }
    }
    specs
}

fn attend(
    (heads, kv_heads, dim): (u32, u32, u32),
    (kv, rope, out): (KvType, Rope, OutputForms),
    ((row, window), chunked): ((Row, u32), bool),
    paged: bool,
) -> Spec {
    let in_what = if paged { " in blocks" } else { "" };
    let in_chunks = if chunked { " in chunks" } else { "" };
    let at = row.position;
    let name =
        format!("{rope:?} attention {heads}/{kv_heads}x{dim} {kv:?} at {at} {out:?}{in_what}{in_chunks}");
    spec(name, 1, move |_| {
        let alignment = if paged { BLOCK } else { 1 };
        let context = (row.kv_len + 3).next_multiple_of(alignment);
        let row = Row { start: row.start.next_multiple_of(alignment), ..row };
        let (positions, table) = if paged { in_blocks(2 * context, BLOCK) } else { (2 * context, vec![]) };
        let scale = 3.0 / (dim as f32).sqrt();
        let soft_cap = if window == 0 { 0.0 } else { 7.0 };
        let factor_step = if window == 0 { 0 } else { 50 };
        let rope_dims = match rope.style {
            None => 0,
            Some(_) if dim >= 80 => dim / 2,
            Some(_) => dim,
        };
        let (head_dim, epsilon) = (dim, 1e-3);
        let params = AttentionParams {
            heads,
            kv_heads,
            head_dim,
            positions,
            block: if paged { BLOCK } else { 0 },
            scale,
            soft_cap,
            window,
            rope_dims,
            epsilon,
            factor_step,
            factors: context.checked_div(factor_step).map_or(0, |last| last + 1),
            ..AttentionParams::default()
        };
        let angles: Vec<f32> = values(50, rope_dims as usize / 2)
            .iter()
            .flat_map(|a| [(a * 9.0).cos(), (a * 9.0).sin()])
            .collect();
        let mut data = vec![
            f32s(&values(51, ((heads + 2 * kv_heads) * dim) as usize)),
            cache(kv, 52, kv_heads, positions, dim),
            cache(kv, 53, kv_heads, positions, dim),
        ];
        data.extend(outputs(out, 1, (heads * dim) as usize));
        data.extend(rope.style.map(|_| f32s(&angles)));
        if rope.qk_norm {
            data.extend([f32s(&values(54, dim as usize)), f32s(&values(55, dim as usize))]);
        }
        data.extend((factor_step > 0).then(|| query_factors(params.factors)));
        data.extend(paged.then_some(table));
        let shape = Shape::sequences(vec![row], context, 2 * context, alignment);
        let (rope, query_factors) = (Some(rope), scaled_by(factor_step, chunked));
        let op = ops::Attention { rope, query_factors, chunked, paged, ..ops::Attention::plain(kv, out) };
        Case::new(Kernel::Attention(op), params, shape, data)
    })
}
