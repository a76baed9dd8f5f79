/* Runs a program that graphkit saved: run PROGRAM.gkp [INPUT.bin ...]
 *
 * Each file contains the elements of one input. Without files, inputs are generated. Prints inputs and outputs. */
#include <graphkit.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program if a call failed. */
static void check(gk_status status) {
    if (status != GK_OK) {
        fprintf(stderr, "%s: %s\n", gk_status_name(status), gk_error());
        exit(1);
    }
}

/* Memory is aligned for all element types. An array may be empty, so there is one byte more. */
static void* allocated(size_t bytes) {
    void* memory = calloc(bytes + 1, 1);
    if (memory == NULL) {
        fprintf(stderr, "not enough memory\n");
        exit(1);
    }
    return memory;
}

static void* read_file(const char* path, size_t bytes) {
    FILE* file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    char* memory = allocated(bytes);
    if (fread(memory, 1, bytes + 1, file) != bytes) {
        fprintf(stderr, "%s does not contain %zu bytes\n", path, bytes);
        exit(1);
    }
    fclose(file);
    return memory;
}

/* Floating-point numbers from -1 to 0.875, integers that are 0 or 1. */
static void* generated(gk_type type, size_t bytes) {
    void* memory = allocated(bytes);
    if (type == GK_FLOAT32) {
        for (size_t k = 0; k < bytes / sizeof(float); ++k) {
            ((float*)memory)[k] = (float)(k % 16) / 8.0f - 1.0f;
        }
    } else if (type == GK_INT64) {
        for (size_t k = 0; k < bytes / sizeof(int64_t); ++k) {
            ((int64_t*)memory)[k] = (int64_t)(k % 2);
        }
    } else {
        fprintf(stderr, "inputs are generated for float32 and int64 only: give files\n");
        exit(1);
    }
    return memory;
}

static void describe(const char* kind, const char* name, gk_type type, const int64_t* dims, size_t rank) {
    printf("%s %s %s [", kind, name, gk_type_name(type));
    for (size_t i = 0; i < rank; ++i) {
        printf("%s%" PRId64, i > 0 ? ", " : "", dims[i]);
    }
    printf("]\n");
}

static void print_elements(gk_type type, const void* elements, size_t bytes) {
    if (type == GK_FLOAT32) {
        for (size_t k = 0; k < bytes / sizeof(float); ++k) {
            printf("%.9g\n", ((const float*)elements)[k]); /* 9 digits determine all bits */
        }
    } else if (type == GK_INT64) {
        for (size_t k = 0; k < bytes / sizeof(int64_t); ++k) {
            printf("%" PRId64 "\n", ((const int64_t*)elements)[k]);
        }
    } else {
        printf("(%zu bytes)\n", bytes);
    }
}

int main(int argc, char** argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: run PROGRAM.gkp [INPUT.bin ...]\n");
        return 2;
    }
    gk_session* session;
    check(gk_open(argv[1], NULL, &session));
    const size_t input_count = gk_input_count(session), output_count = gk_output_count(session);
    const size_t file_count = (size_t)argc - 2;
    if (file_count != 0 && file_count != input_count) {
        fprintf(stderr, "the program has %zu inputs, but %zu files were given\n", input_count, file_count);
        return 2;
    }
    void** inputs = allocated(input_count * sizeof(void*));
    for (size_t i = 0; i < input_count; ++i) {
        const gk_type type = gk_input_type(session, i);
        const size_t bytes = gk_input_bytes(session, i);
        describe("input", gk_input_name(session, i), type, gk_input_dims(session, i), gk_input_rank(session, i));
        inputs[i] = file_count > 0 ? read_file(argv[2 + i], bytes) : generated(type, bytes);
    }
    void** outputs = allocated(output_count * sizeof(void*));
    for (size_t i = 0; i < output_count; ++i) {
        outputs[i] = allocated(gk_output_bytes(session, i));
    }
    check(gk_run(session, (const void* const*)inputs, input_count, outputs, output_count));
    for (size_t i = 0; i < output_count; ++i) {
        const gk_type type = gk_output_type(session, i);
        describe("output", gk_output_name(session, i), type, gk_output_dims(session, i), gk_output_rank(session, i));
        print_elements(type, outputs[i], gk_output_bytes(session, i));
        free(outputs[i]);
    }
    for (size_t i = 0; i < input_count; ++i) {
        free(inputs[i]);
    }
    free(inputs);
    free(outputs);
    gk_close(session);
    return 0;
}
