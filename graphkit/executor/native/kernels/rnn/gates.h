// The activation functions of recurrent cells, on vectors of floats. Errors of tanh and sigmoid: 2 ulp of their range.
#pragma once

#include "kernels/rnn/recurrent_table.h"
#include "simd/math.h"

namespace graphkit {
namespace {

using Floats = Vector<float>;

inline Floats sigmoid(Floats x) {
    return 1.0F / (1.0F + exp<float>(-x));
}

#if defined(__AVX512F__)

inline Floats tanh(Floats x) {
    constexpr float kLast = 9.125F;  // larger x give 1
    return with_sign<float>(piecewise(at_most<float>(magnitude<float>(x), kLast), kTanhPieces), x);
}

#else

inline Floats tanh(Floats x) {
    const Floats a = magnitude<float>(x);
    const Floats far = with_sign<float>(1.0F - 2.0F / (exp<float>(a + a) + 1.0F), x);
    // The minimax polynomial of (tanh(x) - x) / x^3 in x^2 for |x| < 0.625, where the other formula suffers from
    // cancellation.
    const Floats z = x * x;
    Floats p = splat(-0x1.75e1a6p-8F);
    p = p * z + 0x1.522692p-6F;
    p = p * z + -0x1.b83c58p-5F;
    p = p * z + 0x1.110726p-3F;
    p = p * z + -0x1.555532p-2F;
    const Floats near = (p * z) * x + x;
    return a < 0.625F ? near : far;
}

#endif

// log(1 + u) for u in [0, 1], as 2 atanh(u / (2 + u)), by the first terms of its series.
inline Floats log1p_of_fraction(Floats u) {
    const Floats s = u / (2.0F + u);
    const Floats z = s * s;
    Floats p = splat(1.0F / 15);
#pragma GCC unroll 8
    for (int k = 13; k >= 3; k -= 2) {
        p = p * z + 1.0F / static_cast<float>(k);
    }
    return 2.0F * ((p * z) * s + s);
}

__attribute__((noinline)) Floats other_function(const GateActivation& f, Floats x) {
    const Floats zero{};
    switch (f.kind) {
        case GateFunction::relu:
            return x < 0.0F ? zero : x;
        case GateFunction::affine:
            return x * f.alpha + f.beta;
        case GateFunction::leaky_relu:
            return x >= 0.0F ? x : x * f.alpha;
        case GateFunction::thresholded_relu:
            return x >= f.alpha ? x : zero;
        case GateFunction::scaled_tanh:
            return f.alpha * tanh(x * f.beta);
        case GateFunction::hard_sigmoid: {
            const Floats y = x * f.alpha + f.beta;
            const Floats low = y < 0.0F ? zero : y;
            return low > 1.0F ? splat(1.0F) : low;
        }
        case GateFunction::elu:
            return x >= 0.0F ? x : f.alpha * (exp<float>(x) - 1.0F);
        case GateFunction::softsign:
            return x / (1.0F + magnitude<float>(x));
        case GateFunction::softplus:
            return (x < 0.0F ? zero : x) + log1p_of_fraction(exp<float>(-magnitude<float>(x)));
        case GateFunction::sigmoid:
        case GateFunction::tanh:
            break;
    }
    return f.kind == GateFunction::tanh ? tanh(x) : sigmoid(x);
}

inline Floats apply(const GateActivation& f, Floats x) {
    if (f.kind == GateFunction::sigmoid) {
        return sigmoid(x);
    }
    if (f.kind == GateFunction::tanh) {
        return tanh(x);
    }
    return other_function(f, x);
}

inline Floats clipped(Floats x, float clip) {
    const Floats low = x < -clip ? splat(-clip) : x;
    return low > clip ? splat(clip) : low;
}

}  // namespace
}  // namespace graphkit
