#include "onednn/onednn.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "runtime/bindings.h"
#include "runtime/invalid_flag.h"

namespace graphkit {
namespace {

using dnnl::memory;

// Never destroyed: a run may continue in a daemon thread while the process ends.
const dnnl::stream& stream() {
    onednn();  // see engine
    static const dnnl::stream& only = *new dnnl::stream(engine());
    return only;
}

void set_handle(memory& target, const void* data) {
    target.set_data_handle(const_cast<void*>(data));
}

// Largest number of pieces if the result must be deterministic; else the number of pieces per thread.
constexpr std::int64_t kMostPieces = 16;
constexpr std::int64_t kPiecesPerThread = 2;
// Estimated speed of one core, and the least work of a piece.
constexpr double kProductsPerNanosecond = 50;
constexpr double kBytesPerNanosecond = 10;
constexpr double kPieceNanoseconds = 4000;

// Copies bytes; large copies are shared among threads.
void copy(void* to, const void* from, std::size_t bytes) {
    parallel_for(
        team_size(), static_cast<std::int64_t>(bytes), 0.05,
        [&](std::int64_t begin, std::int64_t end) {
            std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                        static_cast<std::size_t>(end - begin));
        },
        64);
}

}  // namespace

void require_sizes(const Dims& shape) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    for (const std::int64_t size : shape) {
        if (size < 0 || size > kMost) {
            throw Unsupported("oneDNN computes no array of shape " + to_string(shape));
        }
    }
}

std::string onednn_version() {
    const dnnl_version_t* version = dnnl_version();
    return std::to_string(version->major) + "." + std::to_string(version->minor) + "." + std::to_string(version->patch);
}

std::string onednn_isa() {
    switch (dnnl_get_effective_cpu_isa()) {
        case dnnl_cpu_isa_sse41:
            return "sse41";
        case dnnl_cpu_isa_avx:
            return "avx";
        case dnnl_cpu_isa_avx2:
            return "avx2";
        case dnnl_cpu_isa_avx2_vnni:
            return "avx2_vnni";
        case dnnl_cpu_isa_avx2_vnni_2:
            return "avx2_vnni_2";
        case dnnl_cpu_isa_avx512_core:
            return "avx512_core";
        case dnnl_cpu_isa_avx512_core_vnni:
            return "avx512_core_vnni";
        case dnnl_cpu_isa_avx512_core_bf16:
            return "avx512_core_bf16";
        case dnnl_cpu_isa_avx512_core_fp16:
            return "avx512_core_fp16";
        case dnnl_cpu_isa_avx512_core_amx:
            return "avx512_core_amx";
        case dnnl_cpu_isa_avx512_core_amx_fp16:
            return "avx512_core_amx_fp16";
        default:
            return "generic";
    }
}

bool is_for_use(const std::string& implementation) {
    return implementation.find("ref") == std::string::npos;
}

bool is_by_columns(const std::string& implementation) {
    return implementation.find("gemm") != std::string::npos;
}

std::string layout_text(const memory::desc& given, const memory::desc& wanted) {
    return layout_text(wanted.get_data_type(), {wanted.get_dims(), wanted.get_padded_dims(), wanted.get_strides(),
                                                wanted.get_inner_blks(), wanted.get_inner_idxs(), given.get_strides()});
}

std::string layout_text(memory::data_type type, std::initializer_list<Dims> fields) {
    std::string text = std::to_string(static_cast<int>(type));
    for (const Dims& dims : fields) {
        text += to_string(dims);
    }
    return text;
}

void rethrow(const Kernel& kernel, const dnnl::error& error) {
    const std::string message =
        kernel.describe() + ": oneDNN: " + error.message + " (" + dnnl_status2str(error.status) + ")";
    if (error.status == dnnl_unimplemented) {
        throw Unsupported(message);
    }
    throw NativeError(message);
}

const dnnl::engine& engine() {
    // Loading may wait for the GIL, which must not happen while other threads wait for the static variable.
    onednn();
    // never destroyed, like the stream
    static const dnnl::engine& only = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
    return only;
}

memory::data_type library_type(ElementType type) {
    switch (type) {
        case ElementType::f32:
            return memory::data_type::f32;
        case ElementType::bf16:
            return memory::data_type::bf16;
        default:
            throw Unsupported(std::string("oneDNN kernels of ") + name_of(type));
    }
}

memory::desc plain(const Dims& dims, ElementType type) {
    return {dims, library_type(type), row_major(dims)};
}

memory::desc any(const Dims& dims, ElementType type) {
    return {dims, library_type(type), memory::format_tag::any};
}

Dims channels_last(const Dims& dims) {
    Dims moved{dims[0]};
    moved.insert(moved.end(), dims.begin() + 2, dims.end());
    moved.push_back(dims[1]);
    return moved;
}

memory::desc laid_out(const Dims& dims, bool last, ElementType type) {
    if (!last) {
        return plain(dims, type);
    }
    Dims strides = row_major(channels_last(dims));
    strides.insert(strides.begin() + 1, strides.back());
    strides.pop_back();
    return {dims, library_type(type), strides};
}

dnnl::primitive_attr Operation::attributes(const dnnl::post_ops& chain) {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    attributes.set_post_ops(chain);
    return attributes;
}

std::size_t Operation::reserve(std::size_t bytes) {
    const std::size_t offset = scratch_bytes_;
    scratch_bytes_ += aligned(bytes);
    return offset;
}

void Operation::input(int argument, std::size_t position, const memory::desc& given, const memory::desc& wanted) {
    add(argument, position, false, given, wanted);
}

void Operation::output(int argument, std::size_t position, const memory::desc& given, const memory::desc& wanted) {
    add(argument, position, true, given, wanted);
}

void Operation::add(int argument, std::size_t position, bool is_output, const memory::desc& given,
                    const memory::desc& wanted) {
    Operand operand{argument, position, is_output, given, wanted, {}, {}};
    if (given != wanted) {
        const auto& [from, to] = is_output ? std::pair(wanted, given) : std::pair(given, wanted);
        const auto descriptor = choose<dnnl::reorder>(any_name, engine(), from, engine(), to, attributes());
        operand.reorder = dnnl::reorder(descriptor);
        operand.reorder_scratchpad = descriptor.scratchpad_desc();
        operand.offset = reserve(wanted.get_size());
    }
    operands_.push_back(std::move(operand));
}

void Operation::finish(const dnnl::primitive_desc_base& descriptor, dnnl::primitive primitive) {
    primitive_ = std::move(primitive);
    implementation_ = descriptor.impl_info_str();
    scratchpad_ = descriptor.scratchpad_desc();
    scratchpad_offset_ = reserve(scratchpad_.get_size());
    std::size_t reorder_scratchpad = 0;
    for (const Operand& operand : operands_) {
        if (operand.reorders()) {
            reorder_scratchpad = std::max(reorder_scratchpad, operand.reorder_scratchpad.get_size());
        }
    }
    reorder_scratchpad_offset_ = reserve(reorder_scratchpad);
}

std::unique_ptr<Operation::Arguments> Operation::take() const {
    {
        // Do not wait for the lock: another thread may have held it when this process was forked.
        const std::unique_lock lock(pool_->mutex, std::try_to_lock);
        if (lock && !pool_->idle.empty()) {
            auto found = std::move(pool_->idle.back());
            pool_->idle.pop_back();
            return found;
        }
    }
    auto made = std::make_unique<Arguments>();
    for (const Operand& operand : operands_) {
        made->given.push_back(memory(operand.given, engine(), DNNL_MEMORY_NONE));
        made->wanted.push_back(operand.reorders() ? memory(operand.wanted, engine(), DNNL_MEMORY_NONE)
                                                  : made->given.back());
        made->reorder_scratchpads.push_back(
            operand.reorders() ? memory(operand.reorder_scratchpad, engine(), DNNL_MEMORY_NONE) : memory());
        made->list.push_back({operand.argument, made->wanted.back().get()});
    }
    made->scratchpad = memory(scratchpad_, engine(), DNNL_MEMORY_NONE);
    made->list.push_back({DNNL_ARG_SCRATCHPAD, made->scratchpad.get()});
    return made;
}

void Operation::give(std::unique_ptr<Arguments> arguments) const {
    const std::unique_lock lock(pool_->mutex, std::try_to_lock);
    if (lock) {
        pool_->idle.push_back(std::move(arguments));
    }
}

void Operation::convert(const Operand& operand, const Arguments& arguments, std::size_t index) const {
    const memory& from = operand.is_output ? arguments.wanted[index] : arguments.given[index];
    const memory& to = operand.is_output ? arguments.given[index] : arguments.wanted[index];
    const dnnl_exec_arg_t list[] = {{DNNL_ARG_FROM, from.get()},
                                    {DNNL_ARG_TO, to.get()},
                                    {DNNL_ARG_SCRATCHPAD, arguments.reorder_scratchpads[index].get()}};
    dnnl::error::wrap_c_api(dnnl_primitive_execute(operand.reorder.get(), stream().get(), 3, list), "reorder failed");
}

void Operation::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    auto arguments = take();
    set_handle(arguments->scratchpad, scratch + scratchpad_offset_);
    for (std::size_t i = 0; i < operands_.size(); ++i) {
        const Operand& operand = operands_[i];
        const void* data = operand.is_output ? outputs[operand.position] : inputs[operand.position];
        set_handle(arguments->given[i], data);
        if (operand.reorders()) {
            set_handle(arguments->wanted[i], scratch + operand.offset);
            set_handle(arguments->reorder_scratchpads[i], scratch + reorder_scratchpad_offset_);
        }
        if (operand.reorders() && !operand.is_output) {
            convert(operand, *arguments, i);
        }
    }
    dnnl::error::wrap_c_api(dnnl_primitive_execute(primitive_.get(), stream().get(),
                                                   static_cast<int>(arguments->list.size()), arguments->list.data()),
                            "execution failed");
    for (std::size_t i = 0; i < operands_.size(); ++i) {
        if (operands_[i].is_output && operands_[i].reorders()) {
            convert(operands_[i], *arguments, i);
        }
    }
    give(std::move(arguments));
}

LibraryKernel::LibraryKernel(std::string name, int threads, bool deterministic)
    : Kernel(std::move(name), threads > 0 ? threads : default_threads()), deterministic_(deterministic) {}

LibraryKernel::~LibraryKernel() = default;

void LibraryKernel::restart() {
    operations_.clear();
    by_extents_.clear();
    pieces_.clear();
    pass_.reset();
    apart_ = false;
}

ElementType LibraryKernel::apply_after(const Epilogue& epilogue, const Dims& shape, ElementType type) {
    if (epilogue.empty()) {
        return type;
    }
    apart_ = epilogue.residual != 0 || type != ElementType::f32;
    const ElementType product = apart_ ? ElementType::f32 : type;
    pass_ = std::make_unique<Pointwise>(epilogue.pass(shape, product, type), threads());
    return product;
}

std::int64_t LibraryKernel::pieces_for(double multiply_adds, double bytes) {
    nanoseconds_ = std::max(multiply_adds / kProductsPerNanosecond, bytes / kBytesPerNanosecond);
    std::int64_t pieces = 1;
    const std::int64_t most = whole_           ? 1
                              : deterministic_ ? kMostPieces
                              : threads() == 1 ? 1
                                               : kPiecesPerThread * threads();
    while (2 * pieces <= most && static_cast<double>(2 * pieces) * kPieceNanoseconds <= nanoseconds_) {
        pieces *= 2;
    }
    return pieces;
}

double LibraryKernel::operand_bytes() const {
    double bytes = 0;
    for (const std::vector<TensorSpec>& specs : {inputs_, outputs_}) {
        for (const TensorSpec& spec : specs) {
            bytes += static_cast<double>(count(spec.shape)) * static_cast<double>(size_of(spec.type));
        }
    }
    return bytes;
}

void LibraryKernel::share_weights(const memory::desc& given, const memory::desc& wanted, bool packed) {
    if (given == wanted) {
        return;
    }
    weights_given_ = given;
    weights_wanted_ = wanted;
    packed_ = packed;
    if (!packed) {
        const OneThread alone;
        const auto descriptor =
            choose<dnnl::reorder>(any_name, engine(), given, engine(), wanted, Operation::attributes());
        conversion_.emplace();
        conversion_->input(DNNL_ARG_FROM, 1, given, given);
        conversion_->output(DNNL_ARG_TO, 0, wanted, wanted);
        conversion_->finish(descriptor, dnnl::reorder(descriptor));
    }
}

std::vector<std::pair<int, int>> LibraryKernel::residual_inplace() const {
    return inputs_.size() > 3 ? std::vector<std::pair<int, int>>{{3, 0}} : std::vector<std::pair<int, int>>{};
}

std::size_t LibraryKernel::output_bytes(std::size_t output) const {
    return static_cast<std::size_t>(count(outputs_[output].shape)) * size_of(outputs_[output].type);
}

LibraryKernel::Places LibraryKernel::places() const {
    Places places;
    for (const Operation& operation : operations_) {
        places.each = std::max(places.each, aligned(operation.scratch_bytes()));
    }
    places.partials = conversion_ ? aligned(weights_wanted_.get_size()) : 0;
    places.operations = places.partials;
    for (std::size_t i = 0; partials_ > 1 && i < outputs_.size(); ++i) {
        places.operations += aligned(partials_ * output_bytes(i));
    }
    places.product = places.operations;
    places.operations += apart_ ? aligned(static_cast<std::size_t>(count(outputs_[0].shape)) * sizeof(float)) : 0;
    const std::size_t own = places.each * static_cast<std::size_t>(threads());
    places.end = places.operations + std::max({own, conversion_ ? aligned(conversion_->scratch_bytes()) : 0,
                                               pass_ ? aligned(pass_->scratch_bytes()) : 0});
    return places;
}

std::size_t LibraryKernel::scratch_bytes() const {
    return places().end;
}

void LibraryKernel::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    if (empty_) {
        for (std::size_t i = 0; i < outputs_.size(); ++i) {
            std::memset(outputs[i], 0, output_bytes(i));
        }
        return;
    }
    if (!pass_) {
        if (residual_ >= 0 && inputs[residual_] != outputs[0]) {
            copy(outputs[0], inputs[residual_], output_bytes(0));
        }
        guarded(*this, [&] { run_pieces(inputs, outputs, scratch); });
        return;
    }
    const Places at = places();
    void* product = apart_ ? scratch + at.product : outputs[0];
    guarded(*this, [&] { run_pieces(inputs, &product, scratch); });
    const void* operands[] = {product, inputs_.size() > 2 ? inputs[2] : nullptr,
                              residual_ >= 0 ? inputs[residual_] : outputs[0]};
    pass_->run(operands, outputs, scratch + at.operations);
}

void LibraryKernel::run_pieces(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const Places at = places();
    std::array<const void*, 4> whole{};
    std::copy(inputs, inputs + inputs_.size(), whole.begin());
    if (conversion_) {
        const OneThread alone;
        void* converted[] = {scratch + at.weights};
        conversion_->run(inputs, converted, scratch + at.operations);
        whole[1] = converted[0];
    }
    std::array<std::byte*, 2> results{};
    std::size_t place = at.partials;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
        results[i] = partials_ > 1 ? scratch + place : static_cast<std::byte*>(outputs[i]);
        place += aligned(partials_ * output_bytes(i));
    }
    std::atomic<bool> invalid = false;
    const auto compute = [&](const Piece& piece) {
        std::array<const void*, 4> from{};
        for (std::size_t i = 0; i < inputs_.size(); ++i) {
            from[i] = whole[i] == nullptr ? nullptr : static_cast<const std::byte*>(whole[i]) + piece.inputs[i];
        }
        std::array<void*, 2> to{};
        for (std::size_t i = 0; i < outputs_.size(); ++i) {
            to[i] = results[i] + piece.partial * output_bytes(i) + piece.outputs[i];
        }
        std::byte* own = scratch + at.operations + static_cast<std::size_t>(thread_number()) * at.each;
        operations_[piece.operation].run(from.data(), to.data(), own);
    };
    const auto pieces = static_cast<std::int64_t>(pieces_.size());
    parallel_for(threads(), pieces, nanoseconds_ / static_cast<double>(pieces),
                 [&](std::int64_t begin, std::int64_t end) {
                     const OneThread alone;
                     set_invalid(false);
                     for (std::int64_t i = begin; i < end; ++i) {
                         compute(pieces_[static_cast<std::size_t>(i)]);
                     }
                     if (invalid_raised()) {
                         invalid = true;
                     }
                 });
    set_invalid(invalid);
    if (partials_ > 1) {
        add_partials(scratch + at.partials, outputs);
    }
}

void LibraryKernel::add_partials(const std::byte* partials, void* const* outputs) const {
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
        const std::int64_t size = count(outputs_[i].shape);
        const auto* from = reinterpret_cast<const float*>(partials);
        auto* to = static_cast<float*>(outputs[i]);
        const auto terms = static_cast<std::int64_t>(partials_);
        parallel_for(
            threads(), size, 0.2 * static_cast<double>(terms),
            [&](std::int64_t begin, std::int64_t end) {
                std::copy(from + begin, from + end, to + begin);
                for (std::int64_t term = 1; term < terms; ++term) {
                    const float* added = from + term * size;
                    for (std::int64_t k = begin; k < end; ++k) {
                        to[k] += added[k];
                    }
                }
            },
            1024);
        partials += aligned(partials_ * output_bytes(i));
    }
}

std::vector<int> LibraryKernel::packed_inputs() const {
    return packed_ ? std::vector<int>{1} : std::vector<int>{};
}

std::size_t LibraryKernel::packed_bytes(int input) const {
    require_packed(input);
    return weights_wanted_.get_size();
}

std::string LibraryKernel::packed_layout(int input) const {
    require_packed(input);
    return layout_text(weights_given_, weights_wanted_);
}

void LibraryKernel::pack(int input, const void* plain, void* packed) const {
    require_packed(input);
    guarded(*this, [&] {
        const OneThread alone;
        memory from(weights_given_, engine(), const_cast<void*>(plain));
        memory to(weights_wanted_, engine(), packed);
        const auto descriptor = choose<dnnl::reorder>(any_name, engine(), weights_given_, engine(), weights_wanted_);
        dnnl::reorder(descriptor).execute(stream(), from, to);
    });
}

void LibraryKernel::unpack(int input, const void* packed, void* plain) const {
    require_packed(input);
    guarded(*this, [&] {
        const OneThread alone;
        memory from(weights_wanted_, engine(), const_cast<void*>(packed));
        memory to(weights_given_, engine(), plain);
        dnnl::reorder(from, to).execute(stream(), from, to);
    });
}

std::string LibraryKernel::implementation() const {
    return empty_ ? "empty" : operations_[0].implementation();
}

// Asks Python's package metadata. Throws MissingDependency if the library is not installed any more.
static std::string onednn_of_python(const std::string& cause) {
    const nb::gil_scoped_acquire gil;
    const nb::object find = nb::module_::import_("graphkit.executor.devices.extension").attr("onednn_library");
    return nb::cast<std::string>(find(cause));
}

GRAPHKIT_BINDINGS(onednn) {
    find_onednn_by(&onednn_of_python);
    m.def("onednn_version", &onednn_version);
    m.def("onednn_isa", &onednn_isa, "The instruction set that oneDNN uses.");
}

}  // namespace graphkit
