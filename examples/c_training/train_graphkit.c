/* Trains with a step that graphkit wrote, in libgraphkit.so: ./train_graphkit STEP INIT IMAGES LABELS
 *
 * STEP and INIT are .gkp files. IMAGES contains float32 images, LABELS int64 class numbers. The last images are not used
 * if they fill no batch. */
#include <graphkit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 256 };

static void check(gk_status status) {
    if (status != GK_OK) {
        fprintf(stderr, "%s\n", gk_error());
        exit(1);
    }
}

static void* allocated(size_t bytes) {
    void* memory = malloc(bytes + 1);
    if (memory == NULL) {
        perror("malloc");
        exit(1);
    }
    return memory;
}

static FILE* opened(const char* path) {
    FILE* file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    return file;
}

/* Returns the number of the input with this name. */
static size_t input_named(const gk_session* session, const char* name) {
    for (size_t i = 0; i < gk_input_count(session); ++i) {
        if (strcmp(gk_input_name(session, i), name) == 0) {
            return i;
        }
    }
    fprintf(stderr, "the step has no input named %s\n", name);
    exit(1);
}

int main(int argc, char** argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: %s STEP INIT IMAGES LABELS\n", argv[0]);
        return 2;
    }
    gk_session *step, *init;
    check(gk_open(argv[1], NULL, &step));
    check(gk_open(argv[2], NULL, &init));
    const size_t states = gk_output_count(init), inputs = gk_input_count(step), outputs = gk_output_count(step);
    if (inputs > MOST || outputs > MOST || states > outputs) {
        fprintf(stderr, "%s and %s do not belong together, or have more than %d arrays\n", argv[1], argv[2], MOST);
        return 1;
    }

    /* The init file returns the first states, by the names of the step's inputs. The last outputs of the step are the
     * new states, in the same order. Two arrays for each state are read and written in turn. */
    static const void* given[MOST];
    static void *made[MOST], *first[MOST], *old[MOST];
    size_t place[MOST];
    for (size_t i = 0; i < states; ++i) {
        place[i] = input_named(step, gk_output_name(init, i));
        first[i] = allocated(gk_output_bytes(init, i));
        old[i] = first[i];
        made[outputs - states + i] = allocated(gk_output_bytes(init, i));
    }
    check(gk_run(init, NULL, 0, first, states));

    float loss;
    made[0] = &loss; /* other outputs are not needed: their memory is NULL */
    const size_t x = input_named(step, "x"), y = input_named(step, "target");
    void *batch = allocated(gk_input_bytes(step, x)), *target = allocated(gk_input_bytes(step, y));
    given[x] = batch;
    given[y] = target;
    FILE *images = opened(argv[3]), *labels = opened(argv[4]);
    int steps = 0;
    while (fread(batch, gk_input_bytes(step, x), 1, images) == 1 &&
           fread(target, gk_input_bytes(step, y), 1, labels) == 1) {
        for (size_t i = 0; i < states; ++i) {
            given[place[i]] = old[i];
        }
        check(gk_run(step, given, inputs, made, outputs));
        printf("%.9g\n", loss);
        ++steps;
        for (size_t i = 0; i < states; ++i) {
            void* const new_state = made[outputs - states + i];
            made[outputs - states + i] = old[i];
            old[i] = new_state;
        }
    }
    fclose(images);
    fclose(labels);
    for (size_t i = 0; i < states; ++i) {
        free(old[i]);
        free(made[outputs - states + i]);
    }
    free(batch);
    free(target);
    gk_close(init);
    gk_close(step);
    if (steps == 0) {
        fprintf(stderr, "%s and %s contain less than a batch\n", argv[3], argv[4]);
        return 1;
    }
    return 0;
}
