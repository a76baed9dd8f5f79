#include "kernels/quant/integer_operands.h"

#include <algorithm>
#include <atomic>

#include "runtime/bindings.h"
#include "runtime/cpu_info.h"

namespace graphkit {
namespace {

std::atomic<bool>& allowed() {
    static std::atomic<bool> on{true};
    return on;
}

bool is_byte(ElementType type) {
    return type == ElementType::u8 || type == ElementType::i8;
}

std::int32_t number(const void* from, ElementType type, std::int64_t at) {
    return type == ElementType::u8 ? static_cast<const std::uint8_t*>(from)[at]
                                   : static_cast<const std::int8_t*>(from)[at];
}

}  // namespace

IntegerOperands::IntegerOperands(const std::vector<NamedOperand>& operands, std::int64_t columns) {
    place_.fill(-1);
    for (const NamedOperand& operand : operands) {
        if (!operand) {
            specs_.push_back({"absent", {}, ElementType::f32, true});
            continue;
        }
        const auto& [name, shape, type] = *operand;
        const auto part = std::find(kPartNames.begin(), kPartNames.end(), name) - kPartNames.begin();
        if (part == static_cast<std::ptrdiff_t>(kPartNames.size())) {
            throw NativeError("no operand of an integer product is called " + name);
        }
        place_[static_cast<std::size_t>(part)] = static_cast<int>(specs_.size());
        specs_.push_back({name, shape, element_type(type), false});
    }
    for (const Part part : {Part::x_scale, Part::x_zero, Part::y_scale, Part::y_zero}) {
        check(part, 1);
    }
    for (const Part part : {Part::w_scale, Part::w_zero, Part::sum, Part::bias}) {
        check(part, columns);
    }
    if (!has(Part::x) || !has(Part::w) || !is_byte(spec(Part::w).type)) {
        throw Unsupported("an integer product needs bytes");
    }
    x_flip_ = spec(Part::x).type == ElementType::i8 ? 0x80 : 0;
    w_flip_ = spec(Part::w).type == ElementType::u8 ? 0x80 : 0;
}

void IntegerOperands::check(Part part, std::int64_t columns) const {
    if (!has(part)) {
        return;
    }
    const TensorSpec& of = spec(part);
    const bool is_zero = part == Part::x_zero || part == Part::w_zero || part == Part::y_zero;
    const bool fits = is_zero ? is_byte(of.type) : of.type == (part == Part::sum ? ElementType::i32 : ElementType::f32);
    const std::int64_t size = count(of.shape);
    if (!fits || (size != 1 && size != columns)) {
        throw Unsupported("an integer product with " + to_string(of));
    }
}

ColumnNumbers column_numbers(const IntegerOperands& operands, const ColumnPlan& plan, const void* const* inputs,
                             const std::int32_t* sums_of_w, ElementType y, std::byte* scratch,
                             const FoundRange* found) {
    const std::size_t part_bytes = plan.bytes() / 4;
    ColumnNumbers made{reinterpret_cast<std::int32_t*>(scratch), reinterpret_cast<std::int32_t*>(scratch + part_bytes),
                       reinterpret_cast<float*>(scratch + 2 * part_bytes),
                       reinterpret_cast<float*>(scratch + 3 * part_bytes), 0};
    const auto real = [&](Part part, std::int64_t at) {
        return operands.has(part) ? static_cast<const float*>(operands.get(part, inputs))[at] : 1.0F;
    };
    const auto zero = [&](Part part, std::int64_t at) {
        return operands.has(part) ? number(operands.get(part, inputs), operands.spec(part).type, at) : 0;
    };
    const auto step = [&](Part part) -> std::int64_t {
        return operands.has(part) && count(operands.spec(part).shape) != 1 ? 1 : 0;
    };
    std::int32_t x_zero = found != nullptr ? found->zero : zero(Part::x_zero, 0);
    made.x_zero = static_cast<std::uint8_t>(x_zero);
    x_zero += operands.x_flip();
    const float x_factor = plan.alpha * (found != nullptr ? found->scale : real(Part::x_scale, 0));
    const bool divides = operands.has(Part::y_scale);
    const float y_scale = real(Part::y_scale, 0);
    const std::int64_t scale_step = step(Part::w_scale);
    const std::int64_t zero_step = step(Part::w_zero);
    const std::int64_t sum_step = step(Part::sum);
    const std::int64_t bias_step = step(Part::bias);
    const auto* sum = static_cast<const std::int32_t*>(operands.get(Part::sum, inputs));
    const auto* scales = static_cast<const float*>(operands.get(Part::w_scale, inputs));
    const auto* bias = static_cast<const float*>(operands.get(Part::bias, inputs));
    bool has_zeros = false;
    for (std::int64_t g = 0; g < plan.groups; ++g) {
        const std::int64_t first = plan.shared ? 0 : g * plan.columns;
        const std::int64_t at = g * plan.padded;
        for (std::int64_t n = 0; n < plan.columns; ++n) {
            const std::int32_t w_zero = zero(Part::w_zero, (first + n) * zero_step) - operands.w_flip();
            has_zeros |= w_zero != 0;
            made.zeros[at + n] = w_zero;
        }
        // Modulo 2^32, like all sums.
        for (std::int64_t n = 0; n < plan.columns; ++n) {
            const auto added = static_cast<std::uint32_t>(sum == nullptr ? 0 : sum[(first + n) * sum_step]);
            const auto taken = static_cast<std::uint32_t>(x_zero) * static_cast<std::uint32_t>(sums_of_w[at + n]);
            made.offsets[at + n] = static_cast<std::int32_t>(added - taken);
        }
        for (std::int64_t n = 0; has_zeros && n < plan.columns; ++n) {
            const std::uint32_t product = static_cast<std::uint32_t>(x_zero) * static_cast<std::uint32_t>(plan.terms);
            made.offsets[at + n] = static_cast<std::int32_t>(static_cast<std::uint32_t>(made.offsets[at + n]) +
                                                             product * static_cast<std::uint32_t>(made.zeros[at + n]));
        }
        for (std::int64_t n = 0; n < plan.columns; ++n) {
            const float factor = x_factor * (scales == nullptr ? 1.0F : scales[(first + n) * scale_step]);
            made.factors[at + n] = divides ? factor / y_scale : factor;
        }
        for (std::int64_t n = 0; bias != nullptr && n < plan.columns; ++n) {
            made.bias[at + n] = bias[(first + n) * bias_step];
        }
        for (std::int64_t n = plan.columns; n < plan.padded; ++n) {
            made.offsets[at + n] = made.zeros[at + n] = 0;
            made.factors[at + n] = made.bias[at + n] = 0;
        }
    }
    made.zeros = has_zeros ? made.zeros : nullptr;
    made.bias = bias == nullptr ? nullptr : made.bias;
    const bool is_signed = y == ElementType::i8;
    const std::int32_t y_zero = zero(Part::y_zero, 0);
    made.bytes = {static_cast<float>((is_signed ? 127 : 255) - y_zero), y_zero, is_signed};
    return made;
}

bool has_dot_products() {
    static const bool offered = [] {
        const std::vector<std::string> features = cpu_features();
        return std::find(features.begin(), features.end(), "avx512_vnni") != features.end();
    }();
    return offered && allowed().load(std::memory_order_relaxed) && isa() == Isa::avx512;
}

void use_dot_products(bool on) {
    allowed() = on;
}

GRAPHKIT_BINDINGS(integer_operands) {
    m.def("has_dot_products", &has_dot_products, "Whether integer products made from now on use AVX512 VNNI.");
    m.def("use_dot_products", &use_dot_products, "on"_a, "Allow or forbid that.");
}

}  // namespace graphkit
