/* Each sampler's settings through sessions and requests. Prints a text for each, which is that of the engine. */
#include "check.h"
#include <math.h>
#include <stddef.h>

enum { TOKENS = 24, CASES = 7 };

static const char *const breakers[] = {" the", " a"};

static akunu_sampling sampling_of(int i) {
    akunu_sampling sampling = {.size = sizeof sampling, .temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 5};
    switch (i) {
    case 1: sampling.top_n_sigma = 0.5f; break;
    case 2: sampling.typical_p = 0.3f; break;
    case 3: sampling.xtc_probability = 1; break;
    case 4: sampling.dynatemp_range = 0.9f, sampling.dynatemp_exponent = 3; break;
    case 5: sampling.temperature = 0, sampling.dry_multiplier = 50, sampling.dry_allowed_length = 1; break;
    case 6: sampling.mirostat_tau = 0.5f, sampling.mirostat_eta = 0.5f; break;
    }
    return sampling;
}

static void in_a_session(akunu_model *model, int i, const uint32_t *prompt, size_t count, struct text *text) {
    akunu_session *session = NULL;
    akunu_sampling sampling = sampling_of(i), got = {.size = sizeof got};
    akunu_generate_options options = {.size = sizeof options, .max_tokens = TOKENS};
    uint32_t first = 0, chain[TOKENS], tokens[TOKENS + 64];
    size_t length = 0;
    OK(akunu_create_session(model, &session));
    OK(akunu_set_sampling(session, &sampling));
    if (i == 5) OK(akunu_set_dry_breakers(session, breakers, 2));
    OK(akunu_get_sampling(session, &got));
    CHECK(got.dry_multiplier == sampling.dry_multiplier && got.mirostat_tau == sampling.mirostat_tau);
    CHECK(got.typical_p == (i == 2 ? 0.3f : 1) && got.dry_base == 1.75f && got.dry_last_n == 0);
    CHECK(got.xtc_threshold == 0.1f && got.dynatemp_exponent == (i == 4 ? 3 : 1) && got.dry_allowed_length >= 1);
    OK(akunu_set_sampling(session, &got));
    OK(akunu_generate(session, prompt, count, &options, append, text, NULL));
    if (i == 6) return; /* its limit depends on all tokens before */
    /* Decoding without text samples alike. */
    OK(akunu_session_tokens(session, tokens, TOKENS + 64, &length));
    OK(akunu_session_truncate(session, 0));
    OK(akunu_prefill(session, prompt, count, &first, NULL));
    CHECK(first == tokens[count]);
    OK(akunu_chain_decode(session, first, TOKENS - 2, chain, TOKENS, &length));
    CHECK(length == TOKENS - 2 && memcmp(chain, tokens + count + 1, length * sizeof *chain) == 0);
    OK(akunu_free_session(session));
}

static void as_a_request(akunu_model *batch, int i, const uint32_t *prompt, size_t count, struct text *text) {
    akunu_sampling sampling = sampling_of(i);
    akunu_generate_options options = {.size = sizeof options, .max_tokens = TOKENS};
    akunu_request_options how = {.size = sizeof how, .sampling = &sampling};
    akunu_request *request = NULL;
    const akunu_piece *piece = NULL;
    uint32_t is_over = 0;
    if (i == 5) how.dry_breakers = breakers, how.dry_breaker_count = 2;
    OK(akunu_submit(batch, prompt, count, &options, &how, &request));
    for (;;) {
        OK(akunu_next_piece(request, AKUNU_FOREVER, &piece, &is_over));
        if (is_over) break;
        append(piece, text);
    }
    OK(akunu_free_request(request));
}

static void refused(akunu_session *session, const char *message, akunu_sampling sampling) {
    FAILS(AKUNU_STATUS_ARGUMENT, message, akunu_set_sampling(session, &sampling));
}

static void misuse(akunu_model *model) {
    akunu_session *session = NULL;
    akunu_sampling sampling = sampling_of(5), got = {.size = sizeof got}, bad;
    const char *texts[] = {"a", "", NULL, "\xff"};
    OK(akunu_create_session(model, &session));
    OK(akunu_set_sampling(session, &sampling));
    const float odd[] = {-1, NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 4; i++) {
        bad = sampling, bad.top_n_sigma = odd[i], refused(session, "top-n-sigma", bad);
        bad = sampling, bad.typical_p = odd[i], refused(session, "typical-p", bad);
        bad = sampling, bad.xtc_probability = odd[i], refused(session, "XTC probability", bad);
        bad = sampling, bad.xtc_threshold = odd[i], refused(session, "XTC threshold", bad);
        bad = sampling, bad.dynatemp_range = odd[i], refused(session, "dynamic temperature range", bad);
        bad = sampling, bad.dynatemp_exponent = odd[i], refused(session, "dynamic temperature exponent", bad);
        bad = sampling, bad.dry_multiplier = odd[i], refused(session, "DRY multiplier", bad);
        bad = sampling, bad.dry_base = odd[i], refused(session, "DRY base", bad);
        bad = sampling, bad.mirostat_tau = odd[i], refused(session, "mirostat tau", bad);
        bad = sampling, bad.mirostat_eta = odd[i], refused(session, "mirostat eta", bad);
    }
    OK(akunu_get_sampling(session, &got));
    CHECK(got.dry_multiplier == 50);
    FAILS(AKUNU_STATUS_ARGUMENT, "empty", akunu_set_dry_breakers(session, texts, 2));
    FAILS(AKUNU_STATUS_ARGUMENT, "null", akunu_set_dry_breakers(session, texts + 2, 1));
    FAILS(AKUNU_STATUS_ARGUMENT, "UTF-8", akunu_set_dry_breakers(session, texts + 3, 1));
    FAILS(AKUNU_STATUS_ARGUMENT, "null", akunu_set_dry_breakers(session, NULL, 1));
    FAILS(AKUNU_STATUS_HANDLE, "session", akunu_set_dry_breakers(NULL, NULL, 0));
    OK(akunu_set_dry_breakers(session, texts, 0));
    OK(akunu_set_dry_breakers(session, NULL, 0));
    /* A program with an older header knows none of them, and sets them off. */
    sampling.size = offsetof(akunu_sampling, top_n_sigma);
    OK(akunu_set_sampling(session, &sampling));
    OK(akunu_get_sampling(session, &got));
    CHECK(got.dry_multiplier == 0 && got.seed == 5);
    sampling.size = offsetof(akunu_sampling, top_n_sigma) - 8;
    FAILS(AKUNU_STATUS_STRUCT_SIZE, "akunu_sampling", akunu_set_sampling(session, &sampling));
    OK(akunu_free_session(session));
}

int main(void) {
    akunu_model *model = load(CASES + 1), *batch = NULL;
    akunu_load_options options = {.size = sizeof options, .device = "cpu", .context = 256, .sessions = 2, .batch = 1};
    static struct text texts[CASES], again[CASES];
    uint32_t prompt[64];
    size_t count = encode(model, PROMPT, prompt, 64);
    OK(akunu_load_model(NULL, &options, &batch));
    for (int i = 0; i < CASES; i++) {
        in_a_session(model, i, prompt, count, &texts[i]);
        as_a_request(batch, i, prompt, count, &again[i]);
        CHECK(strcmp(texts[i].bytes, again[i].bytes) == 0);
        for (int other = 0; other < i; other++) CHECK(strcmp(texts[i].bytes, texts[other].bytes) != 0);
        printf("%s\n", texts[i].bytes);
    }
    misuse(model);
    OK(akunu_free_model(batch));
    OK(akunu_free_model(model));
    return 0;
}
