/* Misuse of the API gives an error with a message. */
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static akunu_model *model;
static akunu_session *session;
static uint32_t prompt[64];
static size_t count;

static void handles(void) {
    int local = 0;
    size_t got = 7;
    akunu_config config = {.size = sizeof config};
    akunu_session *freed = NULL;
    FAILS(AKUNU_STATUS_HANDLE, "model handle is null", akunu_get_config(NULL, &config));
    FAILS(AKUNU_STATUS_HANDLE, "not a live model", akunu_get_config((akunu_model *)(void *)&local, &config));
    FAILS(AKUNU_STATUS_HANDLE, "not a live model", akunu_get_config((akunu_model *)session, &config));
    FAILS(AKUNU_STATUS_HANDLE, "not a live session", akunu_session_tokens((akunu_session *)model, NULL, 0, &got));
    OK(akunu_create_session(model, &freed));
    OK(akunu_free_session(freed));
    FAILS(AKUNU_STATUS_HANDLE, "freed", akunu_free_session(freed));
    FAILS(AKUNU_STATUS_HANDLE, "freed", akunu_prefill(freed, prompt, count, NULL, NULL));
    FAILS(AKUNU_STATUS_ARGUMENT, "null", akunu_create_session(model, NULL));
    OK(akunu_free_session(NULL));
    OK(akunu_free_model(NULL));
}

static void structs(void) {
    struct {
        akunu_config config;
        uint32_t more[4];
    } newer;
    akunu_config config = {.size = 0};
    akunu_load_options options = {.size = 3};
    akunu_sampling sampling = {.size = sizeof sampling};
    akunu_model *none = NULL;
    char longer[sizeof(akunu_sampling) + 8] = {0};
    uint32_t size = sizeof longer;
    FAILS(AKUNU_STATUS_STRUCT_SIZE, "sizeof(akunu_config)", akunu_get_config(model, &config));
    FAILS(AKUNU_STATUS_ARGUMENT, "akunu_config is null", akunu_get_config(model, NULL));
    FAILS(AKUNU_STATUS_STRUCT_SIZE, "akunu_load_options", akunu_load_model(NULL, &options, &none));
    /* A program that was compiled with the header of a newer version. */
    memset(&newer, 0xff, sizeof newer);
    newer.config.size = sizeof newer;
    OK(akunu_get_config(model, &newer.config));
    CHECK(newer.config.size == sizeof newer && newer.config.context == 256 && newer.more[0] == 0 && newer.more[3] == 0);
    OK(akunu_get_sampling(session, &sampling));
    memcpy(longer, &sampling, sizeof sampling);
    memcpy(longer, &size, sizeof size);
    OK(akunu_set_sampling(session, (akunu_sampling *)(void *)longer));
    longer[sizeof longer - 1] = 1;
    FAILS(AKUNU_STATUS_STRUCT_SIZE, "too old", akunu_set_sampling(session, (akunu_sampling *)(void *)longer));
    sampling.top_p = 2;
    FAILS(AKUNU_STATUS_ARGUMENT, "top-p", akunu_set_sampling(session, &sampling));
    sampling.top_p = 1;
    sampling.temperature = -1;
    FAILS(AKUNU_STATUS_ARGUMENT, "temperature", akunu_set_sampling(session, &sampling));
    sampling.temperature = 0;
    sampling.repeat_penalty = 0;
    FAILS(AKUNU_STATUS_ARGUMENT, "repeat penalty", akunu_set_sampling(session, &sampling));
    /* A program of an older version: the fields that it does not know are not read. */
    akunu_generate_options older = {.size = offsetof(akunu_generate_options, schema), .max_tokens = 1};
    older.top_logprobs = 1000;
    OK(akunu_generate(session, prompt, count, &older, NULL, NULL, NULL));
}

static void arguments(void) {
    uint32_t tokens[2] = {5, 5}, high = 0xffffffff, next = 0;
    float bias = 1;
    size_t got = 0;
    char buffer[4] = "abc";
    akunu_generate_options options = {.size = sizeof options, .max_tokens = 4, .overflow = 9};
    akunu_model *none = NULL;
    akunu_load_options no_device = {.size = sizeof no_device, .device = "abacus"};
    FAILS(AKUNU_STATUS_BUFFER_TOO_SMALL, "buffer of", akunu_encode(model, "Once upon", AKUNU_TO_NULL, 0, tokens, 1, &got));
    CHECK(got > 1 && tokens[0] == 5);
    OK(akunu_encode(model, "Once upon", AKUNU_TO_NULL, 0, NULL, 0, &got));
    FAILS(AKUNU_STATUS_ARGUMENT, "null", akunu_encode(model, NULL, AKUNU_TO_NULL, 0, tokens, 2, &got));
    FAILS(AKUNU_STATUS_ARGUMENT, "not valid UTF-8", akunu_encode(model, "a\xff", AKUNU_TO_NULL, 0, tokens, 2, &got));
    FAILS(AKUNU_STATUS_ARGUMENT, "flags", akunu_encode(model, "a", 1, 64, tokens, 2, &got));
    FAILS(AKUNU_STATUS_ARGUMENT, "buffer is null", akunu_encode(model, "a", 1, 0, NULL, 2, &got));
    FAILS(AKUNU_STATUS_ARGUMENT, "length", akunu_encode(model, "a", 1, 0, NULL, 0, NULL));
    FAILS(AKUNU_STATUS_ARGUMENT, "aligned", akunu_prefill(session, (uint32_t *)(void *)((char *)tokens + 1), 1, NULL, NULL));
    FAILS(AKUNU_STATUS_ARGUMENT, "address space", akunu_prefill(session, tokens, (size_t)-1, NULL, NULL));
    FAILS(AKUNU_STATUS_ARGUMENT, "empty", akunu_prefill(session, tokens, 0, NULL, NULL));
    FAILS(AKUNU_STATUS_ARGUMENT, "vocabulary", akunu_prefill(session, &high, 1, NULL, NULL));
    FAILS(AKUNU_STATUS_ARGUMENT, "vocabulary", akunu_decode_step(session, high, &next));
    FAILS(AKUNU_STATUS_ARGUMENT, "vocabulary", akunu_decode_token(model, high, buffer, 4, &got));
    FAILS(AKUNU_STATUS_ARGUMENT, "vocabulary", akunu_set_logit_bias(session, &high, &bias, 1));
    FAILS(AKUNU_STATUS_BUFFER_TOO_SMALL, "needs", akunu_describe(model, AKUNU_ABOUT_NAME, buffer, 4, &got));
    CHECK(got == 8 && strcmp(buffer, "abc") == 0);
    FAILS(AKUNU_STATUS_ARGUMENT, "akunu_about", akunu_describe(model, 99, buffer, 4, &got));
    FAILS(AKUNU_STATUS_ARGUMENT, "akunu_overflow", akunu_generate(session, prompt, count, &options, NULL, NULL, NULL));
    FAILS(AKUNU_STATUS_ARGUMENT, "no device number", akunu_device_name(99, buffer, 4, &got));
    FAILS(AKUNU_STATUS_ARGUMENT, "no command", akunu_profile_label(model, 1u << 20, buffer, 4, &got));
    FAILS(AKUNU_STATUS_MODEL, "/no/such/model.gguf", akunu_load_model("/no/such/model.gguf", NULL, &none));
    FAILS(AKUNU_STATUS_DEVICE, "abacus", akunu_load_model(NULL, &no_device, &none));
    CHECK(none == NULL);
    FAILS(AKUNU_STATUS_TEMPLATE, "JSON", akunu_encode_chat(model, "{", NULL, 1, tokens, 2, &got));
}

static void limits(void) {
    uint32_t many[300] = {0}, tokens[300];
    size_t got = 0;
    akunu_session *sessions[3] = {NULL, NULL, NULL};
    for (int i = 0; i < 300; i++) many[i] = prompt[count - 1];
    FAILS(AKUNU_STATUS_CONTEXT, "300 tokens", akunu_prefill(session, many, 300, NULL, NULL));
    FAILS(AKUNU_STATUS_CONTEXT, "256", akunu_chain_decode(session, many[0], 300, tokens, 300, &got));
    FAILS(AKUNU_STATUS_BUFFER_TOO_SMALL, "chain of 300", akunu_chain_decode(session, many[0], 300, tokens, 2, &got));
    for (int i = 0; i < 3; i++) OK(akunu_create_session(model, &sessions[i]));
    akunu_session *fifth = NULL;
    FAILS(AKUNU_STATUS_NO_SESSION, "4 slots", akunu_create_session(model, &fifth));
    for (int i = 0; i < 3; i++) OK(akunu_free_session(sessions[i]));
}

/* A callback that calls the API. */
static int32_t intrude(const akunu_piece *piece, void *user) {
    uint32_t tokens[8], next = 0;
    size_t got = 0;
    akunu_config config = {.size = sizeof config};
    (void)piece;
    FAILS(AKUNU_STATUS_BUSY, "callback", akunu_decode_step(session, prompt[0], &next));
    FAILS(AKUNU_STATUS_BUSY, "callback", akunu_generate(session, prompt, count, NULL, intrude, user, NULL));
    FAILS(AKUNU_STATUS_BUSY, "callback", akunu_free_session(session));
    FAILS(AKUNU_STATUS_BUSY, "callback", akunu_free_model(model));
    OK(akunu_encode(model, "time", AKUNU_TO_NULL, 0, tokens, 8, &got));
    OK(akunu_get_config(model, &config));
    ++*(int *)user;
    return AKUNU_CONTINUE;
}

static void callbacks(void) {
    int pieces = 0;
    akunu_generate_options options = {.size = sizeof options, .max_tokens = 3};
    akunu_stats stats = {.size = sizeof stats};
    struct text text = {{0}, 0, 0, 2};
    OK(akunu_generate(session, prompt, count, &options, intrude, &pieces, &stats));
    CHECK(pieces > 0 && stats.finish == AKUNU_FINISH_MAX_TOKENS);
    options.max_tokens = 50;
    OK(akunu_generate(session, prompt, count, &options, append, &text, &stats));
    CHECK(text.pieces == 2 && stats.finish == AKUNU_FINISH_CALLBACK && stats.generated_tokens < 50);
}

static void *generate(void *user) {
    akunu_session *own = NULL;
    akunu_generate_options options = {.size = sizeof options, .max_tokens = 12};
    OK(akunu_create_session(model, &own));
    for (int i = 0; i < 3; i++) {
        OK(akunu_session_truncate(own, 0));
        ((struct text *)user)->length = 0;
        OK(akunu_generate(own, prompt, count, &options, append, user, NULL));
    }
    OK(akunu_free_session(own));
    return NULL;
}

static void threads(void) {
    static struct text texts[3];
    pthread_t ids[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&ids[i], NULL, generate, &texts[i]) == 0);
    for (int i = 0; i < 3; i++) CHECK(pthread_join(ids[i], NULL) == 0);
    CHECK(texts[0].length > 10 && strcmp(texts[0].bytes, texts[1].bytes) == 0 && strcmp(texts[0].bytes, texts[2].bytes) == 0);
}

static int32_t cancel(const akunu_piece *piece, void *user) {
    (void)piece;
    (void)user;
    OK(akunu_cancel(session));
    return AKUNU_CONTINUE;
}

static int32_t signal_start(const akunu_piece *piece, void *user) {
    (void)piece;
    atomic_store((atomic_int *)user, 1);
    return AKUNU_CONTINUE;
}

/* Generates without a limit, until the model is freed. */
static void *generate_endlessly(void *user) {
    akunu_generate_options options = {.size = sizeof options, .ignore_end = 1, .overflow = AKUNU_OVERFLOW_SHIFT, .keep = 4};
    akunu_stats stats = {.size = sizeof stats};
    OK(akunu_generate(session, prompt, count, &options, signal_start, user, &stats));
    CHECK(stats.finish == AKUNU_FINISH_CANCELLED);
    return NULL;
}

static void endings(void) {
    atomic_int has_started = 0;
    pthread_t id;
    uint32_t next = 0;
    akunu_stats stats = {.size = sizeof stats};
    OK(akunu_generate(session, prompt, count, NULL, cancel, NULL, &stats));
    CHECK(stats.finish == AKUNU_FINISH_CANCELLED);
    CHECK(pthread_create(&id, NULL, generate_endlessly, &has_started) == 0);
    while (!atomic_load(&has_started)) sched_yield();
    OK(akunu_free_model(model));
    CHECK(pthread_join(id, NULL) == 0);
    FAILS(AKUNU_STATUS_HANDLE, "freed", akunu_free_model(model));
    FAILS(AKUNU_STATUS_HANDLE, "freed", akunu_decode_step(session, prompt[0], &next));
    FAILS(AKUNU_STATUS_HANDLE, "freed", akunu_free_session(session));
}

int main(void) {
    CHECK(strcmp(akunu_get_error(), "") == 0);
    model = load(4);
    count = encode(model, PROMPT, prompt, 64);
    OK(akunu_create_session(model, &session));
    handles();
    structs();
    arguments();
    limits();
    callbacks();
    threads();
    endings();
    return 0;
}
