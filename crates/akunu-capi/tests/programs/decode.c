/* Generates, continues, decodes step by step and in chains: all give the same greedy text, which is printed. */
#include "check.h"

enum { TOKENS = 24 };

int main(void) {
    akunu_model *model = load(2);
    akunu_session *session = NULL, *other = NULL;
    uint32_t prompt[64], text[TOKENS], again[TOKENS], next = 0, is_end = 9;
    size_t count = encode(model, PROMPT, prompt, 64), got = 0, reused = 0, length = 0;
    akunu_generate_options options = {.size = sizeof options, .max_tokens = TOKENS};
    akunu_stats stats = {.size = sizeof stats};
    akunu_config config = {.size = sizeof config};
    akunu_memory memory = {.size = sizeof memory};
    struct text story = {{0}, 0, 0, 0}, halves = {{0}, 0, 0, 0};
    char buffer[4096];

    CHECK(akunu_abi_version() == AKUNU_ABI_VERSION && strlen(akunu_version()) > 0);
    OK(akunu_get_config(model, &config));
    CHECK(config.context == 256 && config.sessions == 2 && config.vocabulary >= config.tokens && config.layers > 0);
    OK(akunu_model_memory(model, &memory));
    CHECK(memory.allocated == memory.weights_copied + memory.constants + memory.kv_cache + memory.scratch +
                                  memory.rows_and_logits + memory.workspace);
    CHECK(memory.weights_in_place > 1000000);
    OK(akunu_describe(model, AKUNU_ABOUT_NAME, buffer, sizeof buffer, &length));
    CHECK(strcmp(buffer, "embedded") == 0 && length == 8);

    OK(akunu_create_session(model, &session));
    OK(akunu_generate(session, prompt, count, &options, append, &story, &stats));
    CHECK(stats.finish == AKUNU_FINISH_MAX_TOKENS && stats.end_token == -1);
    CHECK(stats.prompt_tokens == count && stats.reused_tokens == 0 && stats.generated_tokens == TOKENS);
    CHECK(stats.prompt_seconds > 0 && stats.generate_seconds > 0 && stats.first_token_seconds > 0);
    OK(akunu_session_tokens(session, NULL, 0, &got));
    CHECK(got == count + TOKENS - 1); /* the model has not processed the last one */

    OK(akunu_create_session(model, &other));
    options.max_tokens = TOKENS / 2;
    OK(akunu_generate(other, prompt, count, &options, append, &halves, NULL));
    OK(akunu_generate_continue(other, NULL, 0, &options, append, &halves, &stats));
    CHECK(stats.prompt_tokens == count + TOKENS / 2 && stats.reused_tokens == stats.prompt_tokens - 1);
    CHECK(strcmp(story.bytes, halves.bytes) == 0);

    /* Step by step; the sampled token is that of the highest logit. */
    OK(akunu_session_truncate(other, 0));
    OK(akunu_prefill(other, prompt, count, &text[0], &reused));
    CHECK(reused == 0);
    for (int i = 1; i < TOKENS; i++) {
        OK(akunu_decode_step(other, text[i - 1], &text[i]));
        OK(akunu_is_end(model, text[i], &is_end));
        CHECK(is_end == 0);
    }
    OK(akunu_decode(model, text, TOKENS, buffer, sizeof buffer, &length));
    CHECK(strcmp(buffer[0] == ' ' ? buffer + 1 : buffer, story.bytes[0] == ' ' ? story.bytes + 1 : story.bytes) == 0);
    float *logits = malloc(config.vocabulary * sizeof *logits);
    for (int round = 0; round < 2; round++) {
        uint32_t best = 0;
        OK(akunu_get_logits(other, logits, config.vocabulary, &got));
        CHECK(got == config.vocabulary);
        for (uint32_t id = 1; id < config.vocabulary; id++) best = logits[id] > logits[best] ? id : best;
        CHECK(best == text[TOKENS - 1]);
        OK(akunu_prefill(session, prompt, count, &next, &reused)); /* other work, after which the logits are computed again */
        CHECK(next == text[0] && reused == count - 1);
    }
    free(logits);

    OK(akunu_chain_decode(session, text[0], TOKENS - 1, again, TOKENS, &got));
    CHECK(got == TOKENS - 1 && memcmp(again, text + 1, got * sizeof *again) == 0);

    /* A copy continues like its source. */
    OK(akunu_session_copy(session, other, count));

    /* And so does a saved one. */
    char path[80];
    snprintf(path, sizeof path, "/tmp/akunu-session-%p-%p", (void *)path, (void *)session);
    OK(akunu_session_save(other, path));
    OK(akunu_session_truncate(other, 1));
    OK(akunu_session_restore(other, path));
    CHECK(remove(path) == 0);
    OK(akunu_session_tokens(other, again, TOKENS, &got));
    CHECK(got == count);
    OK(akunu_decode_step(other, text[0], &next));
    CHECK(next == text[1]);
    OK(akunu_free_session(other));

    uint64_t nanoseconds[256];
    CHECK(config.commands > 0 && config.commands <= 256);
    OK(akunu_profile_decode_step(model, 1, 4, nanoseconds, 256, &got));
    CHECK(got == config.commands && nanoseconds[got - 1] > 0);
    OK(akunu_profile_label(model, 0, buffer, sizeof buffer, &length));
    CHECK(strncmp(buffer, "embed", 5) == 0);

    fputs(story.bytes, stdout);
    OK(akunu_free_model(model));
    return 0;
}
