/* graphkit.h - runs saved graphkit programs (.gkp files) without Python, and other networks after a conversion.
 *
 * Write a program with `graphkit export net -o net.gkp`, or in Python with net.save("net.gkp"). Link with -lgraphkit.
 * docs/c_interface.md has an example.
 *
 * Functions that can fail return a gk_status; gk_error() then returns a text that says what is wrong. No C++ exception
 * leaves the library. All functions may be called by several threads at the same time, also for one session, except
 * gk_close: no other call on a session of the file may run then or follow.
 */
#ifndef GRAPHKIT_H
#define GRAPHKIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define GK_API __attribute__((visibility("default")))
#else
#define GK_API
#endif

/* The version of this interface. gk_open compares it with the library's. New functions, statuses, and fields at the end
 * of gk_options do not change it: programs that were compiled with an older graphkit.h of the same version still run. */
#define GK_ABI_VERSION 1

typedef enum gk_status {
    GK_OK = 0,
    GK_ERROR_ARGUMENT = 1,  /* an argument is wrong, such as a null pointer */
    GK_ERROR_FILE = 2,      /* the file cannot be read */
    GK_ERROR_FORMAT = 3,    /* the file is not a saved program or network, or is damaged */
    GK_ERROR_VERSION = 4,   /* another version of graphkit wrote the file, or this header is another version's */
    GK_ERROR_PROCESSOR = 5, /* the file was written for another kind of processor, or for another oneDNN */
    GK_ERROR_MEMORY = 6,    /* there is not enough memory */
    GK_ERROR_RUN = 7,       /* a step of the program failed, for example because an index is out of range */
    GK_ERROR_INTERNAL = 8,  /* an error of graphkit itself */
    GK_ERROR_LIBRARY = 9,   /* oneDNN's libdnnl.so.3 is neither beside libgraphkit.so nor where the system looks */
    GK_ERROR_LIMIT = 10,    /* a run or a conversion exceeded a limit of gk_options */
    /* of networks that are not saved programs: */
    GK_ERROR_CONVERTER = 11,  /* there is no converter, or it failed */
    GK_ERROR_UNSUPPORTED = 12 /* graphkit cannot save the network as a program */
} gk_status;

/* Types of elements. float16 and bfloat16 have 2 bytes. A bool has 1 byte, 0 or 1. */
typedef enum gk_type {
    GK_TYPE_NONE = 0,
    GK_FLOAT32 = 1,
    GK_FLOAT64 = 2,
    GK_FLOAT16 = 3,
    GK_BFLOAT16 = 4,
    GK_INT8 = 5,
    GK_INT16 = 6,
    GK_INT32 = 7,
    GK_INT64 = 8,
    GK_UINT8 = 9,
    GK_UINT16 = 10,
    GK_UINT32 = 11,
    GK_UINT64 = 12,
    GK_BOOL = 13
} gk_type;

/* A program that is ready to run. */
typedef struct gk_session gk_session;

/* Set unused fields to zero, for example with gk_options options = {0}. The library copies all texts. */
typedef struct gk_options {
    /* Most threads of a run. 0: as many as when the program was written, but at most one for each core. The number does
     * not change results. */
    int32_t threads;
    /* Most iterations of one loop of the program. 0: any number. A run that exceeds it fails with GK_ERROR_LIMIT. */
    int64_t max_iterations;
    /* Most seconds of a run. 0: any time. It is checked between steps, about every 0.1 s. */
    double timeout;

    /* The following fields are for networks that are not saved programs: see gk_open. */

    /* The converter: the path of the command `graphkit`, or a name that is searched for on PATH. NULL: the environment
     * variable GRAPHKIT_CONVERTER, or else `graphkit` on PATH. "": no process may be started. */
    const char* converter;
    /* More arguments of `graphkit export`, such as "x:1,64" or "--any-size". The list ends with NULL. NULL: none. */
    const char* const* converter_arguments;
    /* Most seconds of a conversion. 0: any time. A longer one is killed, and gk_open returns GK_ERROR_LIMIT. */
    double convert_timeout;
    /* A folder that keeps converted programs, for later calls. It is made if it does not exist. Other users must not be
     * able to write into it. NULL or "": programs are not kept. */
    const char* cache_folder;
    /* Most bytes of all programs in cache_folder. If a new program exceeds this, those that were not used for longest
     * are deleted. A program that is larger itself is not kept. 0: 8 GiB. -1: any number. */
    int64_t cache_bytes;
} gk_options;

/* The library's version, such as "0.1.0". */
GK_API const char* gk_version(void);

/* The library's GK_ABI_VERSION. */
GK_API uint32_t gk_abi_version(void);

/* The text of the latest error of the calling thread; "" if there was none. It is valid until the thread's next error.
 */
GK_API const char* gk_error(void);

/* The name of a status, such as "GK_ERROR_FILE". */
GK_API const char* gk_status_name(gk_status status);

/* The name of a type, such as "float32", and the bytes of one element. For other numbers, "" and 0. */
GK_API const char* gk_type_name(gk_type type);
GK_API size_t gk_type_size(gk_type type);

/* Opens a saved program. `options` may be NULL. On success, *session must be closed with gk_close; otherwise it is
 * NULL. The file must not be changed while the session is open.
 *
 * If the name of another file ends in .onnx or .json (a graph of graphkit, or NAME-symbol.json of MXNet), gk_open runs
 * the command `graphkit export` of graphkit for Python as a separate process. It writes a temporary program, which
 * gk_open opens and removes. Without this command, the status is GK_ERROR_CONVERTER. */
#define gk_open(path, options, session) \
    gk_open_checked((path), (options), (session), GK_ABI_VERSION, sizeof(gk_options))
GK_API gk_status gk_open_checked(const char* path, const gk_options* options, gk_session** session,
                                 uint32_t abi_version, size_t options_size);

/* Opens a saved program from `size` bytes of memory, the contents of a .gkp file. The bytes are copied. Networks in
 * other formats can only be opened as files. */
#define gk_open_memory(data, size, options, session) \
    gk_open_memory_checked((data), (size), (options), (session), GK_ABI_VERSION, sizeof(gk_options))
GK_API gk_status gk_open_memory_checked(const void* data, size_t size, const gk_options* options, gk_session** session,
                                        uint32_t abi_version, size_t options_size);

/* Closes a file: frees the session that gk_open returned, and those of its other programs. NULL is allowed. */
GK_API void gk_close(gk_session* session);

/* A file may contain several programs, for different shapes of the inputs. Each has a session of its own, which may be
 * passed to all functions. gk_open returns that of the first one. Inputs and outputs of all programs have the same
 * names, types and ranks. Sessions of one file share its weights, its options and its random state. Pass one of them to
 * gk_close.
 *
 * gk_program returns the session of program `number`, counted from 0; NULL if there is none. gk_find_program finds the
 * program for inputs of these shapes: input_dims[i] points to the gk_input_rank(session, i) sizes of input i. If there
 * is none, the status is GK_ERROR_ARGUMENT, and the text lists the shapes of the programs. */
GK_API size_t gk_program_count(const gk_session* session);
GK_API gk_session* gk_program(gk_session* session, size_t number);
GK_API gk_status gk_find_program(gk_session* session, const int64_t* const* input_dims, size_t input_count,
                                 gk_session** found);

/* Inputs and outputs are numbered from 0. For a number that does not exist, or a session that is NULL, names and dims
 * are NULL and other results 0. Pointers are valid until the session is closed. */
GK_API size_t gk_input_count(const gk_session* session);
GK_API const char* gk_input_name(const gk_session* session, size_t input);
GK_API gk_type gk_input_type(const gk_session* session, size_t input);
GK_API size_t gk_input_rank(const gk_session* session, size_t input);
GK_API const int64_t* gk_input_dims(const gk_session* session, size_t input);
GK_API size_t gk_input_bytes(const gk_session* session, size_t input);

GK_API size_t gk_output_count(const gk_session* session);
GK_API const char* gk_output_name(const gk_session* session, size_t output);
GK_API gk_type gk_output_type(const gk_session* session, size_t output);
GK_API size_t gk_output_rank(const gk_session* session, size_t output);
GK_API const int64_t* gk_output_dims(const gk_session* session, size_t output);
GK_API size_t gk_output_bytes(const gk_session* session, size_t output);

/* Random nodes, such as Dropout in training mode, draw numbers that depend on a seed and on a step. The seed is that of
 * the export, and the step is 0 at first. Each run takes the present step, and adds 1. A run of Python with the same
 * Executor.rng, which is (seed, step), draws the same numbers. A program without random nodes keeps its state. */
GK_API gk_status gk_get_random_state(const gk_session* session, uint64_t* seed, uint64_t* step);
GK_API gk_status gk_set_random_state(gk_session* session, uint64_t seed, uint64_t step);

/* Runs the program. inputs[i] points to the elements of input i, gk_input_bytes(session, i) bytes, row-major;
 * outputs[i] points to memory of gk_output_bytes(session, i) bytes, or is NULL if you do not need this output. Memory
 * of outputs must not overlap other memory that is passed. After an error, the contents of outputs are undefined. */
GK_API gk_status gk_run(gk_session* session, const void* const* inputs, size_t input_count, void* const* outputs,
                        size_t output_count);

/* Batches of any size. If the rows of a batch are independent, the file says so when it is written: then
 * gk_input_batch_axis returns the axis of an input that has the rows, and -1 for an input that all rows share.
 * gk_output_batch_axis does the same for outputs. Otherwise, both return -1 for all numbers.
 *
 * gk_run_shapes runs inputs of the given shapes: input_dims[i] points to the sizes of input i, as in gk_find_program.
 * If the file has no program for these shapes, but for other numbers of rows, 0 rows or more are computed in parts, by
 * the programs of the file. The parts read from slices of your inputs and write to slices of your outputs. If the last
 * part is smaller than its program, its last row is repeated, in a copy. Memory is passed as to gk_run. If the file has
 * no programs with these sizes in the other axes, or if inputs have different numbers of rows, the status is
 * GK_ERROR_ARGUMENT, and the text names the shapes or inputs.
 *
 * If the file was written with a program for any sizes, gk_run_shapes also accepts other sizes of the symbolic axes. It
 * then makes the kernels for these sizes, and keeps those of the latest few. gk_find_output_dims and gk_find_runs make
 * them, too: they refuse the same sizes as gk_run_shapes.
 *
 * gk_find_output_dims writes the shape of an output for these inputs: gk_output_rank(session, output) sizes.
 * gk_find_runs writes how often each program runs: gk_program_count(session) numbers, which are all 0 if the program for
 * any sizes runs. Programs with more rows run first. Results have the bits of runs of these programs. */
GK_API int32_t gk_input_batch_axis(const gk_session* session, size_t input);
GK_API int32_t gk_output_batch_axis(const gk_session* session, size_t output);
GK_API gk_status gk_find_output_dims(gk_session* session, const int64_t* const* input_dims, size_t input_count,
                                     size_t output, int64_t* dims);
GK_API gk_status gk_find_runs(gk_session* session, const int64_t* const* input_dims, size_t input_count,
                              uint64_t* runs);
GK_API gk_status gk_run_shapes(gk_session* session, const void* const* inputs, const int64_t* const* input_dims,
                               size_t input_count, void* const* outputs, size_t output_count);

#ifdef __cplusplus
}
#endif

#endif
