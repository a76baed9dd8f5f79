// Top-k gradient compression: sends the elements of largest magnitude; of equal ones, those with lower indices first.
// The others stay in the residual, and are added to the next gradient.
//
// The smallest magnitude to send is found by radix selection: non-negative floats are ordered like their bits. Each of
// three passes over the elements determines some of these bits, beginning with the highest, by a histogram. So the time
// does not depend on the values.
#include <algorithm>
#include <cstdint>

#include "runtime/isa.h"
#include "simd/lane_bits.h"
#include "simd/vector.h"

namespace graphkit {

// The passes determine the 31 bits of a key from the highest on: 11, 10 and 10 bits.
constexpr int kFirstShift = 20;
constexpr int kSecondShift = 10;
constexpr std::int64_t kBins = std::int64_t{1} << (31 - kFirstShift);
// The first pass alternates between this many histograms, because adjacent elements often fall into one bin.
constexpr std::int64_t kTurns = 4;

struct TopKTable {
    // residual += gradient. Adds the counts of the highest 11 bits of the keys to kTurns histograms of kBins.
    void (*begin)(const float* gradient, float* residual, std::int64_t count, std::uint32_t* histograms);
    // Considers the elements whose key has the bits `above` from bit `shift` + 10 on. Counts each value of the 10 bits
    // from bit `shift` on.
    void (*count)(const float* x, std::int64_t count, std::int32_t above, int shift, std::uint32_t* histogram);
    // Writes the places and values of the elements whose key is larger than `least`, and of the first `ties` whose key
    // equals it. Sets these elements to 0, and all others that are not finite.
    void (*take)(float* x, std::int64_t count, std::int32_t least, std::int64_t ties, std::uint32_t* places,
                 float* values);
};

GRAPHKIT_ISA_TABLE(TopKTable, top_k_table);

namespace {

using Lanes = Vector<float>;
using Bits = Vector<std::int32_t>;
constexpr std::int64_t kWide = kLanes<float>;

constexpr std::int32_t kInfinity = 0x7f800000;

// Keys have the order of magnitudes; NaN has the key of infinity.
inline Bits keys_of(Lanes x) {
    const Bits key = bit_cast<Bits>(x) & 0x7fffffff;
    const Bits beyond = key > kInfinity;
    return (beyond & kInfinity) | (~beyond & key);
}

void begin(const float* gradient, float* residual, std::int64_t count, std::uint32_t* histograms) {
    std::int32_t bins[kWide];
    for (std::int64_t i = 0; i < count; i += kWide) {
        const std::int64_t some = std::min(kWide, count - i);
        Lanes x;
        if (some == kWide) {
            x = load<float>(gradient + i) + load<float>(residual + i);
            store(residual + i, x);
        } else {
            x = load_part<float>(gradient + i, some, 0) + load_part<float>(residual + i, some, 0);
            store_part<float>(residual + i, x, some);
        }
        store(bins, keys_of(x) >> kFirstShift);
        for (std::int64_t lane = 0; lane < some; ++lane) {
            ++histograms[lane % kTurns * kBins + bins[lane]];
        }
    }
}

// Calls body(index, key), in order, for the elements for which `chosen(keys)` is true.
template <typename Chosen, typename Body>
inline void for_chosen(const float* x, std::int64_t count, Chosen&& chosen, Body&& body) {
    std::int32_t keys[kWide];
    for (std::int64_t i = 0; i < count; i += kWide) {
        const std::int64_t some = std::min(kWide, count - i);
        const Bits key = keys_of(some == kWide ? load<float>(x + i) : load_part<float>(x + i, some, 0));
        std::uint32_t left = lane_bits(chosen(key)) & ((1U << some) - 1U);
        if (left == 0) {
            continue;
        }
        store(keys, key);
        for (; left != 0; left &= left - 1) {
            const int lane = __builtin_ctz(left);
            body(i + lane, keys[lane]);
        }
    }
}

void count_below(const float* x, std::int64_t count, std::int32_t above, int shift, std::uint32_t* histogram) {
    for_chosen(
        x, count, [&](Bits key) { return key >> (shift + 10) == above; },
        [&](std::int64_t, std::int32_t key) { ++histogram[key >> shift & 0x3ff]; });
}

void take(float* x, std::int64_t count, std::int32_t least, std::int64_t ties, std::uint32_t* places, float* values) {
    for_chosen(
        x, count, [&](Bits key) { return key >= least; },
        [&](std::int64_t i, std::int32_t key) {
            if (key > least || ties-- > 0) {
                *places++ = static_cast<std::uint32_t>(i);
                *values++ = x[i];
                x[i] = 0;
            } else if (key == kInfinity) {
                x[i] = 0;
            }
        });
}

}  // namespace

GRAPHKIT_ISA_DEFINE(TopKTable, top_k_table) = {begin, count_below, take};

}  // namespace graphkit

#ifdef GRAPHKIT_ONCE
#include "runtime/bindings.h"
#include "runtime/kernel.h"

namespace graphkit {
namespace {

// places, values and the new residual, from gradient + residual: the `chosen` largest elements are sent. The residual
// is changed in place. Uses one thread, because a backward pass runs at the same time.
class TopKPack final : public Kernel {
  public:
    TopKPack(std::int64_t count, std::int64_t chosen)
        : Kernel("TopKPack", 1), table_(top_k_table()), count_(count), chosen_(chosen) {
        inputs_ = {{"gradient", {count}}, {"residual", {count}}};
        outputs_ = {{"places", {chosen}, ElementType::u32}, {"values", {chosen}}, {"left", {count}}};
        if (count < 0 || count >> 32 != 0 || chosen < 0 || chosen > count) {
            throw NativeError(describe() + ": some of at most 2**32 - 1 elements are chosen");
        }
    }

    std::size_t scratch_bytes() const override { return kTurns * kBins * sizeof(std::uint32_t); }

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override {
        auto* residual = static_cast<float*>(outputs[2]);
        if (inputs[1] != outputs[2]) {
            std::copy_n(static_cast<const float*>(inputs[1]), count_, residual);
        }
        auto* histogram = reinterpret_cast<std::uint32_t*>(scratch);
        std::fill_n(histogram, kTurns * kBins, 0U);
        table_.begin(static_cast<const float*>(inputs[0]), residual, count_, histogram);
        if (chosen_ == 0) {
            return;
        }
        for (std::int64_t bin = 0; bin < kBins; ++bin) {
            for (std::int64_t turn = 1; turn < kTurns; ++turn) {
                histogram[bin] += histogram[turn * kBins + bin];
            }
        }
        std::int64_t left = chosen_;
        std::int32_t least = bin_of(histogram, kBins, left);
        for (const int shift : {kSecondShift, 0}) {
            std::fill_n(histogram, kBins, 0U);
            table_.count(residual, count_, least, shift, histogram);
            least = least << 10 | bin_of(histogram, 1 << 10, left);
        }
        table_.take(residual, count_, least, left, static_cast<std::uint32_t*>(outputs[0]),
                    static_cast<float*>(outputs[1]));
    }

    std::vector<std::pair<int, int>> inplace() const override { return {{1, 2}}; }

  private:
    // Returns the bin that contains the last of the `left` largest elements. `left` becomes the number of them in that
    // bin.
    static std::int32_t bin_of(const std::uint32_t* histogram, std::int64_t bins, std::int64_t& left) {
        std::int64_t bin = bins - 1;
        for (; histogram[bin] < left; --bin) {
            left -= histogram[bin];
        }
        return static_cast<std::int32_t>(bin);
    }

    const TopKTable& table_;
    std::int64_t count_;
    std::int64_t chosen_;
};

}  // namespace

GRAPHKIT_BINDINGS(top_k) {
    nb::class_<TopKPack, Kernel>(m, "TopKPack").def(nb::init<std::int64_t, std::int64_t>(), "count"_a, "chosen"_a);
}

}  // namespace graphkit
#endif
