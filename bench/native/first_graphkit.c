/* Opens a saved program and runs it once: first_graphkit PROGRAM.gkp THREADS RESULTS INPUT.bin ...
 *
 * Prints seconds to the first result (see first.h), and writes the elements of all outputs to RESULTS. */
#include <graphkit.h>

#include "first.h"

static void check(gk_status status) {
    if (status != GK_OK) {
        fprintf(stderr, "%s: %s\n", gk_status_name(status), gk_error());
        exit(1);
    }
}

int main(int argc, char** argv) {
    if (argc < 4 || argc > MOST) {
        fprintf(stderr, "usage: first_graphkit PROGRAM.gkp THREADS RESULTS INPUT.bin ...\n");
        return 2;
    }
    const double begin = seconds(CLOCK_MONOTONIC);
    gk_options options = {0};
    options.threads = atoi(argv[2]);
    gk_session* session;
    check(gk_open(argv[1], &options, &session));
    const void* inputs[MOST];
    void* outputs[MOST];
    const size_t input_count = gk_input_count(session), output_count = gk_output_count(session);
    if (input_count != (size_t)(argc - 4) || output_count > MOST) {
        fprintf(stderr, "the program has %zu inputs and %zu outputs\n", input_count, output_count);
        return 2;
    }
    for (size_t i = 0; i < input_count; ++i) {
        inputs[i] = read_bytes(argv[4 + i], gk_input_bytes(session, i));
    }
    for (size_t i = 0; i < output_count; ++i) {
        outputs[i] = malloc(gk_output_bytes(session, i) + 1);
    }
    check(gk_run(session, inputs, input_count, outputs, output_count));
    report(begin);
    FILE* file = results_file(argv[3]);
    for (size_t i = 0; i < output_count; ++i) {
        write_bytes(file, outputs[i], gk_output_bytes(session, i));
    }
    fclose(file);
    gk_close(session);
    return 0;
}
