//! Searches the scales of k-quant sub-blocks that minimise the squared error, in which each element has a weight.
//!
//! The scale of a sub-block determines its codes, and the codes determine which scale fits best. So a few scales are
//! tried, each is fitted to its own codes by least squares, and the best one is refined in a few rounds of coding and
//! fallback. The scales of a block are then rounded to small multiples of a common factor: the multiples next to each
//! fitted scale are tried with the codes that they give, and the factor is fitted to all 256 codes.
//!
//! Codes are stored as floats, so that the compiler can vectorise the loops.

use half::f16;

/// Elements of a k-quant block.
pub(super) const LEN: usize = 256;

/// Number of independent lanes of a sum, which compilers vectorise.
const LANES: usize = 8;

/// Rounds of coding and fallback after the best of the tried scales is known.
const REFINEMENTS: usize = 2;

/// Rounds of choosing multiples and fallback their common factor.
const ROUNDS: usize = 2;

/// The nearest integer, for magnitudes up to 2²²: adding 1.5 · 2²³ leaves no room for a fraction. Larger numbers remain
/// large, which is sufficient for clamping.
fn nearest(v: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0; // 1.5 · 2²³
    (v + SHIFT) - SHIFT
}

/// The value as stored in a file: half precision, and finite.
pub(crate) fn stored(v: f32) -> f32 {
    let most = f32::from(f16::MAX);
    f32::from(f16::from_f32(v.clamp(-most, most)))
}

pub(crate) fn inverse(v: f32) -> f32 {
    if v == 0.0 { 0.0 } else { 1.0 / v }
}

fn total(lanes: [f32; LANES]) -> f32 {
    lanes.iter().sum()
}

/// The weights without an importance matrix. A weight of 1 changes no bit of a sum.
pub(crate) fn equal<const N: usize>() -> &'static [f32; N] {
    const { &[1.0; N] }
}

/// Σwq, Σwq² and Σwxq over a sub-block with weights w, and its codes.
struct Sums {
    q: f32,
    qq: f32,
    xq: f32,
}

fn sums<const N: usize>(x: &[f32; N], w: &[f32; N], code: impl Fn(f32) -> f32) -> Sums {
    let (mut q, mut qq, mut xq) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    for (x, w) in x.as_chunks::<LANES>().0.iter().zip(w.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            let c = code(x[lane]);
            let weighted = w[lane] * c;
            q[lane] += weighted;
            qq[lane] += weighted * c;
            xq[lane] += weighted * x[lane];
        }
    }
    Sums { q: total(q), qq: total(qq), xq: total(xq) }
}

pub(super) fn squared_error<const N: usize>(x: &[f32; N], w: &[f32; N], decoded: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    for (x, w) in x.as_chunks::<LANES>().0.iter().zip(w.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            let off = x[lane] - decoded(x[lane]);
            lanes[lane] += w[lane] * off * off;
        }
    }
    total(lanes)
}

/// x ≈ scale·q − offset, q = 0 … most.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Affine {
    pub(crate) scale: f32,
    pub(crate) offset: f32,
}

/// The offsets that a format can store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offsets {
    NotNegative,
    Any,
}

/// The code of `x`; `inverse` is 1/scale.
pub(crate) fn affine_code(x: f32, inverse: f32, offset: f32, most: f32) -> f32 {
    nearest((x + offset) * inverse).clamp(0.0, most)
}

/// Σw and Σwx.
fn totals<const N: usize>(x: &[f32; N], w: &[f32; N]) -> (f32, f32) {
    (w.iter().sum(), x.iter().zip(w).map(|(x, w)| w * x).sum())
}

/// The best scale and offset for given codes, and how much of Σwx² they explain. `n` is Σw. `None` if the codes do not
/// determine them.
fn fit_affine(sums: &Sums, (n, sum_x): (f32, f32), offsets: Offsets) -> Option<(Affine, f32)> {
    let determinant = n * sums.qq - sums.q * sums.q;
    if determinant <= 0.0 {
        return None;
    }
    let scale = (n * sums.xq - sum_x * sums.q) / determinant;
    let least = (sums.qq * sum_x - sums.q * sums.xq) / determinant;
    // Offsets are subtracted.
    let refused = offsets == Offsets::NotNegative && least > 0.0;
    let (scale, least) = if refused { (sums.xq / sums.qq, 0.0) } else { (scale, least) };
    (scale > 0.0).then(|| (Affine { scale, offset: -least }, scale * sums.xq + least * sum_x))
}

pub(crate) fn affine<const N: usize>(x: &[f32; N], w: &[f32; N], most: f32, offsets: Offsets) -> Affine {
    let limit = if offsets == Offsets::NotNegative { 0.0 } else { f32::INFINITY };
    let least = x.iter().copied().fold(limit, f32::min);
    let greatest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let range = greatest - least;
    if !(range > 0.0 && range.is_finite()) {
        return Affine { scale: 0.0, offset: -least };
    }
    let totals = totals(x, w);
    let (mut best, mut explained) = (Affine { scale: range / most, offset: -least }, f32::NEG_INFINITY);
    // From a slightly enlarged range to one that clips outliers.
    for step in 0..=12 {
        let inverse = (most - 0.8 + 0.15 * step as f32) / range;
        let sums = sums(x, w, |x| affine_code(x, inverse, -least, most));
        if let Some((found, gain)) = fit_affine(&sums, totals, offsets)
            && gain > explained
        {
            (best, explained) = (found, gain);
        }
    }
    for _ in 0..REFINEMENTS {
        let inverse = inverse(best.scale);
        let sums = sums(x, w, |x| affine_code(x, inverse, best.offset, most));
        match fit_affine(&sums, totals, offsets) {
            Some((found, gain)) if gain > explained => (best, explained) = (found, gain),
            _ => break,
        }
    }
    best
}

/// A block of sub-blocks with scales and offsets: x ≈ d·scale·q − m·offset.
#[derive(Clone, Debug)]
pub(super) struct AffineBlock<const SUBS: usize> {
    pub(super) d: f32,
    pub(super) m: f32,
    pub(super) scales: [u8; SUBS],
    pub(super) offsets: [u8; SUBS],
    pub(super) codes: [u8; LEN],
}

/// Codes are 0 … `most`, scales and offsets 0 … `levels`. `SUBS · N` is 256.
pub(super) fn affine_block<const SUBS: usize, const N: usize>(
    x: &[f32; LEN],
    w: &[f32; LEN],
    most: f32,
    levels: f32,
) -> AffineBlock<SUBS> {
    let (subs, weights) = (x.as_chunks::<N>().0, w.as_chunks::<N>().0);
    let mut fits = [Affine::default(); SUBS];
    for ((fit, x), w) in fits.iter_mut().zip(subs).zip(weights) {
        *fit = affine(x, w, most, Offsets::NotNegative);
    }
    let largest = |of: fn(&Affine) -> f32| fits.iter().map(of).fold(0.0, f32::max);
    let mut d = stored(largest(|fit| fit.scale) / levels);
    let mut m = stored(largest(|fit| fit.offset) / levels);
    let (mut best, mut least) = (None, f32::INFINITY);
    for _ in 0..ROUNDS {
        let mut multiples = [Affine::default(); SUBS];
        let mut error = 0.0;
        for ((multiples, fit), sub) in multiples.iter_mut().zip(&fits).zip(subs.iter().zip(weights)) {
            let (found, off) = affine_multiples(sub, *fit, (d, m), most, levels);
            *multiples = found;
            error += off;
        }
        // Not `<`, so that a block of NaN gets a result too.
        if best.is_none() || error < least {
            least = error;
            best = Some((d, m, multiples));
        } else {
            break;
        }
        (d, m) = fit_affine_block((subs, weights), &multiples, (d, m), most);
    }
    let (d, m, multiples) = best.unwrap_or((d, m, [Affine::default(); SUBS]));
    let mut codes = [0; LEN];
    for ((codes, multiples), x) in codes.as_chunks_mut::<N>().0.iter_mut().zip(&multiples).zip(subs) {
        let (inverse, offset) = (inverse(d * multiples.scale), m * multiples.offset);
        for (code, &x) in codes.iter_mut().zip(x) {
            *code = affine_code(x, inverse, offset, most) as u8;
        }
    }
    let (scales, offsets) = (multiples.map(|of| of.scale as u8), multiples.map(|of| of.offset as u8));
    AffineBlock { d, m, scales, offsets, codes }
}

/// The best multiples of `d` and `m` among those next to a fit, and their error.
fn affine_multiples<const N: usize>(
    (x, w): (&[f32; N], &[f32; N]),
    fit: Affine,
    (d, m): (f32, f32),
    most: f32,
    levels: f32,
) -> (Affine, f32) {
    let about = |v: f32, unit: f32| nearest(v * inverse(unit)).clamp(0.0, levels);
    let (scale, offset) = (about(fit.scale, d), about(fit.offset, m));
    let (mut best, mut least) = (Affine { scale, offset }, f32::INFINITY);
    for scale in [scale, scale - 1.0, scale + 1.0] {
        for offset in [offset, offset - 1.0, offset + 1.0] {
            if scale < 0.0 || scale > levels || offset < 0.0 || offset > levels {
                continue;
            }
            let (step, offset_value) = (d * scale, m * offset);
            let inverse = inverse(step);
            let error =
                squared_error(x, w, |x| affine_code(x, inverse, offset_value, most) * step - offset_value);
            if error < least {
                (best, least) = (Affine { scale, offset }, error);
            }
        }
    }
    (best, least)
}

/// `d` and `m` by least squares over the whole block, for given multiples and the codes that they give.
fn fit_affine_block<const SUBS: usize, const N: usize>(
    (subs, weights): (&[[f32; N]], &[[f32; N]]),
    multiples: &[Affine; SUBS],
    (d, m): (f32, f32),
    most: f32,
) -> (f32, f32) {
    // With a = scale·q and b = offset, weighted: Σaa, Σab, Σbb, Σxa, Σxb.
    let (mut aa, mut ab, mut bb, mut xa, mut xb) = (0.0f64, 0.0f64, 0.0f64, 0.0f64, 0.0f64);
    for ((x, w), of) in subs.iter().zip(weights).zip(multiples) {
        let (inverse, offset) = (inverse(d * of.scale), m * of.offset);
        let sums = sums(x, w, |x| affine_code(x, inverse, offset, most));
        let (n, sum_x) = totals(x, w);
        let (a, b) = (f64::from(of.scale), f64::from(of.offset));
        aa += a * a * f64::from(sums.qq);
        ab += a * b * f64::from(sums.q);
        bb += b * b * f64::from(n);
        xa += a * f64::from(sums.xq);
        xb += b * f64::from(sum_x);
    }
    let determinant = aa * bb - ab * ab;
    let (new_d, new_m) = if determinant > 1e-9 * aa * bb {
        ((bb * xa - ab * xb) / determinant, (ab * xa - aa * xb) / determinant)
    } else if aa > 0.0 {
        ((xa + f64::from(m) * ab) / aa, f64::from(m))
    } else {
        (f64::from(d), f64::from(m))
    };
    if new_d > 0.0 && new_m >= 0.0 { (stored(new_d as f32), stored(new_m as f32)) } else { (d, m) }
}

/// The set of values that a scale multiplies.
pub(crate) trait Levels: Copy {
    /// The level nearest to `v`.
    fn nearest(self, v: f32) -> f32;
    /// Candidate levels for the extreme value of a sub-block; the first one is preferred if all errors are equal.
    fn extreme_levels(self) -> impl Iterator<Item = f32>;
}

/// The integers −half … half − 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Integers {
    pub(crate) half: f32,
}

impl Levels for Integers {
    fn nearest(self, v: f32) -> f32 {
        nearest(v).clamp(-self.half, self.half - 1.0)
    }

    fn extreme_levels(self) -> impl Iterator<Item = f32> {
        // With few codes, also try the shorter side for the extreme value: half as many tries for each.
        let few = self.half <= 4.0;
        let steps = [0i8, -4, -8, 4, 8, -2, -6, 2, 6, -1, -3, -5, -7, 1, 3, 5, 7];
        let far = steps.into_iter().take(if few { 9 } else { 17 });
        let far = far.map(move |step| -self.half - 0.12 * f32::from(step));
        let random_near = far.clone().filter(move |_| few).map(|reach| (-1.0 - reach).max(1.0));
        far.chain(random_near)
    }
}

/// x ≈ scale·level, with a scale of either sign.
pub(crate) fn symmetric<L: Levels, const N: usize>(x: &[f32; N], w: &[f32; N], levels: L) -> f32 {
    let extreme = x.iter().copied().fold(0.0, |most: f32, x| if x.abs() > most.abs() { x } else { most });
    if extreme == 0.0 || !extreme.is_finite() {
        return 0.0;
    }
    let mut best: Option<(f32, f32)> = None;
    for reach in levels.extreme_levels() {
        let best = best.get_or_insert((extreme / reach, f32::NEG_INFINITY));
        *best = better(*best, (x, w), reach / extreme, levels);
    }
    let mut best = best.unwrap_or_default();
    for _ in 0..REFINEMENTS {
        best = better(best, (x, w), inverse(best.0), levels);
    }
    best.0
}

/// The scale fitted to the levels that `inverse` gives, if it explains more of Σwx² than the best so far.
fn better<L: Levels, const N: usize>(
    best: (f32, f32),
    (x, w): (&[f32; N], &[f32; N]),
    inverse: f32,
    levels: L,
) -> (f32, f32) {
    let sums = sums(x, w, |x| levels.nearest(x * inverse));
    let gain = sums.xq * sums.xq / sums.qq;
    if gain > best.1 { (sums.xq / sums.qq, gain) } else { best }
}

/// A block of sub-blocks with signed scales: x ≈ d·scale·level.
#[derive(Clone, Debug)]
pub(super) struct SymmetricBlock<const SUBS: usize> {
    pub(super) d: f32,
    pub(super) scales: [i8; SUBS],
    pub(super) levels: [i8; LEN],
}

/// Scales are −`most` … `most`; `SUBS · N` is 256.
pub(super) fn symmetric_block<L: Levels, const SUBS: usize, const N: usize>(
    x: &[f32; LEN],
    w: &[f32; LEN],
    levels: L,
    most: f32,
) -> SymmetricBlock<SUBS> {
    let (subs, weights) = (x.as_chunks::<N>().0, w.as_chunks::<N>().0);
    let mut fits = [0.0f32; SUBS];
    for ((fit, x), w) in fits.iter_mut().zip(subs).zip(weights) {
        *fit = symmetric(x, w, levels);
    }
    let mut d = stored(fits.iter().fold(0.0, |most: f32, fit| most.max(fit.abs())) / most);
    let (mut best, mut least) = (None, f32::INFINITY);
    for _ in 0..ROUNDS {
        let mut scales = [0.0; SUBS];
        let mut error = 0.0;
        for ((scale, &fit), sub) in scales.iter_mut().zip(&fits).zip(subs.iter().zip(weights)) {
            let (found, off) = symmetric_multiple(sub, fit, d, levels, most);
            *scale = found;
            error += off;
        }
        if best.is_none() || error < least {
            least = error;
            best = Some((d, scales));
        } else {
            break;
        }
        d = fit_symmetric_block((subs, weights), &scales, d, levels);
    }
    let (d, scales) = best.unwrap_or((d, [0.0; SUBS]));
    let mut found = SymmetricBlock { d, scales: scales.map(|scale| scale as i8), levels: [0; LEN] };
    for ((out, &scale), x) in found.levels.as_chunks_mut::<N>().0.iter_mut().zip(&scales).zip(subs) {
        let inverse = inverse(d * scale);
        for (level, &x) in out.iter_mut().zip(x) {
            *level = levels.nearest(x * inverse) as i8;
        }
    }
    found
}

fn symmetric_multiple<L: Levels, const N: usize>(
    (x, w): (&[f32; N], &[f32; N]),
    fit: f32,
    d: f32,
    levels: L,
    most: f32,
) -> (f32, f32) {
    let scale = nearest(fit * inverse(d)).clamp(-most, most);
    let (mut best, mut least) = (scale, f32::INFINITY);
    for scale in [scale, scale - 1.0, scale + 1.0] {
        if scale.abs() > most {
            continue;
        }
        let step = d * scale;
        let inverse = inverse(step);
        let error = squared_error(x, w, |x| levels.nearest(x * inverse) * step);
        if error < least {
            (best, least) = (scale, error);
        }
    }
    (best, least)
}

fn fit_symmetric_block<L: Levels, const N: usize>(
    (subs, weights): (&[[f32; N]], &[[f32; N]]),
    scales: &[f32],
    d: f32,
    levels: L,
) -> f32 {
    let (mut aa, mut xa) = (0.0f64, 0.0f64);
    for ((x, w), &scale) in subs.iter().zip(weights).zip(scales) {
        let inverse = inverse(d * scale);
        let sums = sums(x, w, |x| levels.nearest(x * inverse));
        aa += f64::from(scale * scale) * f64::from(sums.qq);
        xa += f64::from(scale) * f64::from(sums.xq);
    }
    if aa > 0.0 { stored((xa / aa) as f32) } else { d }
}
