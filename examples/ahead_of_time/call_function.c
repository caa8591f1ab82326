/* Calls a model from elsewhere that was compiled ahead of time: the logits of a GPT-2 for tokens.
 *
 *     kernfusion import gpt2.pt2 -o gpt2
 *     kernfusion compile --program gpt2 -o artefact
 *     cc -Iartefact examples/ahead_of_time/call_function.c artefact/gpt2.o artefact/libkernfusion_runtime.a -lm -lpthread -ldl
 *     ./a.out artefact/gpt2.safetensors 2 1 2 3
 *
 * Arguments: the parameters, threads, the tokens; what lacks of them is 0. It prints a logit a line. */
#include "gpt2.h"
#include <stdio.h>
#include <stdlib.h>

static int32_t tokens[KF_GPT2_IN_INPUT_IDS];
static float logits[KF_GPT2_OUT_OUTPUT_0];

int main(int count, char **arguments) {
    if (count < 3) {
        fprintf(stderr, "usage: %s PARAMETERS THREADS TOKENS...\n", arguments[0]);
        return 2;
    }
    char error[256];
    kf_gpt2 *model = kf_gpt2_open(arguments[1], atoi(arguments[2]), error, sizeof error);
    if (!model) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    for (int at = 0; at < KF_GPT2_IN_INPUT_IDS && at + 3 < count; at++) tokens[at] = atoi(arguments[at + 3]);
    if (kf_gpt2_call(model, tokens, logits)) {
        fprintf(stderr, "%s\n", kf_gpt2_error(model));
        return 1;
    }
    for (int at = 0; at < KF_GPT2_OUT_OUTPUT_0; at++) printf("%.9g\n", logits[at]);
    kf_gpt2_close(model);
    return 0;
}
