// Random numbers by Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011): every draw is a pure function of (seed, step),
// the stream and the element's position, whatever the number of threads.
#pragma once

#include <optional>

#include "runtime/isa.h"
#include "runtime/kernel.h"

namespace graphkit {

// Where a node draws: the key is the seed, the counter is (block, stream, step). Four words for each block.
struct PhiloxState {
    std::uint64_t seed;
    std::uint64_t step;
    std::uint32_t stream;
};

// One table for each instruction set. No sums here are contracted: uniform numbers are the same bits everywhere.
struct PhiloxTable {
    void (*words)(const PhiloxState& state, std::uint32_t block, std::int64_t blocks, std::uint32_t* to);
    // low + range * u, rounded once; u = the upper 24 bits of a word, or 53 bits of two, as a fraction.
    void (*uniform_f32)(const std::uint32_t* words, std::int64_t size, double low, double range, float* to);
    void (*uniform_f64)(const std::uint32_t* words, std::int64_t size, int bits, double low, double range, double* to);
    // mean + scale * z by Box and Muller; `size` is even. Two words for two numbers, of 10 digits.
    void (*normal)(const std::uint32_t* words, std::int64_t size, double mean, double scale, double* to);
};

GRAPHKIT_ISA_TABLE(PhiloxTable, philox_table);

// The operands of a random node: its (seed, step) is operand `position`, a uint64[2], or else what it was made with.
struct PhiloxSource {
    std::uint64_t seed = 0;
    std::uint64_t step = 0;
    std::uint32_t stream = 0;
    bool has_operand = false;
};

// y = first + second * u (uniform) or first + second * z (normal, where first is the mean); float types. Operands: x,
// which is not read, when `like` is given, then the state.
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

// 1 with probability x, else 0; x a float type, y any type. Operands: x, the state.
class Bernoulli final : public Kernel {
  public:
    Bernoulli(Dims x, ElementType x_type, ElementType type, const PhiloxSource& source, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    PhiloxSource source_;
    const PhiloxTable* table_;
};

// In training mode x / (1 - ratio) where a uniform number is at least `ratio`, else 0; and the mask of what is kept.
// Otherwise x, and all true. Operands: x, ratio (a float scalar, 0.5 when absent), training_mode (a bool, false when
// absent), the state. y may be x's memory. Throws NativeError from run for a ratio outside [0, 1].
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
