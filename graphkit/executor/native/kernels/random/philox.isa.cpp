// Philox4x32-10, and the random numbers made from its words. Compiled without contraction of products and sums.
#include "kernels/random/random.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

using Wide = Vector<std::uint64_t>;
constexpr int kBlocks = static_cast<int>(kLanes<std::uint64_t>);

// The products of the lower halves of the lanes; the upper halves are ignored.
inline Wide multiply_low(Wide a, std::uint32_t factor) {
#if defined(__AVX512F__)
    return bit_cast<Wide>(_mm512_mul_epu32(bit_cast<__m512i>(a), _mm512_set1_epi64(factor)));
#elif defined(__AVX2__)
    return bit_cast<Wide>(_mm256_mul_epu32(bit_cast<__m256i>(a), _mm256_set1_epi64x(factor)));
#else
    return (a & splat(std::uint64_t{0xffffffff})) * splat(std::uint64_t{factor});
#endif
}

// Computes kBlocks blocks, beginning with `block`, of four words each, one after the other. A lane has one word in its
// lower half; the upper half is undefined.
inline void draw_blocks(const PhiloxState& state, Wide block, std::uint32_t* to) {
    Wide c0 = block;
    Wide c1 = splat(std::uint64_t{state.stream});
    Wide c2 = splat(state.step & 0xffffffffU);
    Wide c3 = splat(state.step >> 32);
    auto k0 = static_cast<std::uint32_t>(state.seed);
    auto k1 = static_cast<std::uint32_t>(state.seed >> 32);
    for (int turn = 0; turn < 10; ++turn) {
        const Wide p0 = multiply_low(c0, 0xD2511F53U);
        const Wide p1 = multiply_low(c2, 0xCD9E8D57U);
        c0 = (p1 >> 32) ^ c1 ^ splat(std::uint64_t{k0});
        c2 = (p0 >> 32) ^ c3 ^ splat(std::uint64_t{k1});
        c1 = p1;
        c3 = p0;
        k0 += 0x9E3779B9U;
        k1 += 0xBB67AE85U;
    }
    const Wide low = splat(std::uint64_t{0xffffffff});
    const Wide first = (c0 & low) | (c1 << 32);
    const Wide second = (c2 & low) | (c3 << 32);
    for (int i = 0; i < kBlocks; ++i) {
        const std::uint64_t pair[2] = {first[i], second[i]};
        __builtin_memcpy(to + 4 * i, pair, sizeof pair);
    }
}

inline void words(const PhiloxState& state, std::uint32_t block, std::int64_t blocks, std::uint32_t* to) {
    Wide numbers;
    for (int i = 0; i < kBlocks; ++i) {
        numbers[i] = std::uint64_t{block} + static_cast<std::uint64_t>(i);
    }
    std::int64_t at = 0;
    for (; at + kBlocks <= blocks; at += kBlocks) {
        draw_blocks(state, numbers, to + 4 * at);
        numbers += splat(static_cast<std::uint64_t>(kBlocks));
    }
    if (at < blocks) {
        std::uint32_t rest[4 * kBlocks];
        draw_blocks(state, numbers, rest);
        __builtin_memcpy(to + 4 * at, rest, static_cast<std::size_t>(blocks - at) * 4 * sizeof *to);
    }
}

inline double fraction24(std::uint32_t word) {
    return static_cast<double>(static_cast<std::int32_t>(word >> 8)) * 0x1p-24;
}

void uniform_f32(const std::uint32_t* from, std::int64_t size, double low, double range, float* to) {
    for (std::int64_t i = 0; i < size; ++i) {
        to[i] = static_cast<float>(low + range * fraction24(from[i]));
    }
}

void uniform_f64(const std::uint32_t* from, std::int64_t size, int bits, double low, double range, double* to) {
    if (bits == 24) {
        for (std::int64_t i = 0; i < size; ++i) {
            to[i] = low + range * fraction24(from[i]);
        }
        return;
    }
    for (std::int64_t i = 0; i < size; ++i) {
        const auto high = static_cast<double>(static_cast<std::int32_t>(from[2 * i] >> 5));
        const auto rest = static_cast<double>(static_cast<std::int32_t>(from[2 * i + 1] >> 6));
        to[i] = low + range * ((high * 0x1p26 + rest) * 0x1p-53);
    }
}

// The natural logarithm of numbers in (0, 1], with a relative error of 1e-11: log(2^e m) = e log 2 + 2 atanh((m - 1) /
// (m + 1)) with m in [sqrt(1/2), sqrt(2)).
inline Vector<double> log_of(Vector<double> x) {
    using Bits = Vector<std::int64_t>;
    const auto bits = bit_cast<Bits>(x);
    constexpr std::int64_t kHalfRoot = 0x3fe6a09e667f3bcd;  // sqrt(1/2)
    const Bits exponent = (bits - splat(kHalfRoot)) >> 52;
    const auto m = bit_cast<Vector<double>>(bits - (exponent << 52));
    const Vector<double> s = (m - splat(1.0)) / (m + splat(1.0));
    const Vector<double> s2 = s * s;
    Vector<double> series = splat(1.0 / 15);
    for (const double odd : {13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0}) {
        series = series * s2 + splat(1.0 / odd);
    }
    // After adding 1.5 * 2^52, the exponent is in the low bits of a double.
    const auto e = bit_cast<Vector<double>>(exponent + splat(std::int64_t{0x4338000000000000})) - splat(0x1.8p52);
    return e * splat(0x1.62e42fefa39efp-1) + splat(2.0) * s * series;
}

// cos and sin of 2 pi t for t in [0, 1), with a relative error of 1e-13: by quarters of a turn, and Taylor series.
inline void turned(Vector<double> t, Vector<double>& cosine, Vector<double>& sine) {
    const Vector<double> quarters = t * splat(4.0) + splat(0x1.8p52);  // the nearest integer in the low bits
    const auto quarter = bit_cast<Vector<std::int64_t>>(quarters);
    const Vector<double> r = (t * splat(4.0) - (quarters - splat(0x1.8p52))) * splat(0x1.921fb54442d18p0);
    const Vector<double> r2 = r * r;
    Vector<double> s = splat(1.0 / 6227020800.0);
    double sign = -1;
    for (const double factorial : {39916800.0, 362880.0, 5040.0, 120.0, 6.0, 1.0}) {
        s = s * r2 + splat(sign / factorial);
        sign = -sign;
    }
    s = s * r;
    Vector<double> c = splat(1.0 / 87178291200.0);
    sign = -1;
    c = c * splat(-1.0);
    for (const double factorial : {479001600.0, 3628800.0, 40320.0, 720.0, 24.0, 2.0, 1.0}) {
        c = c * r2 + splat(-sign / factorial);
        sign = -sign;
    }
    const auto odd = (quarter & splat(std::int64_t{1})) != 0;
    const auto negative_sine = (quarter & splat(std::int64_t{2})) != 0;
    const auto negative_cosine = ((quarter + splat(std::int64_t{1})) & splat(std::int64_t{2})) != 0;
    const Vector<double> a = odd ? s : c;
    const Vector<double> b = odd ? c : s;
    cosine = negative_cosine ? -a : a;
    sine = negative_sine ? -b : b;
}

void normal(const std::uint32_t* from, std::int64_t size, double mean, double scale, double* to) {
    constexpr int kPairs = static_cast<int>(kLanes<double>);
    for (std::int64_t at = 0; at < size; at += 2 * kPairs) {
        const std::int64_t pairs = (size - at) / 2 < kPairs ? (size - at) / 2 : kPairs;
        Vector<double> radial = splat(1.0);
        Vector<double> turn{};
        for (std::int64_t i = 0; i < pairs; ++i) {
            radial[i] = static_cast<double>(from[at + 2 * i]) * 0x1p-32 + 0x1p-32;
            turn[i] = static_cast<double>(from[at + 2 * i + 1]) * 0x1p-32;
        }
        const Vector<double> squared = splat(-2.0) * log_of(radial);
        Vector<double> radius;
        for (int i = 0; i < kPairs; ++i) {
            radius[i] = __builtin_sqrt(squared[i]);
        }
        Vector<double> cosine;
        Vector<double> sine;
        turned(turn, cosine, sine);
        const Vector<double> first = splat(mean) + splat(scale) * (radius * cosine);
        const Vector<double> second = splat(mean) + splat(scale) * (radius * sine);
        for (std::int64_t i = 0; i < pairs; ++i) {
            to[at + 2 * i] = first[i];
            to[at + 2 * i + 1] = second[i];
        }
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(PhiloxTable, philox_table) = {words, uniform_f32, uniform_f64, normal};

}  // namespace graphkit
