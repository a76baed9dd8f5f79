// Elimination, substitution and Cholesky factors of one matrix, by rows.
#include "kernels/linalg/linear_systems.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

// row += factor * other
template <typename T>
inline void add_scaled(T* row, T factor, const T* other, std::int64_t size) {
    std::int64_t i = 0;
    for (; i + kLanes<T> <= size; i += kLanes<T>) {
        store(row + i, load(row + i) + splat(factor) * load(other + i));
    }
    for (; i < size; ++i) {
        row[i] += factor * other[i];
    }
}

template <typename T>
inline void exchange(T* a, T* b, std::int64_t size) {
    for (std::int64_t i = 0; i < size; ++i) {
        const T kept = a[i];
        a[i] = b[i];
        b[i] = kept;
    }
}

template <typename T>
inline T magnitude(T value) {
    return value < 0 ? -value : value;
}

template <typename T>
int eliminate(T* a, T* b, std::int64_t n, std::int64_t k) {
    int sign = 1;
    for (std::int64_t column = 0; column < n; ++column) {
        std::int64_t best = column;
        for (std::int64_t row = column + 1; row < n; ++row) {
            if (magnitude(a[row * n + column]) > magnitude(a[best * n + column])) {
                best = row;
            }
        }
        if (a[best * n + column] == 0) {
            return 0;
        }
        if (best != column) {
            exchange(a + best * n, a + column * n, n);
            exchange(b + best * k, b + column * k, k);
            sign = -sign;
        }
        const T* pivots = a + column * n;
        for (std::int64_t row = column + 1; row < n; ++row) {
            const T factor = -a[row * n + column] / pivots[column];
            add_scaled(a + row * n + column, factor, pivots + column, n - column);
            add_scaled(b + row * k, factor, b + column * k, k);
        }
    }
    return sign;
}

template <typename T>
bool substitute(const T* a, T* b, std::int64_t n, std::int64_t k, bool lower) {
    for (std::int64_t step = 0; step < n; ++step) {
        const std::int64_t row = lower ? step : n - 1 - step;
        const T pivot = a[row * n + row];
        if (pivot == 0) {
            return false;
        }
        T* x = b + row * k;
        for (std::int64_t other = lower ? 0 : row + 1; other < (lower ? row : n); ++other) {
            add_scaled(x, -a[row * n + other], b + other * k, k);
        }
        for (std::int64_t i = 0; i < k; ++i) {
            x[i] /= pivot;
        }
    }
    return true;
}

template <typename T>
bool cholesky(T* a, std::int64_t n) {
    for (std::int64_t row = 0; row < n; ++row) {
        T* pivots = a + row * n;
        if (!(pivots[row] > 0)) {
            return false;
        }
        const T root = static_cast<T>(__builtin_sqrt(static_cast<double>(pivots[row])));
        for (std::int64_t i = row; i < n; ++i) {
            pivots[i] /= root;
        }
        for (std::int64_t below = row + 1; below < n; ++below) {
            add_scaled(a + below * n + below, -pivots[below], pivots + below, n - below);
        }
    }
    return true;
}

}  // namespace

GRAPHKIT_ISA_DEFINE(FactorTable, factor_table) = {{eliminate<float>, substitute<float>, cholesky<float>},
                                                  {eliminate<double>, substitute<double>, cholesky<double>}};

}  // namespace graphkit
