// Abramowitz and Stegun 7.1.26: within 1.5e-7 everywhere. Metal has no erf of its own.
INLINE f32 error_function(f32 x) {
    const f32 a = x < 0 ? -x : x, t = RECIPROCAL(1.0f + 0.3275911f * a);
    const f32 series = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    const f32 erf = 1.0f - series * EXP2(-1.44269504f * a * a);
    return x < 0 ? -erf : erf;
}

// ACTIVATION is 0 for SiLU, 1 for GELU by tanh, 2 for GELU by erf, 3 for tanh, 4 for ReLU, which leaves a NaN as it is.
INLINE f32 activate(f32 x) {
    if (ACTIVATION == 0) return x / (1.0f + EXP(-x));
    if (ACTIVATION == 1) return 0.5f * x * (1.0f + TANH(0.7978845608f * (x + 0.044715f * x * x * x)));
    if (ACTIVATION == 2) return 0.5f * x * (1.0f + error_function(x * 0.7071067812f));
    if (ACTIVATION == 3) return TANH(x);
    return x < 0 ? 0.0f : x;
}

// ACTIVATION may also be 5: SiLU of 1.702 · gate with limits, and up plus one, as in GluKind::Clamped. A NaN stays a NaN.
INLINE f32 gated(f32 gate, f32 up) {
    if (ACTIVATION != 5) return activate(gate) * up;
    const f32 g = gate > 7.0f ? 7.0f : gate, u = up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up;
    return g / (1.0f + EXP(-1.702f * g)) * (u + 1.0f);
}
