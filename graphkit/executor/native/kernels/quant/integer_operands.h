// The operands of quantised products and convolutions, and the numbers that a run computes from them.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/quant/integer_table.h"
#include "runtime/kernel.h"

namespace graphkit {

// The role of each operand, in the order of the names below.
enum class Part : std::uint8_t { x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, sum, bias };
constexpr std::array<const char*, 10> kPartNames = {"x",      "x_scale", "x_zero", "w",   "w_scale",
                                                    "w_zero", "y_scale", "y_zero", "sum", "bias"};

// An operand of a node: its role by name, its shape, its type. No value if it is absent.
using NamedOperand = std::optional<std::tuple<std::string, Dims, std::string>>;

// The operands by role. `sum` is an int32 addend of the sums, `bias` a float32 addend of the scaled product.
class IntegerOperands {
  public:
    // Throws Unsupported for types and parameter shapes that are not supported. Parameters must be one number, or for
    // w_scale, w_zero, sum and bias one number for each of `columns`.
    IntegerOperands(const std::vector<NamedOperand>& operands, std::int64_t columns);

    const std::vector<TensorSpec>& specs() const { return specs_; }
    bool has(Part part) const { return place_[index(part)] >= 0; }
    int place(Part part) const { return place_[index(part)]; }
    const TensorSpec& spec(Part part) const { return specs_[static_cast<std::size_t>(place(part))]; }
    const void* get(Part part, const void* const* inputs) const { return has(part) ? inputs[place(part)] : nullptr; }
    // Bytes of x (w) are combined with this by exclusive or, so that x becomes unsigned and w signed.
    std::uint8_t x_flip() const { return x_flip_; }
    std::uint8_t w_flip() const { return w_flip_; }

  private:
    static std::size_t index(Part part) { return static_cast<std::size_t>(part); }
    void check(Part part, std::int64_t columns) const;

    std::vector<TensorSpec> specs_;
    std::array<int, kPartNames.size()> place_;
    std::uint8_t x_flip_ = 0;
    std::uint8_t w_flip_ = 0;
};

// The layout of the numbers of each column of a result: arrays of `groups` times `padded` columns. `columns` are those
// of one group.
struct ColumnPlan {
    std::int64_t groups = 1;
    std::int64_t columns = 0;
    std::int64_t padded = 0;
    std::int64_t terms = 0;   // of each sum
    bool shared = false;      // all groups use the parameters of the first one
    float alpha = 1;

    std::size_t bytes() const { return 4 * aligned(static_cast<std::size_t>(groups * padded) * sizeof(float)); }
};

// The numbers of one run, in scratch memory of ColumnPlan::bytes().
struct ColumnNumbers {
    std::int32_t* offsets;
    std::int32_t* zeros;  // null if all are zero
    float* factors;
    float* bias;          // null if there is none
    std::uint8_t x_zero;  // before the exclusive or
    ByteResult bytes{};
};

// The zero point and scale of x, if they are not operands but computed in the run.
struct FoundRange {
    float scale;
    std::uint8_t zero;
};

// `sums_of_w`: [groups, padded], the sums of each column's weights, as they are multiplied.
ColumnNumbers column_numbers(const IntegerOperands& operands, const ColumnPlan& plan, const void* const* inputs,
                             const std::int32_t* sums_of_w, ElementType y, std::byte* scratch,
                             const FoundRange* found = nullptr);

// Whether the processor's instruction for products of bytes is used: if it has one, and use_dot_products allows it.
bool has_dot_products();
void use_dot_products(bool on);

}  // namespace graphkit
