// Structs that Rust writes and kernels read, as Rust has them: a test of akunu-kernels says how this file has to be.

#if defined(OFFSET_OF)
#define LAYOUT(type, bytes) static_assert(sizeof(type) == bytes && alignof(type) == 4, #type)
#define PLACE(type, field, at) static_assert(OFFSET_OF(type, field) == at, #type "." #field)
#else
#define LAYOUT(type, bytes) static_assert(sizeof(type) == bytes, #type)
#define PLACE(type, field, at)
#endif

struct Pass {
    u32 rows;
    u32 logit_rows;
    u32 step;
    u32 stopped;
    u32 stop_count;
    u32 rank;
    u32 stop[26];
};
LAYOUT(Pass, 128);
PLACE(Pass, rows, 0);
PLACE(Pass, logit_rows, 4);
PLACE(Pass, step, 8);
PLACE(Pass, stopped, 12);
PLACE(Pass, stop_count, 16);
PLACE(Pass, rank, 20);
PLACE(Pass, stop, 24);

struct Row {
    u32 token;
    u32 position;
    u32 kv_len;
    u32 start;
};
LAYOUT(Row, 16);
PLACE(Row, token, 0);
PLACE(Row, position, 4);
PLACE(Row, kv_len, 8);
PLACE(Row, start, 12);

struct Move {
    u32 from;
    u32 to;
    u32 len;
};
LAYOUT(Move, 12);
PLACE(Move, from, 0);
PLACE(Move, to, 4);
PLACE(Move, len, 8);

struct Settings {
    f32 inverse_temperature;
    u32 top_k;
    u32 top_p;
    f32 min_p;
    f32 repeat_penalty;
    f32 frequency_penalty;
    f32 presence_penalty;
    u32 window;
    u32 biases;
    u32 recent;
    u32 seed[2];
    u32 draw[2];
    u32 masked;
    u32 place;
    f32 coolest;
    f32 span;
    f32 exponent;
    f32 top_n_sigma;
    u32 typical_p;
    u32 xtc_threshold;
    u32 xtc_probability;
};
LAYOUT(Settings, 92);
PLACE(Settings, inverse_temperature, 0);
PLACE(Settings, top_k, 4);
PLACE(Settings, top_p, 8);
PLACE(Settings, min_p, 12);
PLACE(Settings, repeat_penalty, 16);
PLACE(Settings, frequency_penalty, 20);
PLACE(Settings, presence_penalty, 24);
PLACE(Settings, window, 28);
PLACE(Settings, biases, 32);
PLACE(Settings, recent, 36);
PLACE(Settings, seed, 40);
PLACE(Settings, draw, 48);
PLACE(Settings, masked, 56);
PLACE(Settings, place, 60);
PLACE(Settings, coolest, 64);
PLACE(Settings, span, 68);
PLACE(Settings, exponent, 72);
PLACE(Settings, top_n_sigma, 76);
PLACE(Settings, typical_p, 80);
PLACE(Settings, xtc_threshold, 84);
PLACE(Settings, xtc_probability, 88);

struct EmbedParams {
    u32 cols;
    u32 vocab;
    f32 scale;
};
LAYOUT(EmbedParams, 12);
PLACE(EmbedParams, cols, 0);
PLACE(EmbedParams, vocab, 4);
PLACE(EmbedParams, scale, 8);

struct AnglesParams {
    u32 pairs;
    f32 magnitude;
};
LAYOUT(AnglesParams, 8);
PLACE(AnglesParams, pairs, 0);
PLACE(AnglesParams, magnitude, 4);

struct NormParams {
    u32 cols;
    f32 epsilon;
};
LAYOUT(NormParams, 8);
PLACE(NormParams, cols, 0);
PLACE(NormParams, epsilon, 4);

struct HeadNormParams {
    u32 heads;
    u32 head_dim;
    f32 epsilon;
    u32 in_stride;
    u32 out_stride;
};
LAYOUT(HeadNormParams, 20);
PLACE(HeadNormParams, heads, 0);
PLACE(HeadNormParams, head_dim, 4);
PLACE(HeadNormParams, epsilon, 8);
PLACE(HeadNormParams, in_stride, 12);
PLACE(HeadNormParams, out_stride, 16);

struct SumSquaresParams {
    u32 cols;
    u32 out_stride;
};
LAYOUT(SumSquaresParams, 8);
PLACE(SumSquaresParams, cols, 0);
PLACE(SumSquaresParams, out_stride, 4);

struct NormPartParams {
    u32 cols;
    u32 summed;
    f32 epsilon;
    u32 sum_stride;
    u32 out_stride;
};
LAYOUT(NormPartParams, 20);
PLACE(NormPartParams, cols, 0);
PLACE(NormPartParams, summed, 4);
PLACE(NormPartParams, epsilon, 8);
PLACE(NormPartParams, sum_stride, 12);
PLACE(NormPartParams, out_stride, 16);

struct MatmulParams {
    u32 inputs;
    u32 outputs;
    u32 out_stride;
    f32 soft_cap;
    f32 epsilon;
};
LAYOUT(MatmulParams, 20);
PLACE(MatmulParams, inputs, 0);
PLACE(MatmulParams, outputs, 4);
PLACE(MatmulParams, out_stride, 8);
PLACE(MatmulParams, soft_cap, 12);
PLACE(MatmulParams, epsilon, 16);

struct QkvParams {
    u32 inputs;
    u32 q;
    u32 k;
    u32 v;
};
LAYOUT(QkvParams, 16);
PLACE(QkvParams, inputs, 0);
PLACE(QkvParams, q, 4);
PLACE(QkvParams, k, 8);
PLACE(QkvParams, v, 12);

struct GluMatmulParams {
    u32 inputs;
    u32 outputs;
};
LAYOUT(GluMatmulParams, 8);
PLACE(GluMatmulParams, inputs, 0);
PLACE(GluMatmulParams, outputs, 4);

struct ElementParams {
    u32 cols;
};
LAYOUT(ElementParams, 4);
PLACE(ElementParams, cols, 0);

struct AddPositionsParams {
    u32 cols;
    u32 count;
    u32 kinds;
};
LAYOUT(AddPositionsParams, 12);
PLACE(AddPositionsParams, cols, 0);
PLACE(AddPositionsParams, count, 4);
PLACE(AddPositionsParams, kinds, 8);

struct UnfoldParams {
    u32 cols;
    u32 frames;
    u32 middle;
};
LAYOUT(UnfoldParams, 12);
PLACE(UnfoldParams, cols, 0);
PLACE(UnfoldParams, frames, 4);
PLACE(UnfoldParams, middle, 8);

struct AcrossRowsParams {
    u32 own;
    u32 slot;
    u32 count;
    u32 positions;
};
LAYOUT(AcrossRowsParams, 16);
PLACE(AcrossRowsParams, own, 0);
PLACE(AcrossRowsParams, slot, 4);
PLACE(AcrossRowsParams, count, 8);
PLACE(AcrossRowsParams, positions, 12);

struct AddParams {
    u32 cols;
    f32 scale;
};
LAYOUT(AddParams, 8);
PLACE(AddParams, cols, 0);
PLACE(AddParams, scale, 4);

struct UnpackParams {
    u32 inputs;
    u32 outputs;
};
LAYOUT(UnpackParams, 8);
PLACE(UnpackParams, inputs, 0);
PLACE(UnpackParams, outputs, 4);

struct RouteParams {
    u32 experts;
    u32 top;
    u32 groups;
    u32 groups_used;
    f32 scale;
    f32 epsilon;
    f32 tolerance;
};
LAYOUT(RouteParams, 28);
PLACE(RouteParams, experts, 0);
PLACE(RouteParams, top, 4);
PLACE(RouteParams, groups, 8);
PLACE(RouteParams, groups_used, 12);
PLACE(RouteParams, scale, 16);
PLACE(RouteParams, epsilon, 20);
PLACE(RouteParams, tolerance, 24);

struct RopeKvParams {
    u32 heads;
    u32 kv_heads;
    u32 head_dim;
    u32 rope_dims;
    u32 positions;
    u32 block;
    f32 epsilon;
};
LAYOUT(RopeKvParams, 28);
PLACE(RopeKvParams, heads, 0);
PLACE(RopeKvParams, kv_heads, 4);
PLACE(RopeKvParams, head_dim, 8);
PLACE(RopeKvParams, rope_dims, 12);
PLACE(RopeKvParams, positions, 16);
PLACE(RopeKvParams, block, 20);
PLACE(RopeKvParams, epsilon, 24);

struct AttentionParams {
    u32 heads;
    u32 kv_heads;
    u32 head_dim;
    u32 positions;
    u32 block;
    f32 scale;
    f32 soft_cap;
    u32 window;
    u32 ahead;
    u32 rope_dims;
    f32 epsilon;
    u32 reach;
    u32 factor_step;
    u32 factors;
    u32 across;
};
LAYOUT(AttentionParams, 60);
PLACE(AttentionParams, heads, 0);
PLACE(AttentionParams, kv_heads, 4);
PLACE(AttentionParams, head_dim, 8);
PLACE(AttentionParams, positions, 12);
PLACE(AttentionParams, block, 16);
PLACE(AttentionParams, scale, 20);
PLACE(AttentionParams, soft_cap, 24);
PLACE(AttentionParams, window, 28);
PLACE(AttentionParams, ahead, 32);
PLACE(AttentionParams, rope_dims, 36);
PLACE(AttentionParams, epsilon, 40);
PLACE(AttentionParams, reach, 44);
PLACE(AttentionParams, factor_step, 48);
PLACE(AttentionParams, factors, 52);
PLACE(AttentionParams, across, 56);

struct HeadScoresParams {
    u32 heads;
    u32 kv_heads;
    u32 head_dim;
    u32 positions;
    f32 scale;
    u32 head;
    u32 count;
    u32 out_stride;
};
LAYOUT(HeadScoresParams, 32);
PLACE(HeadScoresParams, heads, 0);
PLACE(HeadScoresParams, kv_heads, 4);
PLACE(HeadScoresParams, head_dim, 8);
PLACE(HeadScoresParams, positions, 12);
PLACE(HeadScoresParams, scale, 16);
PLACE(HeadScoresParams, head, 20);
PLACE(HeadScoresParams, count, 24);
PLACE(HeadScoresParams, out_stride, 28);

struct ArgmaxParams {
    u32 vocab;
    u32 advance;
};
LAYOUT(ArgmaxParams, 8);
PLACE(ArgmaxParams, vocab, 0);
PLACE(ArgmaxParams, advance, 4);

struct SampleParams {
    u32 vocab;
    u32 advance;
};
LAYOUT(SampleParams, 8);
PLACE(SampleParams, vocab, 0);
PLACE(SampleParams, advance, 4);

struct LatentKvParams {
    u32 latent;
    u32 rope_dims;
    u32 positions;
    u32 block;
    f32 epsilon;
};
LAYOUT(LatentKvParams, 20);
PLACE(LatentKvParams, latent, 0);
PLACE(LatentKvParams, rope_dims, 4);
PLACE(LatentKvParams, positions, 8);
PLACE(LatentKvParams, block, 12);
PLACE(LatentKvParams, epsilon, 16);

struct HeadsApartParams {
    u32 heads;
    u32 stride;
    u32 dim;
};
LAYOUT(HeadsApartParams, 12);
PLACE(HeadsApartParams, heads, 0);
PLACE(HeadsApartParams, stride, 4);
PLACE(HeadsApartParams, dim, 8);

struct LatentQueriesParams {
    u32 heads;
    u32 latent;
    u32 plain;
    u32 rope_dims;
};
LAYOUT(LatentQueriesParams, 16);
PLACE(LatentQueriesParams, heads, 0);
PLACE(LatentQueriesParams, latent, 4);
PLACE(LatentQueriesParams, plain, 8);
PLACE(LatentQueriesParams, rope_dims, 12);

struct LatentAttentionParams {
    u32 heads;
    u32 latent;
    u32 rope_dims;
    u32 positions;
    u32 block;
    f32 scale;
};
LAYOUT(LatentAttentionParams, 24);
PLACE(LatentAttentionParams, heads, 0);
PLACE(LatentAttentionParams, latent, 4);
PLACE(LatentAttentionParams, rope_dims, 8);
PLACE(LatentAttentionParams, positions, 12);
PLACE(LatentAttentionParams, block, 16);
PLACE(LatentAttentionParams, scale, 20);

struct HeadsTogetherParams {
    u32 heads;
    u32 dim;
};
LAYOUT(HeadsTogetherParams, 8);
PLACE(HeadsTogetherParams, heads, 0);
PLACE(HeadsTogetherParams, dim, 4);

struct StateConvParams {
    u32 channels;
    u32 taps;
    u32 stride;
    u32 first;
    u32 slots;
    u32 block;
};
LAYOUT(StateConvParams, 24);
PLACE(StateConvParams, channels, 0);
PLACE(StateConvParams, taps, 4);
PLACE(StateConvParams, stride, 8);
PLACE(StateConvParams, first, 12);
PLACE(StateConvParams, slots, 16);
PLACE(StateConvParams, block, 20);

struct StateScanParams {
    u32 heads;
    u32 head_dim;
    u32 state_size;
    u32 groups;
    u32 stride;
    u32 gate;
    u32 dt;
    u32 slots;
    u32 block;
};
LAYOUT(StateScanParams, 36);
PLACE(StateScanParams, heads, 0);
PLACE(StateScanParams, head_dim, 4);
PLACE(StateScanParams, state_size, 8);
PLACE(StateScanParams, groups, 12);
PLACE(StateScanParams, stride, 16);
PLACE(StateScanParams, gate, 20);
PLACE(StateScanParams, dt, 24);
PLACE(StateScanParams, slots, 28);
PLACE(StateScanParams, block, 32);

struct KvMoveParams {
    u32 kv_heads;
    u32 head_dim;
    u32 rope_dims;
    u32 positions;
    u32 block;
};
LAYOUT(KvMoveParams, 20);
PLACE(KvMoveParams, kv_heads, 0);
PLACE(KvMoveParams, head_dim, 4);
PLACE(KvMoveParams, rope_dims, 8);
PLACE(KvMoveParams, positions, 12);
PLACE(KvMoveParams, block, 16);

struct AllGatherParams {
    u32 cols;
    u32 total;
};
LAYOUT(AllGatherParams, 8);
PLACE(AllGatherParams, cols, 0);
PLACE(AllGatherParams, total, 4);

// A command's parameters; which of them, its kernel says.
union Params {
    u32 words[16];
    EmbedParams embed;
    AnglesParams angles;
    NormParams norm;
    HeadNormParams head_norm;
    SumSquaresParams sum_squares;
    NormPartParams norm_part;
    MatmulParams matmul;
    QkvParams qkv;
    GluMatmulParams glu_matmul;
    ElementParams element;
    AddPositionsParams add_positions;
    UnfoldParams unfold;
    AcrossRowsParams across_rows;
    AddParams add;
    UnpackParams unpack;
    RouteParams route;
    RopeKvParams rope_kv;
    AttentionParams attention;
    HeadScoresParams head_scores;
    ArgmaxParams argmax;
    SampleParams sample;
    LatentKvParams latent_kv;
    HeadsApartParams heads_apart;
    LatentQueriesParams latent_queries;
    LatentAttentionParams latent_attention;
    HeadsTogetherParams heads_together;
    StateConvParams state_conv;
    StateScanParams state_scan;
    KvMoveParams kv_move;
    AllGatherParams all_gather;
};
LAYOUT(Params, 64);
