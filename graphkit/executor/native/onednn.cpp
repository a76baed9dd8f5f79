#include "onednn.h"

#include <dnnl_debug.h>

#include <algorithm>
#include <unordered_map>

namespace graphkit {
namespace {

using dnnl::algorithm;
using dnnl::memory;

constexpr std::size_t kAlignment = 64;

const dnnl::stream& stream() {
    static const dnnl::stream only(engine());
    return only;
}

class PackedMemory final : public Packed {
  public:
    explicit PackedMemory(memory packed) : memory_(std::move(packed)) {}
    std::size_t bytes() const override { return memory_.get_desc().get_size(); }
    const memory& get() const { return memory_; }

  private:
    memory memory_;
};

const std::unordered_map<std::string, algorithm>& post_op_kinds() {
    static const std::unordered_map<std::string, algorithm> table{
        {"relu", algorithm::eltwise_relu},
        {"tanh", algorithm::eltwise_tanh},
        {"sigmoid", algorithm::eltwise_logistic},
        {"gelu_erf", algorithm::eltwise_gelu_erf},
        {"gelu_tanh", algorithm::eltwise_gelu_tanh},
        {"swish", algorithm::eltwise_swish},
        {"hardswish", algorithm::eltwise_hardswish},
        {"hardsigmoid", algorithm::eltwise_hardsigmoid},
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

void rethrow(const Step& step, const dnnl::error& error) {
    const std::string message =
        step.describe() + ": oneDNN: " + error.message + " (" + dnnl_status2str(error.status) + ")";
    if (error.status == dnnl_unimplemented) {
        throw Unsupported(message);
    }
    throw NativeError(message);
}

void append(dnnl::post_ops& chain, const std::vector<PostOp>& post_ops) {
    for (const PostOp& post_op : post_ops) {
        const auto found = post_op_kinds().find(post_op.kind);
        if (found == post_op_kinds().end()) {
            throw NativeError("there is no post-operation '" + post_op.kind + "'");
        }
        chain.append_eltwise(found->second, post_op.alpha, post_op.beta);
    }
}

const dnnl::engine& engine() {
    static const dnnl::engine only(dnnl::engine::kind::cpu, 0);
    return only;
}

memory::desc plain(const Dims& dims) {
    Dims strides(dims.size());
    std::int64_t step = 1;
    for (std::size_t i = dims.size(); i-- > 0;) {
        strides[i] = step;
        step *= dims[i];
    }
    return {dims, memory::data_type::f32, strides};
}

memory::desc any(const Dims& dims) {
    return {dims, memory::data_type::f32, memory::format_tag::any};
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

void Operation::output(int argument, std::size_t position, const memory::desc& given, const memory::desc& wanted) {
    add(argument, position, true, given, wanted);
}

void Operation::add(int argument, std::size_t position, bool is_output, const memory::desc& given,
                    const memory::desc& wanted) {
    Operand operand{position, is_output, memory(given, engine(), DNNL_MEMORY_NONE), {}, {}, {}};
    operand.wanted = operand.given;
    if (given != wanted) {
        operand.wanted = memory(wanted, engine(), DNNL_MEMORY_NONE);
        const auto& [from, to] = is_output ? std::pair(wanted, given) : std::pair(given, wanted);
        const dnnl::reorder::primitive_desc descriptor(engine(), from, engine(), to, attributes());
        operand.reorder = dnnl::reorder(descriptor);
        operand.reorder_scratchpad = memory(descriptor.scratchpad_desc(), engine(), DNNL_MEMORY_NONE);
        operand.offset = reserve(wanted.get_size());
    }
    operands_.push_back(std::move(operand));
    argument_names_.push_back(argument);
}

void Operation::finish(const dnnl::primitive_desc_base& descriptor, dnnl::primitive primitive) {
    primitive_ = std::move(primitive);
    implementation_ = descriptor.impl_info_str();
    scratchpad_ = memory(descriptor.scratchpad_desc(), engine(), DNNL_MEMORY_NONE);
    scratchpad_offset_ = reserve(descriptor.scratchpad_desc().get_size());
    std::size_t reorder_scratchpad = 0;
    for (std::size_t i = 0; i < operands_.size(); ++i) {
        const Operand& operand = operands_[i];
        arguments_.push_back({argument_names_[i], operand.wanted.get()});
        if (operand.reorders()) {
            reorder_scratchpad = std::max(reorder_scratchpad, operand.reorder_scratchpad.get_desc().get_size());
        }
    }
    reorder_scratchpad_offset_ = reserve(reorder_scratchpad);
    arguments_.push_back({DNNL_ARG_SCRATCHPAD, scratchpad_.get()});
}

void Operation::allow_packing(std::size_t position) {
    const bool differs = std::any_of(operands_.begin(), operands_.end(), [&](const Operand& operand) {
        return !operand.is_output && operand.position == position && operand.reorders();
    });
    packable_ = differs ? static_cast<int>(position) : -1;
}

std::unique_ptr<Packed> Operation::pack(const void* array) const {
    for (const Operand& operand : operands_) {
        if (!operand.is_output && static_cast<int>(operand.position) == packable_) {
            memory given(operand.given.get_desc(), engine(), const_cast<void*>(array));
            memory packed(operand.wanted.get_desc(), engine());
            dnnl::reorder(given, packed).execute(stream(), given, packed);
            return std::make_unique<PackedMemory>(std::move(packed));
        }
    }
    throw NativeError("the operation has no operand that can be packed");
}

void Operation::Operand::convert() {
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, (is_output ? wanted : given).get()},
                                         {DNNL_ARG_TO, (is_output ? given : wanted).get()},
                                         {DNNL_ARG_SCRATCHPAD, reorder_scratchpad.get()}};
    dnnl::error::wrap_c_api(dnnl_primitive_execute(reorder.get(), stream().get(), 3, arguments), "reorder failed");
}

void Operation::run(Team& team, std::span<const void* const> inputs, std::span<void* const> outputs,
                    const Packed* packed) {
    std::byte* scratch = team.scratch(scratch_bytes_);
    set_handle(scratchpad_, scratch + scratchpad_offset_);
    for (Operand& operand : operands_) {
        if (packed != nullptr && !operand.is_output && static_cast<int>(operand.position) == packable_) {
            const auto* memory = dynamic_cast<const PackedMemory*>(packed);
            if (memory == nullptr || memory->get().get_desc() != operand.wanted.get_desc()) {
                throw NativeError("the packed operand was made for another layout");
            }
            set_handle(operand.wanted, memory->get().get_data_handle());
            continue;
        }
        set_handle(operand.given, operand.is_output ? outputs[operand.position] : inputs[operand.position]);
        if (operand.reorders()) {
            set_handle(operand.reorder_scratchpad, scratch + reorder_scratchpad_offset_);
            set_handle(operand.wanted, scratch + operand.offset);
            if (!operand.is_output) {
                operand.convert();
            }
        }
    }
    dnnl::error::wrap_c_api(dnnl_primitive_execute(primitive_.get(), stream().get(),
                                                   static_cast<int>(arguments_.size()), arguments_.data()),
                            "execution failed");
    for (Operand& operand : operands_) {
        if (operand.is_output && operand.reorders()) {
            operand.convert();
        }
    }
}

}  // namespace graphkit
