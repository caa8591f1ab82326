/* The model "@name@", compiled ahead of time by Kernfusion.
 *
 *     cc program.c @name@.o libkernfusion_runtime.a -lm -lpthread -ldl -o program
 *
 * A model reads a text of tokens and gives, for the token that follows, a number for each token of the vocabulary: the logits,
 * whose softmax is its probability. What was read stays with the model, so that a text that goes on is not read again.
 *
 *     char error[256];
 *     kf_@name@ *model = kf_@name@_open("@name@.safetensors", 0, error, sizeof error);
 *     float logits[KF_@NAME@_BATCH * KF_@NAME@_VOCABULARY];
 *     if (!model || kf_@name@_step(model, tokens, 0, logits)) ...
 *
 * A model is used by one thread at a time; several models may be open. Results do not depend on the number of threads. */
#ifndef KF_@NAME@_H
#define KF_@NAME@_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    /* Texts that are read at once, which have the same length. */
    KF_@NAME@_BATCH = @batch@,
    /* The number of tokens there are: a token is a number from 0 to this less 1. */
    KF_@NAME@_VOCABULARY = @vocabulary@,
    /* The most tokens of a text. */
    KF_@NAME@_CONTEXT = @context@
};

/* An open model. */
typedef struct kernfusion_model kf_@name@;

/* The runtime; use the functions below. */
struct kernfusion_artefact;
extern const struct kernfusion_artefact kernfusion_artefact_@name@;
struct kernfusion_model *kernfusion_open(const struct kernfusion_artefact *artefact, const char *weights, int threads,
                                         char *error, size_t error_size);
int kernfusion_read(struct kernfusion_model *model, const int32_t *tokens, size_t count, size_t position, float *logits);
const char *kernfusion_error(const struct kernfusion_model *model);
void kernfusion_close(struct kernfusion_model *model);

/* Opens the model with the parameters in the file `weights`, on so many threads (0: one for each core). The file is mapped into
 * memory and must stay as it is. NULL if that is not possible; then the reason is in `error`, of `error_size` bytes. */
static inline kf_@name@ *kf_@name@_open(const char *weights, int threads, char *error, size_t error_size) {
    return kernfusion_open(&kernfusion_artefact_@name@, weights, threads, error, error_size);
}

/* Reads `count` tokens of each text that stand at `position` (0: its beginning), those of one text after those of another:
 * tokens[text * count + i]. What stands before must have been read; what was read from `position` on is forgotten. The logits of
 * the token that follows go to logits[text * VOCABULARY + token]. 0 if all went well; else kf_@name@_error says what did not. */
static inline int kf_@name@_read(kf_@name@ *model, const int32_t *tokens, size_t count, size_t position, float *logits) {
    return kernfusion_read(model, tokens, count, position, logits);
}

/* Reads one token of each text. */
static inline int kf_@name@_step(kf_@name@ *model, const int32_t *tokens, size_t position, float *logits) {
    return kernfusion_read(model, tokens, 1, position, logits);
}

/* What went wrong last. The text lives until the next call. */
static inline const char *kf_@name@_error(const kf_@name@ *model) { return kernfusion_error(model); }

/* Closes the model. NULL is allowed. */
static inline void kf_@name@_close(kf_@name@ *model) { kernfusion_close(model); }

#ifdef __cplusplus
}
#endif

#endif
