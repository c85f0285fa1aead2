//! Changes the sample rate of a stream by a windowed sinc filter.

use std::f64::consts::PI;

use crate::RATE;

/// Zero crossings of the sinc on each side.
const CROSSINGS: f64 = 32.0;
/// How much of the lower rate's band passes: the filter falls from there to a point above the band's end.
const CUTOFF: f64 = 0.94;
/// Kaiser's window: 90 dB of attenuation.
const BETA: f64 = 9.0;
/// The filter is computed for as many places between two samples; others are interpolated.
const MOST_PHASES: u64 = 512;

/// To [`RATE`] from another rate.
#[derive(Clone, Debug)]
pub struct Resampler {
    /// One sample of the output is `step / parts` samples of the input.
    step: u64,
    parts: u64,
    /// The filter's values for each place from one sample to the next, both included.
    phases: Vec<Vec<f32>>,
    /// Samples on each side of a place that its sum covers.
    reach: usize,
    /// The samples that are still needed, and how many came before them. The stream begins after `reach` zeros.
    held: Vec<f32>,
    dropped: u64,
    taken: u64,
    given: u64,
}

impl Resampler {
    pub fn new(rate: u32) -> Self {
        let divisor = greatest_common_divisor(rate, RATE);
        let (step, parts) = (u64::from(rate / divisor), u64::from(RATE / divisor));
        let scale = CUTOFF * (f64::from(RATE) / f64::from(rate)).min(1.0);
        let reach = (CROSSINGS / scale).ceil() as usize;
        let count = parts.min(MOST_PHASES);
        let phase = |phase: u64| {
            let place = phase as f64 / count as f64 + reach as f64;
            (0..2 * reach + 2).map(|i| (scale * filter((i as f64 - place) * scale)) as f32).collect()
        };
        let phases = if rate == RATE { Vec::new() } else { (0..=count).map(phase).collect() };
        Self { step, parts, phases, reach, held: vec![0.0; reach], dropped: 0, taken: 0, given: 0 }
    }

    /// Takes samples, and appends what can be computed from all samples up to now.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        self.taken += samples.len() as u64;
        if self.phases.is_empty() {
            out.extend_from_slice(samples);
            return;
        }
        self.held.extend_from_slice(samples);
        self.compute(self.taken.saturating_sub(self.reach as u64 + 1), out);
    }

    /// Appends what is left: as many samples come out in all as the length of the input asks for, rounded up.
    pub fn finish(&mut self, out: &mut Vec<f32>) {
        if !self.phases.is_empty() {
            self.held.extend(std::iter::repeat_n(0.0, self.reach + 2));
            self.compute(self.taken, out);
        }
    }

    /// Appends all samples whose place in the input is before `end`.
    fn compute(&mut self, end: u64, out: &mut Vec<f32>) {
        let count = self.phases.len() as u64 - 1;
        loop {
            let (place, part) = (self.given * self.step / self.parts, self.given * self.step % self.parts);
            if place >= end {
                let unused = ((place - self.dropped) as usize).min(self.held.len());
                self.held.drain(..unused);
                self.dropped += unused as u64;
                return;
            }
            let samples = &self.held[(place - self.dropped) as usize..][..2 * self.reach + 2];
            let (phase, rest) = (part * count / self.parts, part * count % self.parts);
            let mut sum = dot(samples, &self.phases[phase as usize]);
            if rest > 0 {
                let next = dot(samples, &self.phases[phase as usize + 1]);
                sum += (next - sum) * (rest as f32 / self.parts as f32);
            }
            out.push(sum);
            self.given += 1;
        }
    }
}

/// In eight sums, which the compiler keeps in vector registers.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a_eights, b_eights) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a_eights.remainder().iter().zip(b_eights.remainder()).map(|(a, b)| a * b).sum();
    let mut sums = [0.0; 8];
    for (a, b) in a_eights.zip(b_eights) {
        (0..8).for_each(|i| sums[i] += a[i] * b[i]);
    }
    sums.iter().sum::<f32>() + rest
}

/// The windowed sinc at a distance that is counted in zero crossings.
fn filter(x: f64) -> f64 {
    let place = x / CROSSINGS;
    if place.abs() >= 1.0 {
        return 0.0;
    }
    let sinc = if x == 0.0 { 1.0 } else { (PI * x).sin() / (PI * x) };
    sinc * bessel(BETA * (1.0 - place * place).sqrt()) / bessel(BETA)
}

/// The modified Bessel function of the first kind and order 0.
fn bessel(x: f64) -> f64 {
    let (mut sum, mut term, mut k) = (1.0, 1.0, 1.0);
    while term > sum * 1e-17 {
        term *= (x / (2.0 * k)).powi(2);
        sum += term;
        k += 1.0;
    }
    sum
}

fn greatest_common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::TAU;

    use super::Resampler;

    fn resampled(rate: u32, samples: &[f32], chunk: usize) -> Vec<f32> {
        let (mut resampler, mut out) = (Resampler::new(rate), Vec::new());
        samples.chunks(chunk).for_each(|chunk| resampler.push(chunk, &mut out));
        resampler.finish(&mut out);
        out
    }

    fn sine(rate: u32, frequency: f64, count: usize) -> Vec<f32> {
        (0..count).map(|i| (TAU * frequency * i as f64 / f64::from(rate)).sin() as f32).collect()
    }

    #[test]
    fn a_tone_below_the_limit_stays_and_one_above_it_goes() {
        for rate in [8_000, 11_025, 22_050, 24_000, 44_100, 44_101, 48_000, 192_000, 768_000] {
            let count = rate as usize / 4;
            let low = resampled(rate, &sine(rate, 440.0, count), 1_000);
            assert_eq!(low.len(), 4_000usize.max((count as u64 * 16_000).div_ceil(u64::from(rate)) as usize));
            let wanted = sine(16_000, 440.0, low.len());
            // The ends are cut off from silence, which is no tone.
            for i in 400..low.len() - 400 {
                assert!((low[i] - wanted[i]).abs() < 2e-4, "{rate} Hz: {i}: {} is not {}", low[i], wanted[i]);
            }
            if rate > 22_050 {
                let high = resampled(rate, &sine(rate, 9_000.0, count), 1_000);
                let loudest =
                    high[400..high.len() - 400].iter().fold(0.0f32, |most, value| most.max(value.abs()));
                assert!(loudest < 1e-4, "{rate} Hz: {loudest} of 9 kHz is left");
            }
        }
    }

    #[test]
    fn pieces_of_any_size_give_the_same_samples() {
        let samples = sine(44_100, 523.0, 5_000);
        let whole = resampled(44_100, &samples, samples.len());
        for chunk in [1, 7, 441, 4_999] {
            assert_eq!(resampled(44_100, &samples, chunk), whole);
        }
        assert_eq!(resampled(16_000, &samples, 333), samples);
        assert_eq!(resampled(44_100, &[], 1), []);
    }
}
