// Counter-based random numbers, the same as on the CPU.

struct gk_words {
    gk_u32 w[4];
};

// Block `block` of a stream: Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011).
GK_INLINE gk_words gk_philox(gk_u64 seed, gk_u64 step, gk_u32 stream, gk_u32 block) {
    gk_u32 c0 = block, c1 = stream, c2 = (gk_u32)step, c3 = (gk_u32)(step >> 32);
    gk_u32 k0 = (gk_u32)seed, k1 = (gk_u32)(seed >> 32);
#pragma unroll
    for (int turn = 0; turn < 10; ++turn) {
        const gk_u64 p0 = (gk_u64)c0 * 0xD2511F53u, p1 = (gk_u64)c2 * 0xCD9E8D57u;
        c0 = (gk_u32)(p1 >> 32) ^ c1 ^ k0;
        c2 = (gk_u32)(p0 >> 32) ^ c3 ^ k1;
        c1 = (gk_u32)p1;
        c3 = (gk_u32)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// Fractions in [0, 1), from one word and from two words.
GK_INLINE double gk_fraction24(gk_u32 word) {
    return (double)(word >> 8) * 0x1p-24;
}
GK_INLINE double gk_fraction53(gk_u32 high, gk_u32 low) {
    return ((double)(high >> 5) * 0x1p26 + (double)(low >> 6)) * 0x1p-53;
}

// Two standard normal numbers from two words (Box, Muller 1958), accurate to a few units in the last place. Near 1, and
// near quarter turns, floats would lose bits of the words; there, differences are computed with integers.
GK_INLINE void gk_normals(gk_u32 radial, gk_u32 turn, float* z) {
    const float logarithm =
        radial < 0x80000000u ? logf((float)(radial + 1) * 0x1p-32f) : log1pf(-(float)(~radial) * 0x1p-32f);
    const float radius = sqrtf(-2.0f * logarithm);
    const gk_u32 quarter = (turn + 0x20000000u) >> 30;
    float sine, cosine;
    sincospif((float)(gk_i32)(turn - (quarter << 30)) * 0x1p-31f, &sine, &cosine);
    const float a = quarter & 1u ? sine : cosine, b = quarter & 1u ? cosine : sine;
    z[0] = radius * (quarter == 1 || quarter == 2 ? -a : a);
    z[1] = radius * (quarter >= 2 ? -b : b);
}
GK_INLINE void gk_normals(gk_words w, double* z) {
    const double radius = sqrt(-2.0 * log(gk_fraction53(w.w[0], w.w[1]) + 0x1p-53));
    double sine, cosine;
    sincospi(2.0 * gk_fraction53(w.w[2], w.w[3]), &sine, &cosine);
    z[0] = radius * cosine;
    z[1] = radius * sine;
}

// Rounds a number of double precision only once.
GK_INLINE void gk_round_to(gk_f16& y, double x) {
    y = gk_to_f16(gk_to_odd(x));
}
GK_INLINE void gk_round_to(gk_bf16& y, double x) {
    y = gk_to_bf16((float)x);
}
template <typename T>
GK_INLINE void gk_round_to(T& y, double x) {
    y = (T)x;
}
