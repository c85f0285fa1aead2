//! Ops along rows: norms, elementwise ones, embeddings, angles, and the search for the best token.

use akunu_plan::ops;
use akunu_plan::ops::*;
use akunu_plan::{Activation, Kernel, NormKind, OutputForms, Row, RowSet, halves, q8};

use crate::case::{Case, Shape, Spec, spec};
use crate::data::{dtypes, f32s, outputs, pick, poison, values, weights};

pub(crate) const ACTIVATIONS: [Activation; 5] =
    [Activation::Silu, Activation::GeluTanh, Activation::GeluErf, Activation::Tanh, Activation::Relu];

pub(crate) const OUTS: [OutputForms; 3] = [OutputForms::F32, OutputForms::Q8, OutputForms::Both];

/// Every kind of norm.
pub const NORMS: [(NormKind, bool); 4] =
    [(NormKind::Rms, false), (NormKind::Layer, true), (NormKind::Layer, false), (NormKind::Rms, true)];

/// Rows that are small, large, constant, and with a mean that is large compared with the variance.
fn varied(seed: u64, rows: usize, cols: usize) -> Vec<f32> {
    let mut x = values(seed, rows * cols);
    for (row, x) in x.chunks_mut(cols).enumerate() {
        let (scale, mean) = [(1.0, 0.0), (1e-3, 0.25), (40.0, -300.0), (0.0, 2.0), (1.0, 8.0)][row % 5];
        x.iter_mut().for_each(|x| *x = *x * scale + mean);
    }
    x
}

pub fn norm(
    (kind, bias): (NormKind, bool),
    (rows, cols): (usize, usize),
    out: OutputForms,
    weights: f32,
) -> Spec {
    spec(format!("{kind:?} norm bias {bias} {rows}x{cols} {out:?}"), rows, move |part| {
        let weight: Vec<f32> = values(21, cols).iter().map(|w| w * weights).collect();
        let mut data = vec![pick(&f32s(&varied(20, rows, cols)), rows, &part), f32s(&weight)];
        data.extend(bias.then(|| f32s(&values(19, cols))));
        data.extend(outputs(out, part.len(), cols));
        let kernel = Kernel::Norm(ops::Norm { kind, bias, out, rows: RowSet::All, pick: false });
        let params = NormParams { cols: cols as u32, epsilon: 1e-5 };
        Case::new(kernel, params, Shape::rows(part.len()), data)
    })
}

/// All row kernels, on all rows.
pub fn along_rows() -> Vec<Spec> {
    let mut specs = vec![];
    for (rows, cols) in [(1, 32), (3, 576), (7, 96), (2, 1056)] {
        for out in OUTS {
            specs.extend(NORMS.map(|kind| norm(kind, (rows, cols), out, 1.0)));
            specs.extend(ACTIVATIONS.map(|activation| activate(activation, (rows, cols), out)));
            specs.push(spec(format!("glu {rows}x{cols} {out:?}"), rows, move |part| {
                let kernel = Kernel::Glu(ops::Glu { activation: ACTIVATIONS[rows % 5], out });
                let x = |seed| {
                    let v: Vec<f32> = values(seed, rows * cols).iter().map(|v| v * 6.0).collect();
                    pick(&f32s(&v), rows, &part)
                };
                let mut data = vec![x(22), x(23)];
                data.extend(outputs(out, part.len(), cols));
                Case::new(kernel, ElementParams { cols: cols as u32 }, Shape::rows(part.len()), data)
            }));
        }
        specs.push(spec(format!("quantise {rows}x{cols}"), rows, move |part| {
            let mut x = values(24, rows * cols);
            x[..32].fill(0.0);
            if x.len() > 128 {
                x[32..64].fill(1e-44);
                x[70] = f32::NEG_INFINITY;
            }
            x[rows * cols - 3] = f32::NAN;
            let data = vec![pick(&f32s(&x), rows, &part), poison(part.len() * q8::row_bytes(cols))];
            Case::new(
                Kernel::Round(ops::Round { input: InputForm::F32, out: OutputForms::Q8 }),
                RoundParams { cols: cols as u32, times: 1 },
                Shape::rows(part.len()),
                data,
            )
        }));
    }
    for (rows, cols) in [(1, 4), (5, 50), (3, 577)] {
        specs.push(spec(format!("norm_add {rows}x{cols}"), rows, move |part| {
            let rows_of = |seed| pick(&f32s(&values(seed, rows * cols)), rows, &part);
            let data = vec![rows_of(25), f32s(&values(26, cols)), rows_of(27), poison(part.len() * cols * 4)];
            Case::new(
                Kernel::NormAdd(ops::NormAdd),
                NormParams { cols: cols as u32, epsilon: 1e-6 },
                Shape::rows(part.len()),
                data,
            )
        }));
        specs.extend(NORMS.map(|kind| norm(kind, (rows, cols), OutputForms::F32, 1.0)));
        specs.extend(ACTIVATIONS.map(|activation| activate(activation, (rows, cols + 3), OutputForms::F32)));
        for scale in [1.0, -0.22] {
            specs.push(add((rows, cols), scale));
        }
        specs.push(reorder((rows, cols)));
        specs.push(sum_squares((rows, cols)));
        specs.push(norm_part((rows, cols)));
    }
    for (i, heads) in [(1, 4), (3, 16), (1, 577), (5, 50), (2, 1056)].into_iter().enumerate() {
        specs.extend(NORMS.map(|kind| head_norm(kind, [5, 1, 7][i % 3], heads)));
    }
    for dtype in dtypes() {
        specs.push(spec(format!("embed {dtype}"), 5, move |part| {
            let cols = match dtype.block_len() {
                1 => 40,
                32 => 96,
                len => 3 * len,
            };
            let rows: Vec<Row> = (0..5).map(|i| Row::causal([3, 0, 10, 3, 7][i as usize], i, 0)).collect();
            let shape = Shape::tokens(rows[part.clone()].to_vec(), 11, 5);
            let mut data = weights(dtype, 30, 11, cols);
            data.push(poison(part.len() * cols * 4));
            let params = EmbedParams { cols: cols as u32, vocab: 11, scale: 2.5 };
            Case::new(Kernel::Embed(ops::Embed { weight: dtype, part: false }), params, shape, data)
        }));
    }
    specs.push(spec("angles".into(), 6, |part| {
        let positions = [0, 1, 17, 4095, 131_071, 1_000_000];
        let rows: Vec<Row> = positions.map(|p| Row::causal(0, p, 0)).to_vec();
        let frequencies: Vec<f32> = (0..37).map(|i| 10_000_f32.powf(-(i as f32) / 37.0)).collect();
        let data = vec![f32s(&frequencies), poison(part.len() * 37 * 8)];
        let shape = Shape::tokens(rows[part].to_vec(), 1, 1_000_001);
        Case::new(
            Kernel::RopeAngles(ops::RopeAngles),
            AnglesParams { pairs: 37, magnitude: 1.25 },
            shape,
            data,
        )
    }));
    specs
}

fn head_norm((kind, bias): (NormKind, bool), rows: usize, (heads, dim): (usize, usize)) -> Spec {
    spec(format!("{kind:?} norm bias {bias} of {heads} heads of {dim}, {rows} rows"), rows, move |part| {
        let (cols, in_stride, out_stride) = (heads * dim, heads * dim + 2 * dim, heads * dim + rows);
        let mut data = vec![pick(&f32s(&varied(33, rows, in_stride)), rows, &part), f32s(&values(34, cols))];
        data.extend(bias.then(|| f32s(&values(35, cols))));
        data.push(poison(part.len() * out_stride * 4));
        let params = HeadNormParams {
            heads: heads as u32,
            head_dim: dim as u32,
            epsilon: 1e-5,
            in_stride: in_stride as u32,
            out_stride: out_stride as u32,
        };
        Case::new(Kernel::HeadNorm(ops::HeadNorm { kind, bias }), params, Shape::rows(part.len()), data)
    })
}

fn sum_squares((rows, cols): (usize, usize)) -> Spec {
    spec(format!("sum of squares {rows}x{cols}"), rows, move |part| {
        let x = pick(&f32s(&varied(180, rows, cols)), rows, &part);
        let params = SumSquaresParams { cols: cols as u32, out_stride: 3 };
        let data = vec![x, poison(part.len() * 3 * 4)];
        Case::new(Kernel::SumSquares(ops::SumSquares), params, Shape::rows(part.len()), data)
    })
}

fn norm_part((rows, cols): (usize, usize)) -> Spec {
    spec(format!("norm of a part {rows}x{cols}"), rows, move |part| {
        let (sum_stride, out_stride) = (2, cols + 5);
        let sums: Vec<f32> = values(181, rows * sum_stride).iter().map(|v| v * v * cols as f32).collect();
        let data = vec![
            pick(&f32s(&varied(182, rows, cols)), rows, &part),
            pick(&f32s(&sums), rows, &part),
            f32s(&values(183, cols)),
            poison(part.len() * out_stride * 4),
        ];
        let params = NormPartParams {
            cols: cols as u32,
            summed: 4 * cols as u32,
            epsilon: 1e-5,
            sum_stride: sum_stride as u32,
            out_stride: out_stride as u32,
        };
        Case::new(Kernel::NormPart(ops::NormPart), params, Shape::rows(part.len()), data)
    })
}

fn activate(activation: Activation, (rows, cols): (usize, usize), out: OutputForms) -> Spec {
    spec(format!("{activation:?} {rows}x{cols} {out:?}"), rows, move |part| {
        let kernel =
            Kernel::Activate(ops::Activate { activation, input: InputForm::F32, out, rows: RowSet::All });
        let mut x: Vec<f32> = values(38, rows * cols).iter().map(|v| v * 6.0).collect();
        let end = x.len();
        x[end - 6..].copy_from_slice(&[20.0, -20.0, -100.0, 0.0, -0.0, 1e-30]);
        if rows == 7 {
            x[end - 7] = f32::NAN;
        }
        let mut data = vec![pick(&f32s(&x), rows, &part)];
        data.extend(outputs(out, part.len(), cols));
        Case::new(kernel, ElementParams { cols: cols as u32 }, Shape::rows(part.len()), data)
    })
}

fn add((rows, cols): (usize, usize), scale: f32) -> Spec {
    spec(format!("add {rows}x{cols} times {scale}"), rows, move |part| {
        let rows_of = |seed| pick(&f32s(&values(seed, rows * cols)), rows, &part);
        let data = vec![rows_of(36), rows_of(37), poison(part.len() * cols * 4)];
        Case::new(
            Kernel::Add(ops::Add),
            AddParams { cols: cols as u32, scale },
            Shape::rows(part.len()),
            data,
        )
    })
}

fn reorder((rows, cols): (usize, usize)) -> Spec {
    spec(format!("reorder {rows}x{cols}"), rows, move |part| {
        let x = pick(&f32s(&values(46, rows * cols)), rows, &part);
        // Every column, unless their number is a multiple of 7.
        let order: Vec<u32> = (0..cols).map(|place| ((place * 7 + 3) % cols) as u32).collect();
        let order = bytemuck::cast_slice(&order).to_vec();
        let data = vec![x, order, poison(part.len() * cols * 4)];
        let params = ElementParams { cols: cols as u32 };
        Case::new(Kernel::Reorder(ops::Reorder), params, Shape::rows(part.len()), data)
    })
}

/// Kernels that write f16 rows, for which a whole row must be seen.
pub fn in_halves() -> Vec<Spec> {
    let mut specs = vec![];
    for (rows, cols) in [(5, 32), (7, 96), (6, 1064), (4, 4200), (3, 14344), (4, 1152_usize)] {
        match cols.is_multiple_of(halves::GROUP) {
            true => {
                specs.extend(narrowed((rows, cols), [OutputForms::F16Lanes, OutputForms::F32AndF16Lanes]))
            }
            false => specs.extend(narrowed((rows, cols), [OutputForms::F16, OutputForms::F32AndF16])),
        }
    }
    for kind in NORMS {
        for out in [OutputForms::F16, OutputForms::F32AndF16] {
            specs.push(spec(format!("{kind:?} of asking rows {out:?}"), 1, move |_| {
                norm_of_asking(kind, out)
            }));
        }
    }
    specs.push(spec("activation of asking rows in halves".into(), 1, |_| {
        activate_asking(Activation::Tanh, OutputForms::F32AndF16)
    }));
    specs
}

/// The same kernels with rows of FP8.
pub fn in_eights() -> Vec<Spec> {
    let forms = [OutputForms::F8, OutputForms::F32AndF8];
    [(5, 32), (7, 96), (6, 1072), (4, 4208)].into_iter().flat_map(|shape| narrowed(shape, forms)).collect()
}

/// Rounding, gated activations, norms and activations with rows of narrow numbers, alone and beside f32.
fn narrowed((rows, cols): (usize, usize), [alone, both]: [OutputForms; 2]) -> Vec<Spec> {
    let mut specs = vec![];
    // Rows that are small, large, ordinary, zero, and not finite.
    let x = move |seed, by: f32| -> Vec<u8> {
        let mut x = values(seed, rows * cols);
        for (row, x) in x.chunks_mut(cols).enumerate() {
            x.iter_mut().for_each(|x| *x *= [by, 1e-7, 1.0, 3e6, 0.0, 1e-40, 1.0][row % 7]);
        }
        if rows == 7 {
            x[rows * cols - 3] = f32::NAN;
        }
        f32s(&x)
    };
    let params = ElementParams { cols: cols as u32 };
    specs.push(spec(format!("round {rows}x{cols} {alone:?}"), rows, move |part| {
        let mut data = vec![pick(&x(65, 1.0), rows, &part)];
        data.extend(outputs(alone, part.len(), cols));
        Case::new(
            Kernel::Round(ops::Round { input: InputForm::F32, out: alone }),
            RoundParams { cols: cols as u32, times: 1 },
            Shape::rows(part.len()),
            data,
        )
    }));
    for out in [alone, both] {
        specs.push(spec(format!("glu {rows}x{cols} {out:?}"), rows, move |part| {
            let kernel = Kernel::Glu(ops::Glu { activation: ACTIVATIONS[rows % 5], out });
            let mut data = vec![pick(&x(66, 2.0), rows, &part), pick(&x(67, 1.0), rows, &part)];
            data.extend(outputs(out, part.len(), cols));
            Case::new(kernel, params, Shape::rows(part.len()), data)
        }));
        specs.extend(NORMS.map(|kind| norm(kind, (rows, cols), out, [1.0, 1e5][rows % 2])));
        let activation = ACTIVATIONS[(rows + cols) % 5];
        specs.push(spec(format!("{activation:?} {rows}x{cols} {out:?}"), rows, move |part| {
            let kernel =
                Kernel::Activate(ops::Activate { activation, input: InputForm::F32, out, rows: RowSet::All });
            let mut data = vec![pick(&x(64, 2.0), rows, &part)];
            data.extend(outputs(out, part.len(), cols));
            Case::new(kernel, params, Shape::rows(part.len()), data)
        }));
    }
    specs
}

fn norm_of_asking((kind, bias): (NormKind, bool), out: OutputForms) -> Case {
    let kernel = Kernel::Norm(ops::Norm { kind, bias, out, rows: RowSet::Logits, pick: true });
    let mut data = vec![f32s(&varied(31, 7, 64)), f32s(&values(32, 64))];
    data.extend(bias.then(|| f32s(&values(30, 64))));
    data.extend(outputs(out, 3, 64));
    Case::new(kernel, NormParams { cols: 64, epsilon: 1e-5 }, Shape::rows(7).asking(vec![1, 2, 6]), data)
}

/// On rows that were gathered before.
fn norm_of_packed((kind, bias): (NormKind, bool), out: OutputForms) -> Case {
    let kernel = Kernel::Norm(ops::Norm { kind, bias, out, rows: RowSet::Logits, pick: false });
    let mut data = vec![f32s(&varied(33, 3, 64)), f32s(&values(32, 64))];
    data.extend(bias.then(|| f32s(&values(30, 64))));
    data.extend(outputs(out, 3, 64));
    Case::new(kernel, NormParams { cols: 64, epsilon: 1e-5 }, Shape::rows(7).asking(vec![1, 2, 6]), data)
}

/// On rows that were gathered before.
fn activate_asking(activation: Activation, out: OutputForms) -> Case {
    let kernel =
        Kernel::Activate(ops::Activate { activation, input: InputForm::F32, out, rows: RowSet::Logits });
    let mut data = vec![f32s(&values(39, 3 * 64))];
    data.extend(outputs(out, 3, 64));
    Case::new(kernel, ElementParams { cols: 64 }, Shape::rows(7).asking(vec![1, 2, 6]), data)
}

/// On rows that request logits.
pub fn asking() -> Vec<Case> {
    let mut cases: Vec<Case> =
        NORMS.into_iter().flat_map(|kind| OUTS.map(|out| norm_of_asking(kind, out))).collect();
    cases.extend(OUTS.map(|out| activate_asking(Activation::Tanh, out)));
    cases.extend(NORMS.into_iter().flat_map(|kind| OUTS.map(|out| norm_of_packed(kind, out))));
    cases.extend(argmax());
    cases
}

/// The search for the best token of rows that request logits.
fn argmax() -> Vec<Case> {
    let mut cases = vec![];
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

/// What models of audio do to rows.
pub fn of_audio() -> Vec<Case> {
    // Two whole sequences, and the end of one whose beginning is not in the pass.
    let lengths = [(3, 0..3, 0), (2, 0..2, 48), (4, 2..4, 32)];
    let rows: Vec<Row> = lengths
        .into_iter()
        .flat_map(|(kv_len, positions, start)| {
            positions.map(move |position| Row { token: 0, position, kv_len, start })
        })
        .collect();
    let shape = || Shape::sequences(rows.clone(), 16, 64, 16);
    let mut cases = vec![];
    for (cols, frames, middle) in [(80, 2, 0), (80, 2, 1), (5, 1, 0), (300, 2, 0)] {
        let x = values(71, rows.len() * frames * cols);
        let params = UnfoldParams { cols: cols as u32, frames: frames as u32, middle };
        let data = vec![f32s(&x), poison(rows.len() * cols * 3 * 4)];
        cases.push(Case::new(Kernel::Unfold(ops::Unfold), params, shape(), data));
    }
    let params = AcrossRowsParams { own: 32, slot: 112, count: 100, positions: 224 };
    cases.push(Case::new(Kernel::AcrossRows(ops::AcrossRows), params, shape(), vec![]));
    cases
}
