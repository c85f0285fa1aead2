/* A process that was forked after a call gets errors at once, and one that was forked before may use everything. */
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

static uint32_t prompt[64];

static void generates(akunu_model *model) {
    uint32_t next = 0;
    akunu_session *session = NULL;
    OK(akunu_create_session(model, &session));
    OK(akunu_prefill(session, prompt, encode(model, PROMPT, prompt, 64), &next, NULL));
    OK(akunu_decode_step(session, next, &next));
}

/* Waits for a child, which a call that waits forever would not let end. */
static void ends(pid_t child) {
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void) {
    akunu_model *model = NULL;
    akunu_session *session = NULL;
    akunu_config config = {.size = sizeof config};
    uint32_t next = 0;
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        model = load(1);
        generates(model);
        _exit(akunu_free_model(model) != AKUNU_STATUS_OK);
    }
    ends(child);

    model = load(2);
    OK(akunu_create_session(model, &session));
    child = fork();
    if (child == 0) {
        alarm(60);
        FAILS(AKUNU_STATUS_HANDLE, "forked", akunu_prefill(session, prompt, 1, &next, NULL));
        FAILS(AKUNU_STATUS_HANDLE, "forked", akunu_get_config(model, &config));
        FAILS(AKUNU_STATUS_HANDLE, "forked", akunu_load_model(NULL, NULL, &model));
        FAILS(AKUNU_STATUS_HANDLE, "forked", akunu_free_session(session));
        FAILS(AKUNU_STATUS_HANDLE, "forked", akunu_free_model(model));
        _exit(0);
    }
    ends(child);
    generates(model);
    return akunu_free_model(model) != AKUNU_STATUS_OK;
}
