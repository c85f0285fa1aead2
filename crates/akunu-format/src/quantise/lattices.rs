//! Quantisation to the IQ1 to IQ3 types, whose codes are points of a lattice.
//!
//! As for k-quants, a few scales are tried for each sub-block, the best one is fitted to its codes by least squares,
//! and the scales are rounded to multiples of the block's, which is fitted to all codes. The code of eight (or four)
//! elements at a given scale is the nearest point: that of their rounded coordinates if the lattice has it, otherwise
//! the best of the points that are nearest to the rounded coordinates.

use std::array::from_fn;
use std::sync::LazyLock;

use super::search::{LEN, inverse, stored};
use crate::DType;
use crate::blocks::lattices::{lattice_codes, scale_of, scales_halves};

/// The number of points that are compared where rounded coordinates are not in the lattice.
const NEAR: usize = 16;

/// Rounds of choosing codes and fitting the scale of a sub-block, after the best of the tried ones is known.
const REFINEMENTS: usize = 2;

/// Rounds of choosing multiples and fitting their common factor.
const ROUNDS: usize = 2;

/// A lattice with what finds the nearest point of `D` coordinates.
struct Lattice<const D: usize> {
    levels: &'static [f32],
    /// The number of bits of a coordinate in a code.
    bits: usize,
    points: Vec<[f32; D]>,
    /// By code: a point, or the number of points plus a place in `near`.
    places: Vec<u16>,
    near: Vec<[u16; NEAR]>,
}

impl<const D: usize> Lattice<D> {
    fn new(dtype: DType, levels: &'static [f32]) -> Lattice<D> {
        let bits = if D == 8 { 2 } else { 3 };
        let codes = lattice_codes(dtype);
        let point =
            |code: usize| from_fn(|k| levels[(code >> (bits * k) & ((1 << bits) - 1)).min(levels.len() - 1)]);
        let points: Vec<[f32; D]> = codes.iter().map(|code| point(usize::from(*code))).collect();
        let mut places = vec![0; 1 << (bits * D)];
        let mut near = vec![];
        let mut order: Vec<(f32, u16)> = vec![];
        for (code, place) in places.iter_mut().enumerate() {
            if let Ok(found) = codes.binary_search(&(code as u16)) {
                *place = found as u16;
                continue;
            }
            // Codes with a coordinate that there is no level for do not occur.
            if (0..D).any(|k| code >> (bits * k) & ((1 << bits) - 1) >= levels.len()) {
                continue;
            }
            let center: [f32; D] = point(code);
            let distance = |p: &[f32; D]| p.iter().zip(center).map(|(p, c)| (p - c) * (p - c)).sum::<f32>();
            order.clear();
            order.extend(points.iter().enumerate().map(|(i, p)| (distance(p), i as u16)));
            order.select_nth_unstable_by(NEAR, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            *place = (points.len() + near.len()) as u16;
            near.push(from_fn(|i| order[i].1));
        }
        Lattice { levels, bits, points, places, near }
    }

    fn nearest(&self, at: &[f32; D], weights: &[f32; D]) -> u16 {
        let mut code = 0;
        for (k, at) in at.iter().enumerate() {
            let level = self.levels.windows(2).filter(|pair| *at > (pair[0] + pair[1]) / 2.0).count();
            code |= level << (self.bits * k);
        }
        let place = usize::from(self.places[code]);
        let Some(list) = place.checked_sub(self.points.len()) else { return place as u16 };
        let (mut best, mut least) = (self.near[list][0], f32::INFINITY);
        for i in self.near[list] {
            let point = &self.points[usize::from(i)];
            let error: f32 = (0..D).map(|k| weights[k] * (at[k] - point[k]) * (at[k] - point[k])).sum();
            if error < least {
                (best, least) = (i, error);
            }
        }
        best
    }
}

const IQ2: &[f32] = &[8.0, 25.0, 43.0];
static IQ2_XXS: LazyLock<Lattice<8>> = LazyLock::new(|| Lattice::new(DType::IQ2XXS, IQ2));
static IQ2_XS: LazyLock<Lattice<8>> = LazyLock::new(|| Lattice::new(DType::IQ2XS, IQ2));
static IQ2_S: LazyLock<Lattice<8>> = LazyLock::new(|| Lattice::new(DType::IQ2S, IQ2));
static IQ1: LazyLock<Lattice<8>> = LazyLock::new(|| Lattice::new(DType::IQ1S, &[-8.0, 0.0, 8.0]));
static IQ3_XXS: LazyLock<Lattice<4>> =
    LazyLock::new(|| Lattice::new(DType::IQ3XXS, &[4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0]));
static IQ3_S: LazyLock<Lattice<4>> =
    LazyLock::new(|| Lattice::new(DType::IQ3S, &[1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0]));

/// The codes of eight elements.
#[derive(Clone, Copy, Debug, Default)]
struct Eight {
    /// One point of eight coordinates, or two of four.
    points: [u16; 2],
    signs: u8,
    /// IQ1: 1 is subtracted and not added.
    less: bool,
    /// The elements that they stand for.
    quants: [f32; 8],
}

impl Eight {
    fn new(dtype: DType, x: &[f32; 8], weights: &[f32; 8], inverse: f32) -> Eight {
        let mut at = x.map(|x| x.abs() * inverse);
        let mut signs = (0..8).fold(0, |signs, k| signs | u8::from(x[k] < 0.0) << k);
        let seven = matches!(dtype, DType::IQ2XXS | DType::IQ2XS | DType::IQ3XXS);
        if seven && signs.count_ones() % 2 == 1 {
            // The number of negative elements must be even: one gets the wrong sign.
            let cost = |k: usize| weights[k] * x[k] * x[k];
            let cheapest = (1..8).fold(0, |best, k| if cost(k) < cost(best) { k } else { best });
            signs ^= 1 << cheapest;
            at[cheapest] = -at[cheapest];
        }
        let (points, magnitudes) = match dtype {
            DType::IQ3XXS | DType::IQ3S => {
                let lattice = if dtype == DType::IQ3S { &*IQ3_S } else { &*IQ3_XXS };
                let points: [u16; 2] = from_fn(|half| {
                    lattice.nearest(&from_fn(|k| at[4 * half + k]), &from_fn(|k| weights[4 * half + k]))
                });
                (points, from_fn(|k| lattice.points[usize::from(points[k / 4])][k % 4]))
            }
            _ => {
                let lattice = match dtype {
                    DType::IQ2XXS => &*IQ2_XXS,
                    DType::IQ2XS => &*IQ2_XS,
                    _ => &*IQ2_S,
                };
                let point = lattice.nearest(&at, weights);
                ([point, 0], lattice.points[usize::from(point)])
            }
        };
        let quants = from_fn(|k| if signs >> k & 1 == 1 { -magnitudes[k] } else { magnitudes[k] });
        Eight { points, signs, less: false, quants }
    }

    /// IQ1, whose points have signs.
    fn shifted(x: &[f32; 8], weights: &[f32; 8], inverse: f32, less: bool) -> Eight {
        let shift = if less { -1.0 } else { 1.0 };
        let point = IQ1.nearest(&x.map(|x| x * inverse - shift), weights);
        let quants = IQ1.points[usize::from(point)].map(|p| p + shift);
        Eight { points: [point, 0], signs: 0, less, quants }
    }
}

/// The codes of a sub-block, and Σ w·x·q and Σ w·q² of its elements q.
#[derive(Clone, Copy, Debug, Default)]
struct Codes {
    eights: [Eight; 4],
    xq: f32,
    qq: f32,
}

impl Codes {
    fn of(eights: [Eight; 4], x: &[[f32; 8]], weights: &[[f32; 8]]) -> Codes {
        let (mut xq, mut qq) = ([0.0; 8], [0.0; 8]);
        for (eight, (x, weights)) in eights.iter().zip(x.iter().zip(weights)) {
            for k in 0..8 {
                xq[k] += weights[k] * x[k] * eight.quants[k];
                qq[k] += weights[k] * eight.quants[k] * eight.quants[k];
            }
        }
        Codes { eights, xq: xq.iter().sum(), qq: qq.iter().sum() }
    }

    fn new(dtype: DType, x: &[[f32; 8]], weights: &[[f32; 8]], scale: f32) -> Codes {
        let inverse = inverse(scale);
        let each = |code: &dyn Fn(&[f32; 8], &[f32; 8]) -> Eight| {
            let mut eights = [Eight::default(); 4];
            for (eight, (x, weights)) in eights.iter_mut().zip(x.iter().zip(weights)) {
                *eight = code(x, weights);
            }
            Codes::of(eights, x, weights)
        };
        if !matches!(dtype, DType::IQ1S | DType::IQ1M) {
            return each(&|x, weights| Eight::new(dtype, x, weights, inverse));
        }
        let shifted = [false, true].map(|less| each(&|x, weights| Eight::shifted(x, weights, inverse, less)));
        if dtype == DType::IQ1S {
            let [more, less] = shifted;
            return if less.error(scale) < more.error(scale) { less } else { more };
        }
        // IQ1_M shifts each eight elements by themselves.
        let mut eights = [Eight::default(); 4];
        for (i, (x, weights)) in x.iter().zip(weights).enumerate() {
            let [more, less] = shifted.map(|codes| codes.eights[i]);
            let error = |eight: &Eight| {
                (0..8).map(|k| weights[k] * (x[k] - scale * eight.quants[k]).powi(2)).sum::<f32>()
            };
            eights[i] = if error(&less) < error(&more) { less } else { more };
        }
        Codes::of(eights, x, weights)
    }

    /// Σ w·(x − scale·q)² less Σ w·x².
    fn error(&self, scale: f32) -> f32 {
        scale * (scale * self.qq - 2.0 * self.xq)
    }

    /// The best scale for these codes, and how much of Σ w·x² they explain with it.
    fn fitted(&self) -> (f32, f32) {
        if self.qq > 0.0 && self.xq > 0.0 {
            (self.xq / self.qq, self.xq * self.xq / self.qq)
        } else {
            (0.0, 0.0)
        }
    }
}

/// The scales that are tried, as multiples of the one with which the largest element is the greatest level; for IQ1
/// of an eighth of the root mean square. The last ones of IQ2 and IQ3 are for elements of equal magnitudes, for which
/// a lattice may have no point of greatest levels.
fn tried(dtype: DType) -> &'static [f32] {
    match dtype {
        DType::IQ1S | DType::IQ1M => &[0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9],
        DType::IQ3XXS => &[0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 15.5],
        DType::IQ3S => &[0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 15.0],
        _ => &[0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.72, 5.375],
    }
}

/// The best scale of a sub-block by itself.
fn best_scale(dtype: DType, x: &[[f32; 8]], weights: &[[f32; 8]]) -> f32 {
    let all = x.as_flattened();
    let largest = all.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let unit = match dtype {
        DType::IQ1S | DType::IQ1M => {
            let sums = all.iter().zip(weights.as_flattened());
            let (w, wxx) = sums.fold((0.0, 0.0), |(w, wxx), (x, weight)| (w + weight, wxx + weight * x * x));
            (wxx * inverse(w)).sqrt() / 8.0
        }
        DType::IQ3S => largest / 15.0,
        DType::IQ3XXS => largest / 62.0,
        _ => largest / 43.0,
    };
    let (mut best, mut explained) = (0.0, 0.0);
    for factor in tried(dtype) {
        let (scale, gain) = Codes::new(dtype, x, weights, unit * factor).fitted();
        if gain > explained {
            (best, explained) = (scale, gain);
        }
    }
    for _ in 0..REFINEMENTS {
        let (scale, gain) = Codes::new(dtype, x, weights, best).fitted();
        if gain > explained {
            (best, explained) = (scale, gain);
        }
    }
    best
}

/// The codes of a sub-block with the better of the two odd multiples of `d` next to `scale`, and that multiple.
fn multiple(dtype: DType, x: &[[f32; 8]], weights: &[[f32; 8]], scale: f32, d: f32) -> (u8, Codes) {
    let most: u8 = if matches!(dtype, DType::IQ1S | DType::IQ1M) { 7 } else { 15 };
    let below = ((scale * inverse(d) - 1.0) / 2.0).clamp(0.0, f32::from(most)) as u8;
    let codes = |stored: u8| Codes::new(dtype, x, weights, d * f32::from(2 * stored + 1));
    let error = |stored: u8, codes: &Codes| codes.error(d * f32::from(2 * stored + 1));
    let (first, second) = (codes(below), (below < most).then(|| codes(below + 1)));
    match second {
        Some(second) if error(below + 1, &second) < error(below, &first) => (below + 1, second),
        _ => (below, first),
    }
}

/// Quantises a block. Of infinite and NaN numbers it makes an unspecified one.
pub(crate) fn to_lattice(dtype: DType, values: &[f32; LEN], weights: Option<&[f32; LEN]>, block: &mut [u8]) {
    let weights = weights.unwrap_or(&[1.0; LEN]);
    let (x, weights) = (values.as_chunks::<8>().0, weights.as_chunks::<8>().0);
    // Eights per scale.
    let eights = if scales_halves(dtype) { 2 } else { 4 };
    let subs = || x.chunks(eights).zip(weights.chunks(eights));
    let scales: Vec<f32> = subs().map(|(x, weights)| best_scale(dtype, x, weights)).collect();
    let largest = scales.iter().fold(0.0f32, |most, scale| most.max(*scale));
    block.fill(0);
    if !(largest > 0.0 && largest.is_finite()) {
        return;
    }
    let most = if matches!(dtype, DType::IQ1S | DType::IQ1M) { 15.0 } else { 31.0 };
    let factor = scale_of(dtype);
    let mut d = largest / most;
    for _ in 0..ROUNDS {
        let (mut xq, mut qq) = (0.0, 0.0);
        for ((x, weights), scale) in subs().zip(&scales) {
            let (stored, codes) = multiple(dtype, x, weights, *scale, d);
            let times = f32::from(2 * stored + 1);
            xq += times * codes.xq;
            qq += times * times * codes.qq;
        }
        d = if xq > 0.0 && qq > 0.0 { xq / qq } else { d };
    }
    let d = stored(d / factor);
    let found: Vec<(u8, Codes)> = subs()
        .zip(&scales)
        .map(|((x, weights), scale)| multiple(dtype, x, weights, *scale, d * factor))
        .collect();
    let all: [Eight; 32] = from_fn(|i| found[i / eights].1.eights[i % eights]);
    // Of each half, if halves have scales, otherwise of each sub-block.
    let scales: Vec<u8> = found.iter().map(|(stored, _)| *stored).collect();
    pack(dtype, &all, &scales, half::f16::from_f32(d).to_bits(), block);
}

/// The inverse of what `blocks::lattices` reads; `block` is zero.
fn pack(dtype: DType, eights: &[Eight; 32], scales: &[u8], d: u16, block: &mut [u8]) {
    let mut put = |at: usize, bits: u8| block[at] |= bits;
    if dtype == DType::IQ1M {
        (0..4).for_each(|i| put(49 + 2 * i, (d >> (4 * i) & 15) as u8 * 16));
    } else {
        put(0, d as u8);
        put(1, (d >> 8) as u8);
    }
    for (i, eight) in eights.iter().enumerate() {
        let (sub, [point, other]) = (i / 4, eight.points);
        match dtype {
            DType::IQ2XXS => put(2 + 8 * sub + i % 4, point as u8),
            DType::IQ2XS => {
                put(2 + 2 * i, point as u8);
                put(3 + 2 * i, (point >> 8) as u8 | eight.signs << 1);
            }
            DType::IQ2S => {
                put(2 + i, point as u8);
                put(34 + i, eight.signs);
                put(66 + sub, ((point >> 8) as u8) << (2 * (i % 4)));
            }
            DType::IQ3XXS | DType::IQ3S => {
                put(2 + 2 * i, point as u8);
                put(3 + 2 * i, other as u8);
                if dtype == DType::IQ3S {
                    put(66 + sub, ((point >> 8 | other >> 8 << 1) as u8) << (2 * (i % 4)));
                    put(74 + i, eight.signs);
                }
            }
            DType::IQ1S => {
                let upper = (point >> 8) << (3 * (i % 4)) | u16::from(eight.less) << 15;
                put(2 + i, point as u8);
                put(34 + 2 * sub, upper as u8);
                put(35 + 2 * sub, (upper >> 8) as u8);
            }
            _ => {
                put(i, point as u8);
                let upper = (point >> 8 | u16::from(eight.less) << 3) as u8;
                put(32 + i / 2, upper << (4 * (i % 2)));
            }
        }
    }
    if matches!(dtype, DType::IQ2XXS | DType::IQ3XXS) {
        // A word for each sub-block: four times seven signs, and the scale.
        let (first, stride) = if dtype == DType::IQ2XXS { (6, 8) } else { (66, 4) };
        for (sub, four) in eights.chunks(4).enumerate() {
            let signs = four.iter().rev().fold(0, |word, eight| word << 7 | u32::from(eight.signs & 127));
            let word = signs | u32::from(scales[sub]) << 28;
            word.to_le_bytes()
                .into_iter()
                .enumerate()
                .for_each(|(i, byte)| put(first + stride * sub + i, byte));
        }
    }
    for (i, scale) in scales.iter().enumerate() {
        match dtype {
            DType::IQ2XS => put(66 + i / 2, scale << (4 * (i % 2))),
            DType::IQ2S => put(74 + i / 2, scale << (4 * (i % 2))),
            DType::IQ3S => put(106 + i / 2, scale << (4 * (i % 2))),
            DType::IQ1S => put(35 + 2 * i, scale << 4),
            DType::IQ1M => {
                let bits = u16::from(*scale) << (i % 4 * 3);
                put(48 + i / 4 * 2, bits as u8);
                put(49 + i / 4 * 2, (bits >> 8) as u8);
            }
            _ => {}
        }
    }
}
