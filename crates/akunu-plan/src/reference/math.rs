//! Functions in f64 that the standard library lacks, and conversions.

use half::f16;

use crate::{Activation, KvType, NormKind};

pub(crate) fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::GeluErf => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        Activation::Tanh => x.tanh(),
        // Preserves NaN.
        Activation::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
    }
}

/// The error function: its Maclaurin series near zero, the continued fraction of erfc beyond.
pub(super) fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() {
        return x;
    }
    if a > 6.0 {
        return x.signum();
    }
    if a < 2.5 {
        let (mut term, mut sum) = (a, a);
        for n in 1..100 {
            term *= -a * a / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return x.signum() * sum * 2.0 / std::f64::consts::PI.sqrt();
    }
    let fraction = (1..=100).rev().fold(0.0, |tail, n| f64::from(n) / 2.0 / (a + tail));
    let erfc = (-a * a).exp() / (std::f64::consts::PI.sqrt() * (a + fraction));
    x.signum() * (1.0 - erfc)
}

pub(crate) fn soft_cap(x: f64, cap: f32) -> f64 {
    if cap == 0.0 { x } else { f64::from(cap) * (x / f64::from(cap)).tanh() }
}

/// `(x − mean) / √(variance + ε) · weight (+ bias)`; RMSNorm uses 0 as the mean.
pub(crate) fn normalise(
    kind: NormKind,
    x: &[f32],
    (weight, bias): (&[f32], Option<&[f32]>),
    epsilon: f32,
) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = match kind {
        NormKind::Rms => 0.0,
        NormKind::Layer => x.iter().map(|&v| f64::from(v)).sum::<f64>() / n,
    };
    let variance = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
    let scale = 1.0 / (variance + f64::from(epsilon)).sqrt();
    let normed = x.iter().zip(weight).map(|(&x, &w)| (f64::from(x) - mean) * scale * f64::from(w));
    match bias {
        None => normed.collect(),
        Some(bias) => normed.zip(bias).map(|(v, &b)| v + f64::from(b)).collect(),
    }
}

/// Stores one head's key or value.
pub(crate) fn kv_store(kv: KvType, values: &[f32], row: &mut [u8]) {
    match kv {
        KvType::F32 => row.copy_from_slice(bytemuck::cast_slice(values)),
        KvType::F16 => {
            for (bytes, v) in row.chunks_exact_mut(2).zip(values) {
                bytes.copy_from_slice(&f16::from_f32(*v).to_le_bytes());
            }
        }
        KvType::Q8_0 => {
            for (block, values) in row.chunks_exact_mut(34).zip(values.chunks_exact(32)) {
                let mut quants = [0i8; 32];
                let (scale, _) = crate::q8::quantise_block(values, &mut quants);
                block[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
                block[2..].copy_from_slice(bytemuck::cast_slice(&quants));
            }
        }
    }
}

/// The values of the rows of whole heads.
pub(crate) fn kv_load(kv: KvType, row: &[u8]) -> Vec<f32> {
    let half = |b: &[u8]| f16::from_le_bytes([b[0], b[1]]).to_f32();
    match kv {
        KvType::F32 => row.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        KvType::F16 => row.chunks_exact(2).map(half).collect(),
        KvType::Q8_0 => row
            .chunks_exact(34)
            .flat_map(|block| block[2..].iter().map(|&q| half(block) * f32::from(q as i8)))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::erf;

    #[test]
    fn erf_has_its_known_values_on_both_sides_of_the_switch() {
        for (x, want) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (-1.0, -0.842_700_792_949_714_9),
            (2.49, 0.9995707121322661),
            (2.51, 0.9996142945182758),
            (3.0, 0.999_977_909_503_001_4),
        ] {
            assert!((erf(x) - want).abs() < 1e-14, "erf({x}) = {}", erf(x));
        }
    }
}
