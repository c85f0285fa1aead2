//! Log-mel frames as Whisper reads them: windows of 25 ms every 10 ms, their power in mel bands, as a logarithm.

use std::collections::VecDeque;
use std::f64::consts::TAU;
use std::ops::Range;

use crate::RATE;
use crate::fft::{Complex, Fft};

/// Samples of a window.
const WINDOW: usize = 400;
/// Samples from one frame to the next.
pub const HOP: usize = 160;
/// Samples of a window on each side of its middle. The first frame's middle is the first sample; before it is a mirror
/// image of those after it.
const SIDE: usize = WINDOW / 2;
const FREQUENCIES: usize = WINDOW / 2 + 1;
/// The power below which everything is silence.
const FLOOR: f64 = 1e-10;

/// A stream of samples as a stream of frames. Frames that are no longer needed are dropped by
/// [`forget`](Self::forget).
#[derive(Clone, Debug)]
pub struct Mel {
    /// The filters' values from their first frequency that is not 0.
    filters: Vec<(usize, Vec<f64>)>,
    window: Vec<f64>,
    fft: Fft,
    /// Samples that frames to come need.
    samples: Vec<f32>,
    /// How many samples came.
    taken: u64,
    kept: VecDeque<Frame>,
    /// The index of the first frame that is kept.
    first: u64,
}

#[derive(Clone, Debug)]
struct Frame {
    /// The logarithm of base 10 of each band's power.
    bands: Vec<f32>,
    /// The same for the mean of all bands.
    loudness: f32,
}

impl Mel {
    /// With this number of bands, 80 or 128.
    pub fn new(bands: usize) -> Self {
        let filters = mel_filters(bands).into_iter().map(|filter| {
            let from = filter.iter().position(|&value| value > 0.0).unwrap_or(0);
            let to = filter.iter().rposition(|&value| value > 0.0).map_or(from, |last| last + 1);
            (from, filter[from..to].to_vec())
        });
        Self {
            filters: filters.collect(),
            window: (0..WINDOW).map(|i| 0.5 - 0.5 * (TAU * i as f64 / WINDOW as f64).cos()).collect(),
            fft: Fft::new(WINDOW),
            samples: Vec::new(),
            taken: 0,
            kept: VecDeque::new(),
            first: 0,
        }
    }

    /// The indices of the frames that are kept.
    pub fn frames(&self) -> Range<u64> {
        self.first..self.first + self.kept.len() as u64
    }

    pub fn push(&mut self, samples: &[f32]) {
        self.samples.extend_from_slice(samples);
        let before = self.taken;
        self.taken += samples.len() as u64;
        if self.taken <= SIDE as u64 {
            return;
        }
        if before <= SIDE as u64 {
            self.mirror_beginning();
        }
        self.compute();
    }

    /// Ends the stream: silence follows it. Frames are kept as far as their windows contain samples of the stream.
    pub fn finish(&mut self) {
        let (taken, frames) = (self.taken, (self.taken + SIDE as u64).div_ceil(HOP as u64));
        if taken > 0 {
            self.push(&[0.0; 2 * WINDOW]);
        }
        while self.frames().end > frames {
            self.kept.pop_back();
        }
        self.taken = taken;
        self.samples.clear();
    }

    /// Whether there was no sample.
    pub fn is_empty(&self) -> bool {
        self.taken == 0
    }

    /// The number of frames that are as long as the stream is up to now.
    pub fn length(&self) -> u64 {
        self.taken / HOP as u64
    }

    /// Drops frames before the one with this index.
    pub fn forget(&mut self, before: u64) {
        while self.first < before && self.kept.pop_front().is_some() {
            self.first += 1;
        }
    }

    /// Appends the frames from `from`, as many of `count` as there are and silence up to `window`, scaled as the model was
    /// trained on: at most 8 powers of ten below the loudest of them. The bands of a frame are beside each other.
    pub fn scaled(&self, from: u64, count: usize, window: usize, out: &mut Vec<f32>) {
        let silence = FLOOR.log10() as f32;
        let loudest = self.from(from, count).flat_map(|frame| &frame.bands);
        let loudest = loudest.fold(silence, |most, &value| most.max(value));
        let scaled = |value: f32| (value.max(loudest - 8.0) + 4.0) / 4.0;
        let end = out.len() + window * self.filters.len();
        for frame in self.from(from, count.min(window)) {
            out.extend(frame.bands.iter().map(|&value| scaled(value)));
        }
        out.resize(end, scaled(silence));
    }

    /// How loud frames are: the power of all bands as a power of ten, about 0 for a tone of full scale.
    pub fn loudness(&self, from: u64, count: usize) -> Vec<f32> {
        self.from(from, count).map(|frame| frame.loudness).collect()
    }

    fn from(&self, from: u64, count: usize) -> impl Iterator<Item = &Frame> {
        let skipped = usize::try_from(from.saturating_sub(self.first)).unwrap_or(usize::MAX);
        self.kept.iter().skip(skipped).take(count)
    }

    fn mirror_beginning(&mut self) {
        let mut mirrored: Vec<f32> = self.samples[1..=SIDE].iter().rev().copied().collect();
        mirrored.append(&mut self.samples);
        self.samples = mirrored;
    }

    fn compute(&mut self) {
        let (mut values, mut spectrum) = ([0.0; WINDOW], [Complex::default(); WINDOW]);
        let mut begin = 0;
        while begin + WINDOW <= self.samples.len() {
            let samples = &self.samples[begin..begin + WINDOW];
            for ((value, &sample), window) in values.iter_mut().zip(samples).zip(&self.window) {
                *value = f64::from(sample) * window;
            }
            self.fft.transform(&values, &mut spectrum);
            let power = |i: usize| spectrum[i].re * spectrum[i].re + spectrum[i].im * spectrum[i].im;
            let mut all = 0.0;
            let band = |(from, filter): &(usize, Vec<f64>)| {
                let sum: f64 = filter.iter().enumerate().map(|(i, weight)| weight * power(from + i)).sum();
                all += sum;
                sum.max(FLOOR).log10() as f32
            };
            let bands: Vec<f32> = self.filters.iter().map(band).collect();
            let loudness = (all / bands.len() as f64).max(FLOOR).log10() as f32;
            self.kept.push_back(Frame { bands, loudness });
            begin += HOP;
        }
        self.samples.drain(..begin);
    }
}

/// The weight of each frequency (0 to 8 kHz, in 201 steps) in each band: triangles between places that are equally far
/// apart on Slaney's mel scale, with equal areas.
pub fn mel_filters(bands: usize) -> Vec<Vec<f64>> {
    let top = hertz_to_mel(f64::from(RATE) / 2.0);
    let places: Vec<f64> =
        (0..bands + 2).map(|i| mel_to_hertz(top * i as f64 / (bands + 1) as f64)).collect();
    let filter = |band: &[f64]| {
        let (low, middle, high) = (band[0], band[1], band[2]);
        let weight = |i: usize| {
            let frequency = f64::from(RATE) / 2.0 * i as f64 / (FREQUENCIES - 1) as f64;
            let (rising, falling) =
                ((frequency - low) / (middle - low), (high - frequency) / (high - middle));
            rising.min(falling).max(0.0) * 2.0 / (high - low)
        };
        (0..FREQUENCIES).map(weight).collect()
    };
    places.windows(3).map(filter).collect()
}

/// Slaney's scale is linear below 1 kHz (15 mel) and logarithmic above.
fn hertz_to_mel(hertz: f64) -> f64 {
    if hertz < 1000.0 { hertz * 3.0 / 200.0 } else { 15.0 + (hertz / 1000.0).ln() * 27.0 / 6.4f64.ln() }
}

fn mel_to_hertz(mel: f64) -> f64 {
    if mel < 15.0 { mel * 200.0 / 3.0 } else { 1000.0 * ((mel - 15.0) * 6.4f64.ln() / 27.0).exp() }
}
