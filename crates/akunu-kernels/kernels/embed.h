// The embedding of each row's token, times the scale. One thread per element.
BODY(embed) {
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    const u32 col = at.group_x * THREADS + at.in_group, row = at.group_y;
    if (row >= live_rows(pass, false) || col >= INPUTS) return;
    // The place of the token in this rank's part of the vocabulary; beyond its end if another rank has it.
    const u32 token = ((const DEVICE Row*)in.rows)[row].token - pass->rank * params.embed.vocab;
    if (token >= params.embed.vocab) {
        ((DEVICE f32*)in.out)[(u64)row * INPUTS + col] = 0.0f;
        return;
    }
    const Matrix matrix = {in.embedding, in.embedding_scales, in.embedding_offsets, (u64)params.embed.vocab * BLOCKS};
    const Block block = decode(load_raw(matrix, token, col / BLOCK));
    ((DEVICE f32*)in.out)[(u64)row * INPUTS + col] = element(block, col % BLOCK) * params.embed.scale;
}
