/* graphkit.h for Node, through Node-API:
 *
 *     const {Program} = require('./graphkit.node');
 *     const program = new Program('net.gkp', {threads: 2, maxIterations: 1000, timeout: 1.5}); // fields of gk_options
 *     const network = new Program('net.onnx', {converter: '/opt/bin/graphkit', converterArguments: ['x:1,64'],
 *         convertTimeout: 60, cacheFolder: 'converted', cacheBytes: 1e9}); // converter: '' forbids to start a process
 *     program.inputs; // [{name: 'x', type: 'float32', shape: [1, 64], length: 64, batchAxis: 0}], also program.outputs
 *     const outputs = await program.run([new Float32Array(64)]);
 *     const found = program.find([[8, 64]]); // another program of the file, for these shapes of inputs
 *     const batch = await program.run([new Float32Array(45 * 64)], [[45, 64]]); // inputs of these shapes
 *
 * Each output has a property `shape`. batchAxis is -1 for an input or output without rows, see gk_input_batch_axis.
 * Inputs and outputs are typed arrays. Elements of float16 and bfloat16 are their bits (Uint16Array), those of bool are
 * 0 or 1 (Uint8Array). `run` computes in another thread, on copies of the inputs. Several runs may be under way. */
#define NAPI_VERSION 8
#include <graphkit.h>
#include <node_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a run needs. Its memory is one block. */
typedef struct Run {
    gk_session* session;
    size_t input_count, output_count;
    void **inputs, **outputs; /* copies of the inputs; memory of JavaScript, which `kept` keeps */
    int64_t** dims;           /* of the inputs; NULL: those of the program */
    napi_ref kept;            /* an array: the program, and the outputs */
    napi_deferred promise;
    napi_async_work work;
    gk_status status;
    char text[1024];
} Run;

/* What all objects of one JavaScript environment share. */
typedef struct Shared {
    napi_ref constructor;
    gk_session* found; /* of the program that `find` is constructing */
} Shared;

/* Marks objects that contain a session. */
static const napi_type_tag program_tag = {0x6772617068006b69, 0x742e50726f677261};

/* Throws an error and returns NULL. The error's property `code` is the name of the status. */
static napi_value failed(napi_env env, gk_status status, const char* text) {
    napi_throw_error(env, gk_status_name(status), text);
    return NULL;
}

static napi_typedarray_type array_type(gk_type type) {
    static const napi_typedarray_type types[] = {
        napi_uint8_array, napi_float32_array, napi_float64_array, napi_uint16_array,   napi_uint16_array,
        napi_int8_array,  napi_int16_array,   napi_int32_array,   napi_bigint64_array, napi_uint8_array,
        napi_uint16_array, napi_uint32_array, napi_biguint64_array, napi_uint8_array,
    };
    return types[type];
}

static void close_session(napi_env env, void* session, void* hint) {
    (void)env, (void)hint;
    gk_close(session);
}

static void set(napi_env env, napi_value object, const char* key, napi_value value) {
    napi_set_named_property(env, object, key, value);
}

static napi_value text_value(napi_env env, const char* text) {
    napi_value value;
    napi_create_string_utf8(env, text, NAPI_AUTO_LENGTH, &value);
    return value;
}

static napi_value number_value(napi_env env, int64_t number) {
    napi_value value;
    napi_create_int64(env, number, &value);
    return value;
}

static napi_value shape_value(napi_env env, const int64_t* dims, size_t rank) {
    napi_value shape;
    napi_create_array_with_length(env, rank, &shape);
    for (size_t i = 0; i < rank; ++i) {
        napi_set_element(env, shape, (uint32_t)i, number_value(env, dims[i]));
    }
    return shape;
}

/* Returns {name, type, shape, length, batchAxis}. */
static napi_value port(napi_env env, const char* name, gk_type type, const int64_t* dims, size_t rank, size_t bytes,
                       int32_t batch_axis) {
    napi_value object;
    napi_create_object(env, &object);
    set(env, object, "name", text_value(env, name));
    set(env, object, "type", text_value(env, gk_type_name(type)));
    set(env, object, "shape", shape_value(env, dims, rank));
    set(env, object, "length", number_value(env, (int64_t)(bytes / gk_type_size(type))));
    set(env, object, "batchAxis", number_value(env, batch_axis));
    return object;
}

static void set_ports(napi_env env, napi_value program, const gk_session* session) {
    napi_value inputs, outputs;
    napi_create_array(env, &inputs);
    napi_create_array(env, &outputs);
    for (size_t i = 0; i < gk_input_count(session); ++i) {
        napi_set_element(env, inputs, (uint32_t)i,
                         port(env, gk_input_name(session, i), gk_input_type(session, i), gk_input_dims(session, i),
                              gk_input_rank(session, i), gk_input_bytes(session, i), gk_input_batch_axis(session, i)));
    }
    for (size_t i = 0; i < gk_output_count(session); ++i) {
        napi_set_element(env, outputs, (uint32_t)i,
                         port(env, gk_output_name(session, i), gk_output_type(session, i), gk_output_dims(session, i),
                              gk_output_rank(session, i), gk_output_bytes(session, i), gk_output_batch_axis(session, i)));
    }
    set(env, program, "inputs", inputs);
    set(env, program, "outputs", outputs);
}

/* Reads a number that is a property of `object`; 0 if it is not there. Returns whether it is a number. */
static bool number_of(napi_env env, napi_value object, const char* key, double* number) {
    napi_valuetype type;
    napi_value value;
    *number = 0;
    return napi_get_named_property(env, object, key, &value) == napi_ok && napi_typeof(env, value, &type) == napi_ok &&
           (type == napi_undefined || napi_get_value_double(env, value, number) == napi_ok);
}

/* Returns a copy of a text, which the caller frees; NULL if it is none, or contains a zero byte. */
static char* copied_text(napi_env env, napi_value value) {
    size_t length;
    if (napi_get_value_string_utf8(env, value, NULL, 0, &length) != napi_ok) {
        return NULL;
    }
    char* const text = malloc(length + 1);
    if (text != NULL && (napi_get_value_string_utf8(env, value, text, length + 1, &length) != napi_ok ||
                         strlen(text) != length)) {
        free(text);
        return NULL;
    }
    return text;
}

/* Reads a property of `object` into *value. Returns whether it is there. */
static bool has_value(napi_env env, napi_value object, const char* key, napi_value* value) {
    napi_valuetype type = napi_undefined;
    return napi_get_named_property(env, object, key, value) == napi_ok && napi_typeof(env, *value, &type) == napi_ok &&
           type != napi_undefined;
}

/* Reads a text that is a property of `object`; NULL if it is not there. Returns whether it is a text. */
static bool text_of(napi_env env, napi_value object, const char* key, const char** text) {
    napi_value value;
    *text = NULL;
    return !has_value(env, object, key, &value) || (*text = copied_text(env, value)) != NULL;
}

/* Reads an array of texts that is a property of `object`, as text_of does. The list ends with NULL. */
static bool texts_of(napi_env env, napi_value object, const char* key, const char* const** texts) {
    napi_value array, value;
    uint32_t count;
    if (!has_value(env, object, key, &array)) {
        return true;
    }
    if (napi_get_array_length(env, array, &count) != napi_ok) {
        return false;
    }
    const char** const list = calloc((size_t)count + 1, sizeof *list);
    *texts = list;
    for (uint32_t i = 0; list != NULL && i < count; ++i) {
        if (napi_get_element(env, array, i, &value) != napi_ok || (list[i] = copied_text(env, value)) == NULL) {
            return false;
        }
    }
    return list != NULL;
}

static void free_texts(const gk_options* options) {
    for (const char* const* each = options->converter_arguments; each != NULL && *each != NULL; ++each) {
        free((void*)*each);
    }
    free((void*)options->converter_arguments);
    free((void*)options->converter);
    free((void*)options->cache_folder);
}

/* Reads options, whose texts free_texts frees. Returns whether they are valid. */
static bool read_options(napi_env env, napi_value object, gk_options* options) {
    double threads, iterations, bytes;
    if (!number_of(env, object, "threads", &threads) || !number_of(env, object, "maxIterations", &iterations) ||
        !number_of(env, object, "cacheBytes", &bytes) || !number_of(env, object, "timeout", &options->timeout) ||
        !number_of(env, object, "convertTimeout", &options->convert_timeout) || !(threads >= 0 && threads < 1e6) ||
        !(iterations >= 0 && iterations < 9e15) || !((bytes >= 0 && bytes < 9e15) || bytes == -1) ||
        !text_of(env, object, "converter", &options->converter) ||
        !text_of(env, object, "cacheFolder", &options->cache_folder) ||
        !texts_of(env, object, "converterArguments", &options->converter_arguments)) {
        return false;
    }
    options->threads = (int32_t)threads;
    options->max_iterations = (int64_t)iterations;
    options->cache_bytes = (int64_t)bytes;
    return true;
}

/* Attaches an open session to an object, which then closes it if `owns`. */
static napi_value attach(napi_env env, napi_value self, gk_session* session, bool owns) {
    if (napi_wrap(env, self, session, owns ? close_session : NULL, NULL, NULL) != napi_ok) {
        if (owns) {
            gk_close(session);
        }
        return failed(env, GK_ERROR_INTERNAL, "the program cannot be attached to its object");
    }
    napi_type_tag_object(env, self, &program_tag);
    set_ports(env, self, session);
    return self;
}

/* new Program(path, options) */
static napi_value construct(napi_env env, napi_callback_info info) {
    Shared* shared;
    size_t count = 2;
    napi_value arguments[2], self, target = NULL;
    gk_options options = {0};
    gk_session* session;
    napi_get_cb_info(env, info, &count, arguments, &self, NULL);
    napi_get_new_target(env, info, &target);
    if (target == NULL) {
        return failed(env, GK_ERROR_ARGUMENT, "write new Program(...)");
    }
    if (napi_get_instance_data(env, (void**)&shared) == napi_ok && shared->found != NULL) {
        gk_session* const found = shared->found;
        shared->found = NULL;
        return attach(env, self, found, false);
    }
    napi_valuetype type = napi_undefined;
    napi_typeof(env, arguments[1], &type);
    if (type != napi_undefined && (type != napi_object || !read_options(env, arguments[1], &options))) {
        free_texts(&options);
        return failed(env, GK_ERROR_ARGUMENT,
                      "options must be {threads, maxIterations, timeout, convertTimeout, cacheBytes}, with numbers from "
                      "0 on (cacheBytes: or -1), and {converter, cacheFolder, converterArguments}, with texts");
    }
    char* const path = copied_text(env, arguments[0]);
    if (path == NULL) {
        free_texts(&options);
        return failed(env, GK_ERROR_ARGUMENT, "the path must be a string without zero bytes");
    }
    const gk_status status = gk_open(path, &options, &session);
    free(path);
    free_texts(&options);
    if (status != GK_OK) {
        return failed(env, status, gk_error());
    }
    return attach(env, self, session, true);
}

/* The session of `this`, and arguments. NULL: an exception is pending. */
static gk_session* session_of(napi_env env, napi_callback_info info, size_t count, napi_value* arguments,
                              napi_value* self) {
    void* session;
    bool tagged = false;
    napi_get_cb_info(env, info, &count, arguments, self, NULL);
    napi_check_object_type_tag(env, *self, &program_tag, &tagged);
    if (!tagged || napi_unwrap(env, *self, &session) != napi_ok) {
        failed(env, GK_ERROR_ARGUMENT, "this is not a Program");
        return NULL;
    }
    return session;
}

/* Reads the shapes of all inputs. The caller frees them: one block. NULL: an exception is pending. */
static int64_t** read_shapes(napi_env env, const gk_session* session, napi_value shapes) {
    const size_t count = gk_input_count(session);
    size_t sizes = 0;
    uint32_t given = 0;
    for (size_t i = 0; i < count; ++i) {
        sizes += gk_input_rank(session, i);
    }
    int64_t** dims = calloc(1, (count + 1) * sizeof *dims + sizes * sizeof **dims);
    if (dims == NULL) {
        failed(env, GK_ERROR_MEMORY, "there is not enough memory");
        return NULL;
    }
    int64_t* next = (int64_t*)(dims + count + 1);
    bool valid = napi_get_array_length(env, shapes, &given) == napi_ok && given == count;
    for (size_t i = 0; valid && i < count; ++i) {
        const size_t rank = gk_input_rank(session, i);
        napi_value shape, size;
        dims[i] = next;
        next += rank;
        valid = napi_get_element(env, shapes, (uint32_t)i, &shape) == napi_ok &&
                napi_get_array_length(env, shape, &given) == napi_ok && given == rank;
        for (size_t k = 0; valid && k < rank; ++k) {
            valid = napi_get_element(env, shape, (uint32_t)k, &size) == napi_ok &&
                    napi_get_value_int64(env, size, &dims[i][k]) == napi_ok && dims[i][k] >= 0;
        }
    }
    if (!valid) {
        free(dims);
        failed(env, GK_ERROR_ARGUMENT, "shapes must be an array with an array of sizes for each input");
        return NULL;
    }
    return dims;
}

/* program.find(shapes) */
static napi_value find_program(napi_env env, napi_callback_info info) {
    napi_value arguments[1], self, constructor, made;
    Shared* shared;
    gk_session* found;
    gk_session* const session = session_of(env, info, 1, arguments, &self);
    int64_t** const dims = session == NULL ? NULL : read_shapes(env, session, arguments[0]);
    if (dims == NULL) {
        return NULL;
    }
    const gk_status status =
        gk_find_program(session, (const int64_t* const*)dims, gk_input_count(session), &found);
    free(dims);
    if (status != GK_OK) {
        return failed(env, status, gk_error());
    }
    if (napi_get_instance_data(env, (void**)&shared) != napi_ok ||
        napi_get_reference_value(env, shared->constructor, &constructor) != napi_ok) {
        return failed(env, GK_ERROR_INTERNAL, "the class Program is not there");
    }
    shared->found = found;
    const napi_status called = napi_new_instance(env, constructor, 0, NULL, &made);
    shared->found = NULL;
    if (called != napi_ok) {
        return NULL;
    }
    /* Keeps the file open as long as the program is used. It can be neither changed nor deleted. */
    const napi_property_descriptor file = {"file", NULL, NULL, NULL, NULL, self, napi_default, NULL};
    if (napi_define_properties(env, made, 1, &file) != napi_ok) {
        return failed(env, GK_ERROR_INTERNAL, "the program cannot keep its file open");
    }
    return made;
}

/* Called in another thread, whose error text it copies. */
static void execute(napi_env env, void* data) {
    (void)env;
    Run* const run = data;
    const void* const* const inputs = (const void* const*)run->inputs;
    run->status = run->dims == NULL
                      ? gk_run(run->session, inputs, run->input_count, run->outputs, run->output_count)
                      : gk_run_shapes(run->session, inputs, (const int64_t* const*)run->dims, run->input_count,
                                      run->outputs, run->output_count);
    if (run->status != GK_OK) {
        snprintf(run->text, sizeof run->text, "%s", gk_error());
    }
}

static void release(napi_env env, Run* run) {
    if (run->work != NULL) {
        napi_delete_async_work(env, run->work);
    }
    if (run->kept != NULL) {
        napi_delete_reference(env, run->kept);
    }
    for (size_t i = 0; i < run->input_count; ++i) {
        free(run->inputs[i]);
    }
    free(run->dims);
    free(run);
}

/* Called in JavaScript's thread after `execute`. */
static void complete(napi_env env, napi_status called, void* data) {
    Run* const run = data;
    napi_value result;
    if (called == napi_ok && run->status == GK_OK) {
        napi_value kept;
        napi_get_reference_value(env, run->kept, &kept);
        napi_get_element(env, kept, 1, &result);
        napi_resolve_deferred(env, run->promise, result);
    } else {
        const gk_status status = called == napi_ok ? run->status : GK_ERROR_RUN;
        napi_create_error(env, text_value(env, gk_status_name(status)),
                          text_value(env, called == napi_ok ? run->text : "the run was cancelled"), &result);
        napi_reject_deferred(env, run->promise, result);
    }
    release(env, run);
}

/* The bytes of an array. The library has accepted the sizes, so none is negative, and the product is no overflow. */
static size_t bytes_of(gk_type type, const int64_t* dims, size_t rank) {
    size_t bytes = gk_type_size(type);
    for (size_t i = 0; i < rank; ++i) {
        bytes *= (size_t)dims[i];
    }
    return bytes;
}

/* Copies the input; throws and returns 0 for one that does not match. */
static int copy_input(napi_env env, Run* run, size_t i, napi_value array) {
    const gk_type type = gk_input_type(run->session, i);
    const size_t bytes = run->dims == NULL ? gk_input_bytes(run->session, i)
                                           : bytes_of(type, run->dims[i], gk_input_rank(run->session, i));
    napi_typedarray_type given;
    size_t length;
    void* elements;
    if (napi_get_typedarray_info(env, array, &given, &length, &elements, NULL, NULL) != napi_ok ||
        given != array_type(type) || length * gk_type_size(type) != bytes) {
        char text[256];
        snprintf(text, sizeof text, "input '%s' must be a typed array with %zu elements of %s",
                 gk_input_name(run->session, i), bytes / gk_type_size(type), gk_type_name(type));
        failed(env, GK_ERROR_ARGUMENT, text);
        return 0;
    }
    run->inputs[i] = malloc(bytes + 1);
    if (run->inputs[i] == NULL) {
        failed(env, GK_ERROR_MEMORY, "there is not enough memory");
        return 0;
    }
    if (bytes > 0) {
        memcpy(run->inputs[i], elements, bytes);
    }
    return 1;
}

/* Returns an array of the outputs' arrays, whose memory the run writes; NULL if an exception is pending. */
static napi_value make_outputs(napi_env env, Run* run) {
    napi_value outputs;
    napi_create_array_with_length(env, run->output_count, &outputs);
    for (size_t i = 0; i < run->output_count; ++i) {
        const gk_type type = gk_output_type(run->session, i);
        const size_t rank = gk_output_rank(run->session, i);
        napi_value memory, array;
        int64_t* sizes = calloc(rank + 1, sizeof *sizes);
        if (sizes == NULL) {
            return failed(env, GK_ERROR_MEMORY, "there is not enough memory");
        }
        memcpy(sizes, gk_output_dims(run->session, i), rank * sizeof *sizes);
        const gk_status status = run->dims == NULL
                                     ? GK_OK
                                     : gk_find_output_dims(run->session, (const int64_t* const*)run->dims,
                                                           run->input_count, i, sizes);
        const size_t bytes = bytes_of(type, sizes, rank);
        const napi_value shape = shape_value(env, sizes, rank);
        free(sizes);
        if (status != GK_OK) {
            return failed(env, status, gk_error());
        }
        if (napi_create_arraybuffer(env, bytes, &run->outputs[i], &memory) != napi_ok ||
            napi_create_typedarray(env, array_type(type), bytes / gk_type_size(type), memory, 0, &array) != napi_ok) {
            return failed(env, GK_ERROR_MEMORY, "there is not enough memory");
        }
        set(env, array, "shape", shape);
        napi_set_element(env, outputs, (uint32_t)i, array);
    }
    return outputs;
}

/* program.run(inputs), program.run(inputs, shapes) */
static napi_value run_program(napi_env env, napi_callback_info info) {
    uint32_t given = 0;
    napi_value arguments[2], self, promise, kept;
    napi_valuetype type = napi_undefined;
    gk_session* const session = session_of(env, info, 2, arguments, &self);
    if (session == NULL) {
        return NULL;
    }
    const size_t inputs = gk_input_count(session), outputs = gk_output_count(session);
    if (napi_get_array_length(env, arguments[0], &given) != napi_ok || given != inputs) {
        return failed(env, GK_ERROR_ARGUMENT, "run takes an array with one typed array for each input");
    }
    Run* run = calloc(1, sizeof *run + (inputs + outputs) * sizeof(void*));
    if (run == NULL) {
        return failed(env, GK_ERROR_MEMORY, "there is not enough memory");
    }
    run->session = session;
    run->input_count = inputs;
    run->output_count = outputs;
    run->inputs = (void**)(run + 1);
    run->outputs = run->inputs + inputs;
    napi_typeof(env, arguments[1], &type);
    if (type != napi_undefined && (run->dims = read_shapes(env, session, arguments[1])) == NULL) {
        release(env, run);
        return NULL;
    }
    /* The outputs come first: the library then checks the shapes. */
    const napi_value made = make_outputs(env, run);
    if (made == NULL) {
        release(env, run);
        return NULL;
    }
    for (size_t i = 0; i < inputs; ++i) {
        napi_value array;
        napi_get_element(env, arguments[0], (uint32_t)i, &array);
        if (!copy_input(env, run, i, array)) {
            release(env, run);
            return NULL;
        }
    }
    napi_create_array_with_length(env, 2, &kept);
    napi_set_element(env, kept, 0, self);
    napi_set_element(env, kept, 1, made);
    if (napi_create_reference(env, kept, 1, &run->kept) != napi_ok ||
        napi_create_async_work(env, NULL, text_value(env, "graphkit"), execute, complete, run, &run->work) != napi_ok ||
        napi_create_promise(env, &run->promise, &promise) != napi_ok || napi_queue_async_work(env, run->work) != napi_ok) {
        release(env, run);
        return failed(env, GK_ERROR_INTERNAL, "the run cannot be queued");
    }
    return promise;
}

static void free_shared(napi_env env, void* shared, void* hint) {
    (void)hint;
    napi_delete_reference(env, ((Shared*)shared)->constructor);
    free(shared);
}

NAPI_MODULE_INIT() {
    const napi_property_descriptor methods[] = {
        {"run", NULL, run_program, NULL, NULL, NULL, napi_default_method, NULL},
        {"find", NULL, find_program, NULL, NULL, NULL, napi_default_method, NULL},
    };
    napi_value program;
    Shared* shared = calloc(1, sizeof *shared);
    if (shared == NULL) {
        return failed(env, GK_ERROR_MEMORY, "there is not enough memory");
    }
    napi_define_class(env, "Program", NAPI_AUTO_LENGTH, construct, NULL, 2, methods, &program);
    napi_create_reference(env, program, 1, &shared->constructor);
    napi_set_instance_data(env, shared, free_shared, NULL);
    set(env, exports, "Program", program);
    return exports;
}
