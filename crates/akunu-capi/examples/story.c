/* Continues a prompt: story [MODEL [PROMPT [TOKENS]]]. "-" is the model embedded in the library. */
#include <akunu.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int32_t print(const akunu_piece *piece, void *file) {
    fwrite(piece->text, 1, piece->text_length, (FILE *)file);
    return fflush((FILE *)file) == 0 ? AKUNU_CONTINUE : AKUNU_STOP;
}

int main(int argc, char **argv) {
    const char *path = argc > 1 && strcmp(argv[1], "-") != 0 ? argv[1] : NULL;
    const char *prompt = argc > 2 ? argv[2] : "Once upon a time";
    akunu_load_options load = {.size = sizeof load, .device = "cpu"};
    akunu_generate_options limits = {.size = sizeof limits, .max_tokens = argc > 3 ? (uint32_t)atoi(argv[3]) : 100};
    akunu_model *model = NULL;
    akunu_session *session = NULL;
    uint32_t tokens[512];
    size_t count = 0;
    uint32_t flags = AKUNU_ENCODE_ADD_SPECIAL;

    if (akunu_load_model(path, &load, &model) != AKUNU_STATUS_OK ||
        akunu_create_session(model, &session) != AKUNU_STATUS_OK ||
        akunu_encode(model, prompt, AKUNU_TO_NULL, flags, tokens, 512, &count) != AKUNU_STATUS_OK ||
        akunu_generate(session, tokens, count, &limits, print, stdout, NULL) != AKUNU_STATUS_OK) {
        fprintf(stderr, "error: %s\n", akunu_get_error());
        akunu_free_model(model);
        return 1;
    }
    return akunu_free_model(model) != AKUNU_STATUS_OK; /* frees its sessions too */
}
