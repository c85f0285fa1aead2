//! One function a kernel. Bindings are numbered as in `Kernel::bindings`.

use akunu_format::DType;

use super::attention::{attention, kv_copy, kv_shift, rope_kv};
use super::math::{activate, soft_cap};
use super::sample::sample;
use super::{Bound, live_rows};
use crate::params::{
    AnglesParams, ArgmaxParams, ElementParams, EmbedParams, GluMatmulParams, MatmulParams, NormParams,
    QkvParams, UnpackParams,
};
use crate::{Activation, Kernel, NormOut, Row, RowSet, halves, q8};

pub(super) fn run(bound: Bound<'_>) {
    match bound.command.kernel {
        Kernel::Embed { weight } => embed(bound, weight),
        Kernel::RopeAngles => rope_angles(bound),
        Kernel::RmsNorm { out, rows } => rms_norm(bound, out, rows),
        Kernel::NormAdd => norm_add(bound),
        Kernel::Matmul { weight, q8, bias, residual, norm, .. } => {
            matmul(bound, weight, q8, [bias, residual], norm)
        }
        Kernel::Qkv { weight, q8, bias, .. } => qkv(bound, weight, q8, bias),
        Kernel::GluMatmul { weight, q8, activation, out, .. } => {
            glu_matmul(bound, weight, q8, activation, out)
        }
        Kernel::Glu { activation, out } => glu(bound, activation, out),
        Kernel::Quantise => round_rows(bound, NormOut::Q8),
        Kernel::Halve => round_rows(bound, NormOut::F16),
        Kernel::Unpack { weight } => unpack(bound, weight),
        Kernel::HalfMatmul { bias, residual } => half_matmul(bound, bias, residual),
        Kernel::RopeKv { style, kv, .. } => rope_kv(bound, style, kv),
        Kernel::Attention { kv, out, rope } => attention(bound, kv, out, rope),
        Kernel::Argmax => argmax(bound),
        Kernel::Sample => sample(bound),
        Kernel::KvShift { style, kv } => kv_shift(bound, style, kv),
        Kernel::KvCopy { kv } => kv_copy(bound, kv),
    }
}

/// Writes rows in the forms asked for, bound from `first` on.
pub(super) fn write_outputs(bound: &mut Bound<'_>, out: NormOut, first: usize, rows: &[Vec<f32>]) {
    write_scaled(bound, out, first, rows, halves::scale_of);
}

/// `scale`: of a row in f16.
pub(super) fn write_scaled(
    bound: &mut Bound<'_>,
    out: NormOut,
    first: usize,
    rows: &[Vec<f32>],
    scale: impl Fn(&[f32]) -> f32,
) {
    if out.f32() {
        bound.write_f32s(first, |_, to| {
            for (row, values) in rows.iter().enumerate() {
                to[row * values.len()..][..values.len()].copy_from_slice(values);
            }
        });
    }
    if out.q8() {
        bound.write(first + usize::from(out.f32()), |_, to| {
            for (row, values) in rows.iter().enumerate() {
                let bytes = q8::row_bytes(values.len());
                quantise_row(values, &mut to[row * bytes..][..bytes]);
            }
        });
    }
    if out.f16() {
        let first = first + usize::from(out.f32());
        bound.write(first, |_, to| {
            for (row, values) in rows.iter().enumerate() {
                let bytes = values.len() * 2;
                halves::store(values, scale(values), &mut to[row * bytes..][..bytes]);
            }
        });
        bound.write_f32s(first + 1, |_, to| {
            to.iter_mut().zip(rows).for_each(|(to, values)| *to = scale(values));
        });
    }
}

fn quantise_row(values: &[f32], to: &mut [u8]) {
    let n = values.len();
    for (i, block) in values.chunks_exact(q8::BLOCK).enumerate() {
        let mut quants = [0i8; q8::BLOCK];
        let (scale, sum) = q8::quantise_block(block, &mut quants);
        to[i * q8::BLOCK..][..q8::BLOCK].copy_from_slice(bytemuck::cast_slice(&quants));
        to[q8::scales_offset(n) + i * 4..][..4].copy_from_slice(&scale.to_le_bytes());
        to[q8::sums_offset(n) + i * 4..][..4].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Input row `row` of `n` elements as f64, from either form.
fn input_row(bound: &Bound<'_>, binding: usize, q8: bool, row: usize, n: usize) -> Vec<f64> {
    if !q8 {
        return bound.f32s(binding)[row * n..][..n].iter().map(|&v| f64::from(v)).collect();
    }
    let bytes = &bound.bytes(binding)[row * q8::row_bytes(n)..];
    (0..n).map(|i| f64::from(q8::scale(bytes, n, i)) * f64::from(bytes[i] as i8)).collect()
}

fn weight_row(bound: &Bound<'_>, binding: usize, dtype: DType, row: usize, n: usize) -> Vec<f32> {
    let mut planes: [&[u8]; 3] = [&[]; 3];
    for (i, plane) in planes.iter_mut().take(dtype.planes()).enumerate() {
        *plane = bound.bytes(binding + i);
    }
    let mut values = vec![0.0; n];
    if akunu_format::blocks::dequantize_nth(dtype, planes, row, &mut values).is_err() {
        values.fill(f32::NAN);
    }
    values
}

/// What a row's products are multiplied by: 1, or 1 / rms where the norm of the input was left to them.
fn scale(bound: &Bound<'_>, row: usize, inputs: usize) -> f64 {
    let Some(binding) = bound.binding("squares") else { return 1.0 };
    let blocks = inputs / q8::BLOCK;
    let squares = &bound.f32s(binding)[row * blocks..][..blocks];
    1.0 / (squares.iter().map(|&s| f64::from(s)).sum::<f64>() / inputs as f64).sqrt()
}

/// `outputs` rows of `x · Wᵀ`, scaled: `[input row][output]`.
fn products(
    bound: &Bound<'_>,
    (x, q8): (usize, bool),
    (weight, dtype): (usize, DType),
    [inputs, outputs]: [usize; 2],
) -> Vec<Vec<f64>> {
    let rows = live_rows(bound.command.kernel, bound.live);
    let xs: Vec<Vec<f64>> = (0..rows).map(|row| input_row(bound, x, q8, row, inputs)).collect();
    let scales: Vec<f64> = (0..rows).map(|row| scale(bound, row, inputs)).collect();
    let mut out = vec![vec![0.0; outputs]; rows];
    for o in 0..outputs {
        let w = weight_row(bound, weight, dtype, o, inputs);
        for ((x, scale), out) in xs.iter().zip(&scales).zip(&mut out) {
            out[o] = x.iter().zip(&w).map(|(x, w)| x * f64::from(*w)).sum::<f64>() * scale;
        }
    }
    out
}

fn embed(mut bound: Bound<'_>, weight: DType) {
    let p: EmbedParams = bound.command.params();
    let (cols, planes) = (p.cols as usize, weight.planes());
    bound.write_f32s(planes + 1, |bound, out| {
        for (row, out) in bound.rows(planes).iter().zip(out.chunks_exact_mut(cols)) {
            let values = weight_row(bound, 0, weight, row.token as usize, cols);
            out.iter_mut().zip(&values).for_each(|(o, v)| *o = v * p.scale);
        }
    });
}

fn rope_angles(mut bound: Bound<'_>) {
    let p: AnglesParams = bound.command.params();
    let pairs = p.pairs as usize;
    bound.write_f32s(2, |bound, out| {
        for (row, out) in bound.rows(1).iter().zip(out.chunks_exact_mut(pairs * 2)) {
            for (frequency, out) in bound.f32s(0)[..pairs].iter().zip(out.chunks_exact_mut(2)) {
                let angle = f64::from(row.position) * f64::from(*frequency);
                out[0] = (angle.cos() * f64::from(p.magnitude)) as f32;
                out[1] = (angle.sin() * f64::from(p.magnitude)) as f32;
            }
        }
    });
}

/// `x / rms(x) · weight`, in f64.
pub(super) fn normalise(x: &[f32], weight: &[f32], epsilon: f32) -> Vec<f64> {
    let mean = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(epsilon)).sqrt();
    x.iter().zip(weight).map(|(&x, &w)| f64::from(x) * scale * f64::from(w)).collect()
}

fn rms_norm(mut bound: Bound<'_>, out: NormOut, set: RowSet) {
    let p: NormParams = bound.command.params();
    let cols = p.cols as usize;
    let picks = 2 + out.bindings();
    let source = |row: usize| match set {
        RowSet::All => row,
        RowSet::Logits => bound.u32s(picks)[row] as usize,
    };
    let rows: Vec<Vec<f32>> = (0..live_rows(bound.command.kernel, bound.live))
        .map(|row| {
            let x = &bound.f32s(0)[source(row) * cols..][..cols];
            normalise(x, &bound.f32s(1)[..cols], p.epsilon).into_iter().map(|v| v as f32).collect()
        })
        .collect();
    write_outputs(&mut bound, out, 2, &rows);
}

fn norm_add(mut bound: Bound<'_>) {
    let p: NormParams = bound.command.params();
    let cols = p.cols as usize;
    let rows = bound.live.rows;
    bound.write_f32s(3, |bound, out| {
        for (row, out) in out.chunks_exact_mut(cols).take(rows).enumerate() {
            let normed = normalise(&bound.f32s(0)[row * cols..][..cols], &bound.f32s(1)[..cols], p.epsilon);
            let residual = &bound.f32s(2)[row * cols..][..cols];
            for ((out, n), r) in out.iter_mut().zip(normed).zip(residual) {
                *out = (f64::from(*r) + n) as f32;
            }
        }
    });
}

fn matmul(mut bound: Bound<'_>, weight: DType, q8: bool, [bias, residual]: [bool; 2], norm: Option<NormOut>) {
    let p: MatmulParams = bound.command.params();
    let (inputs, outputs, stride) = (p.inputs as usize, p.outputs as usize, p.out_stride as usize);
    let target = 1 + weight.planes();
    let mut y = products(&bound, (0, q8), (1, weight), [inputs, outputs]);
    for (row, y) in y.iter_mut().enumerate() {
        for (o, y) in y.iter_mut().enumerate() {
            if bias {
                *y += f64::from(bound.f32s(target + 1)[o]);
            }
            if residual {
                *y += f64::from(bound.f32s(target + 1 + usize::from(bias))[row * stride + o]);
            }
            *y = soft_cap(*y, p.soft_cap);
        }
    }
    bound.write_f32s(target, |_, out| {
        for (row, y) in y.iter().enumerate() {
            out[row * stride..][..outputs].iter_mut().zip(y).for_each(|(o, y)| *o = *y as f32);
        }
    });
    if let (Some(form), Some(weight)) = (norm, bound.binding("norm_weight")) {
        let y: Vec<Vec<f32>> = y.iter().map(|y| y.iter().map(|y| *y as f32).collect()).collect();
        begin_norm(&mut bound, form, weight, &y, p.epsilon);
    }
}

/// `y · weight` in the forms asked for, and `y² + epsilon` summed over each block, bound after the weight.
fn begin_norm(bound: &mut Bound<'_>, form: NormOut, weight: usize, y: &[Vec<f32>], epsilon: f32) {
    let weights = bound.f32s(weight);
    let rows: Vec<Vec<f32>> = y.iter().map(|y| y.iter().zip(weights).map(|(y, w)| y * w).collect()).collect();
    write_outputs(bound, form, weight + 1, &rows);
    let squares = y.iter().flat_map(|y| y.chunks_exact(q8::BLOCK)).map(|block| {
        block.iter().map(|&y| f64::from(y) * f64::from(y) + f64::from(epsilon)).sum::<f64>() as f32
    });
    let last = weight + 1 + usize::from(form.f32()) + usize::from(form.q8());
    bound.write_f32s(last, |_, out| out.iter_mut().zip(squares).for_each(|(o, s)| *o = s));
}

fn qkv(mut bound: Bound<'_>, weight: DType, q8: bool, bias: bool) {
    let p: QkvParams = bound.command.params();
    let sizes = [p.q, p.k, p.v].map(|n| n as usize);
    let stride: usize = sizes.iter().sum();
    let (planes, target) = (weight.planes(), 1 + 3 * weight.planes());
    let mut start = 0;
    for (part, outputs) in sizes.into_iter().enumerate() {
        let y = products(&bound, (0, q8), (1 + part * planes, weight), [p.inputs as usize, outputs]);
        bound.write_f32s(target, |bound, out| {
            for (row, y) in y.iter().enumerate() {
                for (o, y) in y.iter().enumerate() {
                    let bias = if bias { f64::from(bound.f32s(target + 1 + part)[o]) } else { 0.0 };
                    out[row * stride + start + o] = (y + bias) as f32;
                }
            }
        });
        start += outputs;
    }
}

fn glu_matmul(mut bound: Bound<'_>, weight: DType, q8: bool, activation: Activation, out: NormOut) {
    let p: GluMatmulParams = bound.command.params();
    let shape = [p.inputs as usize, p.outputs as usize];
    let planes = weight.planes();
    let gate = products(&bound, (0, q8), (1, weight), shape);
    let up = products(&bound, (0, q8), (1 + planes, weight), shape);
    let rows: Vec<Vec<f32>> = gate
        .iter()
        .zip(&up)
        .map(|(g, u)| g.iter().zip(u).map(|(g, u)| (activate(activation, *g) * u) as f32).collect())
        .collect();
    write_outputs(&mut bound, out, 1 + 2 * planes, &rows);
}

fn glu(mut bound: Bound<'_>, activation: Activation, out: NormOut) {
    let p: ElementParams = bound.command.params();
    let cols = p.cols as usize;
    let rows: Vec<Vec<f32>> = (0..bound.live.rows)
        .map(|row| {
            let (gate, up) = (&bound.f32s(0)[row * cols..][..cols], &bound.f32s(1)[row * cols..][..cols]);
            gate.iter()
                .zip(up)
                .map(|(g, u)| (activate(activation, f64::from(*g)) * f64::from(*u)) as f32)
                .collect()
        })
        .collect();
    write_outputs(&mut bound, out, 2, &rows);
}

fn round_rows(mut bound: Bound<'_>, out: NormOut) {
    let p: ElementParams = bound.command.params();
    let cols = p.cols as usize;
    let rows: Vec<Vec<f32>> =
        (0..bound.live.rows).map(|row| bound.f32s(0)[row * cols..][..cols].to_vec()).collect();
    write_outputs(&mut bound, out, 1, &rows);
}

fn unpack(mut bound: Bound<'_>, weight: DType) {
    let p: UnpackParams = bound.command.params();
    let cols = p.inputs as usize;
    bound.write(weight.planes(), |bound, to| {
        for (row, to) in to.chunks_exact_mut(cols * 2).take(p.outputs as usize).enumerate() {
            halves::store(&weight_row(bound, 0, weight, row, cols), 1.0, to);
        }
    });
}

fn half_matmul(mut bound: Bound<'_>, bias: bool, residual: bool) {
    let p: MatmulParams = bound.command.params();
    let (inputs, outputs, stride) = (p.inputs as usize, p.outputs as usize, p.out_stride as usize);
    let numbers = |bound: &Bound<'_>, binding: usize, row: usize| -> Vec<f64> {
        let bytes = &bound.bytes(binding)[row * inputs * 2..][..inputs * 2];
        halves::load(bytes).into_iter().map(f64::from).collect()
    };
    let weights: Vec<Vec<f64>> = (0..outputs).map(|o| numbers(&bound, 2, o)).collect();
    let rows = bound.live.rows;
    bound.write_f32s(3, |bound, out| {
        for row in 0..rows {
            let (x, scale) = (numbers(bound, 0, row), f64::from(bound.f32s(1)[row]));
            for (o, w) in weights.iter().enumerate() {
                let mut y = scale * x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>();
                if bias {
                    y += f64::from(bound.f32s(4)[o]);
                }
                if residual {
                    y += f64::from(bound.f32s(4 + usize::from(bias))[row * stride + o]);
                }
                out[row * stride + o] = y as f32;
            }
        }
    });
}

fn argmax(mut bound: Bound<'_>) {
    let p: ArgmaxParams = bound.command.params();
    let (vocab, live) = (p.vocab as usize, bound.live);
    let best: Vec<u32> =
        (0..live.logit_rows).map(|j| best_token(&bound.f32s(0)[j * vocab..][..vocab])).collect();
    found(&mut bound, &best, p.advance == 1);
}

/// Writes the tokens that a step found, and moves their rows on.
pub(super) fn found(bound: &mut Bound<'_>, best: &[u32], advance: bool) {
    let live = bound.live;
    bound.write(1, |_, bytes| {
        let tokens: &mut [u32] = bytemuck::cast_slice_mut(bytes);
        tokens[(live.step + 1) * live.logit_capacity..][..best.len()].copy_from_slice(best);
    });
    if advance {
        let asking = bound.u32s(3)[..best.len()].to_vec();
        bound.write(2, |_, bytes| {
            let rows: &mut [Row] = bytemuck::cast_slice_mut(bytes);
            for (&row, &token) in asking.iter().zip(best).filter(|(_, token)| **token != u32::MAX) {
                rows[row as usize] = rows[row as usize].next(token);
            }
        });
    }
}

fn best_token(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, value) in logits.iter().enumerate() {
        if value.is_nan() {
            return u32::MAX;
        }
        if *value > logits[best] {
            best = id;
        }
    }
    best as u32
}
