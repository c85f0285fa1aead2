//! The discrete Fourier transform of a fixed number of values, by decimation in time over the prime factors.

use std::f64::consts::TAU;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Complex {
    pub re: f64,
    pub im: f64,
}

impl Complex {
    fn times_plus(self, by: Self, sum: Self) -> Self {
        Self {
            re: sum.re + self.re * by.re - self.im * by.im,
            im: sum.im + self.re * by.im + self.im * by.re,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Fft {
    /// e^(-2πik/n) for each k below n.
    roots: Vec<Complex>,
    /// The prime factors of n.
    factors: Vec<usize>,
    scratch: Vec<Complex>,
}

impl Fft {
    pub fn new(size: usize) -> Self {
        let root = |k: usize| {
            let angle = -TAU * k as f64 / size as f64;
            Complex { re: angle.cos(), im: angle.sin() }
        };
        let (mut factors, mut rest, mut factor) = (Vec::new(), size, 2);
        while rest > 1 {
            while rest.is_multiple_of(factor) {
                factors.push(factor);
                rest /= factor;
            }
            factor += 1;
        }
        Self { roots: (0..size).map(root).collect(), factors, scratch: vec![Complex::default(); size] }
    }

    /// The transform of real values: all n coefficients.
    pub fn transform(&mut self, values: &[f64], out: &mut [Complex]) {
        assert!(
            values.len() == self.roots.len() && out.len() == values.len(),
            "the transform has another size"
        );
        let Self { roots, factors, scratch } = self;
        step(values, 1, out, scratch, roots, factors);
    }
}

/// Transforms every `stride`-th value into `out`: the parts that begin at each offset below the first factor one by one,
/// then all of them together.
fn step(
    values: &[f64],
    stride: usize,
    out: &mut [Complex],
    scratch: &mut [Complex],
    roots: &[Complex],
    factors: &[usize],
) {
    let Some((&factor, factors)) = factors.split_first() else {
        out[0] = Complex { re: values[0], im: 0.0 };
        return;
    };
    let size = out.len();
    let part = size / factor;
    for (offset, out) in out.chunks_exact_mut(part).enumerate() {
        step(&values[offset * stride..], stride * factor, out, scratch, roots, factors);
    }
    let scratch = &mut scratch[..size];
    scratch.copy_from_slice(out);
    for (k, out) in out.iter_mut().enumerate() {
        *out = (0..factor).fold(Complex::default(), |sum, offset| {
            scratch[offset * part + k % part].times_plus(roots[offset * k % size * stride], sum)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Complex, Fft};
    use std::f64::consts::TAU;

    #[test]
    fn the_transform_is_the_sum_that_defines_it() {
        for size in [1, 2, 7, 12, 30, 64, 400] {
            let values: Vec<f64> = (0..size).map(|i| ((i * i + 3) as f64 * 0.7).sin()).collect();
            let mut out = vec![Complex::default(); size];
            Fft::new(size).transform(&values, &mut out);
            for (k, out) in out.iter().enumerate() {
                let angle = |i: usize| -TAU * (i * k % size) as f64 / size as f64;
                let re: f64 = values.iter().enumerate().map(|(i, value)| value * angle(i).cos()).sum();
                let im: f64 = values.iter().enumerate().map(|(i, value)| value * angle(i).sin()).sum();
                assert!((re - out.re).hypot(im - out.im) < 1e-11, "{size}: {k}: {out:?} is not {re} + {im}i");
            }
        }
    }
}
