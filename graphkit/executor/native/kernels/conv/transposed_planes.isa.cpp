// Sums of products that neighbouring elements of a line have in neighbouring lanes. The positions of each phase, which
// are a stride apart, are summed in one vector. The vectors of all phases are then interleaved.
#include "kernels/conv/transposed_planes_table.h"

#include <algorithm>
#include <utility>

#include "simd/narrow_rows.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

using Lanes = Vector<float>;
using Places = Vector<std::int32_t>;
constexpr std::int64_t kWide = kLanes<float>;
static_assert(kWide <= kTransposedMargin);
static_assert(kShuffleLanes<float> == kWide);

template <int... Lane>
Places numbers(std::integer_sequence<int, Lane...>) {
    return Places{Lane...};
}

// Returns the lanes that are elements of a line, if lane 0 is element `first`; the others are 0.
Lanes inside_line(Lanes x, std::int64_t first, std::int64_t elements) {
    const Places place = numbers(std::make_integer_sequence<int, kWide>()) + static_cast<std::int32_t>(first);
    const Places inside = (place >= 0) & (place < static_cast<std::int32_t>(elements));
    return bit_cast<Lanes>(bit_cast<Places>(x) & inside);
}

// Sums the positions of one phase whose numbers begin at `first`. Inside: whether all terms have whole vectors there.
template <bool Inside>
inline Lanes sum_phase(const TransposedSum& s, std::int64_t phase, std::int64_t first) {
    Lanes sum = splat(s.bias);
    const float* products = s.products + first;
    const TransposedTerm* const end = s.terms + s.begins[phase + 1];
    for (const TransposedTerm* term = s.terms + s.begins[phase]; term != end; ++term) {
        if constexpr (Inside) {
            sum += load<float>(products + (term->offset - term->shift));
        } else {
            const std::int64_t at = first - term->shift;
            if (at > -kWide && at < s.elements) {
                const Lanes x = load<float>(products + (term->offset - term->shift));
                sum += at >= 0 && at + kWide <= s.elements ? x : inside_line(x, at, s.elements);
            }
        }
    }
    return sum;
}

inline Lanes sum_phase(const TransposedSum& s, std::int64_t phase, std::int64_t first) {
    const bool inside = first >= s.most_shift && first + kWide <= s.elements;
    return inside ? sum_phase<true>(s, phase, first) : sum_phase<false>(s, phase, first);
}

// Stores the lanes from `begin` to `end`.
inline void store_lanes(float* to, Lanes x, std::int64_t begin, std::int64_t end) {
#if defined(__AVX512F__)
    const auto mask = static_cast<__mmask16>(((1U << end) - 1U) & ~((1U << begin) - 1U));
    _mm512_mask_storeu_ps(to, mask, bit_cast<__m512>(x));
#elif defined(__AVX2__)
    _mm256_maskstore_ps(to, _mm256_andnot_si256(first_lanes<4>(begin), first_lanes<4>(end)), bit_cast<__m256>(x));
#else
    for (std::int64_t i = begin; i < end; ++i) {
        to[i] = x[i];
    }
#endif
}

// Stores a vector of results from position `at` on, which may be before the first one.
inline void place(const TransposedSum& s, Lanes x, std::int64_t at) {
    const std::int64_t begin = std::max<std::int64_t>(0, -at);
    const std::int64_t end = std::min(kWide, s.count - at);
    if (begin == 0 && end == kWide) {
        store(s.y + at, x);
    } else if (begin < end) {
        store_lanes(s.y + at, x, begin, end);
    }
}

template <int Stride>
void add_up_phases(const TransposedSum& s) {
    for (std::int64_t first = s.begin / Stride; first * Stride < s.begin + s.count; first += kWide) {
        Shuffled<float> sums[Stride];
        for (int phase = 0; phase < Stride; ++phase) {
            sums[phase] = sum_phase(s, phase, first);
        }
        Shuffled<float> joined[Stride];
        if constexpr (Stride == 1) {
            joined[0] = sums[0];
        } else {
            rows_of<float, Stride>(sums, joined, std::make_integer_sequence<int, Stride>());
        }
        for (int part = 0; part < Stride; ++part) {
            place(s, joined[part], first * Stride - s.begin + part * kWide);
        }
    }
}

// For strides whose phases are not interleaved in registers.
void add_up_apart(const TransposedSum& s) {
    for (std::int64_t phase = 0; phase < s.stride; ++phase) {
        for (std::int64_t first = s.begin / s.stride; first * s.stride < s.begin + s.count; first += kWide) {
            const Lanes sum = sum_phase(s, phase, first);
            for (std::int64_t i = 0; i < kWide; ++i) {
                const std::int64_t at = (first + i) * s.stride + phase - s.begin;
                if (at >= 0 && at < s.count) {
                    s.y[at] = sum[i];
                }
            }
        }
    }
}

void add_up(const TransposedSum& s) {
    if (s.stride == 1) {
        add_up_phases<1>(s);
    } else if (s.stride <= kNarrow) {
        with_columns(s.stride, [&](auto stride) { add_up_phases<decltype(stride)::value>(s); });
    } else {
        add_up_apart(s);
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(TransposedPlanesTable, transposed_planes_table) = {add_up};

}  // namespace graphkit
