// What threads know of the elements that they have seen, and how two of them put together what they know. A is float or
// double; every type has `none`, of no elements.

// Sums of N numbers for each element.
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
    __device__ __forceinline__ void join(const gk_sums& b) {
        for (int i = 0; i < N; ++i) {
            s[i] += b.s[i];
        }
    }
};

// Number, mean, and the sum of squared deviations from it (Welford 1962; Chan, Golub and LeVeque 1979).
template <typename A>
struct gk_moments {
    A n, mean, deviations;
    GK_INLINE gk_moments none() {
        gk_moments p;
        p.n = p.mean = p.deviations = 0;
        return p;
    }
    __device__ __forceinline__ void take(A v) {
        n += 1;
        const A far = v - mean;
        mean += far / n;
        deviations += far * (v - mean);
    }
    __device__ __forceinline__ void join(const gk_moments& b) {
        if (b.n == 0) {
            return;
        }
        const A all = n + b.n, share = b.n / all, far = b.mean - mean;
        mean += far * share;
        deviations += b.deviations + far * far * n * share;
        n = all;
    }
};

// The largest element, and the sum of exp(v - largest); NaN wins. The sum is NaN where the largest is infinite, as that
// of the formula is, except that -inf beside other elements counts for nothing.
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
    __device__ __forceinline__ void join(const gk_exponentials& b) {
        const A all = gk_maximum(most, b.most);
        total = (total == 0 ? (A)0 : total * gk_exp(most - all)) + (b.total == 0 ? (A)0 : b.total * gk_exp(b.most - all));
        most = all;
    }
    // What is 0 where nothing but -inf was seen is NaN.
    __device__ __forceinline__ A sum() const {
        return most == gk_limits<A>::lowest() ? most - most : total;
    }
};
