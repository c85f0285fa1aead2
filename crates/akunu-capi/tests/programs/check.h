/* Shared by the test programs. */
#include <akunu.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                        \
    do {                                                                                   \
        if (!(what)) {                                                                     \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, akunu_get_error()); \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)
#define OK(call) CHECK((call) == AKUNU_STATUS_OK)
/* The call fails with this status and a message that contains this text. */
#define FAILS(status, message, call)                  \
    do {                                             \
        CHECK((call) == (status));                   \
        CHECK(strstr(akunu_get_error(), message) != 0); \
    } while (0)

static const char PROMPT[] = "Once upon a time";

struct text {
    char bytes[4096];
    size_t length;
    int pieces;
    int stop_after;
};

static inline int32_t append(const akunu_piece *piece, void *user) {
    struct text *text = (struct text *)user;
    CHECK(piece->size >= sizeof *piece && piece->text[piece->text_length] == 0);
    CHECK(text->length + piece->text_length < sizeof text->bytes);
    memcpy(text->bytes + text->length, piece->text, piece->text_length);
    text->length += piece->text_length;
    text->bytes[text->length] = 0;
    text->pieces++;
    return text->pieces == text->stop_after ? AKUNU_STOP : AKUNU_CONTINUE;
}

static inline akunu_model *load(uint32_t sessions) {
    akunu_load_options options;
    akunu_model *model = NULL;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.device = "cpu";
    options.context = 256;
    options.sessions = sessions;
    /* Under valgrind only one thread runs at a time, which is slow with threads that spin. */
    options.threads = getenv("ONE_THREAD") ? 1 : 0;
    OK(akunu_load_model(NULL, &options, &model));
    CHECK(model != NULL);
    return model;
}

static inline size_t encode(const akunu_model *model, const char *text, uint32_t *tokens, size_t capacity) {
    size_t count = 0;
    OK(akunu_encode(model, text, AKUNU_TO_NULL, AKUNU_ENCODE_ADD_SPECIAL, tokens, capacity, &count));
    return count;
}
