// Elimination, substitution, and Cholesky factorization of one matrix, row by row.
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
    if (i < size) {
        store_part(row + i, load_part(row + i, size - i, T{0}) + splat(factor) * load_part(other + i, size - i, T{0}),
                   size - i);
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

// Like `eliminate` without b, for matrices whose rows fit into a vector. Rows that follow each other in memory would be
// slow: a load waits for an earlier store of a part of a vector.
template <typename T>
int eliminate_short(const T* a, T* pivots, std::int64_t n) {
    Vector<T> rows[kLanes<T>];
    for (std::int64_t row = 0; row < n; ++row) {
        rows[row] = load_part<T>(a + row * n, n, T{0});
    }
    const auto at = [&](std::int64_t row, std::int64_t column) {
        return reinterpret_cast<const T*>(rows + row)[column];
    };
    int sign = 1;
    for (std::int64_t column = 0; column < n; ++column) {
        std::int64_t best = column;
        for (std::int64_t row = column + 1; row < n; ++row) {
            best = magnitude(at(row, column)) > magnitude(at(best, column)) ? row : best;
        }
        const T pivot = at(best, column);
        if (pivot == 0) {
            return 0;
        }
        if (best != column) {
            const Vector<T> kept = rows[column];
            rows[column] = rows[best];
            rows[best] = kept;
            sign = -sign;
        }
        pivots[column] = pivot;
        const Vector<T> first = rows[column];
        for (std::int64_t row = column + 1; row < n; ++row) {
            rows[row] += splat(-at(row, column) / pivot) * first;
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

// The larger of two magnitudes; NaN if either is NaN.
struct Larger {
    template <typename V>
    static inline V combine(V a, V b) {
        return ((b > a) | (b != b)) ? b : a;
    }
};

// row += factor * other, unless other is null. Returns the largest magnitude in row; NaN if row contains NaN.
template <typename T>
T add_scaled_and_measure(T* row, T factor, const T* other, std::int64_t size) {
    Vector<T> largest{};
    for (std::int64_t i = 0; i < size; i += kLanes<T>) {
        const std::int64_t count = size - i;
        const bool whole = count >= kLanes<T>;
        Vector<T> value = whole ? load(row + i) : load_part(row + i, count, T{0});
        if (other != nullptr) {
            value += splat(factor) * (whole ? load(other + i) : load_part(other + i, count, T{0}));
            if (whole) {
                store(row + i, value);
            } else {
                store_part(row + i, value, count);
            }
        }
        largest = Larger::combine<Vector<T>>(largest, value < T{0} ? -value : value);
    }
    return across<Larger, T>(largest);
}

// Factorizes p a q = l u with complete pivoting, in place: the upper triangle of a becomes u. b, at first the identity,
// becomes l^-1 p. columns[i] = the column of a that is column i of a q. Returns the product of the signs of both
// permutations; 0 if a has at most n - 2 independent rows; kNotFinite if an element is not finite.
constexpr int kNotFinite = 2;

template <typename T>
int eliminate_completely(T* a, T* b, std::int64_t n, std::int64_t* columns) {
    T largest[kMostRowsOfCofactors];
    for (std::int64_t row = 0; row < n; ++row) {
        columns[row] = row;
        largest[row] = add_scaled_and_measure<T>(a + row * n, 0, nullptr, n);
        if (!(largest[row] * 0 == 0)) {
            return kNotFinite;
        }
    }
    int sign = 1;
    for (std::int64_t step = 0; step + 1 < n; ++step) {
        std::int64_t best = step;
        for (std::int64_t row = step + 1; row < n; ++row) {
            if (largest[row] > largest[best] || largest[row] != largest[row]) {
                best = row;
            }
        }
        if (largest[best] == 0) {
            return 0;
        }
        std::int64_t column = step;
        for (std::int64_t i = step; i < n; ++i) {
            const T size = magnitude(a[best * n + i]);
            column = size == largest[best] || size != size ? i : column;
        }
        if (best != step) {
            exchange(a + best * n, a + step * n, n);
            exchange(b + best * n, b + step * n, n);
            largest[best] = largest[step];
            sign = -sign;
        }
        if (column != step) {
            for (std::int64_t row = 0; row < n; ++row) {
                exchange(a + row * n + column, a + row * n + step, 1);
            }
            exchange(columns + column, columns + step, 1);
            sign = -sign;
        }
        const T* pivots = a + step * n;
        for (std::int64_t row = step + 1; row < n; ++row) {
            const T factor = -a[row * n + step] / pivots[step];
            largest[row] = add_scaled_and_measure<T>(a + row * n + step + 1, factor, pivots + step + 1, n - step - 1);
            add_scaled(b + row * n, factor, b + step * n, n);
        }
    }
    return sign;
}

// With p a q = l u, u = [v w; 0 d], b = l^-1 p: adj(a) = +-q adj(u) b, and adj(u) b = det(v) [v^-1 (d b' - w b"); b"],
// where b" is the last row of b, and b' are the other rows. Only d may be 0, and no division by d occurs.
template <typename T>
void cofactors(T* a, T* b, T* y, std::int64_t n) {
    std::int64_t columns[kMostRowsOfCofactors];
    __builtin_memset(b, 0, static_cast<std::size_t>(n * n) * sizeof(T));
    for (std::int64_t i = 0; i < n; ++i) {
        b[i * n + i] = 1;
    }
    const int sign = eliminate_completely(a, b, n, columns);
    if (sign == 0 || sign == kNotFinite) {
        for (std::int64_t i = 0; i < n * n; ++i) {
            y[i] = sign == 0 ? T{0} : static_cast<T>(__builtin_nan(""));
        }
        return;
    }
    const std::int64_t last = n - 1;
    const T d = a[n * n - 1];
    double product = sign;
    for (std::int64_t row = last - 1; row >= 0; --row) {
        T* x = b + row * n;
        for (std::int64_t i = 0; i < n; ++i) {
            x[i] *= d;
        }
        add_scaled(x, -a[row * n + last], b + last * n, n);
        for (std::int64_t other = row + 1; other < last; ++other) {
            add_scaled(x, -a[row * n + other], b + other * n, n);
        }
        const T pivot = a[row * n + row];
        for (std::int64_t i = 0; i < n; ++i) {
            x[i] /= pivot;
        }
        product *= static_cast<double>(pivot);
    }
    for (std::int64_t row = 0; row < n; ++row) {
        for (std::int64_t i = 0; i < n; ++i) {
            y[i * n + columns[row]] = static_cast<T>(product * static_cast<double>(b[row * n + i]));
        }
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(FactorTable, factor_table) = {
    {kLanes<float>, eliminate_short<float>, eliminate<float>, substitute<float>, cholesky<float>, cofactors<float>},
    {kLanes<double>, eliminate_short<double>, eliminate<double>, substitute<double>, cholesky<double>,
     cofactors<double>}};

}  // namespace graphkit
