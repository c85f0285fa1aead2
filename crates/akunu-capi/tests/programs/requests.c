/* Many requests that share passes: each has the text that akunu_generate gives. */
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { REQUESTS = 8, PLACES = 3, TOKENS = 20 };

static const char *const prompts[] = {"Once upon a time", "The little fox", "In the forest", "A long day"};
static akunu_model *plain, *batch;
static uint32_t ids[REQUESTS][64];
static size_t counts[REQUESTS];

static akunu_model *load_batch(uint32_t places, uint32_t queue) {
    akunu_load_options options = {.size = sizeof options, .device = "cpu", .context = 256, .batch = 1};
    akunu_model *made = NULL;
    options.sessions = places;
    options.queue = queue;
    OK(akunu_load_model(NULL, &options, &made));
    return made;
}

static akunu_sampling sampling_of(int i) {
    akunu_sampling sampling = {.size = sizeof sampling, .top_p = 1, .repeat_penalty = 1};
    sampling.temperature = i % 2 ? 0.9f : 0;
    sampling.seed = (uint64_t)i;
    return sampling;
}

static akunu_generate_options options_of(int i) {
    akunu_generate_options options = {.size = sizeof options, .max_tokens = TOKENS};
    if (i == 5) {
        options.format = AKUNU_ANSWER_FORMAT_REGEX;
        options.schema = "[a-c]{5}";
    }
    return options;
}

static akunu_request *submit(akunu_model *model, int i) {
    akunu_sampling sampling = sampling_of(i);
    akunu_generate_options options = options_of(i);
    akunu_request_options how = {.size = sizeof how, .sampling = &sampling, .owner = (uint64_t)i};
    akunu_request *request = NULL;
    OK(akunu_submit(model, ids[i], counts[i], &options, &how, &request));
    CHECK(request != NULL);
    return request;
}

/* The text of a request by itself, in a session. */
static void alone(int i, struct text *text) {
    akunu_session *session = NULL;
    akunu_sampling sampling = sampling_of(i);
    akunu_generate_options options = options_of(i);
    OK(akunu_create_session(plain, &session));
    OK(akunu_set_sampling(session, &sampling));
    OK(akunu_generate(session, ids[i], counts[i], &options, append, text, NULL));
    OK(akunu_free_session(session));
}

static void shared_passes(void) {
    static struct text expected[REQUESTS], found[REQUESTS];
    akunu_request *requests[REQUESTS], *ready = NULL;
    akunu_stats stats = {.size = sizeof stats};
    int left = REQUESTS;
    for (int i = 0; i < REQUESTS; i++) alone(i, &expected[i]);
    for (int i = 0; i < REQUESTS; i++) requests[i] = submit(batch, i);
    while (left > 0) {
        const akunu_piece *piece = NULL;
        uint32_t is_over = 0;
        int i = 0;
        OK(akunu_ready_request(batch, AKUNU_FOREVER, &ready));
        while (i < REQUESTS && requests[i] != ready) i++;
        CHECK(i < REQUESTS);
        OK(akunu_next_piece(ready, 0, &piece, &is_over));
        CHECK((piece == NULL) == (is_over == 1));
        if (piece) {
            append(piece, &found[i]);
            continue;
        }
        OK(akunu_request_stats(ready, &stats));
        CHECK(stats.finish == (i == 5 ? AKUNU_FINISH_END : AKUNU_FINISH_MAX_TOKENS));
        CHECK(stats.prompt_tokens == counts[i]);
        /* It stays over. */
        OK(akunu_next_piece(ready, AKUNU_FOREVER, &piece, &is_over));
        CHECK(piece == NULL && is_over == 1);
        left--;
    }
    OK(akunu_ready_request(batch, AKUNU_FOREVER, &ready));
    CHECK(ready == NULL);
    for (int i = 0; i < REQUESTS; i++) {
        CHECK(found[i].length > 4 && strcmp(found[i].bytes, expected[i].bytes) == 0);
        OK(akunu_free_request(requests[i]));
        FAILS(AKUNU_STATUS_HANDLE, "freed", akunu_free_request(requests[i]));
    }
    OK(akunu_free_request(NULL));
    printf("%s", found[0].bytes);
}

static void *take_all(void *user) {
    akunu_request *request = (akunu_request *)user;
    struct text *text = calloc(1, sizeof *text);
    for (;;) {
        const akunu_piece *piece = NULL;
        uint32_t is_over = 0;
        OK(akunu_next_piece(request, AKUNU_FOREVER, &piece, &is_over));
        if (is_over) return text;
        append(piece, text);
    }
}

static void a_thread_for_each(void) {
    pthread_t threads[REQUESTS];
    akunu_request *requests[REQUESTS];
    for (int i = 0; i < REQUESTS; i++) {
        requests[i] = submit(batch, i);
        CHECK(pthread_create(&threads[i], NULL, take_all, requests[i]) == 0);
    }
    for (int i = 0; i < REQUESTS; i++) {
        static struct text expected;
        void *text = NULL;
        CHECK(pthread_join(threads[i], &text) == 0);
        memset(&expected, 0, sizeof expected);
        alone(i, &expected);
        CHECK(strcmp(((struct text *)text)->bytes, expected.bytes) == 0);
        free(text);
        OK(akunu_free_request(requests[i]));
    }
}

/* Until the context is full, again and again. */
static akunu_request *endless(akunu_model *model) {
    akunu_generate_options options = {.size = sizeof options, .ignore_end = 1, .keep = 4};
    akunu_request *request = NULL;
    options.overflow = AKUNU_OVERFLOW_SHIFT;
    akunu_status status;
    /* Requests that have ended leave the queue with the next step of the batch. */
    do status = akunu_submit(model, ids[0], counts[0], &options, NULL, &request);
    while (status == AKUNU_STATUS_QUEUE_FULL);
    OK(status);
    return request;
}

static void endings(void) {
    akunu_model *small = load_batch(1, 2);
    akunu_request *running = endless(small), *waiting = NULL, *freed = NULL, *none = NULL;
    const akunu_piece *piece = NULL;
    akunu_stats stats = {.size = sizeof stats};
    uint32_t is_over = 0, waits = 0, runs = 0;
    OK(akunu_next_piece(running, AKUNU_FOREVER, &piece, &is_over));
    CHECK(piece && !is_over && piece->token_count > 0);
    OK(akunu_request_stats(running, &stats));
    CHECK(stats.finish == 0 && stats.generated_tokens == 0 && stats.end_token == -1);
    waiting = endless(small);
    freed = endless(small);
    FAILS(AKUNU_STATUS_QUEUE_FULL, "queue is full", akunu_submit(small, ids[0], counts[0], NULL, NULL, &none));
    CHECK(none == NULL);
    OK(akunu_next_piece(waiting, 1, &piece, &is_over));
    CHECK(piece == NULL && is_over == 0);
    do OK(akunu_batch_counts(small, &waits, &runs));
    while (waits != 2 || runs != 1);
    OK(akunu_free_request(freed));
    OK(akunu_cancel_request(waiting));
    do OK(akunu_next_piece(waiting, AKUNU_FOREVER, &piece, &is_over));
    while (!is_over);
    OK(akunu_request_stats(waiting, &stats));
    CHECK(stats.finish == AKUNU_FINISH_CANCELLED && stats.generated_tokens == 0);
    OK(akunu_cancel_request(running));
    do OK(akunu_next_piece(running, AKUNU_FOREVER, &piece, &is_over));
    while (!is_over);
    OK(akunu_request_stats(running, &stats));
    CHECK(stats.finish == AKUNU_FINISH_CANCELLED && stats.generated_tokens > 0);
    /* The place is free again, once the step is over. */
    do OK(akunu_batch_counts(small, &waits, &runs));
    while (waits + runs > 0);
    none = endless(small);
    OK(akunu_next_piece(none, AKUNU_FOREVER, &piece, &is_over));
    CHECK(piece != NULL);
    OK(akunu_free_model(small));
    FAILS(AKUNU_STATUS_HANDLE, "freed", akunu_next_piece(none, AKUNU_FOREVER, &piece, &is_over));
    FAILS(AKUNU_STATUS_HANDLE, "freed", akunu_free_request(none));
    FAILS(AKUNU_STATUS_HANDLE, "freed", akunu_submit(small, ids[0], counts[0], NULL, NULL, &none));
}

static atomic_int takes;

static void *until_freed(void *user) {
    const akunu_piece *piece = NULL;
    uint32_t is_over = 0;
    while (akunu_next_piece((akunu_request *)user, AKUNU_FOREVER, &piece, &is_over) == AKUNU_STATUS_OK && !is_over) {
        atomic_store(&takes, 1);
    }
    CHECK(is_over || strstr(akunu_get_error(), "freed"));
    return NULL;
}

static void freed_while_others_wait(void) {
    akunu_model *small = load_batch(2, 0);
    akunu_request *first = endless(small), *second = endless(small);
    pthread_t one, two;
    CHECK(pthread_create(&one, NULL, until_freed, first) == 0);
    CHECK(pthread_create(&two, NULL, until_freed, second) == 0);
    while (!atomic_load(&takes)) sched_yield();
    OK(akunu_free_request(first));
    CHECK(pthread_join(one, NULL) == 0);
    OK(akunu_free_model(small));
    CHECK(pthread_join(two, NULL) == 0);
}

static void misuse(void) {
    akunu_session *session = NULL;
    akunu_request *request = NULL;
    const akunu_piece *piece = NULL;
    uint32_t is_over = 0, high = 0xffffffff, many[300] = {0};
    uint64_t nanoseconds[512];
    size_t got = 0;
    float bias = 1;
    akunu_request_options how = {.size = 3};
    akunu_generate_options options = {.size = sizeof options, .format = AKUNU_ANSWER_FORMAT_REGEX, .schema = "("};
    akunu_sampling sampling = {.size = sizeof sampling, .temperature = -1};
    FAILS(AKUNU_STATUS_ARGUMENT, "`batch`", akunu_create_session(batch, &session));
    FAILS(AKUNU_STATUS_ARGUMENT, "`batch`", akunu_profile_decode_step(batch, 1, 1, nanoseconds, 512, &got));
    FAILS(AKUNU_STATUS_ARGUMENT, "`batch`", akunu_submit(plain, ids[0], counts[0], NULL, NULL, &request));
    FAILS(AKUNU_STATUS_ARGUMENT, "`batch`", akunu_ready_request(plain, 0, &request));
    FAILS(AKUNU_STATUS_ARGUMENT, "`batch`", akunu_batch_counts(plain, &is_over, &is_over));
    FAILS(AKUNU_STATUS_ARGUMENT, "null", akunu_submit(batch, ids[0], counts[0], NULL, NULL, NULL));
    FAILS(AKUNU_STATUS_STRUCT_SIZE, "akunu_request_options",
          akunu_submit(batch, ids[0], counts[0], NULL, &how, &request));
    how.size = sizeof how;
    how.sampling = &sampling;
    FAILS(AKUNU_STATUS_ARGUMENT, "temperature", akunu_submit(batch, ids[0], counts[0], NULL, &how, &request));
    how.sampling = NULL;
    how.bias_tokens = &high;
    how.biases = &bias;
    how.bias_count = 1;
    FAILS(AKUNU_STATUS_ARGUMENT, "vocabulary", akunu_submit(batch, ids[0], counts[0], NULL, &how, &request));
    FAILS(AKUNU_STATUS_ARGUMENT, "", akunu_submit(batch, ids[0], counts[0], &options, NULL, &request));
    CHECK(request == NULL);
    FAILS(AKUNU_STATUS_HANDLE, "request handle is null", akunu_next_piece(NULL, 0, &piece, &is_over));
    FAILS(AKUNU_STATUS_HANDLE, "not a live request", akunu_cancel_request((akunu_request *)batch));
    /* What only the engine knows is the error of the request. */
    OK(akunu_submit(batch, many, 300, NULL, NULL, &request));
    FAILS(AKUNU_STATUS_CONTEXT, "300 tokens", akunu_next_piece(request, AKUNU_FOREVER, &piece, &is_over));
    akunu_stats stats = {.size = sizeof stats};
    FAILS(AKUNU_STATUS_CONTEXT, "300 tokens", akunu_request_stats(request, &stats));
    FAILS(AKUNU_STATUS_ARGUMENT, "piece is null", akunu_next_piece(request, 0, NULL, &is_over));
    OK(akunu_free_request(request));
}

int main(void) {
    plain = load(1);
    batch = load_batch(PLACES, 0);
    for (int i = 0; i < REQUESTS; i++) counts[i] = encode(batch, prompts[i % 4], ids[i], 64);
    shared_passes();
    a_thread_for_each();
    endings();
    freed_while_others_wait();
    misuse();
    OK(akunu_free_model(batch));
    return akunu_free_model(plain) != AKUNU_STATUS_OK;
}
