// A matrix lies in PLANES planes, each [row][block]. A place in one follows from how many bytes eight blocks take there.

INLINE u32 plane_bytes(u32 plane) {
    return plane == 0 ? PLANE_0 : plane == 1 ? PLANE_1 : plane == 2 ? PLANE_2 : plane == 3 ? PLANE_3 : PLANE_4;
}
