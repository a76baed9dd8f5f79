// Weighted sums of rows, and of elements of one row.
#include "kernels/resize/resample.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

// Taps: the number of taps if it is constant, so that the compiler unrolls the loop; 0: any number.
template <typename T, int Taps>
inline void sum_some_rows(const T* const* rows, const T* weights, int given, T* __restrict y, std::int64_t size) {
    const int taps = Taps == 0 ? given : Taps;
    std::int64_t j = 0;
    for (; j + kLanes<T> <= size; j += kLanes<T>) {
        Vector<T> sum{};
        for (int t = 0; t < taps; ++t) {
            sum += splat(weights[t]) * load(rows[t] + j);
        }
        store(y + j, sum);
    }
    for (; j < size; ++j) {
        T sum{};
        for (int t = 0; t < taps; ++t) {
            sum += weights[t] * rows[t][j];
        }
        y[j] = sum;
    }
}

template <typename T>
void sum_rows(const T* const* rows, const T* weights, int taps, T* __restrict y, std::int64_t size) {
    switch (taps) {
        case 1:
            return sum_some_rows<T, 1>(rows, weights, taps, y, size);
        case 2:
            return sum_some_rows<T, 2>(rows, weights, taps, y, size);
        case 4:
            return sum_some_rows<T, 4>(rows, weights, taps, y, size);
        default:
            return sum_some_rows<T, 0>(rows, weights, taps, y, size);
    }
}

template <typename T, int Taps>
inline void sum_some(const T* x, const std::int32_t* sources, const T* weights, int given, T* __restrict y,
                     std::int64_t size) {
    const int taps = Taps == 0 ? given : Taps;
    for (std::int64_t i = 0; i < size; ++i) {
        T sum{};
        for (int t = 0; t < taps; ++t) {
            sum += weights[t * size + i] * x[sources[t * size + i]];
        }
        y[i] = sum;
    }
}

template <typename T>
void sum_row(const T* x, const std::int32_t* sources, const T* weights, int taps, T* __restrict y, std::int64_t size) {
    switch (taps) {
        case 1:
            return sum_some<T, 1>(x, sources, weights, taps, y, size);
        case 2:
            return sum_some<T, 2>(x, sources, weights, taps, y, size);
        case 4:
            return sum_some<T, 4>(x, sources, weights, taps, y, size);
        default:
            return sum_some<T, 0>(x, sources, weights, taps, y, size);
    }
}

#if defined(__AVX2__)
constexpr auto kWindowLanes = static_cast<int>(kLanes<float>);

// Returns the elements `places` of the 2 * lanes elements low, high.
inline Vector<float> pick(Vector<float> low, Vector<float> high, const std::int32_t* places) {
#if defined(__AVX512F__)
    return bit_cast<Vector<float>>(
        _mm512_permutex2var_ps(bit_cast<__m512>(low), _mm512_loadu_si512(places), bit_cast<__m512>(high)));
#else
    const __m256i at = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(places));
    const __m256 a = _mm256_permutevar8x32_ps(bit_cast<__m256>(low), at);
    const __m256 b = _mm256_permutevar8x32_ps(bit_cast<__m256>(high), at);
    return bit_cast<Vector<float>>(_mm256_blendv_ps(a, b, _mm256_castsi256_ps(_mm256_slli_epi32(at, 28))));
#endif
}

void sum_windows(const float* x, const std::int32_t* starts, const std::int32_t* places, const float* weights, int taps,
                 float* y, std::int64_t size) {
    for (std::int64_t i = 0; i + kWindowLanes <= size; i += kWindowLanes) {
        const float* window = x + *starts++;
        const Vector<float> low = load(window);
        const Vector<float> high = load(window + kWindowLanes);
        Vector<float> sum{};
        for (int t = 0; t < taps; ++t) {
            sum += load(weights + t * size + i) * pick(low, high, places + t * size + i);
        }
        store(y + i, sum);
    }
}
#else
constexpr int kWindowLanes = 0;
constexpr ResampleTable::Windowed sum_windows = nullptr;
#endif

}  // namespace

GRAPHKIT_ISA_DEFINE(ResampleTable, resample_table) = {sum_rows<float>, sum_row<float>, sum_rows<double>,
                                                      sum_row<double>, kWindowLanes,   sum_windows};

}  // namespace graphkit
