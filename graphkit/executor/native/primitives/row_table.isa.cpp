// The inner loops of normalisations and losses, row by row.
#include "primitives/row_table.h"
#include "primitives/softmax_loops.h"

namespace graphkit {
namespace {

inline float root(float x) {
    return __builtin_sqrtf(x);
}
inline double root(double x) {
    return __builtin_sqrt(x);
}

template <typename T>
inline Vector<T> root_of(Vector<T> x) {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<T, float>) {
        return bit_cast<Vector<T>>(_mm512_sqrt_ps(bit_cast<__m512>(x)));
    } else {
        return bit_cast<Vector<T>>(_mm512_sqrt_pd(bit_cast<__m512d>(x)));
    }
#elif defined(__AVX2__)
    if constexpr (std::is_same_v<T, float>) {
        return bit_cast<Vector<T>>(_mm256_sqrt_ps(bit_cast<__m256>(x)));
    } else {
        return bit_cast<Vector<T>>(_mm256_sqrt_pd(bit_cast<__m256d>(x)));
    }
#else
    for (std::int64_t i = 0; i < kLanes<T>; ++i) {
        x[i] = root(x[i]);
    }
    return x;
#endif
}

// y = (x - centre) * factor, multiplied by scale and increased by bias if they are not null.
template <typename T>
void standardise(const T* x, T centre, T factor, const T* scale, const T* bias, T* y, std::int64_t size) {
    if (scale == nullptr) {
        map_row(y, size, [&](auto&& read) { return (read(x, T{0}) - centre) * factor; });
    } else if (bias == nullptr) {
        map_row(y, size, [&](auto&& read) { return (read(x, T{0}) - centre) * factor * read(scale, T{0}); });
    } else {
        map_row(y, size,
                [&](auto&& read) { return (read(x, T{0}) - centre) * factor * read(scale, T{0}) + read(bias, T{0}); });
    }
}

template <typename T>
void layer_norm(const T* x, const T* scale, const T* bias, T epsilon, T* y, std::int64_t size, T* mean, T* inverse) {
    const auto count = static_cast<T>(size);
    const T centre = sum_row<T>(0, size, [&](auto&& read) { return read(x, T{0}); }) / count;
    const T squares = sum_row<T>(0, size, [&](auto&& read) {
        const Vector<T> d = read(x, centre) - centre;
        return d * d;
    });
    const T factor = T{1} / root(squares / count + epsilon);
    standardise(x, centre, factor, scale, bias, y, size);
    *mean = centre;
    *inverse = factor;
}

template <typename T>
void rms_norm(const T* x, const T* scale, T epsilon, T* y, std::int64_t size, T* inverse) {
    const bool fits = size * static_cast<std::int64_t>(sizeof(T)) <= kCachedRow;
    const T squares = sum_row<T>(0, size, [&](auto&& read) {
        const Vector<T> v = read(x, T{0});
        if (fits) {
            read.prefetch(y);
        }
        return v * v;
    });
    *inverse = T{1} / root(squares / static_cast<T>(size) + epsilon);
    standardise(x, T{0}, *inverse, scale, static_cast<const T*>(nullptr), y, size);
}

template <typename T>
T dot_about(const T* a, const T* b, T centre, std::int64_t size) {
    return sum_row<T>(0, size, [&](auto&& read) { return read(a, T{0}) * (read(b, centre) - centre); });
}

// With g = dy * scale: dx = inverse * (g - mean(g) - h * mean(g * h)).
template <typename T>
void norm_grad(const T* dy, const T* x, const T* scale, T mean, T inverse, bool about_mean, T* dx, T* dscale, T* dbias,
               std::int64_t size) {
    const auto count = static_cast<T>(size);
    const auto g = [&](auto&& read) { return scale == nullptr ? read(dy, T{0}) : read(dy, T{0}) * read(scale, T{0}); };
    const T shift = about_mean ? sum_row<T>(0, size, g) / count : T{0};
    const T slope = sum_row<T>(0, size, [&](auto&& read) { return g(read) * (read(x, mean) - mean); }) / count;
    const T tilt = slope * inverse * inverse;
    map_row(dscale, size,
            [&](auto&& read) { return read(dscale, T{0}) + read(dy, T{0}) * ((read(x, T{0}) - mean) * inverse); });
    if (dbias != nullptr) {
        map_row(dbias, size, [&](auto&& read) { return read(dbias, T{0}) + read(dy, T{0}); });
    }
    map_row(dx, size, [&](auto&& read) { return inverse * ((g(read) - shift) - (read(x, T{0}) - mean) * tilt); });
}

template <typename T>
void add_products_about(const T* a, const T* b, const T* centre, T* totals, std::int64_t size) {
    map_row(totals, size,
            [&](auto&& read) { return read(totals, T{0}) + read(a, T{0}) * (read(b, T{0}) - read(centre, T{0})); });
}

template <typename T>
void affine(const T* x, T centre, T factor, T bias, T* y, std::int64_t size) {
    map_row(y, size, [&](auto&& read) { return (read(x, T{0}) - centre) * factor + bias; });
}

template <typename T>
void affine_each(const T* x, const T* centre, const T* factor, const T* bias, T* y, std::int64_t size) {
    map_row(y, size,
            [&](auto&& read) { return (read(x, T{0}) - read(centre, T{0})) * read(factor, T{0}) + read(bias, T{0}); });
}

template <typename T>
void blend(const T* g, T a, const T* x, T centre, T b, T c, T* y, std::int64_t size) {
    map_row(y, size, [&](auto&& read) { return a * read(g, T{0}) + b * (read(x, T{0}) - centre) + c; });
}

template <typename T>
void blend_each(const T* g, const T* a, const T* x, const T* centre, const T* b, const T* c, T* y, std::int64_t size) {
    map_row(y, size, [&](auto&& read) {
        return read(a, T{0}) * read(g, T{0}) + read(b, T{0}) * (read(x, T{0}) - read(centre, T{0})) + read(c, T{0});
    });
}

template <typename T>
void scaled_exp(const T* x, T factor, T* y, std::int64_t size) {
    map_row(y, size, [&](auto&& read) { return exp<T>(read(x, T{0})) * factor; });
}

template <typename T>
void scaled_exp_each(const T* x, const T* factor, T* y, std::int64_t size) {
    map_row(y, size, [&](auto&& read) { return exp<T>(read(x, T{0})) * read(factor, T{0}); });
}

template <typename T>
void local_response(const T* x, std::int64_t first, std::int64_t last, std::int64_t stride, T bias, T factor,
                    bool power, T* y, std::int64_t size) {
    map_row(y, size, [&](auto&& read) {
        Vector<T> total{};
        for (std::int64_t row = first; row < last; ++row) {
            const Vector<T> v = read(x + row * stride, T{0});
            total += v * v;
        }
        const Vector<T> base = total * factor + bias;
        if (!power) {
            return base;
        }
        const Vector<T> half = root_of<T>(base);  // base ^ 0.75 = base ^ 0.5 * base ^ 0.25
        return read(x, T{0}) / (half * root_of<T>(half));
    });
}

// An element times zero is zero if the element is finite, else NaN.
template <typename T>
bool all_finite(const T* x, std::int64_t size) {
    constexpr std::int64_t lanes = kLanes<T>;
    Vector<T> zeros[4] = {};
    std::int64_t at = 0;
    for (; at + 4 * lanes <= size; at += 4 * lanes) {
#pragma GCC unroll 4
        for (int way = 0; way < 4; ++way) {
            zeros[way] += load(x + at + way * lanes) * T{0};
        }
    }
    for (; at + lanes <= size; at += lanes) {
        zeros[0] += load(x + at) * T{0};
    }
    if (at < size) {
        zeros[1] += load_part(x + at, size - at, T{0}) * T{0};
    }
    return across<Add, T>((zeros[0] + zeros[1]) + (zeros[2] + zeros[3])) == T{0};
}

inline bool all_finite_bf16(const BFloat16* x, std::int64_t size) {
    bool finite = true;
    for (std::int64_t i = 0; i < size; ++i) {
        finite &= (x[i].bits & 0x7f80) != 0x7f80;
    }
    return finite;
}

template <typename T>
constexpr RowFunctions<T> row_functions() {
    return {softmax_rows<false, T>,
            softmax_rows<true, T>,
            softmax_columns<false, T>,
            softmax_columns<true, T>,
            scaled_softmax<T>,
            layer_norm<T>,
            rms_norm<T>,
            norm_grad<T>,
            dot_about<T>,
            add_products_about<T>,
            affine<T>,
            affine_each<T>,
            blend<T>,
            blend_each<T>,
            scaled_exp<T>,
            scaled_exp_each<T>,
            local_response<T>,
            all_finite<T>};
}

constexpr RowTable make_row_table() {
    return {row_functions<float>(), row_functions<double>(), widen, widen, narrow, narrow, all_finite_bf16};
}

}  // namespace

GRAPHKIT_ISA_DEFINE(RowTable, row_table) = make_row_table();

}  // namespace graphkit
