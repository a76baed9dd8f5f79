// Softmax and the steps of normalisations and losses on rows, compiled for several instruction sets.
#pragma once

#include <cstdint>
#include <type_traits>

#include "runtime/isa.h"
#include "simd/half.h"

namespace graphkit {

// The type in which elements of type T are computed.
template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Functions on rows of float or double. `y` may be `x`.
template <typename T>
struct RowFunctions {
    // Of `rows` contiguous rows.
    void (*softmax)(const T* x, T* y, std::int64_t rows, std::int64_t size);
    void (*log_softmax)(const T* x, T* y, std::int64_t rows, std::int64_t size);
    // The same along columns: `width` <= kReductionTile columns of `rows` > 0 elements, `stride` elements apart.
    void (*softmax_columns)(const T* x, T* y, std::int64_t rows, std::int64_t stride, std::int64_t width);
    void (*log_softmax_columns)(const T* x, T* y, std::int64_t rows, std::int64_t stride, std::int64_t width);
    // y = softmax(x) * factor for one row that is not empty. Writes the largest element and the logarithm of the sum of
    // exp(x - largest).
    void (*scaled_softmax)(const T* x, T factor, T* y, std::int64_t size, T* largest, T* log_sum);

    // y = (x - mean) / sqrt(var + epsilon) * scale + bias, with the row's statistics. `bias`, or both `scale` and
    // `bias`, may be null. Writes *mean and *inverse = 1 / sqrt(var + epsilon).
    void (*layer_norm)(const T* x, const T* scale, const T* bias, T epsilon, T* y, std::int64_t size, T* mean,
                       T* inverse);
    // Like layer_norm with mean 0: y = x / sqrt(mean of squares + epsilon) * scale.
    void (*rms_norm)(const T* x, const T* scale, T epsilon, T* y, std::int64_t size, T* inverse);
    // dx of layer_norm (`about_mean`) or rms_norm, from dy, mean and inverse. Adds dy * h to dscale and, unless it is
    // null, dy to dbias, element by element, where h = (x - mean) * inverse. scale may be null.
    void (*norm_grad)(const T* dy, const T* x, const T* scale, T mean, T inverse, bool about_mean, T* dx, T* dscale,
                      T* dbias, std::int64_t size);

    // The sum of a * (b - centre).
    T (*dot_about)(const T* a, const T* b, T centre, std::int64_t size);
    // totals += a * (b - centre), with a centre for each element.
    void (*add_products_about)(const T* a, const T* b, const T* centre, T* totals, std::int64_t size);
    // y = (x - centre) * factor + bias. affine has one centre, factor and bias for all elements, affine_each one for
    // each.
    void (*affine)(const T* x, T centre, T factor, T bias, T* y, std::int64_t size);
    void (*affine_each)(const T* x, const T* centre, const T* factor, const T* bias, T* y, std::int64_t size);
    // y = a * g + b * (x - centre) + c. blend has one coefficient of each kind for all elements, blend_each one for
    // each.
    void (*blend)(const T* g, T a, const T* x, T centre, T b, T c, T* y, std::int64_t size);
    void (*blend_each)(const T* g, const T* a, const T* x, const T* centre, const T* b, const T* c, T* y,
                       std::int64_t size);

    // y = exp(x) * factor, with one factor for all elements, or with one for each.
    void (*scaled_exp)(const T* x, T factor, T* y, std::int64_t size);
    void (*scaled_exp_each)(const T* x, const T* factor, T* y, std::int64_t size);
    // y = x * (bias + factor * s) ^ -0.75, where s is the sum of squares over rows [first, last), counted from the row
    // x and `stride` apart. If not `power`: y = bias + factor * s.
    void (*local_response)(const T* x, std::int64_t first, std::int64_t last, std::int64_t stride, T bias, T factor,
                           bool power, T* y, std::int64_t size);

    // Whether no element is infinite or NaN.
    bool (*all_finite)(const T* x, std::int64_t size);
};

struct RowTable {
    RowFunctions<float> f32;
    RowFunctions<double> f64;
    void (*widen_f16)(const Float16* from, float* to, std::int64_t size);
    void (*widen_bf16)(const BFloat16* from, float* to, std::int64_t size);
    void (*narrow_f16)(const float* from, Float16* to, std::int64_t size);
    void (*narrow_bf16)(const float* from, BFloat16* to, std::int64_t size);
    bool (*finite_bf16)(const BFloat16* x, std::int64_t size);

    template <typename T>
    const RowFunctions<Wide<T>>& rows() const {
        if constexpr (std::is_same_v<T, double>) {
            return f64;
        } else {
            return f32;
        }
    }

    void widen(const Float16* from, float* to, std::int64_t size) const { widen_f16(from, to, size); }
    void widen(const BFloat16* from, float* to, std::int64_t size) const { widen_bf16(from, to, size); }
    void narrow(const float* from, Float16* to, std::int64_t size) const { narrow_f16(from, to, size); }
    void narrow(const float* from, BFloat16* to, std::int64_t size) const { narrow_bf16(from, to, size); }
};

GRAPHKIT_ISA_TABLE(RowTable, row_table);

}  // namespace graphkit
