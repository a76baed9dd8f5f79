/* Trains with a step that graphkit wrote, in ONNX Runtime's C API: ./train STEP INIT IMAGES LABELS
 *
 * IMAGES contains float32 images [N, 1, 8, 8], LABELS int64 class numbers [N]. The last images are not used if they
 * fill no batch. */
#include <stdio.h>
#include <stdlib.h>

#include "onnxruntime_c_api.h"

enum { BATCH = 20, PIXELS = 8 * 8, MOST = 256 };

static const OrtApi* ort;

static void check(OrtStatus* status) {
    if (status != NULL) {
        fprintf(stderr, "%s\n", ort->GetErrorMessage(status));
        exit(1);
    }
}

/* Stores the names of a session's outputs. */
static size_t outputs_of(OrtSession* session, char** names) {
    OrtAllocator* allocator;
    size_t count;
    check(ort->GetAllocatorWithDefaultOptions(&allocator));
    check(ort->SessionGetOutputCount(session, &count));
    if (count > MOST) {
        fprintf(stderr, "%zu outputs; at most %d are possible\n", count, MOST);
        exit(1);
    }
    for (size_t i = 0; i < count; ++i) {
        check(ort->SessionGetOutputName(session, i, allocator, &names[i]));
    }
    return count;
}

static FILE* opened(const char* path) {
    FILE* file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    return file;
}

static OrtValue* tensor(OrtMemoryInfo* memory, void* data, size_t bytes, const int64_t* shape, size_t rank,
                        ONNXTensorElementDataType type) {
    OrtValue* made = NULL;
    check(ort->CreateTensorWithDataAsOrtValue(memory, data, bytes, shape, rank, type, &made));
    return made;
}

int main(int argc, char** argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: %s STEP INIT IMAGES LABELS\n", argv[0]);
        return 2;
    }
    ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    if (ort == NULL) {
        fprintf(stderr, "ONNX Runtime %s is older than the header\n", OrtGetApiBase()->GetVersionString());
        return 1;
    }
    OrtEnv* env;
    OrtSessionOptions* options;
    OrtSession *step, *init;
    OrtMemoryInfo* memory;
    check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "train", &env));
    check(ort->CreateSessionOptions(&options));
    check(ort->CreateSession(env, argv[1], options, &step));
    check(ort->CreateSession(env, argv[2], options, &init));
    check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));

    /* The init file returns the first states, by the names of the step's inputs. */
    static char *states[MOST], *results[MOST];
    static OrtValue *values[MOST], *made[MOST];
    const size_t count = outputs_of(init, states), outputs = outputs_of(step, results);
    check(ort->Run(init, NULL, NULL, NULL, 0, (const char* const*)states, count, values));

    FILE *images = opened(argv[3]), *labels = opened(argv[4]);
    int steps = 0;
    static float x[BATCH * PIXELS];
    static int64_t y[BATCH];
    const int64_t x_shape[] = {BATCH, 1, 8, 8}, y_shape[] = {BATCH};
    static const char* names[MOST + 2] = {"x", "target"};
    const OrtValue* feeds[MOST + 2];
    for (size_t i = 0; i < count; ++i) {
        names[i + 2] = states[i];
    }
    while (fread(x, sizeof x, 1, images) == 1 && fread(y, sizeof y, 1, labels) == 1) {
        OrtValue* batch = tensor(memory, x, sizeof x, x_shape, 4, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
        OrtValue* target = tensor(memory, y, sizeof y, y_shape, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64);
        feeds[0] = batch;
        feeds[1] = target;
        for (size_t i = 0; i < count; ++i) {
            feeds[i + 2] = values[i];
        }
        /* The first output is the loss; the last ones are the new states, in the order of the init file's outputs. */
        for (size_t i = 0; i < outputs; ++i) {
            made[i] = NULL;
        }
        check(ort->Run(step, NULL, names, feeds, count + 2, (const char* const*)results, outputs, made));
        float* loss;
        check(ort->GetTensorMutableData(made[0], (void**)&loss));
        printf("%.7f\n", *loss);
        ++steps;
        ort->ReleaseValue(batch);
        ort->ReleaseValue(target);
        for (size_t i = 0; i < count; ++i) {
            ort->ReleaseValue(values[i]);
            values[i] = made[outputs - count + i];
        }
        for (size_t i = 0; i < outputs - count; ++i) {
            ort->ReleaseValue(made[i]);
        }
    }
    fclose(images);
    fclose(labels);
    OrtAllocator* allocator;
    check(ort->GetAllocatorWithDefaultOptions(&allocator));
    for (size_t i = 0; i < count; ++i) {
        ort->ReleaseValue(values[i]);
        allocator->Free(allocator, states[i]);
    }
    for (size_t i = 0; i < outputs; ++i) {
        allocator->Free(allocator, results[i]);
    }
    ort->ReleaseMemoryInfo(memory);
    ort->ReleaseSession(init);
    ort->ReleaseSession(step);
    ort->ReleaseSessionOptions(options);
    ort->ReleaseEnv(env);
    if (steps == 0) {
        fprintf(stderr, "%s and %s contain less than a batch of %d\n", argv[3], argv[4], BATCH);
        return 1;
    }
    return 0;
}
