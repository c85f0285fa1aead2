/* The log, and the progress of loading. callbacks FILE ENCODER */
#include "check.h"

struct log {
    int lines[5];
    char text[4096];
};

static void keep(uint32_t level, const char *message, void *user) {
    struct log *log = (struct log *)user;
    size_t length = 0;
    akunu_model *none = NULL;
    CHECK(level >= AKUNU_LOG_LEVEL_ERROR && level <= AKUNU_LOG_LEVEL_DEBUG && strchr(message, '\n') == NULL);
    CHECK(strlen(log->text) + strlen(message) + 2 < sizeof log->text);
    strcat(strcat(log->text, message), "\n");
    log->lines[level]++;
    FAILS(AKUNU_STATUS_BUSY, "callback", akunu_set_log(NULL, NULL, 0));
    FAILS(AKUNU_STATUS_BUSY, "callback", akunu_load_model(NULL, NULL, &none));
    OK(akunu_device_name(0, NULL, 0, &length));
}

struct progress {
    int reports;
    int stop_after;
    uint64_t done, total;
};

static int32_t watch(uint64_t done, uint64_t total, void *user) {
    struct progress *progress = (struct progress *)user;
    akunu_model *none = NULL;
    CHECK(done >= progress->done && done <= total);
    CHECK(progress->reports == 0 ? total == 0 : total > 0);
    CHECK(progress->reports < 2 || total == progress->total);
    progress->done = done;
    progress->total = total;
    progress->reports++;
    FAILS(AKUNU_STATUS_BUSY, "callback", akunu_load_model(NULL, NULL, &none));
    return progress->reports == progress->stop_after ? AKUNU_STOP : AKUNU_CONTINUE;
}

static void logs(void) {
    struct log log = {{0}, {0}};
    akunu_load_options options = {.size = sizeof options, .device = "cpu", .context = 5000};
    akunu_generate_options limits = {.size = sizeof limits, .max_tokens = 3};
    akunu_model *model = NULL;
    akunu_session *session = NULL;
    uint32_t prompt[64];
    FAILS(AKUNU_STATUS_ARGUMENT, "akunu_log_level", akunu_set_log(keep, &log, 9));
    OK(akunu_set_log(keep, &log, AKUNU_LOG_LEVEL_DEBUG));
    OK(akunu_load_model(NULL, &options, &model));
    CHECK(log.lines[AKUNU_LOG_LEVEL_WARNING] == 1 && strstr(log.text, "a context length of 5000 exceeds"));
    CHECK(log.lines[AKUNU_LOG_LEVEL_INFO] == 1 && strstr(log.text, "loaded embedded on cpu"));
    OK(akunu_create_session(model, &session));
    OK(akunu_generate(session, prompt, encode(model, PROMPT, prompt, 64), &limits, NULL, NULL, NULL));
    CHECK(log.lines[AKUNU_LOG_LEVEL_DEBUG] == 1 && strstr(log.text, "generated 3 tokens"));
    OK(akunu_free_model(model));
    /* Up to the level, and nothing after it was removed. */
    memset(&log, 0, sizeof log);
    OK(akunu_set_log(keep, &log, AKUNU_LOG_LEVEL_WARNING));
    OK(akunu_load_model(NULL, &options, &model));
    OK(akunu_free_model(model));
    OK(akunu_set_log(NULL, NULL, 0));
    OK(akunu_load_model(NULL, &options, &model));
    OK(akunu_free_model(model));
    CHECK(log.lines[AKUNU_LOG_LEVEL_WARNING] == 1 && log.lines[AKUNU_LOG_LEVEL_INFO] == 0);
    CHECK(log.lines[AKUNU_LOG_LEVEL_ERROR] == 0);
}

static void progress(const char *path, const char *encoder) {
    struct progress all = {0, 0, 0, 0};
    akunu_load_options options = {.size = sizeof options, .device = "cpu", .context = 256, .on_progress = watch};
    akunu_embed_options embed = {.size = sizeof embed, .device = "cpu", .on_progress = watch, .progress_user = &all};
    akunu_model *model = NULL;
    akunu_embedder *embedder = NULL;
    options.progress_user = &all;
    OK(akunu_load_model(path, &options, &model));
    CHECK(all.reports > 4 && all.done == all.total && all.total > 1000000);
    OK(akunu_free_model(model));
    model = NULL;
    for (int stop = 1; stop <= all.reports; stop += stop < 3 ? 1 : all.reports / 2) {
        struct progress some = {0, stop, 0, 0};
        options.progress_user = &some;
        FAILS(AKUNU_STATUS_CANCELLED, "cancelled", akunu_load_model(path, &options, &model));
        CHECK(model == NULL && some.reports == stop);
    }
    /* A model that takes requests loads in the same way. */
    struct progress batch = {0, 0, 0, 0};
    options.progress_user = &batch;
    options.batch = 1;
    OK(akunu_load_model(path, &options, &model));
    CHECK(batch.reports == all.reports);
    OK(akunu_free_model(model));
    memset(&all, 0, sizeof all);
    OK(akunu_load_embedder(encoder, &embed, &embedder));
    CHECK(all.reports > 2 && all.done == all.total);
    OK(akunu_free_embedder(embedder));
    all.stop_after = all.reports - 1;
    all.reports = 0;
    all.done = 0;
    embedder = NULL;
    FAILS(AKUNU_STATUS_CANCELLED, "cancelled", akunu_load_embedder(encoder, &embed, &embedder));
    CHECK(embedder == NULL);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    logs();
    progress(argv[1], argv[2]);
    return 0;
}
