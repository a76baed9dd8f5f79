// The operands of products and convolutions of quantised numbers: which there are, and what they come to in a run.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/quant/integer_table.h"
#include "runtime/kernel.h"

namespace graphkit {

// The part of each operand, in the order of its names below.
enum class Part : std::uint8_t { x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, sum, bias };
constexpr std::array<const char*, 10> kPartNames = {"x",      "x_scale", "x_zero", "w",   "w_scale",
                                                    "w_zero", "y_scale", "y_zero", "sum", "bias"};

// An operand of a node: its part by name, its shape, its type. None for one that is absent.
using NamedOperand = std::optional<std::tuple<std::string, Dims, std::string>>;

// The operands by their parts. `sum` is an int32 addend of the sums, `bias` a float32 one of the product.
class IntegerOperands {
  public:
    // Throws Unsupported for types and for shapes of parameters that are not covered: all are one number, or w_scale,
    // w_zero, sum and bias one for each of `columns`.
    IntegerOperands(const std::vector<NamedOperand>& operands, std::int64_t columns);

    const std::vector<TensorSpec>& specs() const { return specs_; }
    bool has(Part part) const { return place_[index(part)] >= 0; }
    int place(Part part) const { return place_[index(part)]; }
    const TensorSpec& spec(Part part) const { return specs_[static_cast<std::size_t>(place(part))]; }
    const void* get(Part part, const void* const* inputs) const { return has(part) ? inputs[place(part)] : nullptr; }
    // What bytes of this part are combined with by exclusive or, so that x are unsigned and w signed.
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

// What every column of a result needs, in arrays of `groups` times `padded` columns; columns are those of one group.
struct ColumnPlan {
    std::int64_t groups = 1;
    std::int64_t columns = 0;
    std::int64_t padded = 0;
    std::int64_t terms = 0;   // of each sum
    bool shared = false;      // parameters are those of the first group in all of them
    float alpha = 1;

    std::size_t bytes() const { return 4 * aligned(static_cast<std::size_t>(groups * padded) * sizeof(float)); }
};

// One run's numbers, made in scratch memory of ColumnPlan::bytes().
struct ColumnNumbers {
    std::int32_t* offsets;
    std::int32_t* zeros;  // null: all are zero
    float* factors;
    float* bias;          // null: none
    std::uint8_t x_zero;  // as x has it
    ByteResult bytes{};
};

// The zero point and the scale of x where they are not operands but found in the run.
struct FoundRange {
    float scale;
    std::uint8_t zero;
};

// `sums_of_w`: [groups, padded], of the weights of each column, as they are multiplied.
ColumnNumbers column_numbers(const IntegerOperands& operands, const ColumnPlan& plan, const void* const* inputs,
                             const std::int32_t* sums_of_w, ElementType y, std::byte* scratch,
                             const FoundRange* found = nullptr);

// Whether products of bytes are to be the processor's own instruction: it has one, and use_dot_products allows it.
bool has_dot_products();
void use_dot_products(bool on);

}  // namespace graphkit
