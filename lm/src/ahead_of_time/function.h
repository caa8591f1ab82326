/* The function "@name@", compiled ahead of time by Kernfusion.
 *
 *     cc program.c @name@.o libkernfusion_runtime.a -lm -lpthread -ldl -o program
 *
 *     char error[256];
 *     kf_@name@ *model = kf_@name@_open("@name@.safetensors", 0, error, sizeof error);
 *     if (!model || kf_@name@_call(model, ...)) ...
 *
 * Tensors are row-major. A function is used by one thread at a time; several may be open. Results do not depend on the number of
 * threads. */
#ifndef KF_@NAME@_H
#define KF_@NAME@_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How many elements each tensor has. */
enum {
@extents@
};

/* An open function. */
typedef struct kernfusion_model kf_@name@;

/* The runtime; use the functions below. */
struct kernfusion_artefact;
extern const struct kernfusion_artefact kernfusion_artefact_@name@;
struct kernfusion_model *kernfusion_open(const struct kernfusion_artefact *artefact, const char *weights, int threads,
                                         char *error, size_t error_size);
int kernfusion_call(struct kernfusion_model *model, const void *const *inputs, void *const *outputs);
const char *kernfusion_error(const struct kernfusion_model *model);
void kernfusion_close(struct kernfusion_model *model);

/* Opens the function with the parameters in the file `weights`, on so many threads (0: one for each core). The file is mapped into
 * memory and must stay as it is. NULL if that is not possible; then the reason is in `error`, of `error_size` bytes. */
static inline kf_@name@ *kf_@name@_open(const char *weights, int threads, char *error, size_t error_size) {
    return kernfusion_open(&kernfusion_artefact_@name@, weights, threads, error, error_size);
}

/* Computes
@types@
 * for these inputs. States that it updates stay with it until it is closed. 0 if all went well; else kf_@name@_error says what did
 * not. */
static inline int kf_@name@_call(kf_@name@ *model@parameters@) {
    const void *inputs[] = {@inputs@};
    void *outputs[] = {@outputs@};
    return kernfusion_call(model, inputs, outputs);
}

/* What went wrong last. The text lives until the next call. */
static inline const char *kf_@name@_error(const kf_@name@ *model) { return kernfusion_error(model); }

/* Closes the function. NULL is allowed. */
static inline void kf_@name@_close(kf_@name@ *model) { kernfusion_close(model); }

#ifdef __cplusplus
}
#endif

#endif
