/* Runs a program that graphkit saved: run [--rows N] PROGRAM.gkp [INPUT.bin ...]
 *
 * With --rows, it runs a batch of N rows, which the programs of the file compute in parts.
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

static size_t bytes_of(gk_type type, const int64_t* dims, size_t rank) {
    size_t bytes = gk_type_size(type);
    for (size_t i = 0; i < rank; ++i) {
        bytes *= (size_t)dims[i];
    }
    return bytes;
}

/* A copy of dims, with `rows` along the batch axis. rows < 0: as they are. */
static int64_t* dims_of_batch(const int64_t* dims, size_t rank, int32_t batch_axis, int64_t rows) {
    int64_t* copy = allocated(rank * sizeof *copy);
    memcpy(copy, dims, rank * sizeof *copy);
    if (rows >= 0 && batch_axis >= 0) {
        copy[batch_axis] = rows;
    }
    return copy;
}

static void run(gk_session* session, int64_t rows, char** files, size_t file_count) {
    const size_t input_count = gk_input_count(session), output_count = gk_output_count(session);
    void** inputs = allocated(input_count * sizeof(void*));
    int64_t** input_dims = allocated(input_count * sizeof(int64_t*));
    for (size_t i = 0; i < input_count; ++i) {
        const gk_type type = gk_input_type(session, i);
        const size_t rank = gk_input_rank(session, i);
        input_dims[i] = dims_of_batch(gk_input_dims(session, i), rank, gk_input_batch_axis(session, i), rows);
        const size_t bytes = bytes_of(type, input_dims[i], rank);
        describe("input", gk_input_name(session, i), type, input_dims[i], rank);
        inputs[i] = file_count > 0 ? read_file(files[i], bytes) : generated(type, bytes);
    }
    const int64_t* const* const dims = (const int64_t* const*)input_dims;
    void** outputs = allocated(output_count * sizeof(void*));
    int64_t** output_dims = allocated(output_count * sizeof(int64_t*));
    for (size_t i = 0; i < output_count; ++i) {
        const size_t rank = gk_output_rank(session, i);
        output_dims[i] = allocated(rank * sizeof(int64_t));
        check(gk_find_output_dims(session, dims, input_count, i, output_dims[i]));
        outputs[i] = allocated(bytes_of(gk_output_type(session, i), output_dims[i], rank));
    }
    check(gk_run_shapes(session, (const void* const*)inputs, dims, input_count, outputs, output_count));
    for (size_t i = 0; i < output_count; ++i) {
        const gk_type type = gk_output_type(session, i);
        const size_t rank = gk_output_rank(session, i);
        describe("output", gk_output_name(session, i), type, output_dims[i], rank);
        print_elements(type, outputs[i], bytes_of(type, output_dims[i], rank));
        free(outputs[i]);
        free(output_dims[i]);
    }
    for (size_t i = 0; i < input_count; ++i) {
        free(inputs[i]);
        free(input_dims[i]);
    }
    free(inputs);
    free(outputs);
    free(input_dims);
    free(output_dims);
}

int main(int argc, char** argv) {
    const int first = argc > 2 && strcmp(argv[1], "--rows") == 0 ? 3 : 1;
    if (argc <= first) {
        fprintf(stderr, "usage: run [--rows N] PROGRAM.gkp [INPUT.bin ...]\n");
        return 2;
    }
    gk_session* session;
    check(gk_open(argv[first], NULL, &session));
    const size_t file_count = (size_t)(argc - first - 1), input_count = gk_input_count(session);
    if (file_count != 0 && file_count != input_count) {
        fprintf(stderr, "the program has %zu inputs, but %zu files were given\n", input_count, file_count);
        return 2;
    }
    run(session, first == 3 ? strtoll(argv[2], NULL, 10) : -1, argv + first + 1, file_count);
    gk_close(session);
    return 0;
}
