/* Opens a network of any format that graphkit reads, and prints its inputs and outputs:
 * open_onnx [--cache FOLDER] [--timeout SECONDS] NETWORK [ARGUMENT ...]
 *
 * A .gkp file opens at once. A .onnx or .json file is first converted by the command `graphkit`, which gets the
 * arguments, such as x:1,64. With --cache, the next run opens the converted program from the folder. */
#include <graphkit.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void describe(const char* kind, const char* name, gk_type type, const int64_t* dims, size_t rank) {
    printf("%s %s %s [", kind, name, gk_type_name(type));
    for (size_t i = 0; i < rank; ++i) {
        printf("%s%" PRId64, i > 0 ? ", " : "", dims[i]);
    }
    printf("]\n");
}

int main(int argc, char** argv) {
    gk_options options = {0};
    int next = 1;
    for (; next + 1 < argc; next += 2) {
        if (strcmp(argv[next], "--cache") == 0) {
            options.cache_folder = argv[next + 1];
        } else if (strcmp(argv[next], "--timeout") == 0) {
            options.convert_timeout = strtod(argv[next + 1], NULL);
        } else {
            break;
        }
    }
    if (next >= argc) {
        fprintf(stderr, "usage: open_onnx [--cache FOLDER] [--timeout SECONDS] NETWORK [ARGUMENT ...]\n");
        return 2;
    }
    const char* path = argv[next];
    options.converter_arguments = (const char* const*)(argv + next + 1); /* argv ends with NULL */
    gk_session* session;
    const gk_status status = gk_open(path, &options, &session);
    if (status != GK_OK) {
        fprintf(stderr, "%s: %s\n", gk_status_name(status), gk_error());
        return 1;
    }
    for (size_t i = 0; i < gk_input_count(session); ++i) {
        describe("input", gk_input_name(session, i), gk_input_type(session, i), gk_input_dims(session, i),
                 gk_input_rank(session, i));
    }
    for (size_t i = 0; i < gk_output_count(session); ++i) {
        describe("output", gk_output_name(session, i), gk_output_type(session, i), gk_output_dims(session, i),
                 gk_output_rank(session, i));
    }
    gk_close(session);
    return 0;
}
