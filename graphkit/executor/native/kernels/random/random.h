// Random numbers by Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011). Each number is a pure function of (seed,
// step), the stream, and the position of the element. It does not depend on the number of threads.
#pragma once

#include <optional>

#include "runtime/isa.h"
#include "runtime/kernel.h"

namespace graphkit {

// The state of a node: the key is the seed, the counter is (block, stream, step). Each block has four words.
struct PhiloxState {
    std::uint64_t seed;
    std::uint64_t step;
    std::uint32_t stream;
};

// There is one table for each instruction set. Sums are not contracted, so that all sets give the same bits of uniform
// numbers.
struct PhiloxTable {
    void (*words)(const PhiloxState& state, std::uint32_t block, std::int64_t blocks, std::uint32_t* to);
    // low + range * u, rounded once. u: the upper 24 bits of a word, or 53 bits of two words, as a fraction.
    void (*uniform_f32)(const std::uint32_t* words, std::int64_t size, double low, double range, float* to);
    void (*uniform_f64)(const std::uint32_t* words, std::int64_t size, int bits, double low, double range, double* to);
    // mean + scale * z, by Box and Muller; `size` is even. Two words give two numbers, accurate to 10 digits.
    void (*normal)(const std::uint32_t* words, std::int64_t size, double mean, double scale, double* to);
};

GRAPHKIT_ISA_TABLE(PhiloxTable, philox_table);

// The state of a random node: if has_operand, an operand uint64[2] with (seed, step); else the values here.
struct PhiloxSource {
    std::uint64_t seed = 0;
    std::uint64_t step = 0;
    std::uint32_t stream = 0;
    bool has_operand = false;
};

// y = first + second * u (uniform), or first + second * z (normal, where first is the mean); float types. Operands: x
// (only if `like` is given; not read), then the state.
class RandomFill final : public Kernel {
  public:
    enum class Law : std::uint8_t { uniform, normal };

    RandomFill(std::string name, Law law, double first, double second, std::optional<TensorSpec> like, Dims y,
               ElementType type, const PhiloxSource& source, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    Law law_;
    double first_;
    double second_;
    PhiloxSource source_;
    const PhiloxTable* table_;
};

// 1 with probability x, else 0. x has a float type, y any type. Operands: x, the state.
class Bernoulli final : public Kernel {
  public:
    Bernoulli(Dims x, ElementType x_type, ElementType type, const PhiloxSource& source, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    PhiloxSource source_;
    const PhiloxTable* table_;
};

// In training mode: x / (1 - ratio) where a uniform number is at least `ratio`, else 0, and the mask of the kept
// elements. Otherwise: x, and a mask that is all true. Operands: x, ratio (a float scalar, 0.5 if absent),
// training_mode (a bool, false if absent), the state. y may share the memory of x. Run throws NativeError for a ratio
// outside of [0, 1].
class Dropout final : public Kernel {
  public:
    Dropout(Dims x, ElementType type, std::optional<TensorSpec> ratio, std::optional<TensorSpec> training,
            const PhiloxSource& source, int threads);

    std::vector<std::pair<int, int>> inplace() const override { return {{0, 0}}; }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    PhiloxSource source_;
    const PhiloxTable* table_;
};

// Another (seed, step), derived from (seed, step) and an integer below 2^32.
class RngFoldIn final : public Kernel {
  public:
    RngFoldIn(Dims index, ElementType index_type);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    const PhiloxTable* table_;
};

}  // namespace graphkit
