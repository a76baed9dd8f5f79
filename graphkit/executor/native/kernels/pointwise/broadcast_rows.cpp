#include "kernels/pointwise/broadcast_rows.h"

#include <algorithm>
#include <string_view>

namespace graphkit {
namespace {

// Shorter rows are collected in blocks. So are few rows per step of the other axes, unless they are long.
constexpr std::int64_t kShortRowBytes = 64;
constexpr std::int64_t kFewElements = 512;

std::size_t index(ElementType type) {
    return static_cast<std::size_t>(type);
}

}  // namespace

RowsFunction BroadcastRows::function_of(const PointwiseSource& source) {
    const std::size_t values = source.inputs.size() + source.constants.size();
    if (source.instructions.size() != 1 || source.outputs.size() != 1 ||
        source.outputs[0].value != static_cast<int>(values)) {
        return nullptr;
    }
    const PointwiseInstruction& instruction = source.instructions[0];
    const auto type_of = [&](int number) {
        const auto at = static_cast<std::size_t>(number);
        return at < source.inputs.size() ? source.inputs[at].type : source.constants[at - source.inputs.size()].type;
    };
    const int first = instruction.operands.empty() ? -1 : instruction.operands[0];
    const bool is_value = first >= 0 && first < static_cast<int>(values);
    const ElementType type = is_value ? type_of(first) : source.outputs[0].type;
    // Results of comparisons are booleans, which only have the size of bytes.
    if (size_of(type) != size_of(source.outputs[0].type)) {
        return nullptr;
    }
    const auto fits = [&](int number) {
        const auto at = static_cast<std::size_t>(number);
        return at < source.inputs.size() ? source.inputs[at].type == type && !source.inputs[at].absent
                                         : at < values && source.constants[at - source.inputs.size()].type == type;
    };
    const auto* const found = std::find_if(std::begin(kOpcodes), std::end(kOpcodes), [&](const OpcodeInfo& info) {
        return std::string_view(info.name) == instruction.opcode;
    });
    const bool is_whole = found != std::end(kOpcodes) &&
                          static_cast<int>(instruction.operands.size()) == found->operands &&
                          std::all_of(instruction.operands.begin(), instruction.operands.end(), fits);
    return !is_whole ? nullptr
                     : broadcast_rows_table().functions[static_cast<std::size_t>(found - kOpcodes)][index(type)];
}

std::optional<BroadcastRows> BroadcastRows::of(RowsFunction function, const PointwiseSource& source, const Loops& loops,
                                               const std::byte* constants, std::size_t constant_bytes) {
    BroadcastRows made;
    made.function_ = function;
    made.element_ = static_cast<std::int64_t>(size_of(source.outputs[0].type));
    const std::size_t axes = loops.sizes.size();
    if (function == nullptr || axes < 2 || loops.count == 0 || loops.row() * made.element_ < kShortRowBytes ||
        loops.row() * loops.sizes[axes - 2] < kFewElements) {
        return std::nullopt;
    }
    std::vector<bool> equal;
    for (const int operand : source.instructions[0].operands) {
        const auto number = static_cast<std::size_t>(operand);
        if (number < source.inputs.size()) {
            const Dims& strides = loops.strides[number];
            equal.push_back(strides.back() == 0);
            made.operands_.push_back({operand, nullptr, strides[axes - 2] * made.element_, equal.back()});
        } else {
            equal.push_back(true);
            const std::byte* const constant = constants + (number - source.inputs.size()) * constant_bytes;
            made.operands_.push_back({-1, constant, 0, true});
        }
    }
    const bool both = equal[0] && equal[1];
    const bool fits = !both && (equal.size() == 2 || equal[2] == (equal[0] || equal[1]));
    return fits ? std::optional(made) : std::nullopt;
}

void BroadcastRows::run(const void* const* inputs, void* const* outputs, const Loops& loops, std::int64_t begin,
                        std::int64_t end) const {
    const std::int64_t together = loops.sizes[loops.sizes.size() - 2];
    for (std::int64_t row = begin; row < end;) {
        const std::int64_t count = std::min(end - row, together - row % together);
        RowOperand rows[kMaxOperands];
        for (std::size_t i = 0; i < operands_.size(); ++i) {
            const Operand& operand = operands_[i];
            const std::byte* data = operand.constant;
            if (operand.input >= 0) {
                const std::int64_t offset = loops.row_offset(static_cast<std::size_t>(operand.input), row);
                data = static_cast<const std::byte*>(inputs[operand.input]) + offset * element_;
            }
            rows[i] = {data, operand.stride, operand.equal};
        }
        function_(static_cast<std::byte*>(outputs[0]) + row * loops.row() * element_, rows, count, loops.row());
        row += count;
    }
}

}  // namespace graphkit
