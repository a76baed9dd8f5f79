// 8-bit floating-point numbers: a sign, an exponent, and a mantissa with `Fraction` stored bits.
//
// "FP8 Formats for Deep Learning", Micikevicius et al. 2022, arXiv:2209.05433. The conversion instructions of GPUs are
// not used, because they saturate: infinity would become the largest finite number.

// The bits of x, rounded to nearest even. `Bias` is the exponent bias. Infinity, and numbers whose rounded bits are
// above `Largest`, become `Beyond`; NaN becomes `Nan`. The sign of x is kept.
template <int Fraction, int Bias, gk_u32 Largest, gk_u32 Beyond, gk_u32 Nan>
GK_INLINE gk_u8 gk_float8(float x) {
    const gk_u32 bits = __float_as_uint(x), size = bits & 0x7fffffffu;
    const int cut = 23 - Fraction;
    gk_u32 y;
    if (size > 0x7f800000u) {
        y = Nan;
    } else if (size < (gk_u32)(128 - Bias) << 23) {
        // Subnormal: a multiple of 2^(1 - Bias - Fraction). Adding 2^23 rounds the multiple to an integer, which is
        // then in the last bits of the sum.
        const float unit = __uint_as_float((gk_u32)(127 + Bias + Fraction - 1) << 23);
        y = __float_as_uint(__uint_as_float(size) * unit + 8388608.0f) - 0x4b000000u;
    } else {
        const gk_u32 rounded = size + (1u << (cut - 1)) - 1u + (size >> cut & 1u);
        y = (rounded >> cut) - ((gk_u32)(127 - Bias) << Fraction);
        y = y > Largest ? Beyond : y;
    }
    return (gk_u8)(bits >> 24 & 0x80u | y);
}

GK_INLINE gk_u8 gk_to_e4m3(float x) {
    return gk_float8<3, 7, 0x7e, 0x7f, 0x7f>(x);
}
GK_INLINE gk_u8 gk_to_e5m2(float x) {
    return gk_float8<2, 15, 0x7b, 0x7c, 0x7e>(x);
}
