// The butterflies of a Fourier transform. The loops are simple, so that the compiler can vectorise them.
#include "kernels/signal/fourier_table.h"

namespace graphkit {
namespace {

template <typename T>
struct Number {
    T re, im;
};

template <typename T>
inline Number<T> operator+(Number<T> a, Number<T> b) {
    return {a.re + b.re, a.im + b.im};
}
template <typename T>
inline Number<T> operator-(Number<T> a, Number<T> b) {
    return {a.re - b.re, a.im - b.im};
}
template <typename T>
inline Number<T> operator*(Number<T> a, Number<T> b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
template <typename T>
inline Number<T> scaled(Number<T> a, T by) {
    return {a.re * by, a.im * by};
}
// Returns a times -i.
template <typename T>
inline Number<T> turned(Number<T> a) {
    return {a.im, -a.re};
}

// Computes b[0], ..., b[radix - 1] from a[0], ..., a[radix - 1]; the turns are not applied.
template <int Radix, typename T>
inline void butterfly(const Number<T>* a, Number<T>* b) {
    if constexpr (Radix == 2) {
        b[0] = a[0] + a[1];
        b[1] = a[0] - a[1];
    } else if constexpr (Radix == 3) {
        constexpr T half_root = static_cast<T>(0.86602540378443864676);  // sin(2 pi / 3)
        const Number<T> sum = a[1] + a[2];
        const Number<T> side = turned(scaled(a[1] - a[2], half_root));
        const Number<T> middle = a[0] - scaled(sum, static_cast<T>(0.5));
        b[0] = a[0] + sum;
        b[1] = middle + side;
        b[2] = middle - side;
    } else if constexpr (Radix == 4) {
        const Number<T> even = a[0] + a[2], odd = a[1] + a[3];
        const Number<T> across = a[0] - a[2], side = turned(a[1] - a[3]);
        b[0] = even + odd;
        b[1] = across + side;
        b[2] = even - odd;
        b[3] = across - side;
    } else {
        static_assert(Radix == 5);
        constexpr T c1 = static_cast<T>(0.30901699437494742410), c2 = static_cast<T>(-0.80901699437494742410);
        constexpr T s1 = static_cast<T>(0.95105651629515357212), s2 = static_cast<T>(0.58778525229247312917);
        const Number<T> sum1 = a[1] + a[4], sum2 = a[2] + a[3], side1 = a[1] - a[4], side2 = a[2] - a[3];
        const Number<T> near = a[0] + scaled(sum1, c1) + scaled(sum2, c2);
        const Number<T> far = a[0] + scaled(sum1, c2) + scaled(sum2, c1);
        const Number<T> near_side = turned(scaled(side1, s1) + scaled(side2, s2));
        const Number<T> far_side = turned(scaled(side1, s2) - scaled(side2, s1));
        b[0] = a[0] + sum1 + sum2;
        b[1] = near + near_side;
        b[2] = far + far_side;
        b[3] = far - far_side;
        b[4] = near - near_side;
    }
}

template <int Radix, typename T>
void run_radix(const FourierStage<T>& stage, Complex<T> x, Complex<T> y) {
    const std::int64_t groups = stage.groups, stride = stage.stride;
    const T* __restrict in_re = x.re, * __restrict in_im = x.im;
    T* __restrict out_re = y.re, * __restrict out_im = y.im;
    const auto column = [&](std::int64_t group, std::int64_t q) {
        Number<T> a[Radix], b[Radix];
        for (int j = 0; j < Radix; ++j) {
            const std::int64_t at = (j * groups + group) * stride + q;
            a[j] = {in_re[at], in_im[at]};
        }
        butterfly<Radix>(a, b);
        for (int k = 0; k < Radix; ++k) {
            const std::int64_t at = (group * Radix + k) * stride + q;
            const std::int64_t turn = (k - 1) * groups + group;
            const Number<T> result = k == 0 ? b[k] : b[k] * Number<T>{stage.turn_re[turn], stage.turn_im[turn]};
            out_re[at] = result.re;
            out_im[at] = result.im;
        }
    };
    if (stride == 1) {
#pragma omp simd
        for (std::int64_t group = 0; group < groups; ++group) {
            column(group, 0);
        }
        return;
    }
    for (std::int64_t group = 0; group < groups; ++group) {
#pragma omp simd
        for (std::int64_t q = 0; q < stride; ++q) {
            column(group, q);
        }
    }
}

// Butterflies of any radix, computed by the definition.
template <typename T>
void run_any(const FourierStage<T>& stage, Complex<T> x, Complex<T> y) {
    const std::int64_t groups = stage.groups, stride = stage.stride;
    for (std::int64_t group = 0; group < groups; ++group) {
        for (int k = 0; k < stage.radix; ++k) {
            const std::int64_t at = (group * stage.radix + k) * stride;
            T* __restrict out_re = y.re + at, * __restrict out_im = y.im + at;
            for (int j = 0; j < stage.radix; ++j) {
                const std::int64_t from = (j * groups + group) * stride;
                const T* __restrict in_re = x.re + from, * __restrict in_im = x.im + from;
                const Number<T> root{stage.root_re[j * k % stage.radix], stage.root_im[j * k % stage.radix]};
#pragma omp simd
                for (std::int64_t q = 0; q < stride; ++q) {
                    const Number<T> term = Number<T>{in_re[q], in_im[q]} * root;
                    out_re[q] = j == 0 ? term.re : out_re[q] + term.re;
                    out_im[q] = j == 0 ? term.im : out_im[q] + term.im;
                }
            }
            if (k > 0) {
                const std::int64_t turn = (k - 1) * groups + group;
                const Number<T> by{stage.turn_re[turn], stage.turn_im[turn]};
#pragma omp simd
                for (std::int64_t q = 0; q < stride; ++q) {
                    const Number<T> result = Number<T>{out_re[q], out_im[q]} * by;
                    out_re[q] = result.re;
                    out_im[q] = result.im;
                }
            }
        }
    }
}

template <typename T>
void run(const FourierStage<T>& stage, Complex<T> x, Complex<T> y) {
    switch (stage.radix) {
        case 2:
            return run_radix<2>(stage, x, y);
        case 3:
            return run_radix<3>(stage, x, y);
        case 4:
            return run_radix<4>(stage, x, y);
        case 5:
            return run_radix<5>(stage, x, y);
        default:
            return run_any(stage, x, y);
    }
}

template <typename T>
void multiply(Complex<T> x, Complex<T> by, std::int64_t length, std::int64_t lanes) {
    for (std::int64_t i = 0; i < length; ++i) {
        T* __restrict re = x.re + i * lanes, * __restrict im = x.im + i * lanes;
        const Number<T> factor{by.re[i], by.im[i]};
#pragma omp simd
        for (std::int64_t q = 0; q < lanes; ++q) {
            const Number<T> result = Number<T>{re[q], im[q]} * factor;
            re[q] = result.re;
            im[q] = result.im;
        }
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(FourierTable, fourier_table) = {run<float>, run<double>, multiply<float>, multiply<double>};

}  // namespace graphkit
