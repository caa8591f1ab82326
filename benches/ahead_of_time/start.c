/* How long a model that was compiled ahead of time takes to start, and then for each token.
 *
 * Arguments: the parameters, threads, tokens, and the time before this process was started, in nanoseconds since 1970. It prints, in
 * milliseconds: from there to main, to open and to the first logits, and the median of a token after that. */
#include MODEL_H
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define JOINED(a, b, c) a##b##c
#define NAME(a, b, c) JOINED(a, b, c)
#define MODEL_OPEN NAME(kf_, MODEL, _open)
#define MODEL_STEP NAME(kf_, MODEL, _step)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return time.tv_sec * 1e3 + time.tv_nsec * 1e-6;
}

static int ascending(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? -1 : 1; }

int main(int count, char **arguments) {
    double in_main = now(), start = count > 4 ? atof(arguments[4]) * 1e-6 : in_main;
    char error[256];
    NAME(kf_, MODEL, ) *model = MODEL_OPEN(arguments[1], atoi(arguments[2]), error, sizeof error);
    if (!model) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    double opened = now();
    static float logits[1 << 20];
    static double times[4096];
    int tokens = atoi(arguments[3]);
    double before = 0, first = 0;
    for (int32_t at = 0; at <= tokens; at++) {
        int32_t token = at % 50;
        before = now();
        if (MODEL_STEP(model, &token, at, logits)) return 1;
        if (at == 0) first = now();
        else times[at - 1] = now() - before;
    }
    qsort(times, tokens, sizeof *times, ascending);
    printf("main %.2f  open %.2f  first logits %.2f  a token %.2f\n", in_main - start, opened - in_main, first - opened,
           times[tokens / 2]);
    return 0;
}
