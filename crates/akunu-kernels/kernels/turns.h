// position · frequency, less whole turns. The product is kept in two f32, and turns are taken off in three pieces of 2π whose
// products fma takes off exactly, or nearly, so that a million positions lose nothing.
INLINE f32 turned_back(f32 position, f32 frequency) {
    const f32 angle = position * frequency, rest = fused(position, frequency, -angle);
    const f32 turns = (f32)round_even(angle * 0.15915494309f);
    f32 reduced = fused(-turns, 6.28125f, angle);
    reduced = fused(-turns, 1.9353071795e-3f, reduced);
    reduced = fused(-turns, 1.025337628e-11f, reduced);
    return reduced + rest;
}
