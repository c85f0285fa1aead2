// position · frequency reduced modulo 2π. The product is kept exactly as the sum of two f32, and 2π is subtracted in
// three parts (Cody-Waite) whose products with the number of periods fma subtracts exactly or nearly so. The angle
// stays accurate for positions up to a million.
INLINE f32 reduced_angle(f32 position, f32 frequency) {
    const f32 angle = position * frequency, rest = fused(position, frequency, -angle);
    const f32 periods = (f32)round_even(angle * 0.15915494309f);
    f32 reduced = fused(-periods, 6.28125f, angle);
    reduced = fused(-periods, 1.9353071795e-3f, reduced);
    reduced = fused(-periods, 1.025337628e-11f, reduced);
    return reduced + rest;
}
