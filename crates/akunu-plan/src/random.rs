//! The counter-based random number generator for sampling: it has no state, so a draw depends only on its counter.
//!
//! The draw for token `id` at `position` under `seed` is defined in four steps, each of them exact integer arithmetic
//! or single IEEE f32 operations (`+ − × ÷`, round to nearest even, never contracted to fused operations), so that any
//! processor and any GPU, with one thread per candidate, gets the same bits:
//!
//! 1. Philox4x32 with 10 rounds (Salmon et al., 2011), key `(seed low, seed high)`, counter `(id div 4, position low,
//!    position high, 0)`; `x` is word `id mod 4` of the block.
//! 2. `u = (x + ½) / 2³²` is a number in (0, 1); it is never rounded to 0 or 1.
//! 3. `e = −ln u` ([`exponential`]): from `u` if `x < 2³¹`, otherwise from `1 − u`, so that it is precise at both ends:
//!    small `e` are the draws that win.
//! 4. `g = −ln e` ([`gumbel`]). The id with the largest `logit + g` is a sample from the softmax (the Gumbel-max
//!    trick).

/// Upper bound of all draws: 33 · ln 2, rounded up.
pub const GUMBEL_MAX: f32 = 22.88;

/// Philox4x32-10: four words for a counter and a key.
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        let a = u64::from(c0) * 0xD251_1F53;
        let b = u64::from(c2) * 0xCD9E_8D57;
        (c0, c1, c2, c3) = ((b >> 32) as u32 ^ c1 ^ k0, b as u32, (a >> 32) as u32 ^ c3 ^ k1, a as u32);
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    [c0, c1, c2, c3]
}

/// The draws at one position, four ids per block.
#[derive(Clone, Debug)]
pub struct Draws {
    key: [u32; 2],
    position: [u32; 2],
    /// The last computed block: with ascending ids, each block is computed once for four ids.
    block: [u32; 4],
    block_index: Option<u32>,
}

impl Draws {
    pub fn new(seed: u64, position: u64) -> Draws {
        let halves = |v: u64| [v as u32, (v >> 32) as u32];
        Draws { key: halves(seed), position: halves(position), block: [0; 4], block_index: None }
    }

    /// Step 1: 32 random bits.
    pub fn bits(&mut self, id: u32) -> u32 {
        let index = id / 4;
        if self.block_index != Some(index) {
            let [low, high] = self.position;
            self.block = philox([index, low, high, 0], self.key);
            self.block_index = Some(index);
        }
        self.block[(id % 4) as usize]
    }

    /// Steps 1 to 4.
    pub fn gumbel(&mut self, id: u32) -> f32 {
        gumbel(self.bits(id))
    }
}

/// `−ln(−ln u)`
pub fn gumbel(x: u32) -> f32 {
    -ln(exponential(x))
}

/// An upper bound of [`gumbel`] that takes no logarithm: a draw beyond k · ln 2 needs k leading ones.
pub fn gumbel_bound(x: u32) -> f32 {
    // ln 2, rounded up by more than the error of the logarithms.
    const LN2_ABOVE: f32 = 0.6935;
    (x.leading_ones() + 1) as f32 * LN2_ABOVE
}

/// `−ln u`, positive and finite for every `x`.
pub fn exponential(x: u32) -> f32 {
    const SCALE: f32 = 1.0 / 4_294_967_296.0;
    if x < 1 << 31 {
        return -ln((x as f32 + 0.5) * SCALE);
    }
    // −ln(1 − w) = 2·artanh(w / (2 − w)), with w = 1 − u.
    let w = (!x as f32 + 0.5) * SCALE;
    let s = w / (2.0 - w);
    let z = s * s;
    let mut series = 1.0 / 15.0;
    for coefficient in [1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0] {
        series = series * z + coefficient;
    }
    2.0 * (s + s * z * series)
}

/// Natural logarithm of a positive normal number, within 2 units in the last place of the larger of the result and 1.
pub fn ln(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_145_75; // 15 bits, so that exponent · LN2_HIGH is exact
    const LN2_LOW: f32 = 1.428_606_8e-6;
    const SQRT_HALF_BITS: u32 = 0x3f35_04f3;
    // x = m · 2^e with m in [√½, √2): 2·artanh((m − 1) / (m + 1)) converges fast there.
    let e = (x.to_bits().wrapping_sub(SQRT_HALF_BITS) as i32) >> 23;
    let m = f32::from_bits(x.to_bits().wrapping_sub((e as u32) << 23));
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let mut series = 2.0 / 9.0;
    for coefficient in [2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0] {
        series = series * z + coefficient;
    }
    let e = e as f32;
    e * LN2_HIGH + (2.0 * s + (s * z * series + e * LN2_LOW))
}

/// 2³¹ · e^x for x ≤ 0, truncated to an integer, so that sums of weights do not depend on their order. Within 2⁻²¹ of
/// its value, and 0 below 2⁻³³.
pub fn weight(x: f32) -> u32 {
    const LN2: f32 = std::f32::consts::LN_2;
    const FACTORIALS: [f32; 7] = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let t = x * std::f32::consts::LOG2_E;
    if t.is_nan() || t < -33.0 {
        return 0;
    }
    // The nearest integer; the remainder is exact, and at most a half.
    let n = (t - 0.5) as i32;
    let r = (t - n as f32) * LN2;
    let mut series = 1.0 / 5040.0;
    for coefficient in FACTORIALS {
        series = series * r + coefficient;
    }
    // Both factors are powers of two.
    (series * f32::from_bits(((n + 127) as u32) << 23) * 2_147_483_648.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the known-answer file of the authors.
    #[test]
    fn philox_gives_the_known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        assert_eq!(
            philox([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
    }

    fn some_bits() -> impl Iterator<Item = u32> {
        let edges = [0, 1, 2, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, u32::MAX - 1, u32::MAX];
        edges.into_iter().chain((0..20_000).map(|i| philox([i, 0, 0, 0], [1, 2])[0]))
    }

    #[test]
    fn exponential_is_precise_at_both_ends() {
        for x in some_bits() {
            let u = (f64::from(x) + 0.5) / 4_294_967_296.0;
            let exact = if x < 1 << 31 { -u.ln() } else { -(-(1.0 - u)).ln_1p() };
            let error = (f64::from(exponential(x)) - exact).abs() / exact;
            assert!(error < 4e-7, "x {x}: relative error {error}");
        }
    }

    #[test]
    fn gumbel_draws_are_finite_and_bounded() {
        for x in some_bits() {
            let g = gumbel(x);
            assert!((-4.0..=GUMBEL_MAX).contains(&g), "x {x} gives {g}");
            let exact = -f64::from(exponential(x)).ln();
            assert!((f64::from(g) - exact).abs() < 4e-7 * exact.abs().max(1.0), "x {x}: {g} for {exact}");
        }
    }

    #[test]
    fn bounds_of_draws_are_close_and_never_exceeded() {
        // Draws rise with their bits, so that the last of those with equally many leading ones is the largest.
        let last = |ones: u32| !(1u32 << 31).checked_shr(ones).unwrap_or(0);
        for x in (0..=32).map(last).chain(some_bits()) {
            assert!(gumbel(x) <= gumbel_bound(x), "x {x}: {} above {}", gumbel(x), gumbel_bound(x));
        }
        for ones in 1..32 {
            let (largest, bound) = (gumbel(last(ones)), gumbel_bound(last(ones)));
            assert!(last(ones).leading_ones() == ones && bound - largest < 0.5, "{largest} below {bound}");
        }
    }

    #[test]
    fn weights_agree_with_the_library() {
        let full = 2_147_483_648.0;
        for i in 0..230_000 {
            let x = -i as f32 / 10_000.0;
            let exact = f64::from(x).exp() * full;
            let error = (f64::from(weight(x)) - exact).abs();
            assert!(error <= 1.0 + exact / f64::from(1 << 21), "x {x}: {} for {exact}", weight(x));
        }
        let edges = [0.0, -0.0, -23.0, -1e9, f32::NEG_INFINITY, f32::NAN].map(weight);
        assert_eq!(edges, [1 << 31, 1 << 31, 0, 0, 0, 0]);
    }

    /// The definition is frozen: other devices and other releases must give the same draws.
    #[test]
    fn draws_are_frozen() {
        let mut draws = Draws::new(42, 7);
        let found: Vec<(u32, u32)> =
            [0, 1, 5, 1000].into_iter().map(|id| (draws.bits(id), draws.gumbel(id).to_bits())).collect();
        let frozen = [
            (3314573452, 1068293283),
            (1743248041, 1037299043),
            (776335303, 3205066543),
            (697230268, 3206088782),
        ];
        assert_eq!(found, frozen);
        assert_eq!([-0.1, -1.0, -7.3].map(weight), [1_943_123_584, 790_015_104, 1_450_707]);
    }
}
