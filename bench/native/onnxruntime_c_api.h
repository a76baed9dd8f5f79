/* The part of ONNX Runtime's C API that examples/c_training/train.c and bench/native/first_onnxruntime.c use. The Python
 * package of ONNX Runtime contains the library without its header. Functions are found by their positions in OrtApi,
 * which are the same in all versions.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define ORT_API_VERSION 17

typedef struct OrtEnv OrtEnv;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtStatus OrtStatus;
typedef struct OrtValue OrtValue;

typedef struct OrtAllocator {
    uint32_t version;
    void* (*Alloc)(struct OrtAllocator*, size_t);
    void (*Free)(struct OrtAllocator*, void*);
} OrtAllocator;

typedef enum { ORT_LOGGING_LEVEL_WARNING = 2 } OrtLoggingLevel;
typedef enum {
    ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 = 7
} ONNXTensorElementDataType;
typedef enum { OrtArenaAllocator = 1 } OrtAllocatorType;
typedef enum { OrtMemTypeDefault = 0 } OrtMemType;

typedef const char* const* OrtNames;

typedef struct OrtApi {
    void* from_0[2];
    const char* (*GetErrorMessage)(const OrtStatus*);
    OrtStatus* (*CreateEnv)(OrtLoggingLevel, const char*, OrtEnv**);
    void* from_4[3];
    OrtStatus* (*CreateSession)(const OrtEnv*, const char*, const OrtSessionOptions*, OrtSession**);
    void* from_8[1];
    OrtStatus* (*Run)(OrtSession*, const OrtRunOptions*, OrtNames, const OrtValue* const*, size_t, OrtNames, size_t,
                      OrtValue**);
    OrtStatus* (*CreateSessionOptions)(OrtSessionOptions**);
    void* from_11[13];
    OrtStatus* (*SetIntraOpNumThreads)(OrtSessionOptions*, int);
    void* from_25[6];
    OrtStatus* (*SessionGetOutputCount)(const OrtSession*, size_t*);
    void* from_32[5];
    OrtStatus* (*SessionGetOutputName)(const OrtSession*, size_t, OrtAllocator*, char**);
    void* from_38[11];
    OrtStatus* (*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo*, void*, size_t, const int64_t*, size_t,
                                                 ONNXTensorElementDataType, OrtValue**);
    void* from_50[1];
    OrtStatus* (*GetTensorMutableData)(OrtValue*, void**);
    void* from_52[17];
    OrtStatus* (*CreateCpuMemoryInfo)(OrtAllocatorType, OrtMemType, OrtMemoryInfo**);
    void* from_70[8];
    OrtStatus* (*GetAllocatorWithDefaultOptions)(OrtAllocator**);
    void* from_79[13];
    void (*ReleaseEnv)(OrtEnv*);
    void* from_93[1];
    void (*ReleaseMemoryInfo)(OrtMemoryInfo*);
    void (*ReleaseSession)(OrtSession*);
    void (*ReleaseValue)(OrtValue*);
    void* from_97[3];
    void (*ReleaseSessionOptions)(OrtSessionOptions*);
} OrtApi;

typedef struct OrtApiBase {
    const OrtApi* (*GetApi)(uint32_t);
    const char* (*GetVersionString)(void);
} OrtApiBase;

const OrtApiBase* OrtGetApiBase(void);
