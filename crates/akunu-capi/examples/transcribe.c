/* Transcribes audio files: transcribe MODEL FILE... */
#include <akunu.h>
#include <stdio.h>

static int32_t print(const akunu_segment *segment, void *file) {
    fprintf((FILE *)file, "[%.2f --> %.2f]%s\n", segment->start, segment->end, segment->text);
    return fflush((FILE *)file) == 0 ? AKUNU_CONTINUE : AKUNU_STOP;
}

int main(int argc, char **argv) {
    akunu_transcriber_options load = {.size = sizeof load, .device = "cpu"};
    akunu_transcriber *transcriber = NULL;
    akunu_status status = akunu_load_transcriber(argc > 1 ? argv[1] : NULL, &load, &transcriber);

    for (int i = 2; i < argc && status == AKUNU_STATUS_OK; i++)
        status = akunu_transcribe(transcriber, argv[i], NULL, print, stdout);
    if (status != AKUNU_STATUS_OK) fprintf(stderr, "error: %s\n", akunu_get_error());
    akunu_free_transcriber(transcriber);
    return status != AKUNU_STATUS_OK;
}
