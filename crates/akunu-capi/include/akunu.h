/* Akunu for C: transformer models on the machine at hand. docs/capi.md has the rules in full, and an example. */

#ifndef AKUNU_H
#define AKUNU_H

/* Made by `cargo xtask header` from crates/akunu-capi; changes belong there.

   Every function but the first few answers an akunu_status, and akunu_get_error has the words of an error. None panics, and none reads
   through a handle that was freed. Pointers are null or good for what their function says. Results of unknown length take a buffer, its
   capacity and a place for the length: a null buffer of capacity 0 asks for the length alone, and a text needs room for one null
   character more. Any thread may call anything; what a model does, it does in turn. */

#include <stddef.h>
#include <stdint.h>

/* The length of a text that ends with a null character, wherever that is. */
#define AKUNU_TO_NULL SIZE_MAX

// Grows with every change after which programs have to be compiled anew.
#define AKUNU_ABI_VERSION 1



// Add what the model wants around a prompt: usually a token that begins it.
#define AKUNU_ENCODE_ADD_SPECIAL 1

// Read `<|im_end|>` and the like as the tokens that they name. Not for text that a stranger wrote.
#define AKUNU_ENCODE_PARSE_SPECIAL 2

// What a callback answers to get the next piece.
#define AKUNU_CONTINUE 0

// What a callback answers to end the text. Anything but AKUNU_CONTINUE does.
#define AKUNU_STOP 1

// What a call came to. Everything but AKUNU_STATUS_OK is an error, and akunu_get_error has its words.
enum akunu_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    AKUNU_STATUS_OK = 0,
    // An argument that makes no sense: a null pointer, a text that is not UTF-8, a setting out of range.
    AKUNU_STATUS_ARGUMENT = -1,
    // A handle that was freed, or never was one.
    AKUNU_STATUS_HANDLE = -2,
    // A struct whose `size` is none that this library knows.
    AKUNU_STATUS_STRUCT_SIZE = -3,
    // The result is longer than its buffer. Nothing was written but the length that it needs.
    AKUNU_STATUS_BUFFER_TOO_SMALL = -4,
    // Called from within a callback, by a function that would have to wait for the callback's own call.
    AKUNU_STATUS_BUSY = -5,
    // The model's file cannot be read, is damaged, or holds what Akunu does not run.
    AKUNU_STATUS_MODEL = -6,
    // The device is not there, or failed.
    AKUNU_STATUS_DEVICE = -7,
    // The model does not fit into memory.
    AKUNU_STATUS_MEMORY = -8,
    // The text is longer than the context.
    AKUNU_STATUS_CONTEXT = -9,
    // All sessions that the model was loaded for are taken.
    AKUNU_STATUS_NO_SESSION = -10,
    // The model has no vocabulary that can be used: it takes and gives token ids only.
    AKUNU_STATUS_NO_VOCABULARY = -11,
    // The conversation, or the model's template for it, is no good.
    AKUNU_STATUS_TEMPLATE = -12,
    // Logits that are not finite numbers, or of which none can be picked.
    AKUNU_STATUS_LOGITS = -13,
    // A bug in Akunu.
    AKUNU_STATUS_INTERNAL = -14,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum akunu_status akunu_status;
#else
typedef int32_t akunu_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a KV cache is made of.
enum akunu_kv_type
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    AKUNU_KV_TYPE_F16 = 0,
    AKUNU_KV_TYPE_F32 = 1,
    AKUNU_KV_TYPE_Q8_0 = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum akunu_kv_type akunu_kv_type;
#else
typedef uint32_t akunu_kv_type;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What happens when the context is full and the text is not done.
enum akunu_overflow
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // The text ends, with AKUNU_FINISH_CONTEXT_FULL.
    AKUNU_OVERFLOW_STOP = 0,
    // AKUNU_STATUS_CONTEXT.
    AKUNU_OVERFLOW_ERROR = 1,
    // The older half of what follows the first `keep` tokens is forgotten, and the text goes on.
    AKUNU_OVERFLOW_SHIFT = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum akunu_overflow akunu_overflow;
#else
typedef uint32_t akunu_overflow;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Why a text ended.
enum akunu_finish
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // The model ended it, with `end_token`.
    AKUNU_FINISH_END = 1,
    // A stop text came up.
    AKUNU_FINISH_STOP_TEXT = 2,
    // `end_token` did, one of the stop tokens.
    AKUNU_FINISH_STOP_TOKEN = 3,
    AKUNU_FINISH_MAX_TOKENS = 4,
    AKUNU_FINISH_CONTEXT_FULL = 5,
    // akunu_cancel, or the model was freed.
    AKUNU_FINISH_CANCELLED = 6,
    // The callback said so.
    AKUNU_FINISH_CALLBACK = 7,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum akunu_finish akunu_finish;
#else
typedef uint32_t akunu_finish;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What akunu_describe tells.
enum akunu_about
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // The file's name, or `embedded`.
    AKUNU_ABOUT_NAME = 0,
    // As the file names it: `llama`.
    AKUNU_ABOUT_ARCHITECTURE = 1,
    // What the model runs on.
    AKUNU_ABOUT_DEVICE = 2,
    // What was decided when it was loaded and is worth telling, a line each; often nothing.
    AKUNU_ABOUT_NOTES = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum akunu_about akunu_about;
#else
typedef uint32_t akunu_about;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How the states of a text's tokens become one vector.
enum akunu_pooling
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // As the model's files say.
    AKUNU_POOLING_MODEL = 0,
    AKUNU_POOLING_MEAN = 1,
    // The first token's.
    AKUNU_POOLING_CLS = 2,
    // The last token's.
    AKUNU_POOLING_LAST = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum akunu_pooling akunu_pooling;
#else
typedef uint32_t akunu_pooling;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A model that makes vectors of texts, on a device. An opaque handle.
typedef struct akunu_embedder akunu_embedder;

// A model that stands on a device. An opaque handle.
typedef struct akunu_model akunu_model;

// A text in a model's cache, and how it goes on. An opaque handle.
typedef struct akunu_session akunu_session;

// How a model is loaded. All zeros but for `size`: as Akunu thinks best.
typedef struct akunu_load_options {
    // sizeof(akunu_load_options)
    uint32_t size;
    // Host threads; 0: one for each physical core.
    uint32_t threads;
    // A name that akunu_device_name gives; null: "auto".
    const char *device;
    // Positions that each session has; 0: the model's own, at most 4096.
    uint32_t context;
    // Sessions at once; 0: 1.
    uint32_t sessions;
    // What the cache is made of, an akunu_kv_type.
    uint32_t kv_type;
    // Most tokens of a prompt in one pass; 0: what the device likes.
    uint32_t chunk;
    // Most tokens that the device decodes without the host; 0: what it likes.
    uint32_t chain;
    // Most milliseconds that the device decodes without the host; 0: 50.
    uint32_t chain_ms;
} akunu_load_options;

// What a model is, and how it was loaded.
typedef struct akunu_config {
    // sizeof(akunu_config)
    uint32_t size;
    // Logits of a position. Token ids are smaller.
    uint32_t vocabulary;
    // Positions that each session has.
    uint32_t context;
    // Positions that the model was trained for.
    uint32_t trained_context;
    uint32_t layers;
    uint32_t hidden_size;
    uint32_t ffn_size;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_size;
    // Sessions at once.
    uint32_t sessions;
    // Most tokens of a prompt in one pass.
    uint32_t chunk;
    // Most tokens that the device decodes without the host.
    uint32_t chain;
    // Commands of a decode step: what akunu_profile_decode_step times.
    uint32_t commands;
    // Tokens that have a text; 0: the model takes and gives ids only.
    uint32_t tokens;
    // The token that begins a text, or -1.
    int32_t begin_token;
    // The token that ends a text, or -1. There may be more: akunu_is_end.
    int32_t end_token;
    // 0.
    uint32_t reserved;
} akunu_config;

// Where a model's bytes are.
typedef struct akunu_memory {
    // sizeof(akunu_memory)
    uint32_t size;
    // 0.
    uint32_t reserved;
    // What the device allocated: the sum of the six that follow.
    uint64_t allocated;
    // Weights that were copied to the device.
    uint64_t weights_copied;
    uint64_t constants;
    uint64_t kv_cache;
    uint64_t scratch;
    uint64_t rows_and_logits;
    // The device's own.
    uint64_t workspace;
    // Weights used where the file is mapped, shared with everyone who maps it.
    uint64_t weights_in_place;
    // The list of commands, on the host.
    uint64_t tables;
} akunu_memory;

// How the next token is picked. A session begins with temperature 0: always the best token. Get it, change it, set it.
typedef struct akunu_sampling {
    // sizeof(akunu_sampling)
    uint32_t size;
    // 0: always the best token.
    float temperature;
    // Only the k best; 0: all.
    uint32_t top_k;
    // Only the fewest best whose probabilities reach this; 1: all.
    float top_p;
    // Only those at least this times as probable as the best; 0: all.
    float min_p;
    // Divides positive and multiplies negative logits of tokens among the latest; 1: off.
    float repeat_penalty;
    // Subtracted for each occurrence among the latest; 0: off.
    float frequency_penalty;
    // Subtracted once for an occurrence among the latest; 0: off.
    float presence_penalty;
    // How many the latest are.
    uint32_t repeat_last_n;
    // 0.
    uint32_t reserved;
    // The same seed gives the same tokens.
    uint64_t seed;
} akunu_sampling;

// When a text ends. All zeros but for `size`: where the model ends it, or the context.
typedef struct akunu_generate_options {
    // sizeof(akunu_generate_options)
    uint32_t size;
    // Most tokens; 0: no limit.
    uint32_t max_tokens;
    // Texts, each up to its null character, that end the text before them. They may span tokens.
    const char *const *stop_texts;
    // Tokens that end the text, besides the model's own.
    const uint32_t *stop_tokens;
    uint32_t stop_text_count;
    uint32_t stop_token_count;
    // An akunu_overflow.
    uint32_t overflow;
    // Tokens at the beginning that AKUNU_OVERFLOW_SHIFT never forgets.
    uint32_t keep;
    // 1: go on past the model's own end of a text.
    uint32_t ignore_end;
    // 0.
    uint32_t reserved;
} akunu_generate_options;

// What a callback gets: a piece of text as soon as it is certain. It is gone when the callback returns.
typedef struct akunu_piece {
    // What this library's akunu_piece has.
    uint32_t size;
    // How many tokens came since the last piece.
    uint32_t token_count;
    // Whole UTF-8 characters, and a null character that `text_length` does not count.
    const char *text;
    size_t text_length;
    // Text that may begin a stop text is held back, so the text may belong to earlier tokens in part.
    const uint32_t *tokens;
} akunu_piece;

// Called with each piece of a text on the thread that asked for it; AKUNU_CONTINUE or AKUNU_STOP.
//
// It may call what does not wait for the model (akunu_encode, akunu_decode, akunu_get_config, akunu_cancel, akunu_get_error);
// whatever else it calls answers AKUNU_STATUS_BUSY. It must neither throw nor jump out.
typedef int32_t (*akunu_on_piece)(const struct akunu_piece *piece, void *user);

// What a text took.
typedef struct akunu_stats {
    // sizeof(akunu_stats)
    uint32_t size;
    // An akunu_finish.
    uint32_t finish;
    // The token that ended the text, which is no part of it, or -1.
    int64_t end_token;
    uint64_t prompt_tokens;
    // Of these, how many stood in the session already.
    uint64_t reused_tokens;
    uint64_t generated_tokens;
    // From the call to the prompt's last logits.
    double prompt_seconds;
    // From then to the end.
    double generate_seconds;
    // From the call to the first token.
    double first_token_seconds;
} akunu_stats;

// How an embedder is loaded. All zeros but for `size`: as the model's files say.
typedef struct akunu_embed_options {
    // sizeof(akunu_embed_options)
    uint32_t size;
    // Host threads; 0: one for each physical core.
    uint32_t threads;
    // A name that akunu_device_name gives; null: "auto".
    const char *device;
    // Tokens of the longest text; 0: what vectors of the model were made for, at most 8192.
    uint32_t context;
    // An akunu_pooling.
    uint32_t pooling;
    // 1: vectors keep the length that the model gives them. 0: they get length 1.
    uint32_t keep_length;
    // 1: texts that are too long are cut. 0: they are AKUNU_STATUS_CONTEXT.
    uint32_t truncate;
} akunu_embed_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// This library's AKUNU_ABI_VERSION: a program compares it with its header's.
uint32_t akunu_abi_version(void);

// This library's version: "0.1.0".
const char *akunu_version(void);

// The words of the latest error on this thread; empty if there was none. They stay until this thread's next error.
const char *akunu_get_error(void);

// How many devices this library knows, whether or not they are there.
uint32_t akunu_device_count(void);

// The name of the device number `index`, for akunu_load_options: "auto" comes first.
akunu_status akunu_device_name(uint32_t index, char *buffer, size_t capacity, size_t *length);

// Loads a model: a GGUF file, a SafeTensors file, or a folder of Hugging Face's or MLX's. A null `path` loads the small
// story-teller that comes with the library. Null `options` are the usual ones. Free it with akunu_free_model.
akunu_status akunu_load_model(const char *path,
                              const struct akunu_load_options *options,
                              struct akunu_model **model);

// Frees a model and its sessions, whose handles are no good from then on. A text that another thread is generating ends
// as cancelled, and is waited for. Null is nothing to free.
akunu_status akunu_free_model(struct akunu_model *model);

// What a model is, and how it was loaded.
akunu_status akunu_get_config(const struct akunu_model *model, struct akunu_config *config);

// Where a model's bytes are.
akunu_status akunu_model_memory(const struct akunu_model *model, struct akunu_memory *memory);

// A text about a model: `about` is an akunu_about.
akunu_status akunu_describe(const struct akunu_model *model,
                            uint32_t about,
                            char *buffer,
                            size_t capacity,
                            size_t *length);

// The tokens of a UTF-8 text of `text_length` bytes (AKUNU_TO_NULL: up to its null character). `flags` are AKUNU_ENCODE_…, or 0
// for the text and nothing else.
akunu_status akunu_encode(const struct akunu_model *model,
                          const char *text,
                          size_t text_length,
                          uint32_t flags,
                          uint32_t *tokens,
                          size_t capacity,
                          size_t *count);

// The bytes that a token adds to a text: none for a control token, a part of a character for some. A null character
// behind them is not counted.
akunu_status akunu_decode_token(const struct akunu_model *model,
                                uint32_t token,
                                char *buffer,
                                size_t capacity,
                                size_t *length);

// The text of tokens, in UTF-8. Control tokens have none.
akunu_status akunu_decode(const struct akunu_model *model,
                          const uint32_t *tokens,
                          size_t count,
                          char *buffer,
                          size_t capacity,
                          size_t *length);

// 1 to `is_end` if a token ends texts, else 0.
akunu_status akunu_is_end(const struct akunu_model *model, uint32_t token, uint32_t *is_end);

// Begins an empty text in a model's cache. Any number of threads may use a model's sessions: they take turns.
akunu_status akunu_create_session(struct akunu_model *model, struct akunu_session **session);

// Frees a session, whose handle is no good from then on. What another thread is generating in it ends as cancelled, and
// is waited for. Null is nothing to free.
akunu_status akunu_free_session(struct akunu_session *session);

// The tokens whose keys and values stand in the cache.
akunu_status akunu_session_tokens(const struct akunu_session *session,
                                  uint32_t *tokens,
                                  size_t capacity,
                                  size_t *count);

// Forgets all but the first `length` tokens; 0 forgets the text.
akunu_status akunu_session_truncate(struct akunu_session *session, size_t length);

// Makes the first `count` tokens of `from` all that `to` holds, without running the model. Both are of one model.
akunu_status akunu_session_copy(const struct akunu_session *from,
                                struct akunu_session *to,
                                size_t count);

// How the session's next tokens are picked.
akunu_status akunu_get_sampling(const struct akunu_session *session, struct akunu_sampling *sampling);

// Sets how the session's next tokens are picked, on the device where it can. Biases stay.
akunu_status akunu_set_sampling(struct akunu_session *session, const struct akunu_sampling *sampling);

// What the makers of a model suggest for sampling, or the best token always where they suggest nothing.
akunu_status akunu_suggested_sampling(const struct akunu_model *model, struct akunu_sampling *sampling);

// Adds `biases[i]` to the logit of `tokens[i]` from now on, in the place of earlier biases; -INFINITY rules a token out. A count of
// 0 takes them all away.
akunu_status akunu_set_logit_bias(struct akunu_session *session,
                                  const uint32_t *tokens,
                                  const float *biases,
                                  size_t count);

// Sets the temperature of the session's sampling, which the device then does; 0 takes the best token always.
akunu_status akunu_gpu_temperature_scale(struct akunu_session *session, float temperature);

// Sets the repeat penalty of the session's sampling, which the device then does, and how many of the latest tokens it looks
// back at; a penalty of 1 is none.
akunu_status akunu_gpu_repetition_penalty(struct akunu_session *session,
                                          float penalty,
                                          uint32_t last_n);

// Makes the session's text equal to `tokens`: keeps the beginning that they share, and runs the model over the rest. `next` (may be
// null) gets the token that follows, picked as the session samples; `reused` (may be null) how many tokens stood there already.
akunu_status akunu_prefill(struct akunu_session *session,
                           const uint32_t *tokens,
                           size_t count,
                           uint32_t *next,
                           size_t *reused);

// Appends `token` to the session's text, and gives the one that follows it, picked as the session samples.
akunu_status akunu_decode_step(struct akunu_session *session, uint32_t token, uint32_t *next);

// Decodes up to `steps` tokens after `token` without coming back in between, where the device can: `token` is appended to the
// session's text, then each token found but the last, which is to be fed next. Fewer come where one ends the text; that one comes last.
akunu_status akunu_chain_decode(struct akunu_session *session,
                                uint32_t token,
                                size_t steps,
                                uint32_t *tokens,
                                size_t capacity,
                                size_t *count);

// The logits after the session's last token, one for each id. Where other work came between, the token goes through the
// model once more.
akunu_status akunu_get_logits(struct akunu_session *session,
                              float *logits,
                              size_t capacity,
                              size_t *count);

// Generates what follows the prompt `tokens`, of which nothing that stands in the session already is read again. `on_piece` (may be
// null) gets each piece of the text, with `user`; `stats` (may be null) how it went.
akunu_status akunu_generate(struct akunu_session *session,
                            const uint32_t *tokens,
                            size_t count,
                            const struct akunu_generate_options *options,
                            akunu_on_piece on_piece,
                            void *user,
                            struct akunu_stats *stats);

// As akunu_generate, but that the prompt is the session's whole text so far, and then `tokens` (`count` may be 0).
akunu_status akunu_generate_continue(struct akunu_session *session,
                                     const uint32_t *tokens,
                                     size_t count,
                                     const struct akunu_generate_options *options,
                                     akunu_on_piece on_piece,
                                     void *user,
                                     struct akunu_stats *stats);

// Ends what is being generated in a session soon, and what waits to be. From any thread, and from within a callback.
akunu_status akunu_cancel(struct akunu_session *session);

// A conversation as the model's own template writes it, for people to look at: akunu_encode_chat makes tokens of one.
//
// `conversation` is JSON: a list of messages in the form of the OpenAI API, or an object with `messages`, and if wanted `tools`
// and further variables of the template as `chat_template_kwargs`. `name` is that of a template, null for the usual one. With
// `add_prompt` not 0 the text ends where the model is to answer.
akunu_status akunu_apply_template(const struct akunu_model *model,
                                  const char *conversation,
                                  const char *name,
                                  uint32_t add_prompt,
                                  char *buffer,
                                  size_t capacity,
                                  size_t *length);

// The tokens of a conversation, as akunu_apply_template writes it. What reads like a special token in a message stays text:
// nothing that a user writes ends a turn.
akunu_status akunu_encode_chat(const struct akunu_model *model,
                               const char *conversation,
                               const char *name,
                               uint32_t add_prompt,
                               uint32_t *tokens,
                               size_t capacity,
                               size_t *count);

// Loads a model that makes vectors of texts: an encoder, a model whose files name a pooling, or any other with a
// pooling in the options. A null `path` loads the small story-teller that comes with the library. Null `options`
// are the usual ones. Free it with akunu_free_embedder.
akunu_status akunu_load_embedder(const char *path,
                                 const struct akunu_embed_options *options,
                                 struct akunu_embedder **embedder);

// Frees an embedder. A call that another thread has under way is waited for. Null is nothing to free.
akunu_status akunu_free_embedder(struct akunu_embedder *embedder);

// How many numbers a vector has to `width`, and the tokens of the longest text to `longest`, either of which may
// be null.
akunu_status akunu_embedding_width(const struct akunu_embedder *embedder,
                                   uint32_t *width,
                                   uint32_t *longest);

// The vectors of `count` UTF-8 texts, each up to its null character: one after the other, `width` numbers each, of
// length 1 unless the options keep theirs. None of the texts may be empty. Texts share passes, and each gets the
// vector that it gets alone.
akunu_status akunu_embed(const struct akunu_embedder *embedder,
                         const char *const *texts,
                         size_t count,
                         float *vectors,
                         size_t capacity,
                         size_t *length);

// The vectors of `count` texts as token ids, as the model is to see them: `ids` has those of all texts, one after
// the other, and `lengths` how many each has. Else as akunu_embed.
akunu_status akunu_embed_ids(const struct akunu_embedder *embedder,
                             const uint32_t *ids,
                             const size_t *lengths,
                             size_t count,
                             float *vectors,
                             size_t capacity,
                             size_t *length);

// Times each command of a decode step on its own: the median of `passes` (0: 10), with `depth` tokens in the cache. There are as many
// as akunu_config's `commands`. A free session is needed for the while.
akunu_status akunu_profile_decode_step(struct akunu_model *model,
                                       uint32_t passes,
                                       uint32_t depth,
                                       uint64_t *nanoseconds,
                                       size_t capacity,
                                       size_t *count);

// What command number `index` of a decode step is, and the kernel that it runs: `layer.3.attention attention_f16`.
akunu_status akunu_profile_label(const struct akunu_model *model,
                                 size_t index,
                                 char *buffer,
                                 size_t capacity,
                                 size_t *length);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* AKUNU_H */
