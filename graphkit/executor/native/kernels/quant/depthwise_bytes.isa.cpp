// Depthwise convolution of bytes: computes the channels of one window. See depthwise_bytes.h.
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
inline Raw low_bytes(Raw a, Raw b) {
    return _mm512_unpacklo_epi8(a, b);
}
inline Raw high_bytes(Raw a, Raw b) {
    return _mm512_unpackhi_epi8(a, b);
}
inline Raw low_pairs(Raw a, Raw b) {
    return _mm512_unpacklo_epi16(a, b);
}
inline Raw high_pairs(Raw a, Raw b) {
    return _mm512_unpackhi_epi16(a, b);
}
inline Raw halve(Raw a, Raw b) {
    return _mm512_packs_epi32(a, b);
}
inline Raw unsigned_bytes(Raw a, Raw b) {
    return _mm512_packus_epi16(a, b);
}
inline Raw add_words(Raw a, std::int32_t b) {
    return _mm512_adds_epi16(a, _mm512_set1_epi16(static_cast<short>(b)));
}
#elif defined(__AVX2__)
using Raw = __m256i;
inline Raw low_bytes(Raw a, Raw b) {
    return _mm256_unpacklo_epi8(a, b);
}
inline Raw high_bytes(Raw a, Raw b) {
    return _mm256_unpackhi_epi8(a, b);
}
inline Raw low_pairs(Raw a, Raw b) {
    return _mm256_unpacklo_epi16(a, b);
}
inline Raw high_pairs(Raw a, Raw b) {
    return _mm256_unpackhi_epi16(a, b);
}
inline Raw halve(Raw a, Raw b) {
    return _mm256_packs_epi32(a, b);
}
inline Raw unsigned_bytes(Raw a, Raw b) {
    return _mm256_packus_epi16(a, b);
}
inline Raw add_words(Raw a, std::int32_t b) {
    return _mm256_adds_epi16(a, _mm256_set1_epi16(static_cast<short>(b)));
}
#elif defined(__SSE2__)
using Raw = __m128i;
inline Raw low_bytes(Raw a, Raw b) {
    return _mm_unpacklo_epi8(a, b);
}
inline Raw high_bytes(Raw a, Raw b) {
    return _mm_unpackhi_epi8(a, b);
}
inline Raw low_pairs(Raw a, Raw b) {
    return _mm_unpacklo_epi16(a, b);
}
inline Raw high_pairs(Raw a, Raw b) {
    return _mm_unpackhi_epi16(a, b);
}
inline Raw halve(Raw a, Raw b) {
    return _mm_packs_epi32(a, b);
}
inline Raw unsigned_bytes(Raw a, Raw b) {
    return _mm_packus_epi16(a, b);
}
inline Raw add_words(Raw a, std::int32_t b) {
    return _mm_adds_epi16(a, _mm_set1_epi16(static_cast<short>(b)));
}
#endif

// Interleaves the bytes of four taps, so that those of a channel are adjacent.
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

// Converts integers from nearest_below to bytes, in the order of the channels.
inline Bytes as_bytes(const Sums (&from)[4], const ByteResult& bytes) {
#if defined(__SSE2__)
    const std::int32_t flip = bytes.is_signed ? 128 : 0;
    const Raw low = add_words(halve(bit_cast<Raw>(from[0]), bit_cast<Raw>(from[1])), bytes.zero + flip);
    const Raw high = add_words(halve(bit_cast<Raw>(from[2]), bit_cast<Raw>(from[3])), bytes.zero + flip);
    return bit_cast<Bytes>(unsigned_bytes(low, high)) ^ static_cast<std::uint8_t>(flip);
#else
    const std::int32_t least = (bytes.is_signed ? -128 : 0) - bytes.zero;
    Bytes y;
    for (std::int64_t c = 0; c < kBlock; ++c) {
        const std::int64_t place = byte_filter_place(c, kBlock);
        const std::int32_t v = from[place / kSums][place % kSums];
        y[c] = static_cast<std::uint8_t>((v < least ? least : v) + bytes.zero);
    }
    return y;
#endif
}

// Access to the bytes of a whole block of channels, of an incomplete one, or of two positions with up to half a block.
struct Whole {
    static constexpr std::int64_t kPositions = 1;
    static Bytes read(const std::uint8_t* from, std::int64_t, std::int64_t) { return load_bytes(from, kBlock); }
    static void write(std::uint8_t* to, std::int64_t, Bytes v, std::int64_t) { store_block(to, v, kBlock); }
};

struct Some {
    static constexpr std::int64_t kPositions = 1;
    static Bytes read(const std::uint8_t* from, std::int64_t, std::int64_t count) { return load_bytes(from, count); }
    static void write(std::uint8_t* to, std::int64_t, Bytes v, std::int64_t count) { store_block(to, v, count); }
};

struct Two {
    static constexpr std::int64_t kPositions = 2;
    static Bytes read(const std::uint8_t* from, std::int64_t step, std::int64_t count) {
#if defined(__AVX512F__)
        const auto mask = static_cast<__mmask32>((std::uint64_t{1} << count) - 1);
        const __m256i low = _mm256_maskz_loadu_epi8(mask, from), high = _mm256_maskz_loadu_epi8(mask, from + step);
        return bit_cast<Bytes>(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
#else
        std::uint8_t both[kBlock] = {};
        std::memcpy(both, from, static_cast<std::size_t>(count));
        std::memcpy(both + kBlock / 2, from + step, static_cast<std::size_t>(count));
        return load(both);
#endif
    }
    static void write(std::uint8_t* to, std::int64_t step, Bytes v, std::int64_t count) {
#if defined(__AVX512F__)
        const auto mask = static_cast<__mmask32>((std::uint64_t{1} << count) - 1);
        const auto raw = bit_cast<__m512i>(v);
        _mm256_mask_storeu_epi8(to, mask, _mm512_castsi512_si256(raw));
        _mm256_mask_storeu_epi8(to + step, mask, _mm512_extracti64x4_epi64(raw, 1));
#else
        std::uint8_t both[kBlock];
        store(both, v);
        std::memcpy(to, both, static_cast<std::size_t>(count));
        std::memcpy(to + step, both + kBlock / 2, static_cast<std::size_t>(count));
#endif
    }
};

// The range of channels of one block, and their weights.
struct Channels {
    std::int64_t first;
    std::int64_t count;
    const std::int8_t* weights;
};

// `Taps`: their number if it is known at compile time, else 0.
template <typename Products, typename Positions, bool Zeros, int Taps, bool AsSums>
void positions_of(const ByteFilterBlock& block, const Channels& channels, std::int64_t begin, std::int64_t end) {
    const std::int64_t taps = Taps > 0 ? Taps : block.tap_count;
    const auto ones = Products::right(splat(0x01010101));
    const std::int64_t first = channels.first;
    const Bytes flip = splat(block.flip);
    for (std::int64_t p = begin; p < end; p += Positions::kPositions) {
        Sums totals[4], bytes[4] = {};
        for (int v = 0; v < 4; ++v) {
            totals[v] = load(block.offsets + first + v * kSums);
        }
        const std::int8_t* weights = channels.weights;
#pragma GCC unroll 3
        for (std::int64_t tap = 0; tap < taps; tap += kTerms) {
            Bytes rows[4] = {};
#pragma GCC unroll 4
            for (int t = 0; t < 4; ++t) {
                if (tap + t < taps) {
                    const std::uint8_t* from = block.taps[tap + t] + p * block.x_step + first;
                    rows[t] = Positions::read(from, block.x_step, channels.count) ^ flip;
                }
            }
            Sums mixed[4];
            interleave(rows, mixed);
#pragma GCC unroll 4
            for (int v = 0; v < 4; ++v) {
                Sums w;
                std::memcpy(&w, weights + (tap + v) * kBlock, sizeof w);
                const auto x = Products::left(mixed[v]);
                Products::add(totals[v], x, Products::right(w));
                if constexpr (Zeros) {
                    Products::add(bytes[v], x, ones);
                }
            }
        }
        if constexpr (Zeros) {
            for (int v = 0; v < 4; ++v) {
                totals[v] -= bytes[v] * load(block.zeros + first + v * kSums);
            }
        }
        const std::int64_t at = p * block.channels + first;
        if constexpr (AsSums) {
            auto* y = static_cast<std::int32_t*>(block.y) + at;
            for (std::int64_t c = 0; c < kBlock && c < channels.count; ++c) {
                const std::int64_t place = byte_filter_place(c, kBlock);
                y[c] = totals[place / kSums][place % kSums];
            }
            continue;
        }
        for (int v = 0; v < 4; ++v) {
            const Reals product = as_reals(totals[v]) * load(block.factors + first + v * kSums);
            totals[v] = nearest_below(product, block.bytes.high);
        }
        auto* y = static_cast<std::uint8_t*>(block.y) + at;
        Positions::write(y, block.channels, as_bytes(totals, block.bytes), channels.count);
    }
}

template <typename Products, bool Zeros, int Taps, bool AsSums>
void channels_of(const ByteFilterBlock& block) {
    const std::int64_t groups = (block.tap_count + kTerms - 1) / kTerms;
    for (std::int64_t first = 0; first < block.channels; first += kBlock) {
        const Channels channels{first, block.channels - first, block.weights + first * groups * kTerms};
        std::int64_t done = 0;
        if (channels.count <= kBlock / 2 && !AsSums) {
            done = block.positions / 2 * 2;
            positions_of<Products, Two, Zeros, Taps, AsSums>(block, channels, 0, done);
        }
        if (channels.count >= kBlock) {
            positions_of<Products, Whole, Zeros, Taps, AsSums>(block, channels, 0, block.positions);
        } else {
            positions_of<Products, Some, Zeros, Taps, AsSums>(block, channels, done, block.positions);
        }
    }
}

template <typename Products>
void filter(const ByteFilterBlock& block) {
    const bool zeros = block.zeros != nullptr;
    if (block.sums) {
        return zeros ? channels_of<Products, true, 0, true>(block) : channels_of<Products, false, 0, true>(block);
    }
    if (zeros) {
        return channels_of<Products, true, 0, false>(block);
    }
    return block.tap_count == 9 ? channels_of<Products, false, 9, false>(block)
                                : channels_of<Products, false, 0, false>(block);
}

}  // namespace

GRAPHKIT_ISA_DEFINE(ByteFilterFunctions, byte_filter_functions) = {
    kBlock,
    filter<WidenedProducts>,
#if defined(__AVX512F__)
    filter<DotProducts>,
#else
    nullptr,
#endif
};

}  // namespace graphkit
