/* Texts in a format, and log probabilities. */
#include "check.h"
#include <math.h>

static akunu_model *model;
static akunu_session *session;
static uint32_t prompt[64];
static size_t count;

/* The text in a format. */
static const char *held(uint32_t format, const char *schema) {
    static struct text text;
    akunu_generate_options options = {.size = sizeof options, .max_tokens = 60, .format = format, .schema = schema};
    akunu_stats stats = {.size = sizeof stats};
    memset(&text, 0, sizeof text);
    OK(akunu_generate(session, prompt, count, &options, append, &text, &stats));
    CHECK(stats.finish == AKUNU_FINISH_END);
    /* White space is part of JSON. */
    return text.bytes + strspn(text.bytes, " ");
}

static void formats(void) {
    akunu_generate_options options = {.size = sizeof options, .format = AKUNU_ANSWER_FORMAT_JSON_SCHEMA};
    CHECK(strcmp(held(AKUNU_ANSWER_FORMAT_JSON_SCHEMA, "{\"enum\": [\"fox\"]}"), "\"fox\"") == 0);
    CHECK(strcmp(held(AKUNU_ANSWER_FORMAT_REGEX, "a{3}b"), "aaab") == 0);
    CHECK(strcmp(held(AKUNU_ANSWER_FORMAT_GRAMMAR, "root ::= \"cat\" | \"cat\""), "cat") == 0);
    FAILS(AKUNU_STATUS_ARGUMENT, "needs a schema", akunu_generate(session, prompt, count, &options, NULL, NULL, NULL));
    options.schema = "{";
    FAILS(AKUNU_STATUS_ARGUMENT, "not JSON", akunu_generate(session, prompt, count, &options, NULL, NULL, NULL));
    options.format = AKUNU_ANSWER_FORMAT_GRAMMAR;
    options.schema = "root ::= nothing";
    FAILS(AKUNU_STATUS_ARGUMENT, "nothing", akunu_generate(session, prompt, count, &options, NULL, NULL, NULL));
    options.format = AKUNU_ANSWER_FORMAT_TOOL_CALL;
    FAILS(AKUNU_STATUS_ARGUMENT, "tools", akunu_generate(session, prompt, count, &options, NULL, NULL, NULL));
    options.format = 99;
    FAILS(AKUNU_STATUS_ARGUMENT, "akunu_answer_format",
          akunu_generate(session, prompt, count, &options, NULL, NULL, NULL));
    options.format = AKUNU_ANSWER_FORMAT_REGEX;
    options.schema = "a";
    FAILS(AKUNU_STATUS_ARGUMENT, "akunu_answer_options",
          akunu_generate_answer(session, "[{\"role\": \"user\", \"content\": \"a\"}]", NULL, &options, NULL, NULL, NULL));
}

enum { TOKENS = 12, TOP = 3 };

struct found {
    uint32_t tokens[TOKENS];
    akunu_logprob logprobs[TOKENS][1 + TOP];
    size_t count;
};

static int32_t collect(const akunu_piece *piece, void *user) {
    struct found *found = (struct found *)user;
    CHECK(piece->token_count == 0 || (piece->logprobs && piece->logprob_count == 1 + TOP));
    for (uint32_t i = 0; i < piece->token_count; i++) {
        CHECK(found->count < TOKENS);
        found->tokens[found->count] = piece->tokens[i];
        memcpy(found->logprobs[found->count++], piece->logprobs + i * piece->logprob_count, sizeof found->logprobs[0]);
    }
    return AKUNU_CONTINUE;
}

static int32_t has_none(const akunu_piece *piece, void *user) {
    (void)user;
    CHECK(piece->logprobs == NULL && piece->logprob_count == 0);
    return AKUNU_CONTINUE;
}

/* The logarithm of a token's probability after what the session has. */
static double expected(uint32_t token, uint32_t vocabulary) {
    float *logits = malloc(vocabulary * sizeof *logits);
    double sum = 0, result;
    size_t got = 0;
    OK(akunu_get_logits(session, logits, vocabulary, &got));
    for (uint32_t id = 0; id < vocabulary; id++) sum += exp((double)logits[id]);
    result = (double)logits[token] - log(sum);
    free(logits);
    return result;
}

static void logprobs(void) {
    akunu_generate_options options = {.size = sizeof options, .max_tokens = TOKENS, .logprobs = 1, .top_logprobs = TOP};
    akunu_config config = {.size = sizeof config};
    struct found found = {{0}, {{{0, 0}}}, 0};
    uint32_t next = 0;
    OK(akunu_get_config(model, &config));
    OK(akunu_generate(session, prompt, count, &options, collect, &found, NULL));
    CHECK(found.count == TOKENS);
    OK(akunu_prefill(session, prompt, count, &next, NULL));
    for (int i = 0; i < TOKENS; i++) {
        const akunu_logprob *row = found.logprobs[i];
        CHECK(row[0].token == found.tokens[i] && next == found.tokens[i]);
        CHECK(row[1].token == row[0].token && row[1].logprob == row[0].logprob); /* greedy */
        CHECK(row[1].logprob >= row[2].logprob && row[2].logprob >= row[3].logprob);
        for (int k = 0; k <= TOP; k++) {
            CHECK(fabs((double)row[k].logprob - expected(row[k].token, config.vocabulary)) < 1e-4);
        }
        OK(akunu_decode_step(session, found.tokens[i], &next));
    }
    options.logprobs = 0;
    FAILS(AKUNU_STATUS_ARGUMENT, "top_logprobs", akunu_generate(session, prompt, count, &options, NULL, NULL, NULL));
    options.top_logprobs = 0;
    OK(akunu_generate(session, prompt, count, &options, has_none, NULL, NULL));
    options.logprobs = 1;
    options.top_logprobs = 257;
    FAILS(AKUNU_STATUS_ARGUMENT, "at most 256", akunu_generate(session, prompt, count, &options, NULL, NULL, NULL));
}

int main(void) {
    model = load(1);
    count = encode(model, PROMPT, prompt, 64);
    OK(akunu_create_session(model, &session));
    formats();
    logprobs();
    OK(akunu_free_model(model));
    return 0;
}
