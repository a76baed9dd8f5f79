// Functions as polynomials in 16 intervals, whose coefficients are looked up in registers. For *.isa.cpp only.
#pragma once

#include "simd/vector.h"

#if defined(__AVX512F__)

namespace graphkit {
namespace {

// A function of y >= 0: in each interval, a polynomial of y - centre. Intervals are the quarters of the binades of
// u = y * scale + 1 < 16. The lowest two bits of the exponent of u and the highest two of its mantissa number them.
// Centres are points where the function is very close to a float. The coefficients, highest power first, minimise the
// largest relative error, which is at most 2^-22.5. The first row holds the coefficients of two powers: the lower 16
// bits of a word are the bfloat16 of the highest one, and the whole word is the next one.
struct Pieces {
    static constexpr int kRows = 5;
    float scale;
    float centre[16];
    float terms[kRows][16];
};

inline Vector<float> piecewise(Vector<float> y, const Pieces& pieces) {
    constexpr int kNumberBit = 21;
    const __m512i number = _mm512_srli_epi32(bit_cast<__m512i>(y * pieces.scale + 1.0F), kNumberBit);
    const auto look_up = [&](const float (&table)[16]) {
        return bit_cast<Vector<float>>(_mm512_permutexvar_ps(number, _mm512_loadu_ps(table)));
    };
    const Vector<float> t = y - look_up(pieces.centre);
    const Vector<float> both = look_up(pieces.terms[0]);
    Vector<float> p = bit_cast<Vector<float>>(_mm512_slli_epi32(bit_cast<__m512i>(both), 16)) * t + both;
#pragma GCC unroll 8
    for (int i = 1; i < Pieces::kRows; ++i) {
        p = p * t + look_up(pieces.terms[i]);
    }
    return p;
}

// erf(y) for y <= 4.
constexpr Pieces kErfPieces = {
    0x1.ep+1F,
    {0x1.5582d6p-2F, 0x1.ddc0dep-2F, 0x1.3332b4p-1F, 0x1.77ad78p-1F, 0x1.dd32dep-1F, 0x1.32aab4p+0F, 0x1.76c478p+0F,
     0x1.bc1a3cp+0F, 0x1.107a12p+1F, 0x1.54d3d6p+1F, 0x1.993e1ap+1F, 0x1.dea5dep+1F, 0.0F, 0x1.99651ap-4F,
     0x1.555e56p-3F, 0x1.ddee5ep-3F},
    {{0x1.3e7adcp-3F, 0x1.727922p-3F, 0x1.6f7954p-3F, 0x1.3d7a9cp-3F, 0x1.7b7b1ap-4F, 0x1.e97ab4p-8F, -0x1.4f7938p-5F,
      -0x1.8c7766p-5F, -0x1.ae788ep-6F, -0x1.3e76eep-8F, -0x1.b273c4p-12F, -0x1.646f92p-17F, 0x1.6a7bccp-15F,
      0x1.c67bb8p-5F, 0x1.6e7b8ep-4F, 0x1.ec7b5cp-4F},
     {-0x1.0bf826p-2F, -0x1.5ddf28p-3F, -0x1.2cf64cp-4F, 0x1.140832p-6F, 0x1.dc84e6p-4F, 0x1.56fda6p-3F, 0x1.28e682p-3F,
      0x1.7d5bb4p-4F, 0x1.0b8d76p-5F, 0x1.0ebd9cp-8F, 0x1.15f9acp-12F, 0x1.1c022cp-17F, -0x1.810c76p-2F,
      -0x1.75bcc6p-2F, -0x1.61d536p-2F, -0x1.45044ep-2F},
     {-0x1.58ca1cp-2F, -0x1.b1a28ep-2F, -0x1.e3ae9p-2F, -0x1.eedcd2p-2F, -0x1.c3c5ecp-2F, -0x1.49965ep-2F,
      -0x1.8ccdcp-3F, -0x1.8b6f34p-4F, -0x1.a79cbep-6F, -0x1.47aedap-9F, -0x1.1197ep-13F, -0x1.0acb48p-18F,
      -0x1.d228a2p-18F, -0x1.c95c28p-4F, -0x1.76a348p-3F, -0x1.feb44p-3F},
     {0x1.02753ap+0F, 0x1.d0b7fep-1F, 0x1.93120ap-1F, 0x1.513762p-1F, 0x1.e4b8f6p-2F, 0x1.13219cp-2F, 0x1.0f0c3p-3F,
      0x1.c7e3aap-5F, 0x1.8e0566p-7F, 0x1.ed0168p-11F, 0x1.58338ep-15F, 0x1.ff8362p-21F, 0x1.20dd76p+0F, 0x1.1dfe62p+0F,
      0x1.18f32ap+0F, 0x1.118deep+0F},
     {0x1.7387f8p-2F, 0x1.f6662ep-2F, 0x1.352c3cp-1F, 0x1.66b218p-1F, 0x1.a0035ep-1F, 0x1.d1cb82p-1F, 0x1.ec53dep-1F,
      0x1.f8c0dep-1F, 0x1.feaa1cp-1F, 0x1.ffea3ap-1F, 0x1.ffff32p-1F, 0x1.fffffcp-1F, 0.0F, 0x1.cc6b44p-4F,
      0x1.7da7c2p-3F, 0x1.08d3eep-2F}}};

// tanh(y) for y <= 9.2.
constexpr Pieces kTanhPieces = {
    0x1.ap+0F,
    {0x1.897d1ep-1F, 0x1.138d3cp+0F, 0x1.61c928p+0F, 0x1.b1db14p+0F, 0x1.13b13cp+1F, 0x1.629ba8p+1F, 0x1.b1c894p+1F,
     0x1.00158p+2F, 0x1.3ad1b2p+2F, 0x1.898b1ep+2F, 0x1.d8708ap+2F, 0x1.14793cp+3F, 0.0F, 0x1.d8248ap-3F,
     0x1.8a551ep-2F, 0x1.1427bcp-1F},
    {{0x1.817b02p-4F, 0x1.937a34p-7F, -0x1.5d7828p-6F, -0x1.8e7668p-6F, -0x1.d8771cp-7F, -0x1.4675e8p-8F,
      -0x1.8c743ap-10F, -0x1.d8727ap-12F, -0x1.406ffap-14F, -0x1.b66c5ap-18F, -0x1.2a68d8p-21F, 0x1.dc6678p-25F,
      0x1.047c06p-10F, 0x1.0e7b4cp-3F, 0x1.5878f6p-3F, 0x1.437a32p-3F},
     {0x1.912998p-5F, 0x1.c0afaep-4F, 0x1.95627p-4F, 0x1.177616p-4F, 0x1.07dfbcp-5F, 0x1.4c2dep-7F, 0x1.8a4a12p-9F,
      0x1.d26814p-11F, 0x1.29b182p-13F, 0x1.9712d6p-17F, 0x1.14a26ap-20F, 0x1.46c35p-24F, -0x1.5565a6p-2F,
      -0x1.11f72ep-2F, -0x1.5fdc9cp-3F, -0x1.199cb6p-4F},
     {-0x1.816efep-2F, -0x1.2e6e58p-2F, -0x1.92ce16p-3F, -0x1.e35b74p-4F, -0x1.a220dcp-5F, -0x1.fa334p-7F,
      -0x1.291e14p-8F, -0x1.5e53a8p-10F, -0x1.be53b6p-13F, -0x1.3112d8p-16F, -0x1.9eae04p-20F, -0x1.74b592p-23F,
      0x1.3a6266p-20F, -0x1.b824dcp-3F, -0x1.45432p-2F, -0x1.7dfef6p-2F},
     {0x1.2a48cap-1F, 0x1.7dec92p-2F, 0x1.c9011p-3F, 0x1.028bf4p-3F, 0x1.ad8fcp-5F, 0x1.fe42a6p-7F, 0x1.29d352p-8F,
      0x1.5e9a4p-10F, 0x1.bfc29ap-13F, 0x1.3205c2p-16F, 0x1.a00836p-20F, 0x1.0d5456p-23F, 0x1p+0F, 0x1.e5b962p-1F,
      0x1.bafe82p-1F, 0x1.83ceaep-1F},
     {0x1.4aca66p-1F, 0x1.956d6ep-1F, 0x1.c345eep-1F, 0x1.de977ap-1F, 0x1.f2653cp-1F, 0x1.fbff7ap-1F, 0x1.fed5d6p-1F,
      0x1.ffa852p-1F, 0x1.fff202p-1F, 0x1.fffecep-1F, 0x1.ffffe6p-1F, 0x1.fffffep-1F, 0.0F, 0x1.cff3ccp-3F,
      0x1.77ee4ap-2F, 0x1.f853ecp-2F}}};

// exp(y^2 / 2) erfc(y / sqrt(2)) / 2 for y <= 14.5.
constexpr Pieces kNormalTailPieces = {
    0x1.08p+0F,
    {0x1.370394p+0F, 0x1.b3251cp+0F, 0x1.173752p+1F, 0x1.557656p+1F, 0x1.b2ca1cp+1F, 0x1.17e0d2p+2F, 0x1.557bd6p+2F,
     0x1.93395ap+2F, 0x1.f048ap+2F, 0x1.36c394p+3F, 0x1.750b98p+3F, 0x1.b2f29cp+3F, 0x1.f0242p-4F, 0x1.74b518p-2F,
     0x1.360f14p-1F, 0x1.b2d11cp-1F},
    {{0x1.ab7618p-8F, 0x1.9174dcp-9F, 0x1.9573b4p-10F, 0x1.b372aap-11F, 0x1.7b7148p-12F, 0x1.1f6faap-13F,
      0x1.f76e42p-15F, 0x1.e76d12p-16F, 0x1.836b6ep-17F, 0x1.0d69a8p-18F, 0x1.c3682cp-20F, 0x1.ad66eep-21F,
      0x1.8d794ap-5F, 0x1.e7787ep-6F, 0x1.3377c8p-6F, 0x1.8b7718p-7F},
     {-0x1.2da394p-6F, -0x1.3caa82p-7F, -0x1.643a54p-8F, -0x1.a5767ap-9F, -0x1.a31768p-10F, -0x1.77bcdap-11F,
      -0x1.7e6a4ep-12F, -0x1.a8928ap-13F, -0x1.8d07f6p-14F, -0x1.544394p-15F, -0x1.519aaap-16F, -0x1.74180ep-17F,
      -0x1.b33a8ap-4F, -0x1.1b184cp-4F, -0x1.7a44a2p-5F, -0x1.01bac8p-5F},
     {0x1.8af6d6p-5F, 0x1.d46222p-6F, 0x1.274ef4p-6F, 0x1.8552c4p-7F, 0x1.c19b5cp-8F, 0x1.e1d3e2p-9F, 0x1.1e3d62p-9F,
      0x1.6cb24p-10F, 0x1.98a16ep-11F, 0x1.adc88cp-12F, 0x1.f9f7fcp-13F, 0x1.42c67p-13F, 0x1.a7667ap-3F, 0x1.26d2b4p-3F,
      0x1.a51dd6p-4F, 0x1.32818ap-4F},
     {-0x1.d22a2ep-4F, -0x1.3dcb3cp-4F, -0x1.c7accp-5F, -0x1.52ac62p-5F, -0x1.cc676ap-6F, -0x1.2a9f7ep-6F,
      -0x1.a1ae9p-7F, -0x1.331e5cp-7F, -0x1.9eba76p-8F, -0x1.0cd70ep-8F, -0x1.7891e2p-9F, -0x1.169p-9F, -0x1.6010d8p-2F,
      -0x1.09f974p-2F, -0x1.9b3564p-3F, -0x1.437354p-3F},
     {0x1.e0a89ep-3F, 0x1.833034p-3F, 0x1.425392p-3F, 0x1.12888ap-3F, 0x1.bf2d3cp-4F, 0x1.649794p-4F, 0x1.2877b6p-4F,
      0x1.fa88cp-5F, 0x1.9ec4bap-5F, 0x1.4d10fp-5F, 0x1.1652c2p-5F, 0x1.de533ap-6F, 0x1.d20b52p-2F, 0x1.87a158p-2F,
      0x1.4f11c6p-2F, 0x1.229956p-2F}}};

}  // namespace
}  // namespace graphkit

#endif
