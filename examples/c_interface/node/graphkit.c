/* graphkit.h for Node, through Node-API:
 *
 *     const {Program} = require('./graphkit.node');
 *     const program = new Program('net.gkp', 2); // the path, and optionally the largest number of threads of a run
 *     program.inputs; // [{name: 'x', type: 'float32', shape: [1, 64], length: 64}], also program.outputs
 *     const outputs = await program.run([new Float32Array(64)]);
 *
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
    napi_ref kept;            /* an array: the program, and the outputs */
    napi_deferred promise;
    napi_async_work work;
    gk_status status;
    char text[1024];
} Run;

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

/* Returns {name, type, shape, length}. */
static napi_value port(napi_env env, const char* name, gk_type type, const int64_t* dims, size_t rank, size_t bytes) {
    napi_value object, shape;
    napi_create_object(env, &object);
    napi_create_array_with_length(env, rank, &shape);
    for (size_t i = 0; i < rank; ++i) {
        napi_set_element(env, shape, (uint32_t)i, number_value(env, dims[i]));
    }
    set(env, object, "name", text_value(env, name));
    set(env, object, "type", text_value(env, gk_type_name(type)));
    set(env, object, "shape", shape);
    set(env, object, "length", number_value(env, (int64_t)(bytes / gk_type_size(type))));
    return object;
}

static void set_ports(napi_env env, napi_value program, const gk_session* session) {
    napi_value inputs, outputs;
    napi_create_array(env, &inputs);
    napi_create_array(env, &outputs);
    for (size_t i = 0; i < gk_input_count(session); ++i) {
        napi_set_element(env, inputs, (uint32_t)i,
                         port(env, gk_input_name(session, i), gk_input_type(session, i), gk_input_dims(session, i),
                              gk_input_rank(session, i), gk_input_bytes(session, i)));
    }
    for (size_t i = 0; i < gk_output_count(session); ++i) {
        napi_set_element(env, outputs, (uint32_t)i,
                         port(env, gk_output_name(session, i), gk_output_type(session, i), gk_output_dims(session, i),
                              gk_output_rank(session, i), gk_output_bytes(session, i)));
    }
    set(env, program, "inputs", inputs);
    set(env, program, "outputs", outputs);
}

/* new Program(path, threads) */
static napi_value construct(napi_env env, napi_callback_info info) {
    size_t count = 2, length;
    napi_value arguments[2], self, target = NULL;
    gk_options options = {0};
    gk_session* session;
    napi_get_cb_info(env, info, &count, arguments, &self, NULL);
    napi_get_new_target(env, info, &target);
    if (target == NULL) {
        return failed(env, GK_ERROR_ARGUMENT, "write new Program(...)");
    }
    if ( napi_get_value_string_utf8(env, arguments[0], NULL, 0, &length) != napi_ok) {
        return failed(env, GK_ERROR_ARGUMENT, "the path must be a string");
    }
    napi_valuetype type = napi_undefined;
    napi_typeof(env, arguments[1], &type);
    if (type != napi_undefined && napi_get_value_int32(env, arguments[1], &options.threads) != napi_ok) {
        return failed(env, GK_ERROR_ARGUMENT, "the number of threads must be a number");
    }
    char* path = malloc(length + 1);
    if (path == NULL) {
        return failed(env, GK_ERROR_MEMORY, "there is not enough memory");
    }
    napi_get_value_string_utf8(env, arguments[0], path, length + 1, &length);
    const gk_status status = gk_open(path, &options, &session);
    free(path);
    if (status != GK_OK) {
        return failed(env, status, gk_error());
    }
    if (napi_wrap(env, self, session, close_session, NULL, NULL) != napi_ok) {
        gk_close(session);
        return failed(env, GK_ERROR_INTERNAL, "the program cannot be attached to its object");
    }
    napi_type_tag_object(env, self, &program_tag);
    set_ports(env, self, session);
    return self;
}

/* Called in another thread, whose error text it copies. */
static void execute(napi_env env, void* data) {
    (void)env;
    Run* const run = data;
    run->status = gk_run(run->session, (const void* const*)run->inputs, run->input_count, run->outputs,
                         run->output_count);
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

/* Copies the input; throws and returns 0 for one that does not match. */
static int copy_input(napi_env env, Run* run, size_t i, napi_value array) {
    const size_t bytes = gk_input_bytes(run->session, i);
    const gk_type type = gk_input_type(run->session, i);
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
        const size_t bytes = gk_output_bytes(run->session, i);
        const gk_type type = gk_output_type(run->session, i);
        napi_value memory, array;
        if (napi_create_arraybuffer(env, bytes, &run->outputs[i], &memory) != napi_ok ||
            napi_create_typedarray(env, array_type(type), bytes / gk_type_size(type), memory, 0, &array) != napi_ok) {
            return failed(env, GK_ERROR_MEMORY, "there is not enough memory");
        }
        napi_set_element(env, outputs, (uint32_t)i, array);
    }
    return outputs;
}

/* program.run(inputs) */
static napi_value run_program(napi_env env, napi_callback_info info) {
    size_t count = 1;
    uint32_t given = 0;
    napi_value arguments[1], self, promise, kept;
    void* session;
    bool tagged = false;
    napi_get_cb_info(env, info, &count, arguments, &self, NULL);
    napi_check_object_type_tag(env, self, &program_tag, &tagged);
    if (!tagged || napi_unwrap(env, self, &session) != napi_ok) {
        return failed(env, GK_ERROR_ARGUMENT, "run is a method of a Program");
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
    for (size_t i = 0; i < inputs; ++i) {
        napi_value array;
        napi_get_element(env, arguments[0], (uint32_t)i, &array);
        if (!copy_input(env, run, i, array)) {
            release(env, run);
            return NULL;
        }
    }
    const napi_value made = make_outputs(env, run);
    if (made == NULL) {
        release(env, run);
        return NULL;
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

NAPI_MODULE_INIT() {
    const napi_property_descriptor run = {"run", NULL, run_program, NULL, NULL, NULL, napi_default_method, NULL};
    napi_value program;
    napi_define_class(env, "Program", NAPI_AUTO_LENGTH, construct, NULL, 1, &run, &program);
    set(env, exports, "Program", program);
    return exports;
}
