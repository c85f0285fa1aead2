/* Embeddings of token ids and of texts. Prints the vector of five ids. embed MODEL_WITHOUT_A_TOKENIZER */
#include "check.h"

static double dot(const float *a, const float *b, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += (double)a[i] * b[i];
    return sum;
}

int main(int argc, char **argv) {
    akunu_embed_options options = {.size = sizeof options, .device = "cpu", .threads = 1};
    akunu_embedder *embedder = NULL, *tales = NULL;
    const uint32_t ids[] = {1, 62, 5, 34, 2, 1, 45, 2};
    const size_t lengths[] = {5, 3}, empty[] = {0};
    const char *texts[] = {"a fox", "a house", "a fox"}, *nothing[] = {""};
    uint32_t width = 0, longest = 0, outside = 1000000, many[4096] = {0};
    const size_t one = 1, too_many = 4096;
    float vectors[3 * 1024], alone[1024];
    size_t length = 0;

    CHECK(argc == 2);
    OK(akunu_load_embedder(argv[1], &options, &embedder));
    OK(akunu_embedding_width(embedder, &width, &longest));
    CHECK(width == 48 && longest > 8);
    OK(akunu_embed_ids(embedder, ids, lengths, 2, NULL, 0, &length));
    CHECK(length == 2 * width);
    FAILS(AKUNU_STATUS_BUFFER_TOO_SMALL, "96",
          akunu_embed_ids(embedder, ids, lengths, 2, vectors, width, &length));
    OK(akunu_embed_ids(embedder, ids, lengths, 2, vectors, 2 * width, &length));
    CHECK(length == 2 * width);
    OK(akunu_embed_ids(embedder, ids, lengths, 1, alone, width, NULL));
    CHECK(memcmp(vectors, alone, width * sizeof *alone) == 0);
    CHECK(dot(alone, alone, width) > 0.999999 && dot(alone, alone, width) < 1.000001);
    for (uint32_t i = 0; i < width; i++) printf("%.9g\n", alone[i]);

    FAILS(AKUNU_STATUS_ARGUMENT, "empty", akunu_embed_ids(embedder, ids, empty, 1, vectors, width, NULL));
    FAILS(AKUNU_STATUS_ARGUMENT, "vocabulary", akunu_embed_ids(embedder, &outside, &one, 1, vectors, width, NULL));
    FAILS(AKUNU_STATUS_CONTEXT, "4096", akunu_embed_ids(embedder, many, &too_many, 1, vectors, width, NULL));
    FAILS(AKUNU_STATUS_ARGUMENT, "null", akunu_embed_ids(embedder, NULL, lengths, 1, vectors, width, NULL));
    FAILS(AKUNU_STATUS_NO_VOCABULARY, "token ids only", akunu_embed(embedder, texts, 1, vectors, width, NULL));
    OK(akunu_free_embedder(embedder));
    FAILS(AKUNU_STATUS_HANDLE, "embedder", akunu_embedding_width(embedder, &width, NULL));
    OK(akunu_free_embedder(NULL));

    /* A generative model is an embedder only with a pooling in the options. */
    FAILS(AKUNU_STATUS_ARGUMENT, "pooling", akunu_load_embedder(NULL, &options, &tales));
    options.pooling = 9;
    FAILS(AKUNU_STATUS_ARGUMENT, "akunu_pooling", akunu_load_embedder(NULL, &options, &tales));
    options.pooling = AKUNU_POOLING_MEAN;
    options.truncate = 1;
    options.context = 16;
    OK(akunu_load_embedder(NULL, &options, &tales));
    OK(akunu_embedding_width(tales, &width, &longest));
    CHECK(width <= 1024 && longest == 16);
    OK(akunu_embed(tales, texts, 3, vectors, 3 * width, &length));
    CHECK(length == 3 * width && memcmp(vectors, vectors + 2 * width, width * sizeof *vectors) == 0);
    CHECK(dot(vectors, vectors + width, width) < 0.9999);
    FAILS(AKUNU_STATUS_ARGUMENT, "empty", akunu_embed(tales, nothing, 1, vectors, width, NULL));
    OK(akunu_embed_ids(tales, many, &too_many, 1, vectors, width, NULL)); /* truncated */
    OK(akunu_free_embedder(tales));
    return 0;
}
