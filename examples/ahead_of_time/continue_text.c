/* Continues a text of tokens, always by the likeliest one, with a model that was compiled ahead of time.
 *
 *     kernfusion compile --preset tiny --work decode -o artefact
 *     cc -Iartefact examples/ahead_of_time/continue_text.c artefact/tiny.o artefact/libkernfusion_runtime.a -lm -lpthread -ldl
 *     ./a.out artefact/tiny.safetensors 2 20 1 2 3
 *
 * Arguments: the parameters, threads, how many tokens to add, the first tokens. It prints all tokens and then, for a comparison
 * bit by bit, the sum of the last logits' bits. */
#include "tiny.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int likeliest(const float *logits) {
    int best = 0;
    for (int token = 1; token < KF_TINY_VOCABULARY; token++)
        if (logits[token] > logits[best]) best = token;
    return best;
}

int main(int count, char **arguments) {
    if (count < 5) {
        fprintf(stderr, "usage: %s PARAMETERS THREADS TOKENS FIRST...\n", arguments[0]);
        return 2;
    }
    char error[256];
    kf_tiny *model = kf_tiny_open(arguments[1], atoi(arguments[2]), error, sizeof error);
    if (!model) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    static int32_t text[KF_TINY_CONTEXT];
    static float logits[KF_TINY_VOCABULARY];
    int length = 0, more = atoi(arguments[3]);
    for (int at = 4; at < count && length < KF_TINY_CONTEXT; at++) text[length++] = atoi(arguments[at]);
    /* The first tokens at once, and then one after another. */
    int failed = kf_tiny_read(model, text, length, 0, logits);
    while (!failed && more-- > 0 && length < KF_TINY_CONTEXT) {
        text[length] = likeliest(logits);
        failed = kf_tiny_step(model, &text[length], length, logits);
        length++;
    }
    if (failed) {
        fprintf(stderr, "%s\n", kf_tiny_error(model));
        return 1;
    }
    for (int at = 0; at < length; at++) printf("%d ", text[at]);
    uint32_t sum = 0, bits;
    for (int token = 0; token < KF_TINY_VOCABULARY; token++) {
        memcpy(&bits, &logits[token], sizeof bits);
        sum += bits;
    }
    printf("%08x\n", sum);
    kf_tiny_close(model);
    return 0;
}
