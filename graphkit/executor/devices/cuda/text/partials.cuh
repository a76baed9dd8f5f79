// Partial results of reductions. Every type has `none` (the result of no elements), `take` (add an element), `settle`
// and `join` (combine two partial results). `settle` must be called after the last `take` and before the first `join`.
// In types that use functions of floats, A is float or double.

// The partial result of another thread of the warp. All threads of the warp must call it.
template <typename P>
GK_INLINE P gk_shuffle_part(const P& p, int far) {
    alignas(8) gk_u32 words[(sizeof(P) + 3) / 4];
    words[sizeof(words) / 4 - 1] = 0;
    *(P*)words = p;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(words) / 4); ++i) {
        words[i] = gk_shuffle_xor(words[i], far);
    }
    return *(const P*)words;
}

// A single number, reduced by a binary function.
#define GK_PARTIAL(name, first, joined)                          \
    template <typename A>                                        \
    struct name {                                                \
        A v;                                                     \
        GK_INLINE name none() {                                  \
            name p;                                              \
            p.v = first;                                         \
            return p;                                            \
        }                                                        \
        __device__ __forceinline__ void take(A x) {              \
            v = joined(v, x);                                    \
        }                                                        \
        __device__ __forceinline__ void settle() {               \
        }                                                        \
        __device__ __forceinline__ void join(const name& b) {    \
            take(b.v);                                           \
        }                                                        \
    };
GK_PARTIAL(gk_total, (A)0, gk_add)
GK_PARTIAL(gk_product, (A)1, gk_mul)
GK_PARTIAL(gk_most, gk_limits<A>::lowest(), gk_maximum)
GK_PARTIAL(gk_least, gk_limits<A>::highest(), gk_minimum)
#undef GK_PARTIAL

// The largest or smallest element and its position. NaN wins over all numbers. Of equal elements, the last or the first
// wins.
template <typename A, bool Largest, bool Last>
struct gk_extreme {
    A v;
    gk_i64 at;  // -1: no element yet
    GK_INLINE gk_extreme none() {
        gk_extreme p;
        p.v = 0;
        p.at = -1;
        return p;
    }
    __device__ __forceinline__ void take(A x, gk_i64 number) {
        const bool nan = v != v, other_nan = x != x;
        const bool tie = nan == other_nan && (nan || v == x);
        const bool wins = tie ? (number > at) == Last : nan != other_nan ? other_nan : (Largest ? x > v : x < v);
        if (at < 0 || wins) {
            v = x;
            at = number;
        }
    }
    __device__ __forceinline__ void settle() {
    }
    __device__ __forceinline__ void join(const gk_extreme& b) {
        if (b.at >= 0) {
            take(b.v, b.at);
        }
    }
};

// Sums of N numbers per element.
template <typename A, int N>
struct gk_sums {
    A s[N];
    GK_INLINE gk_sums none() {
        gk_sums p;
        for (int i = 0; i < N; ++i) {
            p.s[i] = 0;
        }
        return p;
    }
    __device__ __forceinline__ void settle() {
    }
    __device__ __forceinline__ void join(const gk_sums& b) {
        for (int i = 0; i < N; ++i) {
            s[i] += b.s[i];
        }
    }
};

// Count, mean, and the sum of squared deviations from the mean (Chan, Golub and LeVeque 1979). Until `settle`, `mean`
// is the first element, and `sum` and `deviations` are sums of the differences to it and of their squares. The first
// element is about as near to the others as the mean, so this loses little precision.
template <typename A>
struct gk_moments {
    A n, mean, deviations, sum;
    GK_INLINE gk_moments none() {
        gk_moments p;
        p.n = p.mean = p.deviations = p.sum = 0;
        return p;
    }
    __device__ __forceinline__ void take(A v) {
        // Use the first element only if it is finite: differences to infinity or NaN are not finite.
        mean = n == 0 && v - v == 0 ? v : mean;
        const A far = v - mean;
        n += 1;
        sum += far;
        deviations += far * far;
    }
    __device__ __forceinline__ void settle() {
        if (n > 0) {
            const A shift = sum / n, less = deviations - sum * shift;
            mean += shift;
            deviations = less < 0 ? (A)0 : less;
            sum = 0;
        }
    }
    __device__ __forceinline__ void join(const gk_moments& b) {
        if (b.n == 0) {
            return;
        }
        const A all = n + b.n, share = b.n / all, far = b.mean - mean, near = mean + far * share;
        // With an infinite mean, the difference may be NaN. This formula then gives the infinite mean.
        mean = near == near ? near : mean * n + b.mean * b.n;
        deviations += b.deviations + far * far * n * share;
        n = all;
    }
};

// The largest element, and the sum of exp(v - largest). If an element is NaN, both are NaN. If the largest element is
// infinite, the sum is NaN, as the formula says. Elements of -inf contribute 0 if there are others.
template <typename A>
struct gk_exponentials {
    A most, total;
    GK_INLINE gk_exponentials none() {
        gk_exponentials p;
        p.most = gk_limits<A>::lowest();
        p.total = 0;
        return p;
    }
    __device__ __forceinline__ void take(A v) {
        if (v <= most) {
            total += v == gk_limits<A>::lowest() ? (A)0 : gk_exp(v - most);
        } else {
            total = (total == 0 ? (A)0 : total * gk_exp(most - v)) + ((A)1 + (v - v));
            most = gk_maximum(most, v);
        }
    }
    __device__ __forceinline__ void settle() {
    }
    __device__ __forceinline__ void join(const gk_exponentials& b) {
        const A all = gk_maximum(most, b.most);
        total = (total == 0 ? (A)0 : total * gk_exp(most - all)) + (b.total == 0 ? (A)0 : b.total * gk_exp(b.most - all));
        most = all;
    }
    // If all elements are -inf, the result is NaN instead of 0.
    __device__ __forceinline__ A sum() const {
        return most == gk_limits<A>::lowest() ? most - most : total;
    }
};
