#include "onednn.h"

#include <dnnl_debug.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

namespace graphkit {
namespace {

using dnnl::algorithm;
using dnnl::memory;

const dnnl::stream& stream() {
    static const dnnl::stream only(engine());
    return only;
}

const std::unordered_map<std::string, algorithm>& activation_kinds() {
    static const std::unordered_map<std::string, algorithm> table{
        {"relu", algorithm::eltwise_relu},
        {"tanh", algorithm::eltwise_tanh},
        {"sigmoid", algorithm::eltwise_logistic},
        {"gelu", algorithm::eltwise_gelu_erf},
        {"gelu_tanh", algorithm::eltwise_gelu_tanh},
        {"swish", algorithm::eltwise_swish},
        {"hard_swish", algorithm::eltwise_hardswish},
        {"hard_sigmoid", algorithm::eltwise_hardsigmoid},
        {"elu", algorithm::eltwise_elu},
        {"clip", algorithm::eltwise_clip},
        {"softplus", algorithm::eltwise_soft_relu},
        {"abs", algorithm::eltwise_abs},
        {"sqrt", algorithm::eltwise_sqrt},
        {"exp", algorithm::eltwise_exp},
        {"square", algorithm::eltwise_square},
        {"linear", algorithm::eltwise_linear},
    };
    return table;
}

void set_handle(memory& target, const void* data) {
    target.set_data_handle(const_cast<void*>(data));
}

// Large copies are shared among the team.
void copy(void* to, const void* from, std::size_t bytes) {
    parallel_for(team_size(), static_cast<std::int64_t>(bytes), 0.05, [&](std::int64_t begin, std::int64_t end) {
        std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                    static_cast<std::size_t>(end - begin));
    }, 64);
}

}  // namespace

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

void rethrow(const Kernel& kernel, const dnnl::error& error) {
    const std::string message =
        kernel.describe() + ": oneDNN: " + error.message + " (" + dnnl_status2str(error.status) + ")";
    if (error.status == dnnl_unimplemented) {
        throw Unsupported(message);
    }
    throw NativeError(message);
}

void append(dnnl::post_ops& chain, const Epilogue& epilogue) {
    if (epilogue.residual && !epilogue.residual_last) {
        chain.append_sum(1.0F);
    }
    if (epilogue.activation) {
        const Activation& activation = *epilogue.activation;
        const auto found = activation_kinds().find(activation.kind);
        if (found == activation_kinds().end()) {
            throw NativeError("there is no activation '" + activation.kind + "'");
        }
        chain.append_eltwise(found->second, activation.alpha, activation.beta);
    }
    if (epilogue.residual && epilogue.residual_last) {
        chain.append_sum(1.0F);
    }
}

const dnnl::engine& engine() {
    static const dnnl::engine only(dnnl::engine::kind::cpu, 0);
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
    scratch_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
}

void Operation::input(int argument, std::size_t position, const memory::desc& given, const memory::desc& wanted) {
    add(argument, position, false, given, wanted);
}

void Operation::packed_input(int argument, std::size_t position, const memory::desc& plain,
                             const memory::desc& wanted) {
    if (plain != wanted) {
        packed_ = static_cast<int>(position);
        packed_from_ = plain;
        packed_to_ = wanted;
    }
    add(argument, position, false, wanted, wanted);
}

void Operation::output(int argument, std::size_t position, const memory::desc& given, const memory::desc& wanted) {
    add(argument, position, true, given, wanted);
}

void Operation::add(int argument, std::size_t position, bool is_output, const memory::desc& given,
                    const memory::desc& wanted) {
    Operand operand{argument, position, is_output, given, wanted, {}, {}};
    if (given != wanted) {
        const auto& [from, to] = is_output ? std::pair(wanted, given) : std::pair(given, wanted);
        const dnnl::reorder::primitive_desc descriptor(engine(), from, engine(), to, attributes());
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

std::size_t Operation::packed_bytes() const {
    return packed_ < 0 ? 0 : packed_to_.get_size();
}

std::string Operation::packed_layout() const {
    if (packed_ < 0) {
        return {};
    }
    // Descriptors are compared by everything that says where an element lies.
    std::string text = std::to_string(static_cast<int>(packed_to_.get_data_type()));
    for (const Dims& dims : {packed_to_.get_dims(), packed_to_.get_padded_dims(), packed_to_.get_strides(),
                             packed_to_.get_inner_blks(), packed_to_.get_inner_idxs(), packed_from_.get_strides()}) {
        text += to_string(dims);
    }
    return text;
}

void Operation::pack(const void* plain, void* packed) const {
    memory from(packed_from_, engine(), const_cast<void*>(plain));
    memory to(packed_to_, engine(), packed);
    dnnl::reorder(from, to).execute(stream(), from, to);
}

std::unique_ptr<Operation::Arguments> Operation::take() const {
    {
        const std::lock_guard lock(pool_->mutex);
        if (!pool_->idle.empty()) {
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
    const std::lock_guard lock(pool_->mutex);
    pool_->idle.push_back(std::move(arguments));
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
        if (operand.is_output && residual_ >= 0) {
            const void* residual = inputs[residual_];
            if (residual != data) {
                copy(outputs[operand.position], residual, operand.given.get_size());
            }
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

std::vector<std::pair<int, int>> LibraryKernel::residual_inplace() const {
    return inputs_.size() > 3 ? std::vector<std::pair<int, int>>{{3, 0}} : std::vector<std::pair<int, int>>{};
}

void LibraryKernel::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    if (empty_) {
        for (std::size_t i = 0; i < outputs_.size(); ++i) {
            std::memset(outputs[i], 0, static_cast<std::size_t>(count(outputs_[i].shape)) * size_of(outputs_[i].type));
        }
        return;
    }
    guarded(*this, [&] { operation_.run(inputs, outputs, scratch); });
}

std::vector<int> LibraryKernel::packed_inputs() const {
    const int input = operation_.packed_input();
    return input < 0 ? std::vector<int>{} : std::vector<int>{input};
}

std::size_t LibraryKernel::packed_bytes(int input) const {
    require_packed(input);
    return operation_.packed_bytes();
}

std::string LibraryKernel::packed_layout(int input) const {
    require_packed(input);
    return operation_.packed_layout();
}

void LibraryKernel::pack(int input, const void* plain, void* packed) const {
    require_packed(input);
    guarded(*this, [&] { operation_.pack(plain, packed); });
}

}  // namespace graphkit
