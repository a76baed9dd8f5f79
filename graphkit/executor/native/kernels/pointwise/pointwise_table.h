// The instructions of pointwise kernels: functions of whole blocks, one for each opcode and element type.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/isa.h"
#include "runtime/kernel.h"

namespace graphkit {

// X(name, number of operands, estimated nanoseconds for one element on one thread with wide vectors). The element type
// of an instruction is that of its first operand (for select: the second). The result has the same type; comparisons
// return booleans.
// clang-format off
#define GRAPHKIT_POINTWISE_OPCODES(X)                                                                       \
    X(copy, 1, 0.02)                                                                                        \
    X(add, 2, 0.03) X(sub, 2, 0.03) X(mul, 2, 0.03)                                                         \
    X(div, 2, 0.1) /* integers: towards zero */                                                             \
    X(mod, 2, 1.0) /* the divisor's sign */ X(fmod, 2, 2.0) /* the dividend's sign */                       \
    X(mul_add, 3, 0.04) /* a b + c */ X(mul_sub, 3, 0.04) /* a b - c */ X(nmul_add, 3, 0.04) /* c - a b */  \
    X(minimum, 2, 0.03) X(maximum, 2, 0.03) /* NaN wins */                                                  \
    X(equal, 2, 0.04) X(not_equal, 2, 0.04) X(less, 2, 0.04) X(less_equal, 2, 0.04)                         \
    X(select, 3, 0.04) /* a ? b : c */                                                                      \
    X(select_equal, 4, 0.05) X(select_not_equal, 4, 0.05) /* a == b ? c : d, a != b ? c : d */              \
    X(select_less, 4, 0.05) X(select_less_equal, 4, 0.05) /* a < b ? c : d, a <= b ? c : d */               \
    X(bit_and, 2, 0.02) X(bit_or, 2, 0.02) X(bit_xor, 2, 0.02)                                              \
    X(shift_left, 2, 0.1) X(shift_right, 2, 0.1) /* beyond the width: only the sign is left */              \
    X(neg, 1, 0.02) X(abs, 1, 0.02) X(sign, 1, 0.03)                                                        \
    X(floor, 1, 0.03) X(ceil, 1, 0.03) X(round, 1, 0.03) /* to even */                                      \
    X(sqrt, 1, 0.15) X(exp, 1, 0.15) X(expm1, 1, 0.2) /* of x <= 64 */ X(log, 1, 0.2)                       \
    X(tanh, 1, 0.25) X(sigmoid, 1, 0.25) X(erf, 1, 0.3) X(gelu, 1, 0.35) X(gelu_tanh, 1, 0.3)               \
    X(softplus, 1, 0.5) X(mish, 1, 0.3) X(softsign, 1, 0.12)                                                \
    X(swish, 2, 0.25)    /* a sigmoid(a b) */                                                               \
    X(hard_swish_grad, 2, 0.06) /* 0 where b < -3, a where b > 3, else a (b / 3 + 1/2) */                   \
    X(prelu, 2, 0.04)    /* a where a >= 0, else a b */                                                     \
    X(threshold, 2, 0.03) /* a where a > b, else 0 */                                                       \
    X(clip, 3, 0.04) /* between b and c; NaN wins */                                                        \
    X(unit_line, 3, 0.04) /* a b + c between 0 and 1 */                                                     \
    X(pow, 2, 1.5) X(sin, 1, 0.6) X(cos, 1, 0.6)                                                            \
    X(tan, 1, 1.0) X(asin, 1, 0.2) X(acos, 1, 0.2) X(atan, 1, 0.2)                                           \
    X(sinh, 1, 0.25) X(cosh, 1, 0.2) X(asinh, 1, 1.0) X(acosh, 1, 1.0) X(atanh, 1, 1.0)                      \
    X(round_float16, 1, 0.1) X(round_bfloat16, 1, 0.1) /* a float as that type would hold it */
// clang-format on

enum class Opcode : std::uint8_t {
#define GRAPHKIT_OPCODE(name, operands, cost) name,
    GRAPHKIT_POINTWISE_OPCODES(GRAPHKIT_OPCODE)
#undef GRAPHKIT_OPCODE
};

struct OpcodeInfo {
    const char* name;
    int operands;
    double nanoseconds;
};

inline constexpr OpcodeInfo kOpcodes[] = {
#define GRAPHKIT_OPCODE(name, operands, cost) {#name, operands, cost},
    GRAPHKIT_POINTWISE_OPCODES(GRAPHKIT_OPCODE)
#undef GRAPHKIT_OPCODE
};

// Set by an instruction that divides an integer by zero; the result is then 0. The kernel reads and clears it.
inline thread_local constinit bool divided_by_zero = false;

// Whether `opcode` may set divided_by_zero. If so, elements beyond the last one must not be computed.
inline bool may_divide_by_zero(Opcode opcode, bool integers) {
    return integers &&
           (opcode == Opcode::div || opcode == Opcode::mod || opcode == Opcode::fmod || opcode == Opcode::pow);
}

inline constexpr std::size_t kOpcodeCount = std::size(kOpcodes);
inline constexpr std::size_t kElementTypes = 13;
inline constexpr int kMaxOperands = 4;

// An operand of a block function. Element i is data[i & mask]. The mask is -1 for a block, and 0 for a single value,
// which is repeated to fill a vector.
struct BlockOperand {
    const std::byte* data;
    std::int64_t mask;
};

// Computes y for `count` elements, rounded up to whole vectors of the widest type involved. y may share the memory of
// an operand whose elements are at least as large.
using BlockFunction = void (*)(std::byte* y, const BlockOperand* operands, std::int64_t count);

// Null if an opcode is not defined for a type. float16 and bfloat16 only occur in conversions to and from float.
struct PointwiseTable {
    std::array<std::array<BlockFunction, kElementTypes>, kOpcodeCount> functions{};
    std::array<std::array<BlockFunction, kElementTypes>, kElementTypes> casts{};  // [from][to]
    // Double to float, rounded to odd: lost bits set the last bit, so that rounding again to 16 bits gives the same
    // result as rounding once.
    BlockFunction narrow_to_odd = nullptr;
    // Copies whole, aligned cache lines past the caches. A fence must follow before other threads may read them.
    void (*stream)(std::byte* y, const std::byte* x, std::int64_t bytes) = nullptr;
    // Repeats one element of `size` bytes in a vector of 64 bytes.
    void (*splat)(std::byte* y, const std::byte* x, std::size_t size) = nullptr;
};

GRAPHKIT_ISA_TABLE(PointwiseTable, pointwise_table);

}  // namespace graphkit
