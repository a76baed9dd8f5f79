// Gradient compression to two bits per element. The difference stays in the residual, and is added to the next
// gradient, as in MXNet's KVStore, after Seide et al., "1-bit stochastic gradient descent", Interspeech 2014.
//
// A word holds 16 elements: bits 0 to 15 say which of them are sent, bits 16 to 31 which are negative. "Negative"
// without "sent" means NaN: it is used for NaN and infinities, which leave a residual of 0.
#include <cmath>
#include <cstdint>
#include <limits>

#include "runtime/isa.h"
#include "simd/lane_bits.h"
#include "simd/vector.h"

namespace graphkit {

constexpr std::int64_t kWordElements = 16;

struct TwoBitTable {
    // Each element of residual + gradient that reaches the threshold, positive or negative, is sent as +-threshold in
    // the words; the difference becomes the residual.
    void (*quantize)(const float* gradient, float* residual, float threshold, std::int64_t count, std::uint32_t* words);
    void (*accumulate)(const std::uint32_t* words, float threshold, std::int64_t count, float* sum);
};

GRAPHKIT_ISA_TABLE(TwoBitTable, two_bit_table);

namespace {

using Lanes = Vector<float>;
using Bits = Vector<std::int32_t>;
constexpr std::int64_t kWide = kLanes<float>;

inline Lanes where(Bits mask, Lanes x) {
    return bit_cast<Lanes>(mask & bit_cast<Bits>(x));
}

// Returns the word of at most 16 elements.
inline std::uint32_t quantize_word(const float* gradient, float* residual, float threshold, std::int64_t count) {
    const Lanes limit = splat(threshold);
    std::uint32_t sent = 0;
    std::uint32_t negative = 0;
    for (std::int64_t i = 0; i < count; i += kWide) {
        const std::int64_t some = std::min(kWide, count - i);
        const Lanes x = load_part<float>(gradient + i, some, 0) + load_part<float>(residual + i, some, 0);
        const Bits finite = x - x == Lanes{};
        const Bits above = (x >= limit) & finite;
        const Bits below = (x <= -limit) & finite;
        store_part<float>(residual + i, where(finite, x) - where(above, limit) + where(below, limit), some);
        sent |= lane_bits(above | below) << i;
        negative |= lane_bits(below | ~finite) << i;
    }
    return sent | negative << kWordElements;
}

void quantize(const float* gradient, float* residual, float threshold, std::int64_t count, std::uint32_t* words) {
    for (std::int64_t i = 0; i < count; i += kWordElements) {
        words[i / kWordElements] =
            quantize_word(gradient + i, residual + i, threshold, std::min(kWordElements, count - i));
    }
}

inline float value_of(std::uint32_t word, std::int64_t i, float threshold) {
    const bool sent = (word >> i & 1U) != 0;
    const bool negative = (word >> (i + kWordElements) & 1U) != 0;
    if (!sent) {
        return negative ? std::numeric_limits<float>::quiet_NaN() : 0.0F;
    }
    return negative ? -threshold : threshold;
}

void accumulate(const std::uint32_t* words, float threshold, std::int64_t count, float* sum) {
    Bits lanes;
    for (int i = 0; i < kWide; ++i) {
        lanes[i] = i;
    }
    const Bits one = lanes - lanes + 1;
    for (std::int64_t first = 0; first < count; first += kWordElements) {
        const std::uint32_t word = words[first / kWordElements];
        if (word == 0) {
            continue;
        }
        const std::int64_t some = std::min(kWordElements, count - first);
        const bool plain = some == kWordElements && (word >> kWordElements & ~word & 0xffffU) == 0;
        for (std::int64_t i = 0; i < some && !plain; ++i) {
            sum[first + i] += value_of(word, i, threshold);
        }
        for (std::int64_t i = 0; i < kWordElements && plain; i += kWide) {
            const Bits shifted = (one - 1 + static_cast<std::int32_t>(word >> i)) >> lanes;
            const Bits sent = -(shifted & one);
            const Bits signs = ((one - 1 + static_cast<std::int32_t>(word >> (i + kWordElements))) >> lanes) << 31;
            const Lanes value = bit_cast<Lanes>(bit_cast<Bits>(splat(threshold)) ^ signs);
            store(sum + first + i, load<float>(sum + first + i) + where(sent, value));
        }
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(TwoBitTable, two_bit_table) = {quantize, accumulate};

}  // namespace graphkit

#ifdef GRAPHKIT_ONCE
#include <algorithm>

#include "runtime/bindings.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

constexpr double kQuantizeNanoseconds = 0.8;
constexpr double kAccumulateNanoseconds = 0.4;

std::int64_t words_of(std::int64_t count) {
    return (count + kWordElements - 1) / kWordElements;
}

// Calls body(first element, elements, first word) for parts of `count` elements in `to`. If `from` is other memory, a
// part is copied from it before.
template <typename Body>
void for_each_part(int threads, std::int64_t count, double nanoseconds, const void* from, float* to, Body&& body) {
    parallel_for(threads, words_of(count), nanoseconds * kWordElements, [&](std::int64_t begin, std::int64_t end) {
        const std::int64_t first = begin * kWordElements;
        const std::int64_t some = std::min(end * kWordElements, count) - first;
        if (from != to) {
            std::copy_n(static_cast<const float*>(from) + first, some, to + first);
        }
        body(first, some, begin);
    });
}

// words and the new residual, from gradient + residual and a threshold. The residual is changed in place.
class TwoBitQuantize final : public Kernel {
  public:
    TwoBitQuantize(std::int64_t count, float threshold, int threads)
        : Kernel("TwoBitQuantize", threads > 0 ? threads : default_threads()),
          table_(two_bit_table()),
          count_(count),
          threshold_(threshold) {
        inputs_ = {{"gradient", {count}}, {"residual", {count}}};
        outputs_ = {{"words", {words_of(count)}, ElementType::u32}, {"left", {count}}};
        if (!(threshold > 0) || !std::isfinite(threshold)) {
            throw NativeError(describe() + ": a threshold is a number above 0");
        }
    }

    void run(const void* const* inputs, void* const* outputs, std::byte*) const override {
        const auto* gradient = static_cast<const float*>(inputs[0]);
        auto* words = static_cast<std::uint32_t*>(outputs[0]);
        auto* residual = static_cast<float*>(outputs[1]);
        for_each_part(threads(), count_, kQuantizeNanoseconds, inputs[1], residual,
                      [&](std::int64_t first, std::int64_t some, std::int64_t word) {
                          table_.quantize(gradient + first, residual + first, threshold_, some, words + word);
                      });
    }

    std::vector<std::pair<int, int>> inplace() const override { return {{1, 1}}; }

  private:
    const TwoBitTable& table_;
    std::int64_t count_;
    float threshold_;
};

// total = sum + the values of the words.
class TwoBitAccumulate final : public Kernel {
  public:
    TwoBitAccumulate(std::int64_t count, float threshold, int threads)
        : Kernel("TwoBitAccumulate", threads > 0 ? threads : default_threads()),
          table_(two_bit_table()),
          count_(count),
          threshold_(threshold) {
        inputs_ = {{"words", {words_of(count)}, ElementType::u32}, {"sum", {count}}};
        outputs_ = {{"total", {count}}};
    }

    void run(const void* const* inputs, void* const* outputs, std::byte*) const override {
        const auto* words = static_cast<const std::uint32_t*>(inputs[0]);
        auto* sum = static_cast<float*>(outputs[0]);
        for_each_part(threads(), count_, kAccumulateNanoseconds, inputs[1], sum,
                      [&](std::int64_t first, std::int64_t some, std::int64_t word) {
                          table_.accumulate(words + word, threshold_, some, sum + first);
                      });
    }

    std::vector<std::pair<int, int>> inplace() const override { return {{1, 0}}; }

  private:
    const TwoBitTable& table_;
    std::int64_t count_;
    float threshold_;
};

}  // namespace

GRAPHKIT_BINDINGS(two_bit) {
    nb::class_<TwoBitQuantize, Kernel>(m, "TwoBitQuantize")
        .def(nb::init<std::int64_t, float, int>(), "count"_a, "threshold"_a, "threads"_a = 0);
    nb::class_<TwoBitAccumulate, Kernel>(m, "TwoBitAccumulate")
        .def(nb::init<std::int64_t, float, int>(), "count"_a, "threshold"_a, "threads"_a = 0);
}

}  // namespace graphkit
#endif
