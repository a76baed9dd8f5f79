/* Opens an ONNX file in ONNX Runtime's C API and runs it once:
 *
 *     first_onnxruntime FILE.onnx THREADS RESULTS INPUTS {NAME TYPE BYTES DIMS INPUT.bin} ... {OUTPUT BYTES} ...
 *
 * INPUTS is the number of inputs. TYPE is the number of an element type in ONNX, DIMS are sizes, such as 1,3,224,224.
 * Prints seconds to the first result (see first.h), and writes the elements of all outputs to RESULTS. */
#include <string.h>

#include "first.h"
#include "onnxruntime_c_api.h"

static const OrtApi* ort;

static void check(OrtStatus* status) {
    if (status != NULL) {
        fprintf(stderr, "%s\n", ort->GetErrorMessage(status));
        exit(1);
    }
}

static size_t dims_in(char* text, int64_t* dims) {
    size_t rank = 0;
    for (char* part = strtok(text, ","); part != NULL && rank < MOST; part = strtok(NULL, ",")) {
        dims[rank++] = strtoll(part, NULL, 10);
    }
    return rank;
}

int main(int argc, char** argv) {
    const int input_count = argc > 4 ? atoi(argv[4]) : 0, first_output = 5 + 5 * input_count;
    const int output_count = (argc - first_output) / 2;
    if (argc <= first_output || input_count > MOST || output_count > MOST) {
        fprintf(stderr, "wrong arguments: see first_onnxruntime.c\n");
        return 2;
    }
    const double begin = seconds(CLOCK_MONOTONIC);
    ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    OrtEnv* env;
    OrtSessionOptions* options;
    OrtSession* session;
    OrtMemoryInfo* memory;
    check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "first", &env));
    check(ort->CreateSessionOptions(&options));
    check(ort->SetIntraOpNumThreads(options, atoi(argv[2])));
    check(ort->CreateSession(env, argv[1], options, &session));
    check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
    const char *input_names[MOST], *output_names[MOST];
    OrtValue *inputs[MOST], *outputs[MOST] = {NULL};
    for (int i = 0; i < input_count; ++i) {
        char** const words = argv + 5 + 5 * i;
        const size_t bytes = strtoull(words[2], NULL, 10);
        int64_t dims[MOST];
        const size_t rank = dims_in(words[3], dims);
        input_names[i] = words[0];
        check(ort->CreateTensorWithDataAsOrtValue(memory, read_bytes(words[4], bytes), bytes, dims, rank,
                                                  (ONNXTensorElementDataType)atoi(words[1]), &inputs[i]));
    }
    for (int i = 0; i < output_count; ++i) {
        output_names[i] = argv[first_output + 2 * i];
    }
    check(ort->Run(session, NULL, input_names, (const OrtValue* const*)inputs, (size_t)input_count, output_names,
                   (size_t)output_count, outputs));
    report(begin);
    FILE* file = results_file(argv[3]);
    for (int i = 0; i < output_count; ++i) {
        void* elements;
        check(ort->GetTensorMutableData(outputs[i], &elements));
        write_bytes(file, elements, strtoull(argv[first_output + 2 * i + 1], NULL, 10));
    }
    fclose(file);
    return 0;
}
