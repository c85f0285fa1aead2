// The embedding of each row's token, times the scale. One thread per element.
BODY(embed) {
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    const u32 col = at.group_x * THREADS + at.in_group, row = at.group_y;
    if (row >= live_rows(pass, false) || col >= INPUTS) return;
    const u32 token = ((const DEVICE Row*)in.rows)[row].token;
    const Matrix matrix = {in.embedding, in.embedding_scales, in.embedding_offsets, (u64)params.embed.vocab * BLOCKS};
    const Block block = decode(load_raw(matrix, token, col / BLOCK));
    ((DEVICE f32*)in.out)[(u64)row * INPUTS + col] = element(block, col % BLOCK) * params.embed.scale;
}
