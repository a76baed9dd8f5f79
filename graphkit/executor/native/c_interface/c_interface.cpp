// The functions of graphkit.h.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "../../include/graphkit.h"
#include "c_interface/call_status.h"
#include "c_interface/converter.h"
#include "c_interface/open_options.h"
#include "c_interface/saved_program.h"

namespace {

struct OpenFile {
    std::unique_ptr<graphkit::SavedFile> file;
    gk_options options;
    std::vector<gk_session> sessions;  // one for each program

    OpenFile(std::unique_ptr<graphkit::SavedFile> opened, const gk_options& given);
};

}  // namespace

struct gk_session {
    OpenFile& opened;
    graphkit::SavedProgram& program;
};

namespace {

using graphkit::failed;
using graphkit::guarded;
using graphkit::SavedPort;
using Ports = graphkit::SavedPorts;

OpenFile::OpenFile(std::unique_ptr<graphkit::SavedFile> opened, const gk_options& given)
    : file(std::move(opened)), options(given) {
    for (const auto& program : file->programs()) {
        sessions.push_back({*this, *program});
    }
}

gk_type type_of(graphkit::ElementType type) {
    // In the order of ElementType.
    constexpr std::array<gk_type, 13> kTypes{GK_FLOAT32, GK_FLOAT64, GK_FLOAT16, GK_BFLOAT16, GK_INT8,
                                             GK_INT16,   GK_INT32,   GK_INT64,   GK_UINT8,    GK_UINT16,
                                             GK_UINT32,  GK_UINT64,  GK_BOOL};
    return kTypes[static_cast<std::size_t>(type)];
}

const Ports* inputs_of(const gk_session* session) {
    return session == nullptr ? nullptr : &session->program.inputs();
}

const Ports* outputs_of(const gk_session* session) {
    return session == nullptr ? nullptr : &session->program.outputs();
}

const SavedPort* port(const Ports* ports, std::size_t number) {
    return ports == nullptr || number >= ports->size() ? nullptr : &(*ports)[number];
}

// Checks pointers of arrays. Empty arrays and, if `may_lack`, unused outputs need no memory.
void check_arrays(const Ports& ports, const void* const* arrays, const char* what, bool may_lack) {
    for (std::size_t i = 0; i < ports.size(); ++i) {
        const auto& [name, type, shape, bytes] = ports[i];
        if (arrays[i] == nullptr && bytes > 0 && !may_lack) {
            throw std::invalid_argument(std::string(what) + " '" + name + "' is NULL");
        }
        if (reinterpret_cast<std::uintptr_t>(arrays[i]) % graphkit::size_of(type) != 0) {
            throw std::invalid_argument(std::string(what) + " '" + name + "' is not aligned for elements of " +
                                        std::to_string(graphkit::size_of(type)) + " bytes");
        }
    }
}

// The dims of a scalar may be null.
void check_dims(const Ports& inputs, const int64_t* const* input_dims) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (input_dims[i] == nullptr && !inputs[i].shape.empty()) {
            throw std::invalid_argument("the dims of input '" + inputs[i].name + "' are NULL");
        }
    }
}

// Says which shapes the programs have, and which ones are given.
std::string no_program(const OpenFile& opened, const int64_t* const* input_dims) {
    std::string known, given;
    for (const gk_session& session : opened.sessions) {
        known += known.empty() ? "" : "; ";
        const Ports& inputs = session.program.inputs();
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            known += (i > 0 ? ", " : "") + inputs[i].name + " " + graphkit::to_string(inputs[i].shape);
        }
    }
    const Ports& inputs = opened.sessions[0].program.inputs();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const graphkit::Dims shape(input_dims[i], input_dims[i] + inputs[i].shape.size());
        given += (i > 0 ? ", " : "") + inputs[i].name + " " + graphkit::to_string(shape);
    }
    return "the file has no program for these shapes, but for: " + known + "; given: " + given;
}

bool fits(const Ports& inputs, const int64_t* const* input_dims) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (!std::equal(inputs[i].shape.begin(), inputs[i].shape.end(), input_dims[i])) {
            return false;
        }
    }
    return true;
}

bool has_program(const OpenFile& opened, const int64_t* const* input_dims) {
    return std::any_of(opened.sessions.begin(), opened.sessions.end(),
                       [&](const gk_session& session) { return fits(session.program.inputs(), input_dims); });
}

// Returns the session of the program for inputs of these shapes.
gk_session& program_for(OpenFile& opened, const int64_t* const* input_dims) {
    for (gk_session& session : opened.sessions) {
        if (fits(session.program.inputs(), input_dims)) {
            return session;
        }
    }
    throw std::invalid_argument(no_program(opened, input_dims));
}

// Inputs and outputs of a run: their shapes, the program that computes them, or how a batch is divided.
struct ShapedRun {
    gk_session* program = nullptr;
    std::shared_ptr<graphkit::SavedProgram> sized;  // if the program for any sizes is used
    graphkit::BatchPrograms::Plan plan;             // if there is no program
    Ports inputs;
    Ports outputs;
};

constexpr std::int64_t kMostRows = std::int64_t{1} << 31;

Ports with_rows(const Ports& ports, const std::vector<std::int64_t>& axes, std::int64_t rows) {
    Ports found = ports;
    for (std::size_t i = 0; i < ports.size(); ++i) {
        if (axes[i] < 0) {
            continue;
        }
        found[i].shape[static_cast<std::size_t>(axes[i])] = rows;
        try {
            found[i].bytes = graphkit::checked_bytes(found[i].shape, found[i].type);
        } catch (const graphkit::NativeError&) {
            throw std::invalid_argument("'" + ports[i].name + "' would be too large for " + std::to_string(rows) +
                                        " rows");
        }
    }
    return found;
}

ShapedRun shaped_run(OpenFile& opened, const int64_t* const* input_dims) {
    ShapedRun found;
    check_dims(opened.sessions[0].program.inputs(), input_dims);
    const graphkit::BatchPrograms* const batch = opened.file->batch();
    auto plan = batch == nullptr ? std::nullopt : batch->plan(input_dims);
    if (!plan && opened.file->sized() != nullptr && !has_program(opened, input_dims)) {
        found.sized = opened.file->sized()->at(input_dims);
        found.inputs = found.sized->inputs();
        found.outputs = found.sized->outputs();
        return found;
    }
    if (!plan) {
        found.program = &program_for(opened, input_dims);
        found.inputs = found.program->program.inputs();
        found.outputs = found.program->program.outputs();
        return found;
    }
    if (plan->rows > kMostRows) {
        throw std::invalid_argument("the inputs have " + std::to_string(plan->rows) + " rows, more than 2^31");
    }
    found.plan = std::move(*plan);
    const graphkit::SavedProgram& alike = opened.sessions[found.plan.alike].program;
    found.inputs = with_rows(alike.inputs(), batch->axes().inputs, found.plan.rows);
    found.outputs = with_rows(alike.outputs(), batch->axes().outputs, found.plan.rows);
    return found;
}

std::int32_t batch_axis(const gk_session* session, std::size_t number, bool is_input) {
    const graphkit::BatchPrograms* const batch = session == nullptr ? nullptr : session->opened.file->batch();
    if (batch == nullptr) {
        return -1;
    }
    const auto& axes = is_input ? batch->axes().inputs : batch->axes().outputs;
    return number < axes.size() ? static_cast<std::int32_t>(axes[number]) : -1;
}

graphkit::RunLimits limits_of(const gk_options& options) {
    graphkit::RunLimits limits;
    if (options.max_iterations > 0) {
        limits.iterations = options.max_iterations;
    }
    constexpr double kLongest = 1e9;  // seconds, about 30 years
    if (options.timeout > 0 && options.timeout < kLongest) {
        const std::chrono::duration<double> seconds(options.timeout);
        const auto end =
            std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(seconds);
        limits.deadline = end.time_since_epoch() / std::chrono::nanoseconds(1);
    }
    return limits;
}

// Checks the arguments of a function that opens a session, and opens it with `open`, which returns a saved file.
template <typename Open>
gk_status opened(const char* function, const void* source, const gk_options* options, gk_session** session,
                 std::uint32_t abi_version, std::size_t options_size, const Open& open) {
    if (session != nullptr) {
        *session = nullptr;
    }
    return guarded([&] {
        const auto refused = [&](gk_status status, const char* text) {
            return failed(status, (std::string(function) + ": " + text).c_str());
        };
        if (source == nullptr || session == nullptr) {
            return refused(GK_ERROR_ARGUMENT, "the path or data, and session, must not be NULL");
        }
        const auto given = graphkit::options_of(options, options_size);
        if (abi_version != GK_ABI_VERSION || !given) {
            return refused(GK_ERROR_VERSION, "the program was compiled with the graphkit.h of another version");
        }
        if (given->threads < 0 || given->max_iterations < 0 || !(given->timeout >= 0) ||
            !(given->convert_timeout >= 0) || given->cache_bytes < -1) {
            return refused(
                GK_ERROR_ARGUMENT,
                "threads, max_iterations, timeout and convert_timeout must not be negative, and cache_bytes must "
                "not be below -1");
        }
        *session = (new OpenFile(open(*given), *given))->sessions.data();
        return GK_OK;
    });
}

void check_count(const Ports& ports, std::size_t count, const void* arrays, const char* what) {
    if (count != ports.size()) {
        throw std::invalid_argument("the program has " + std::to_string(ports.size()) + " " + what + ", but " +
                                    std::to_string(count) + " were given");
    }
    if (arrays == nullptr && count > 0) {
        throw std::invalid_argument(std::string("the array of ") + what + " is NULL");
    }
}

}  // namespace

extern "C" {

GK_API const char* gk_version(void) {
    return GRAPHKIT_VERSION;
}

GK_API uint32_t gk_abi_version(void) {
    return GK_ABI_VERSION;
}

GK_API const char* gk_error(void) {
    return graphkit::latest_error.c_str();
}

GK_API const char* gk_status_name(gk_status status) {
    constexpr std::array<const char*, 13> kNames{"GK_OK",
                                                 "GK_ERROR_ARGUMENT",
                                                 "GK_ERROR_FILE",
                                                 "GK_ERROR_FORMAT",
                                                 "GK_ERROR_VERSION",
                                                 "GK_ERROR_PROCESSOR",
                                                 "GK_ERROR_MEMORY",
                                                 "GK_ERROR_RUN",
                                                 "GK_ERROR_INTERNAL",
                                                 "GK_ERROR_LIBRARY",
                                                 "GK_ERROR_LIMIT",
                                                 "GK_ERROR_CONVERTER",
                                                 "GK_ERROR_UNSUPPORTED"};
    const auto number = static_cast<unsigned>(status);
    return number < kNames.size() ? kNames[number] : "unknown status";
}

GK_API const char* gk_type_name(gk_type type) {
    constexpr std::array<const char*, 14> kNames{"",       "float32", "float64", "float16", "bfloat16",
                                                 "int8",   "int16",   "int32",   "int64",   "uint8",
                                                 "uint16", "uint32",  "uint64",  "bool"};
    const auto number = static_cast<unsigned>(type);
    return number < kNames.size() ? kNames[number] : "";
}

GK_API size_t gk_type_size(gk_type type) {
    constexpr std::array<size_t, 14> kSizes{0, 4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1};
    const auto number = static_cast<unsigned>(type);
    return number < kSizes.size() ? kSizes[number] : 0;
}

GK_API gk_status gk_open_checked(const char* path, const gk_options* options, gk_session** session,
                                 uint32_t abi_version, size_t options_size) {
    return opened("gk_open", path, options, session, abi_version, options_size, [&](const gk_options& given) {
        return graphkit::open_network(path, given.threads, graphkit::converter_options(given));
    });
}

GK_API gk_status gk_open_memory_checked(const void* data, size_t size, const gk_options* options, gk_session** session,
                                        uint32_t abi_version, size_t options_size) {
    return opened("gk_open_memory", data, options, session, abi_version, options_size, [&](const gk_options& given) {
        const std::string_view bytes(static_cast<const char*>(data), size);
        if (!graphkit::begins_as_program(bytes)) {
            throw graphkit::BadFile(
                "gk_open_memory: the data are not a saved graphkit program. Only the contents of .gkp files can be "
                "opened from memory. Write another network to a file, and pass its path to gk_open");
        }
        return std::make_unique<graphkit::SavedFile>(bytes, "the program in memory", given.threads);
    });
}

GK_API void gk_close(gk_session* session) {
    if (session != nullptr) {
        delete &session->opened;
    }
}

GK_API size_t gk_program_count(const gk_session* session) {
    return session == nullptr ? 0 : session->opened.sessions.size();
}

GK_API gk_session* gk_program(gk_session* session, size_t number) {
    return number < gk_program_count(session) ? &session->opened.sessions[number] : nullptr;
}

GK_API gk_status gk_find_program(gk_session* session, const int64_t* const* input_dims, size_t input_count,
                                 gk_session** found) {
    if (found != nullptr) {
        *found = nullptr;
    }
    if (session == nullptr || found == nullptr) {
        return failed(GK_ERROR_ARGUMENT, "gk_find_program: session and found must not be NULL");
    }
    return guarded([&] {
        try {
            check_count(session->program.inputs(), input_count, input_dims, "inputs");
            check_dims(session->program.inputs(), input_dims);
            *found = &program_for(session->opened, input_dims);
        } catch (const std::invalid_argument& error) {
            return failed(GK_ERROR_ARGUMENT, (std::string("gk_find_program: ") + error.what()).c_str());
        }
        return GK_OK;
    });
}

#define GK_PORT_FUNCTIONS(kind)                                                                         \
    GK_API size_t gk_##kind##_count(const gk_session* session) {                                        \
        const Ports* const ports = kind##s_of(session);                                                 \
        return ports == nullptr ? 0 : ports->size();                                                    \
    }                                                                                                   \
    GK_API const char* gk_##kind##_name(const gk_session* session, size_t kind) {                       \
        const auto* const found = port(kind##s_of(session), kind);                                      \
        return found == nullptr ? nullptr : found->name.c_str();                                        \
    }                                                                                                   \
    GK_API gk_type gk_##kind##_type(const gk_session* session, size_t kind) {                           \
        const auto* const found = port(kind##s_of(session), kind);                                      \
        return found == nullptr ? GK_TYPE_NONE : type_of(found->type);                                  \
    }                                                                                                   \
    GK_API size_t gk_##kind##_rank(const gk_session* session, size_t kind) {                            \
        const auto* const found = port(kind##s_of(session), kind);                                      \
        return found == nullptr ? 0 : found->shape.size();                                              \
    }                                                                                                   \
    GK_API const int64_t* gk_##kind##_dims(const gk_session* session, size_t kind) {                    \
        static constexpr std::int64_t kNone = 0; /* a scalar has no sizes, but its dims are not NULL */ \
        const auto* const found = port(kind##s_of(session), kind);                                      \
        return found == nullptr ? nullptr : found->shape.empty() ? &kNone : found->shape.data();        \
    }                                                                                                   \
    GK_API size_t gk_##kind##_bytes(const gk_session* session, size_t kind) {                           \
        const auto* const found = port(kind##s_of(session), kind);                                      \
        return found == nullptr ? 0 : found->bytes;                                                     \
    }

GK_PORT_FUNCTIONS(input)
GK_PORT_FUNCTIONS(output)

GK_API gk_status gk_get_random_state(const gk_session* session, uint64_t* seed, uint64_t* step) {
    if (session == nullptr || seed == nullptr || step == nullptr) {
        return failed(GK_ERROR_ARGUMENT, "gk_get_random_state: session, seed and step must not be NULL");
    }
    return guarded([&] {
        std::tie(*seed, *step) = session->opened.file->random().get();
        return GK_OK;
    });
}

GK_API gk_status gk_set_random_state(gk_session* session, uint64_t seed, uint64_t step) {
    if (session == nullptr) {
        return failed(GK_ERROR_ARGUMENT, "gk_set_random_state: session is NULL");
    }
    return guarded([&] {
        session->opened.file->random().set(seed, step);
        return GK_OK;
    });
}

GK_API gk_status gk_run(gk_session* session, const void* const* inputs, size_t input_count, void* const* outputs,
                        size_t output_count) {
    if (session == nullptr) {
        return failed(GK_ERROR_ARGUMENT, "gk_run: session is NULL");
    }
    return guarded([&] {
        try {
            check_count(session->program.inputs(), input_count, inputs, "inputs");
            check_count(session->program.outputs(), output_count, outputs, "outputs");
            check_arrays(session->program.inputs(), inputs, "input", false);
            check_arrays(session->program.outputs(), outputs, "output", true);
        } catch (const std::invalid_argument& error) {
            return failed(GK_ERROR_ARGUMENT, (std::string("gk_run: ") + error.what()).c_str());
        }
        session->program.run(inputs, outputs, limits_of(session->opened.options));
        return GK_OK;
    });
}

GK_API int32_t gk_input_batch_axis(const gk_session* session, size_t input) {
    return batch_axis(session, input, true);
}

GK_API int32_t gk_output_batch_axis(const gk_session* session, size_t output) {
    return batch_axis(session, output, false);
}

GK_API gk_status gk_find_output_dims(gk_session* session, const int64_t* const* input_dims, size_t input_count,
                                     size_t output, int64_t* dims) {
    if (session == nullptr || port(outputs_of(session), output) == nullptr ||
        (dims == nullptr && gk_output_rank(session, output) > 0)) {
        return failed(GK_ERROR_ARGUMENT,
                      "gk_find_output_dims: session and dims must not be NULL, and the output must exist");
    }
    return guarded([&] {
        try {
            check_count(session->program.inputs(), input_count, input_dims, "inputs");
            const ShapedRun found = shaped_run(session->opened, input_dims);
            const graphkit::Dims& shape = found.outputs[output].shape;
            std::copy(shape.begin(), shape.end(), dims);
        } catch (const std::invalid_argument& error) {
            return failed(GK_ERROR_ARGUMENT, (std::string("gk_find_output_dims: ") + error.what()).c_str());
        }
        return GK_OK;
    });
}

GK_API gk_status gk_find_runs(gk_session* session, const int64_t* const* input_dims, size_t input_count,
                              uint64_t* runs) {
    if (session == nullptr || runs == nullptr) {
        return failed(GK_ERROR_ARGUMENT, "gk_find_runs: session and runs must not be NULL");
    }
    return guarded([&] {
        try {
            check_count(session->program.inputs(), input_count, input_dims, "inputs");
            const ShapedRun found = shaped_run(session->opened, input_dims);
            const std::vector<gk_session>& sessions = session->opened.sessions;
            std::fill_n(runs, sessions.size(), 0);
            if (found.program != nullptr) {
                runs[found.program - sessions.data()] = 1;
            }
            for (const auto& each : found.plan.runs) {
                runs[each.program] = static_cast<std::uint64_t>(each.number);
            }
        } catch (const std::invalid_argument& error) {
            return failed(GK_ERROR_ARGUMENT, (std::string("gk_find_runs: ") + error.what()).c_str());
        }
        return GK_OK;
    });
}

GK_API gk_status gk_run_shapes(gk_session* session, const void* const* inputs, const int64_t* const* input_dims,
                               size_t input_count, void* const* outputs, size_t output_count) {
    if (session == nullptr) {
        return failed(GK_ERROR_ARGUMENT, "gk_run_shapes: session is NULL");
    }
    return guarded([&] {
        ShapedRun found;
        try {
            check_count(session->program.inputs(), input_count, inputs, "inputs");
            check_count(session->program.inputs(), input_count, input_dims, "inputs");
            check_count(session->program.outputs(), output_count, outputs, "outputs");
            found = shaped_run(session->opened, input_dims);
            check_arrays(found.inputs, inputs, "input", false);
            check_arrays(found.outputs, outputs, "output", true);
        } catch (const std::invalid_argument& error) {
            return failed(GK_ERROR_ARGUMENT, (std::string("gk_run_shapes: ") + error.what()).c_str());
        }
        const graphkit::RunLimits limits = limits_of(session->opened.options);
        if (found.program != nullptr) {
            found.program->program.run(inputs, outputs, limits);
        } else if (found.sized != nullptr) {
            found.sized->run(inputs, outputs, limits);
        } else {
            session->opened.file->batch()->run(found.plan, inputs, outputs, limits);
        }
        return GK_OK;
    });
}

}  // extern "C"
