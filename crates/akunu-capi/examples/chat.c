/* A chat in the terminal: chat MODEL. Reads one message per line. Reasoning is dimmed. */
#include <akunu.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The messages so far, without the brackets around the list. */
static char messages[1 << 20];

static int32_t print(const akunu_delta *delta, void *user) {
    (void)user;
    if (delta->kind == AKUNU_DELTA_KIND_REASONING) printf("\x1b[2m%s\x1b[22m", delta->text);
    if (delta->kind == AKUNU_DELTA_KIND_ANSWER) fputs(delta->text, stdout);
    return fflush(stdout) == 0 ? AKUNU_CONTINUE : AKUNU_STOP;
}

static size_t append(size_t length, const char *text) {
    size_t added = strlen(text);
    if (length + added + 1 > sizeof messages) return length;
    memcpy(messages + length, text, added + 1);
    return length + added;
}

/* Appends a line as a message of the user. */
static size_t append_user(size_t length, const char *line) {
    length = append(length, length > 0 ? ",{\"role\":\"user\",\"content\":\"" : "{\"role\":\"user\",\"content\":\"");
    for (; *line; line++) {
        char escaped[8];
        int is_plain = (unsigned char)*line >= 0x20 && *line != '"' && *line != '\\';
        snprintf(escaped, sizeof escaped, is_plain ? "%c" : "\\u%04x", *line);
        length = append(length, escaped);
    }
    return append(length, "\"}");
}

static int fail(void) {
    fprintf(stderr, "error: %s\n", akunu_get_error());
    return 1;
}

int main(int argc, char **argv) {
    static char conversation[sizeof messages + 2], message[1 << 16], line[4096];
    akunu_load_options load = {.size = sizeof load, .device = getenv("DEVICE")};
    akunu_sampling sampling = {.size = sizeof sampling};
    akunu_model *model = NULL;
    akunu_session *session = NULL;
    size_t length = 0;
    if (akunu_load_model(argc > 1 ? argv[1] : NULL, &load, &model) != AKUNU_STATUS_OK ||
        akunu_create_session(model, &session) != AKUNU_STATUS_OK ||
        akunu_suggested_sampling(model, &sampling) != AKUNU_STATUS_OK ||
        akunu_set_sampling(session, &sampling) != AKUNU_STATUS_OK)
        return fail();
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        length = append_user(length, line);
        snprintf(conversation, sizeof conversation, "[%s]", messages);
        if (akunu_generate_answer(session, conversation, NULL, NULL, print, NULL, NULL) != AKUNU_STATUS_OK ||
            akunu_answer_message(session, message, sizeof message, NULL) != AKUNU_STATUS_OK)
            return fail();
        putchar('\n');
        length = append(append(length, ","), message);
    }
    return akunu_free_model(model) != AKUNU_STATUS_OK;
}
