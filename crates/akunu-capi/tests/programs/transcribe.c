/* Transcription of a file and of samples. Prints the text of each word. transcribe MODEL FILE TEXT_MODEL */
#include "check.h"
#include <math.h>

struct heard {
    char text[4096];
    int segments, words, stop_after;
    double end;
};

static int32_t hear(const akunu_segment *segment, void *user) {
    struct heard *heard = (struct heard *)user;
    CHECK(segment->size >= sizeof *segment && segment->text[segment->text_length] == 0);
    CHECK(segment->start >= heard->end && segment->end > segment->start && strcmp(segment->language, "en") == 0);
    CHECK(strlen(heard->text) + segment->text_length < sizeof heard->text);
    strcat(heard->text, segment->text);
    heard->end = segment->end;
    heard->segments++;
    for (uint32_t i = 0; i < segment->word_count; i++) {
        const akunu_word *word = &segment->words[i];
        CHECK(word->text[word->text_length] == 0 && word->end >= word->start && word->start >= segment->start - 0.5);
        printf("%s", word->text);
        heard->words++;
    }
    CHECK(akunu_free_transcriber(NULL) == AKUNU_STATUS_OK);
    return heard->segments == heard->stop_after ? AKUNU_STOP : AKUNU_CONTINUE;
}

static int32_t stop(uint64_t done, uint64_t total, void *user) {
    (void)user;
    return total > 0 && done <= total ? AKUNU_STOP : AKUNU_CONTINUE;
}

int main(int argc, char **argv) {
    akunu_transcriber_options load = {.size = sizeof load, .device = "cpu", .threads = 1, .beams = 1, .word_times = 1};
    akunu_transcribe_options words = {.size = sizeof words, .timestamps = AKUNU_TIMESTAMPS_WORD};
    akunu_transcribe_options options = {.size = sizeof options, .language = "english"};
    akunu_transcriber *transcriber = NULL, *none = NULL;
    struct heard timed = {.stop_after = 0}, plain = {.stop_after = 0}, first = {.stop_after = 1};
    struct heard silent = {.stop_after = 0};
    static float samples[32000];

    CHECK(argc == 4);
    OK(akunu_load_transcriber(argv[1], &load, &transcriber));
    OK(akunu_transcribe(transcriber, argv[2], &words, hear, &timed));
    OK(akunu_transcribe(transcriber, argv[2], &options, hear, &plain));
    CHECK(timed.words > 5 && plain.words == 0 && plain.segments > 1 && strcmp(timed.text, plain.text) == 0);
    OK(akunu_transcribe(transcriber, argv[2], NULL, hear, &first));
    CHECK(first.segments == 1 && strlen(first.text) > 0 && strncmp(first.text, plain.text, strlen(first.text)) == 0);

    OK(akunu_transcribe_samples(transcriber, samples, 32000, 16000, NULL, hear, &silent));
    CHECK(silent.segments == 0);
    samples[9] = NAN;
    FAILS(AKUNU_STATUS_ARGUMENT, "finite", akunu_transcribe_samples(transcriber, samples, 32000, 16000, NULL, hear, &silent));
    FAILS(AKUNU_STATUS_ARGUMENT, "rate", akunu_transcribe_samples(transcriber, samples, 32000, 1, NULL, hear, &silent));
    FAILS(AKUNU_STATUS_ARGUMENT, "null", akunu_transcribe_samples(transcriber, NULL, 9, 16000, NULL, hear, &silent));
    FAILS(AKUNU_STATUS_ARGUMENT, "callback", akunu_transcribe(transcriber, argv[2], NULL, NULL, NULL));
    FAILS(AKUNU_STATUS_ARGUMENT, "audio file", akunu_transcribe(transcriber, argv[1], NULL, hear, &silent));
    FAILS(AKUNU_STATUS_ARGUMENT, "No such file", akunu_transcribe(transcriber, "/no/such/file.mp3", NULL, hear, &silent));
    options.language = "klingon";
    FAILS(AKUNU_STATUS_ARGUMENT, "klingon", akunu_transcribe(transcriber, argv[2], &options, hear, &silent));
    options.language = NULL;
    options.task = 9;
    FAILS(AKUNU_STATUS_ARGUMENT, "akunu_speech_task", akunu_transcribe(transcriber, argv[2], &options, hear, &silent));
    OK(akunu_free_transcriber(transcriber));
    FAILS(AKUNU_STATUS_HANDLE, "transcriber", akunu_transcribe(transcriber, argv[2], NULL, hear, &silent));

    FAILS(AKUNU_STATUS_ARGUMENT, "does not transcribe", akunu_load_transcriber(argv[3], &load, &none));
    load.on_progress = stop;
    FAILS(AKUNU_STATUS_CANCELLED, "cancelled", akunu_load_transcriber(argv[1], &load, &none));
    CHECK(none == NULL);
    return 0;
}
