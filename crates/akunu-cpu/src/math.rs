//! Elementary functions with the same operations on every instruction set. The stated errors are the largest that the
//! tests at the end of this file find, in ulps.

use akunu_plan::Activation;
use akunu_plan::ops::GluKind;

use crate::isa::Lanes;

/// e^x, within 1 ulp where the result is normal; 0 below −104, infinity above 88.8.
#[inline(always)]
pub(crate) fn exp<V: Lanes>(x: V) -> V {
    // The bound is the first operand of each comparison, so that NaN passes through.
    let [y] = exps([V::splat(89.0).min(x)]);
    y
}

/// The same of N values side by side, none of which is above 89. So it needs no upper bound.
#[inline(always)]
pub(crate) fn exps<V: Lanes, const N: usize>(mut x: [V; N]) -> [V; N] {
    let (mut n, mut p) = ([V::zero(); N], [V::splat(1.987_569_1e-4); N]);
    for i in 0..N {
        x[i] = V::splat(-104.0).max(x[i]);
        n[i] = x[i].mul(V::splat(std::f32::consts::LOG2_E)).round();
    }
    // ln 2 in two parts (Cody-Waite), the first with so few bits that n · ln2_high is exact.
    for part in [-0.693_359_4, 2.121_944_4e-4] {
        for i in 0..N {
            x[i] = n[i].fma(V::splat(part), x[i]);
        }
    }
    for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        for i in 0..N {
            p[i] = p[i].fma(x[i], V::splat(c));
        }
    }
    for i in 0..N {
        p[i] = p[i].fma(x[i].mul(x[i]), x[i]).add(V::splat(1.0)).scale2(n[i]);
    }
    p
}

/// Within 2 ulp.
#[inline(always)]
pub(crate) fn tanh<V: Lanes>(x: V) -> V {
    let a = x.abs();
    let s = x.mul(x);
    let mut p = V::splat(-5.704_988_7e-3);
    for c in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = p.fma(s, V::splat(c));
    }
    let small = p.mul(s).fma(a, a);
    let e = exp(a.add(a));
    let large = V::splat(1.0).sub(V::splat(2.0).div(e.add(V::splat(1.0))));
    V::select_lt(a, V::splat(0.625), small, large).copysign(x)
}

/// Within 2 ulp.
#[inline(always)]
pub(crate) fn erf<V: Lanes>(x: V) -> V {
    let t = x.abs();
    let s = x.mul(x);
    // Beyond 4 the result rounds to 1; the bound keeps the polynomial finite.
    let b = V::splat(4.0).min(t);
    let bb = b.mul(b);
    let r = b.fma(V::splat(-1.728_534_7e-5), V::splat(3.831_971_3e-4));
    let u = b.fma(V::splat(-3.883_964_4e-3), V::splat(2.425_462_2e-2));
    let mut r = r.fma(bb, u);
    for c in [-1.067_778_8e-1, -6.348_467e-1, -1.287_175_1e-1] {
        r = r.fma(b, V::splat(c));
    }
    let minus = V::zero().sub(b);
    let large = V::splat(1.0).sub(exp(r.fma(b, minus)));
    let mut p = V::splat(-5.967_617e-4);
    for c in [4.991_194_2e-3, -2.676_813_5e-2, 1.128_199_25e-1, -3.761_253_4e-1, 1.283_791_7e-1] {
        p = p.fma(s, V::splat(c));
    }
    let small = p.fma(t, t);
    V::select_lt(t, V::splat(0.927_734_4), small, large).copysign(x)
}

#[inline(always)]
pub(crate) fn silu<V: Lanes>(x: V) -> V {
    x.div(V::splat(1.0).add(exp(V::zero().sub(x))))
}

/// ln(1 + e^x), within 3.2 ulp.
#[inline(always)]
pub(crate) fn softplus<V: Lanes>(x: V) -> V {
    let e = exp(V::zero().sub(x.abs()));
    // ln(1 + e) is 2 · artanh(e / (2 + e)).
    let z = e.div(V::splat(2.0).add(e));
    let s = z.mul(z);
    let mut p = V::splat(1.0 / 15.0);
    for c in [1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 0.2, 1.0 / 3.0, 1.0] {
        p = p.fma(s, V::splat(c));
    }
    let twice = z.add(z);
    V::zero().max(x).add(p.mul(twice))
}

#[inline(always)]
pub(crate) fn gelu_tanh<V: Lanes>(x: V) -> V {
    // √(2/π) · (x + 0.044715 · x³)
    let cubic = x.mul(x).mul(x).fma(V::splat(0.044_715), x);
    let t = tanh(cubic.mul(V::splat(0.797_884_6)));
    x.mul(V::splat(0.5)).mul(V::splat(1.0).add(t))
}

#[inline(always)]
pub(crate) fn gelu_erf<V: Lanes>(x: V) -> V {
    let e = erf(x.mul(V::splat(std::f32::consts::FRAC_1_SQRT_2)));
    x.mul(V::splat(0.5)).mul(V::splat(1.0).add(e))
}

/// NaN stays NaN.
#[inline(always)]
fn relu<V: Lanes>(x: V) -> V {
    V::select_lt(x, V::zero(), V::zero(), x)
}

#[inline(always)]
pub(crate) fn activation<V: Lanes>(activation: Activation, x: V) -> V {
    match activation {
        Activation::Silu => silu(x),
        Activation::GeluTanh => gelu_tanh(x),
        Activation::GeluErf => gelu_erf(x),
        Activation::Tanh => tanh(x),
        Activation::Relu => relu(x),
    }
}

#[inline(always)]
pub(crate) fn glu<V: Lanes>(kind: GluKind, gate: V, up: V) -> V {
    match kind {
        GluKind::Plain(kind) => activation(kind, gate).mul(up),
        GluKind::Clamped => {
            // The bound is the first operand of each comparison, so that NaN passes through.
            let (least, most) = (V::splat(-GluKind::LIMIT), V::splat(GluKind::LIMIT));
            let (gate, up) = (most.min(gate), most.min(least.max(up)));
            let power = exp(gate.mul(V::splat(-GluKind::SLOPE)));
            gate.div(V::splat(1.0).add(power)).mul(up.add(V::splat(1.0)))
        }
    }
}

/// `cap · tanh(x / cap)`
#[inline(always)]
pub(crate) fn soft_cap<V: Lanes>(cap: f32, x: V) -> V {
    let cap = V::splat(cap);
    cap.mul(tanh(x.div(cap)))
}

/// sin and cos in f64 with additions and multiplications only, so that they are the same on every machine. The error
/// is below 1e-15 for |x| < 2³⁰.
pub(crate) fn sin_cos(x: f64) -> (f64, f64) {
    // π/2 in three parts of 33 bits (Cody-Waite): k · part is exact while k < 2²⁰, and accurate enough up to 2³⁰.
    const PARTS: [f64; 4] = [
        1.570_796_326_734_125_6,
        6.077_100_506_303_966e-11,
        2.022_266_248_711_166_5e-21,
        8.478_427_660_368_9e-32,
    ];
    let k = (x * std::f64::consts::FRAC_2_PI).round_ties_even();
    let r = ((x - k * PARTS[0]) - k * PARTS[1]) - k * PARTS[2] - k * PARTS[3];
    let z = r * r;
    let mut s = 1.589_690_995_211_55e-10;
    for c in [
        -2.505_076_025_340_686_3e-8,
        2.755_731_370_707_006_8e-6,
        -1.984_126_982_985_795e-4,
        8.333_333_333_322_49e-3,
        -1.666_666_666_666_663_2e-1,
    ] {
        s = s * z + c;
    }
    let sin = r + r * z * s;
    let mut c = -1.135_964_755_778_819_5e-11;
    for a in [
        2.087_572_321_298_175e-9,
        -2.755_731_435_139_066_3e-7,
        2.480_158_728_947_673e-5,
        -1.388_888_888_887_411e-3,
        4.166_666_666_666_66e-2,
    ] {
        c = c * z + a;
    }
    let cos = 1.0 - (0.5 * z - z * z * c);
    match (k as i64) & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::scalar::lanes::Scalar;

    #[test]
    fn a_clamped_glu_limits_gate_above_and_up_on_both_sides() {
        let of = |gate: f32, up: f32| glu(GluKind::Clamped, Scalar::splat(gate), Scalar::splat(up)).0[0];
        assert_eq!(of(8.0, 2.0), of(7.0, 2.0));
        assert_ne!(of(-8.0, 2.0), of(-7.0, 2.0));
        assert_eq!((of(1.0, 9.0), of(1.0, -9.0)), (of(1.0, 7.0), of(1.0, -7.0)));
        assert_eq!((of(-1000.0, 1.0), of(f32::INFINITY, -1.0)), (0.0, 0.0));
        assert!((of(1.0, 0.5) - 1.5 * 0.845_795_5).abs() < 1e-6);
        assert!(of(f32::NAN, 1.0).is_nan() && of(1.0, f32::NAN).is_nan());
    }

    fn of(f: fn(Scalar) -> Scalar, x: f32) -> f32 {
        f(Scalar::splat(x)).0[0]
    }

    /// The largest error of `f` over `range`, in ulps of the true value.
    fn worst(f: fn(Scalar) -> Scalar, truth: fn(f64) -> f64, range: std::ops::Range<f32>) -> f64 {
        let steps = akunu_testing::few_or_many(20_000, 200_000);
        let mut worst = 0.0_f64;
        for i in 0..steps {
            let x = range.start + (range.end - range.start) * (i as f32 / steps as f32);
            let want = truth(f64::from(x));
            let ulp = f64::from((want as f32).abs().next_up()) - f64::from((want as f32).abs());
            worst = worst.max((f64::from(of(f, x)) - want).abs() / ulp);
        }
        worst
    }

    /// The power series, with enough terms for |x| < 4.
    fn erf_f64(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..150 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    }

    #[test]
    fn exp_is_within_one_ulp() {
        assert!(worst(exp, f64::exp, -87.0..88.7) <= 1.1, "{}", worst(exp, f64::exp, -87.0..88.7));
        assert!(worst(exp, f64::exp, -1.0..1.0) <= 1.1);
        assert_eq!(of(exp, 0.0), 1.0);
        assert_eq!(of(exp, f32::NEG_INFINITY), 0.0);
        assert_eq!(of(exp, f32::INFINITY), f32::INFINITY);
        assert!(of(exp, f32::NAN).is_nan());
    }

    #[test]
    fn tanh_and_erf_are_within_two_ulp() {
        let tanh_error = worst(tanh, f64::tanh, -10.0..10.0).max(worst(tanh, f64::tanh, -0.7..0.7));
        assert!(tanh_error <= 2.0, "{tanh_error}");
        let erf_error = worst(erf, erf_f64, -3.5..3.5).max(worst(erf, erf_f64, -1.0..1.0));
        assert!(erf_error <= 2.0, "{erf_error}");
        for f in [tanh, erf] {
            assert_eq!(of(f, 60.0), 1.0);
            assert_eq!(of(f, f32::NEG_INFINITY), -1.0);
            assert!(of(f, f32::NAN).is_nan());
        }
    }

    #[test]
    fn softplus_is_within_its_stated_error() {
        let truth = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
        for range in [-87.0..30.0, -1.0..1.0, -20.0..-10.0] {
            let error = worst(softplus, truth, range.clone());
            assert!(error <= 3.2, "{error} in {range:?}");
        }
        assert_eq!([-200.0, 50.0, f32::NEG_INFINITY].map(|x| of(softplus, x)), [0.0, 50.0, 0.0]);
        assert_eq!(of(softplus, f32::INFINITY), f32::INFINITY);
        assert!(of(softplus, f32::NAN).is_nan());
    }

    #[test]
    fn sin_cos_is_near_f64() {
        for i in 0..200_000_u32 {
            let x = f64::from(i) * 37.003_3 - f64::from(i % 7);
            let (s, c) = sin_cos(x);
            assert!((s - x.sin()).abs() < 1e-14 && (c - x.cos()).abs() < 1e-14, "{x}: {s} {c}");
        }
        assert_eq!(sin_cos(0.0), (0.0, 1.0));
    }

    #[test]
    fn activations_hold_their_tails() {
        assert_eq!(of(silu, -200.0), 0.0);
        assert_eq!(of(silu, 50.0), 50.0);
        assert_eq!(of(gelu_tanh, -20.0), 0.0);
        assert_eq!(of(gelu_erf, 20.0), 20.0);
        assert!((of(gelu_erf, 1.0) - 0.841_344_7).abs() < 1e-6);
        assert!((of(gelu_tanh, 1.0) - 0.841_192).abs() < 1e-6);
        assert_eq!([-1e-40, -3.0, 0.0, 2.5].map(|x| of(relu, x)), [0.0, 0.0, 0.0, 2.5]);
        assert!(of(relu, f32::NAN).is_nan());
    }
}
