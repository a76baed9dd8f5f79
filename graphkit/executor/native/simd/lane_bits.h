// Converts masks of vectors to bits of an integer. For *.isa.cpp only.
#pragma once

#include "simd/vector.h"

namespace graphkit {
namespace {

// Returns a bit for each lane, set if the lane is not zero. The first lane is the lowest bit.
inline std::uint32_t lane_bits(Vector<std::int32_t> lanes) {
#if defined(__AVX512F__)
    const auto all = bit_cast<__m512i>(lanes);
    return _mm512_test_epi32_mask(all, all);
#elif defined(__AVX2__)
    return static_cast<std::uint32_t>(_mm256_movemask_ps(bit_cast<__m256>(lanes != 0)));
#else
    std::uint32_t bits = 0;
    for (int i = 0; i < kLanes<float>; ++i) {
        bits |= lanes[i] != 0 ? 1U << i : 0U;
    }
    return bits;
#endif
}

}  // namespace
}  // namespace graphkit
