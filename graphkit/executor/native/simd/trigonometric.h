// Trigonometric and hyperbolic functions of vectors, and their inverses. Errors are measured as in simd/math.h. The
// bounds hold for all floats; tests/executor/devices/cpu/test_pointwise_math.py checks them.
#pragma once

#include "simd/math.h"

namespace graphkit {
namespace {

constexpr float kHalfPiHigh = 0x1.921fb6p+0F;
constexpr float kHalfPiLow = -0x1.777a5cp-25F;

// atan. Error: at most 2 ulp. For x > 1, it is pi / 2 - atan(1 / x).
inline Vector<float> arc_tangent(Vector<float> x) {
    // The minimax polynomial of (atan(t) / t - 1) / t^2 in t^2 for |t| <= 1.
    constexpr float kTerms[] = {0x1.23fb68p-10F, -0x1.df9998p-8F, 0x1.714c54p-6F,  -0x1.6e1a44p-5F, 0x1.1422f8p-4F,
                                -0x1.68e710p-4F, 0x1.c4f1e4p-4F,  -0x1.247374p-3F, 0x1.9997e0p-3F,  -0x1.555552p-2F};
    const Vector<float> y = magnitude<float>(x);
    const Vector<float> t = y > 1.0F ? -1.0F / y : y;
    const Vector<float> z = t * t;
    const Vector<float> cubic = polynomial(z, kTerms) * z * t;
    return with_sign<float>(y > 1.0F ? (t + kHalfPiHigh) + (cubic + kHalfPiLow) : t + cubic, x);
}

// asin(x) = x + x `cubic` for 0 <= x <= 1/2. For larger x, pi / 2 - asin(x) = 2 asin(root) with root = sqrt((1 - x) /
// 2).
struct ArcSine {
    Vector<float> argument;  // x or the root
    Vector<float> cubic;
};

// For y = |x|.
inline ArcSine arc_sine_parts(Vector<float> y) {
    // The minimax polynomial of (asin(t) / t - 1) / t^2 in t^2 for t <= 1/2.
    constexpr float kTerms[] = {0x1.59da8ep-5F, 0x1.8ba294p-6F, 0x1.748c60p-5F, 0x1.33014ep-4F, 0x1.5555cap-3F};
    const Vector<float> z = y > 0.5F ? 0.5F - y * 0.5F : y * y;
    return {y > 0.5F ? square_root(z) : y, polynomial(z, kTerms) * z};
}

// asin. Error: at most 2 ulp; NaN for |x| > 1.
inline Vector<float> arc_sine(Vector<float> x) {
    const Vector<float> y = magnitude<float>(x);
    const auto [t, cubic] = arc_sine_parts(y);
    const Vector<float> twice = t * 2.0F;
    const Vector<float> rest = kHalfPiHigh - twice;
    const Vector<float> lost = (kHalfPiHigh - rest) - twice;
    const Vector<float> far = rest + (lost - (twice * cubic - kHalfPiLow));
    return with_sign<float>(y > 0.5F ? far : t + t * cubic, x);
}

// acos. Error: at most 2 ulp; NaN for |x| > 1.
inline Vector<float> arc_cosine(Vector<float> x) {
    const Vector<float> y = magnitude<float>(x);
    const auto [t, cubic] = arc_sine_parts(y);
    const Vector<float> near = kHalfPiHigh - (with_sign<float>(t, x) - (kHalfPiLow - with_sign<float>(t, x) * cubic));
    const Vector<float> twice = t * 2.0F;
    const Vector<float> above = twice + twice * cubic;
    const Vector<float> below = (kHalfPiHigh * 2.0F - twice) - (twice * cubic - kHalfPiLow * 2.0F);
    return y > 0.5F ? (x < 0.0F ? below : above) : near;
}

// exp(y) / 2 for y >= 0. It is finite wherever cosh and sinh are.
template <typename T>
inline Vector<T> half_exp(Vector<T> y) {
    return exp_inside<T, true>(at_most<T>(y, ExpConstants<T>::kHigh + T{1}));
}

// cosh = e + 1 / (4 e) for e = exp(|x|) / 2. Error: at most 2 ulp.
template <typename T>
inline Vector<T> hyperbolic_cosine(Vector<T> x) {
    const Vector<T> e = half_exp<T>(magnitude<T>(x));
    return e + T(0.25) / e;
}

// sinh; for |x| > 1, it is e - 1 / (4 e). Error: at most 2.5 ulp.
inline Vector<float> hyperbolic_sine(Vector<float> x) {
    // The minimax polynomial of (sinh(x) / x - 1) / x^2 in x^2 for |x| <= 1.
    constexpr float kTerms[] = {0x1.7a267ap-19F, 0x1.9ffe12p-13F, 0x1.111136p-7F, 0x1.555556p-3F};
    const Vector<float> y = magnitude<float>(x);
    const Vector<float> e = half_exp<float>(y);
    const Vector<float> z = y * y;
    const Vector<float> near = polynomial(z, kTerms) * z * y + y;
    return with_sign<float>(y <= 1.0F ? near : e - 0.25F / e, x);
}

// --- functions of float computed in double: at most 1 ulp off ---------------------------------------------------

// For smaller x, two terms of the Taylor series of asinh and atanh are exact to the last bit of a float.
constexpr double kFewTerms = 0x1p-9;

inline Vector<double> inverse_hyperbolic_sine(Vector<double> x) {
    const Vector<double> y = magnitude<double>(x);
    const Vector<double> z = y * y;
    const Vector<double> near = y - y * z * (1.0 / 6);
    return with_sign<double>(y < kFewTerms ? near : log<double>(y + square_root(z + 1.0)), x);
}

inline Vector<double> inverse_hyperbolic_cosine(Vector<double> x) {
    const Vector<double> y = log<double>(x + square_root((x - 1.0) * (x + 1.0)));
    return x < 1.0 ? splat(std::numeric_limits<double>::quiet_NaN()) : y;
}

inline Vector<double> inverse_hyperbolic_tangent(Vector<double> x) {
    const Vector<double> y = magnitude<double>(x);
    const Vector<double> near = y + y * y * y * (1.0 / 3);
    return with_sign<double>(y < kFewTerms ? near : log<double>((1.0 + y) / (1.0 - y)) * 0.5, x);
}

}  // namespace
}  // namespace graphkit
