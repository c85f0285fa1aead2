/* Answers to conversations: reasoning, text, tool calls, and formats. answer MODEL_THAT_CALLS_TOOLS */
#include "check.h"

#define USER "{\"role\": \"user\", \"content\": \"What time is it?\"}"
#define TOOLS                                                                                    \
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"clock\", \"parameters\": {}}}, " \
    "{\"type\": \"function\", \"function\": {\"name\": \"add\", \"parameters\": {}}}]"

struct log {
    char bytes[4096];
    size_t length;
    uint32_t calls;
    uint32_t stop_kind;
};

/* Writes one line for each kind of delta, with the deltas of the same kind joined. */
static int32_t record(const akunu_delta *delta, void *user) {
    static const char *const names[] = {0, "reasoning", "answer", "call"};
    static uint32_t last;
    struct log *log = (struct log *)user;
    char *end = log->bytes + log->length;
    size_t left = sizeof log->bytes - log->length;
    CHECK(delta->size >= sizeof *delta && delta->text[delta->text_length] == 0 && delta->text_length > 0);
    CHECK(delta->kind >= AKUNU_DELTA_KIND_REASONING && delta->kind <= AKUNU_DELTA_KIND_TOOL_CALL);
    CHECK((delta->name != NULL) == (delta->kind == AKUNU_DELTA_KIND_TOOL_CALL));
    if (delta->name) {
        CHECK(delta->index == log->calls++);
        snprintf(end, left, "|call %s %s", delta->name, delta->text);
    } else if (log->length > 0 && last == delta->kind) {
        snprintf(end, left, "%s", delta->text);
    } else {
        snprintf(end, left, "|%s %s", names[delta->kind], delta->text);
    }
    last = delta->kind;
    log->length += strlen(end);
    return log->stop_kind == delta->kind ? AKUNU_STOP : AKUNU_CONTINUE;
}

static void tool_calls(const char *path) {
    akunu_load_options load = {.size = sizeof load, .device = "cpu", .context = 1024};
    akunu_generate_options limits = {.size = sizeof limits, .max_tokens = 100};
    akunu_answer_options options = {.size = sizeof options};
    akunu_stats stats = {.size = sizeof stats};
    struct {
        akunu_stats stats;
        uint32_t after;
    } older = {.stats = {.size = offsetof(akunu_stats, reasoning_tokens)}, .after = 7};
    akunu_model *model = NULL;
    akunu_session *session = NULL;
    struct log log = {{0}, 0, 0, 0}, again = {{0}, 0, 0, 0}, one = {{0}, 0, 0, 0}, stopped = {{0}, 0, 0, AKUNU_DELTA_KIND_ANSWER};
    char message[1024], conversation[4096];
    size_t length = 0;

    OK(akunu_load_model(path, &load, &model));
    OK(akunu_create_session(model, &session));
    FAILS(AKUNU_STATUS_ARGUMENT, "akunu_generate_answer first", akunu_answer_message(session, message, sizeof message, NULL));
    OK(akunu_generate_answer(session, "{\"messages\": [" USER "], " TOOLS "}", NULL, &limits, record, &log, &stats));
    CHECK(strcmp(log.bytes, "|reasoning Hmm.|answer Let me see.|call clock {\"zone\": \"UTC\"}|call add {\"b\": 1, \"a\": 2}") == 0);
    CHECK(stats.finish == AKUNU_FINISH_TOOL_CALLS && stats.reasoning_tokens == 1 && stats.reused_tokens == 0);
    CHECK(stats.generated_tokens >= 8);
    OK(akunu_answer_message(session, message, sizeof message, &length));
    CHECK(length == strlen(message) && strstr(message, "\"reasoning_content\":\"Hmm.\"") && strstr(message, "\"role\":\"assistant\""));
    CHECK(strstr(message, "\"content\":\"Let me see.\"") && strstr(message, "\"tool_calls\":[{") && strstr(message, "\"id\":\""));

    /* The message goes back with the results of the calls. */
    snprintf(conversation, sizeof conversation,
             "{\"messages\": [" USER ", %s, {\"role\": \"tool\", \"content\": \"noon\"}], " TOOLS "}", message);
    uint64_t prompt = stats.prompt_tokens;
    OK(akunu_generate_answer(session, conversation, NULL, &limits, record, &again, &stats));
    CHECK(strcmp(again.bytes, log.bytes) == 0);
    CHECK(stats.prompt_tokens > prompt && stats.reused_tokens >= prompt);

    /* A message as the OpenAI API has it: no content, and arguments as text. */
    OK(akunu_generate_answer(session, "{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"a\", "
                                      "\"type\": \"function\", \"function\": {\"name\": \"clock\", \"arguments\": \"{\\\"zone\\\": 1}\"}}]}, "
                                      "{\"role\": \"tool\", \"tool_call_id\": \"a\", \"content\": \"noon\"}], " TOOLS "}",
                             NULL, &limits, NULL, NULL, NULL));

    /* One call, without tools, stopped by the callback, and without a callback. */
    options.one_call = 1;
    OK(akunu_generate_answer(session, "{\"messages\": [" USER "], " TOOLS "}", &options, &limits, record, &one, &stats));
    CHECK(one.calls == 1 && strstr(one.bytes, "clock") && stats.finish == AKUNU_FINISH_TOOL_CALLS);
    memset(&one, 0, sizeof one);
    older.stats.size = offsetof(akunu_stats, reasoning_tokens);
    OK(akunu_generate_answer(session, "[" USER "]", NULL, &limits, record, &one, &older.stats));
    CHECK(one.calls == 0 && strstr(one.bytes, "<tool_call>") && older.stats.finish == AKUNU_FINISH_END);
    CHECK(older.stats.reasoning_tokens == 0 && older.after == 7);
    OK(akunu_generate_answer(session, "[" USER "]", NULL, &limits, record, &stopped, &stats));
    CHECK(strstr(stopped.bytes, "|answer") && stats.finish == AKUNU_FINISH_CALLBACK);
    OK(akunu_generate_answer(session, "[" USER "]", NULL, NULL, NULL, NULL, NULL));
    limits.max_tokens = 2;
    OK(akunu_generate_answer(session, "[" USER "]", NULL, &limits, NULL, NULL, &stats));
    CHECK(stats.finish == AKUNU_FINISH_MAX_TOKENS && stats.reasoning_tokens > 0);
    /* Generation can be continued at the level of tokens. */
    limits.max_tokens = 1;
    OK(akunu_generate_continue(session, NULL, 0, &limits, NULL, NULL, &stats));
    OK(akunu_free_model(model));
}

static int32_t intrude(const akunu_delta *delta, void *user) {
    size_t length = 0;
    (void)delta;
    FAILS(AKUNU_STATUS_BUSY, "callback", akunu_answer_message((akunu_session *)user, NULL, 0, &length));
    OK(akunu_cancel((akunu_session *)user));
    return AKUNU_CONTINUE;
}

static void formats_and_errors(void) {
    akunu_load_options roomy = {.size = sizeof roomy, .device = "cpu", .context = 512};
    akunu_model *model = NULL;
    akunu_session *session = NULL;
    akunu_generate_options limits = {.size = sizeof limits, .max_tokens = 200};
    akunu_answer_options options = {.size = sizeof options, .format = AKUNU_ANSWER_FORMAT_JSON_SCHEMA};
    akunu_stats stats = {.size = sizeof stats};
    struct log log = {{0}, 0, 0, 0};
    OK(akunu_load_model(NULL, &roomy, &model));
    OK(akunu_create_session(model, &session));
    FAILS(AKUNU_STATUS_ARGUMENT, "needs a schema", akunu_generate_answer(session, "[" USER "]", &options, NULL, NULL, NULL, NULL));
    options.schema = "{";
    FAILS(AKUNU_STATUS_ARGUMENT, "not JSON", akunu_generate_answer(session, "[" USER "]", &options, NULL, NULL, NULL, NULL));
    options.schema = "{\"enum\": [\"fox\"]}";
    /* With tools, the answer is in the format or a call. */
    options.one_call = 1;
    OK(akunu_generate_answer(session, "{\"messages\": [" USER "], " TOOLS "}", &options, &limits, record, &log, &stats));
    CHECK(strcmp(log.bytes, "|answer \"fox\"") == 0 || log.calls == 1 || stats.finish == AKUNU_FINISH_MAX_TOKENS);
    memset(&log, 0, sizeof log);
    options.one_call = 0;
    OK(akunu_generate_answer(session, "[" USER "]", &options, &limits, record, &log, &stats));
    CHECK(strcmp(log.bytes, "|answer \"fox\"") == 0 && stats.finish == AKUNU_FINISH_END);
    memset(&log, 0, sizeof log);
    options.format = AKUNU_ANSWER_FORMAT_TOOL_CALL;
    FAILS(AKUNU_STATUS_ARGUMENT, "needs tools", akunu_generate_answer(session, "[" USER "]", &options, NULL, NULL, NULL, NULL));
    OK(akunu_generate_answer(session,
                             "{\"messages\": [" USER "], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"clock\", "
                             "\"parameters\": {\"type\": \"object\", \"properties\": {}, \"additionalProperties\": false}}}]}",
                             &options, &limits, record, &log, &stats));
    CHECK(strcmp(log.bytes, "|call clock {}") == 0 && stats.finish == AKUNU_FINISH_TOOL_CALLS);
    options.format = 9;
    FAILS(AKUNU_STATUS_ARGUMENT, "akunu_answer_format", akunu_generate_answer(session, "[" USER "]", &options, NULL, NULL, NULL, NULL));
    options.format = AKUNU_ANSWER_FORMAT_TEXT;
    options.template_name = "no_such_template";
    FAILS(AKUNU_STATUS_TEMPLATE, "no_such_template", akunu_generate_answer(session, "[" USER "]", &options, NULL, NULL, NULL, NULL));
    FAILS(AKUNU_STATUS_TEMPLATE, "answer", akunu_generate_answer(session, "[]", NULL, NULL, NULL, NULL, NULL));
    FAILS(AKUNU_STATUS_TEMPLATE, "\"tools\" is not a list",
          akunu_generate_answer(session, "{\"messages\": [" USER "], \"tools\": 1}", NULL, NULL, NULL, NULL, NULL));
    OK(akunu_generate_answer(session, "[" USER "]", NULL, NULL, intrude, session, &stats));
    CHECK(stats.finish == AKUNU_FINISH_CANCELLED);
    OK(akunu_free_model(model));
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    tool_calls(argv[1]);
    formats_and_errors();
    return 0;
}
