// Tests whether boxes overlap. Compiled without contraction, so that all processors compute the same overlap.
#include "kernels/roi/suppression_table.h"
#include "simd/vector.h"

namespace graphkit {

namespace {

inline bool any(Vector<std::int32_t> mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask(bit_cast<__m512i>(mask), bit_cast<__m512i>(mask)) != 0;
#elif defined(__AVX2__)
    return _mm256_testz_si256(bit_cast<__m256i>(mask), bit_cast<__m256i>(mask)) == 0;
#else
    std::int32_t set = 0;
    for (std::int64_t i = 0; i < kLanes<std::int32_t>; ++i) {
        set |= mask[i];
    }
    return set != 0;
#endif
}

bool is_hidden(const ChosenBoxes& chosen, const float* box, float overlap) {
    const std::int64_t room = chosen.room;
    const Vector<float> y1 = splat(box[0]), x1 = splat(box[1]), y2 = splat(box[2]), x2 = splat(box[3]);
    const Vector<float> area = splat(box[4]), most = splat(overlap);
    for (std::int64_t i = 0; i < chosen.count; i += kLanes<float>) {
        const float* at = chosen.rows + i;
        const Vector<float> height = min_of<float>(load(at + 2 * room), y2) - max_of<float>(load(at), y1);
        const Vector<float> width = min_of<float>(load(at + 3 * room), x2) - max_of<float>(load(at + room), x1);
        const Vector<float> shared = max_of<float>(height, Vector<float>{}) * max_of<float>(width, Vector<float>{});
        const Vector<std::int32_t> hidden = shared / (load(at + 4 * room) + area - shared) > most;
        if (any(hidden)) {
            return true;
        }
    }
    return false;
}

}  // namespace

GRAPHKIT_ISA_DEFINE(SuppressionTable, suppression_table) = {is_hidden};

}  // namespace graphkit
