// The channels of one window of a convolution with one filter for each channel. See depthwise_bytes.h.
#include <type_traits>

#include "kernels/quant/byte_lanes.h"
#include "kernels/quant/depthwise_bytes.h"

namespace graphkit {
namespace {

using Bytes = Vector<std::uint8_t>;
constexpr std::int64_t kBlock = kVectorBytes;

inline Bytes load_bytes(const std::uint8_t* from, std::int64_t count) {
    Bytes v = {};
    if (count >= kBlock) {
        std::memcpy(&v, from, sizeof v);
        return v;
    }
#if defined(__AVX512F__)
    return bit_cast<Bytes>(_mm512_maskz_loadu_epi8((std::uint64_t{1} << count) - 1, from));
#else
    std::memcpy(&v, from, static_cast<std::size_t>(count));
    return v;
#endif
}

inline void store_block(std::uint8_t* to, Bytes v, std::int64_t count) {
    if (count >= kBlock) {
        std::memcpy(to, &v, sizeof v);
        return;
    }
#if defined(__AVX512F__)
    _mm512_mask_storeu_epi8(to, (std::uint64_t{1} << count) - 1, bit_cast<__m512i>(v));
#else
    std::memcpy(to, &v, static_cast<std::size_t>(count));
#endif
}

#if defined(__AVX512F__)
using Raw = __m512i;
inline Raw low_bytes(Raw a, Raw b) { return _mm512_unpacklo_epi8(a, b); }
inline Raw high_bytes(Raw a, Raw b) { return _mm512_unpackhi_epi8(a, b); }
inline Raw low_pairs(Raw a, Raw b) { return _mm512_unpacklo_epi16(a, b); }
inline Raw high_pairs(Raw a, Raw b) { return _mm512_unpackhi_epi16(a, b); }
inline Raw halve(Raw a, Raw b) { return _mm512_packs_epi32(a, b); }
inline Raw unsigned_bytes(Raw a, Raw b) { return _mm512_packus_epi16(a, b); }
#elif defined(__AVX2__)
using Raw = __m256i;
inline Raw low_bytes(Raw a, Raw b) { return _mm256_unpacklo_epi8(a, b); }
inline Raw high_bytes(Raw a, Raw b) { return _mm256_unpackhi_epi8(a, b); }
inline Raw low_pairs(Raw a, Raw b) { return _mm256_unpacklo_epi16(a, b); }
inline Raw high_pairs(Raw a, Raw b) { return _mm256_unpackhi_epi16(a, b); }
inline Raw halve(Raw a, Raw b) { return _mm256_packs_epi32(a, b); }
inline Raw unsigned_bytes(Raw a, Raw b) { return _mm256_packus_epi16(a, b); }
#elif defined(__SSE2__)
using Raw = __m128i;
inline Raw low_bytes(Raw a, Raw b) { return _mm_unpacklo_epi8(a, b); }
inline Raw high_bytes(Raw a, Raw b) { return _mm_unpackhi_epi8(a, b); }
inline Raw low_pairs(Raw a, Raw b) { return _mm_unpacklo_epi16(a, b); }
inline Raw high_pairs(Raw a, Raw b) { return _mm_unpackhi_epi16(a, b); }
inline Raw halve(Raw a, Raw b) { return _mm_packs_epi32(a, b); }
inline Raw unsigned_bytes(Raw a, Raw b) { return _mm_packus_epi16(a, b); }
#endif

// Bytes of four taps: those of each channel side by side.
inline void interleave(const Bytes (&taps)[4], Sums (&to)[4]) {
#if defined(__SSE2__)
    const Raw a = bit_cast<Raw>(taps[0]), b = bit_cast<Raw>(taps[1]);
    const Raw c = bit_cast<Raw>(taps[2]), d = bit_cast<Raw>(taps[3]);
    const Raw low_ab = low_bytes(a, b), high_ab = high_bytes(a, b);
    const Raw low_cd = low_bytes(c, d), high_cd = high_bytes(c, d);
    to[0] = bit_cast<Sums>(low_pairs(low_ab, low_cd));
    to[1] = bit_cast<Sums>(high_pairs(low_ab, low_cd));
    to[2] = bit_cast<Sums>(low_pairs(high_ab, high_cd));
    to[3] = bit_cast<Sums>(high_pairs(high_ab, high_cd));
#else
    std::uint8_t bytes[4 * kBlock];
    for (std::int64_t c = 0; c < kBlock; ++c) {
        for (std::int64_t t = 0; t < 4; ++t) {
            bytes[byte_filter_place(c, kBlock) * 4 + t] = taps[t][c];
        }
    }
    std::memcpy(&to, bytes, sizeof to);
#endif
}

// Numbers that bytes have, in the order of the channels. `flip` is 0x80 for signed bytes, which packing takes as
// unsigned ones less 128.
inline Bytes narrowed(const Sums (&from)[4], std::int32_t flip) {
#if defined(__SSE2__)
    Raw raw[4];
    for (int v = 0; v < 4; ++v) {
        raw[v] = bit_cast<Raw>(from[v] + splat(flip));
    }
    const Raw packed = unsigned_bytes(halve(raw[0], raw[1]), halve(raw[2], raw[3]));
    return bit_cast<Bytes>(packed) ^ static_cast<std::uint8_t>(flip);
#else
    static_cast<void>(flip);
    Bytes y;
    for (std::int64_t c = 0; c < kBlock; ++c) {
        const std::int64_t place = byte_filter_place(c, kBlock);
        y[c] = static_cast<std::uint8_t>(from[place / kSums][place % kSums]);
    }
    return y;
#endif
}

template <bool Zeros>
inline void finish(const ByteFilterBlock& block, std::int64_t first, const Sums (&totals)[4], const Sums (&bytes)[4]) {
    const std::int64_t count = block.channels - first;
    Sums results[4];
    for (int v = 0; v < 4; ++v) {
        const std::int64_t at = first + v * kSums;
        Sums total = totals[v] + load(block.offsets + at);
        if constexpr (Zeros) {
            total -= bytes[v] * load(block.zeros + at);
        }
        if (!block.sums) {
            const Reals product = as_reals(total) * load(block.factors + at);
            total = nearest(bounded(product, block.low, block.high)) + splat(block.zero);
        }
        results[v] = total;
    }
    if (block.sums) {
        auto* y = static_cast<std::int32_t*>(block.y) + first;
        for (std::int64_t c = 0; c < kBlock && c < count; ++c) {
            const std::int64_t place = byte_filter_place(c, kBlock);
            y[c] = results[place / kSums][place % kSums];
        }
        return;
    }
    // The least result tells whether they are signed.
    const std::int32_t flip = static_cast<std::int32_t>(block.low) + block.zero < 0 ? 0x80 : 0;
    store_block(static_cast<std::uint8_t*>(block.y) + first, narrowed(results, flip), count);
}

template <typename Products, bool Zeros>
void channels_of(const ByteFilterBlock& block) {
    const std::int8_t* weights = block.weights;
    const auto ones = Products::right(splat(0x01010101));
    for (std::int64_t first = 0; first < block.channels; first += kBlock) {
        const std::int64_t count = block.channels - first;
        Sums totals[4] = {};
        Sums bytes[4] = {};
        for (std::int64_t tap = 0; tap < block.tap_count; tap += kTerms) {
            Bytes taps[4] = {};
            for (int t = 0; t < 4 && tap + t < block.tap_count; ++t) {
                taps[t] = load_bytes(block.taps[tap + t] + first, count) ^ block.flip;
            }
            Sums mixed[4];
            interleave(taps, mixed);
            for (int v = 0; v < 4; ++v) {
                Sums w;
                std::memcpy(&w, weights, sizeof w);
                weights += sizeof w;
                const auto x = Products::left(mixed[v]);
                Products::add(totals[v], x, Products::right(w));
                if constexpr (Zeros) {
                    Products::add(bytes[v], x, ones);
                }
            }
        }
        finish<Zeros>(block, first, totals, bytes);
    }
}

template <typename Products>
void position(const ByteFilterBlock& block) {
    if (block.zeros != nullptr) {
        channels_of<Products, true>(block);
    } else {
        channels_of<Products, false>(block);
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(ByteFilterFunctions, byte_filter_functions) = {
    kBlock,
    position<WidenedProducts>,
#if defined(__AVX512F__)
    position<DotProducts>,
#else
    nullptr,
#endif
};

}  // namespace graphkit
