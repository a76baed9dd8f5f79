// Products of small matrices of half floats by the cards' units for them, with sums in float.

// Two half floats in a word, the first in its low half.
GK_INLINE gk_u32 gk_two(gk_f16 a, gk_f16 b) {
    return (gk_u32)a.bits | (gk_u32)b.bits << 16;
}
GK_INLINE gk_u32 gk_two(gk_bf16 a, gk_bf16 b) {
    return (gk_u32)a.bits | (gk_u32)b.bits << 16;
}

// d += a b, of a warp: a is [16, 16], b [16, 8], d [16, 8]. With g = lane / 4 and t = lane % 4 * 2, a lane has in `a`
// rows g and g + 8 at columns t and t + 1, then both rows at columns t + 8 and t + 9; in `b` column g at rows t and t + 1,
// t + 8 and t + 9; in `d` columns t and t + 1 of row g, then of row g + 8 (PTX ISA, mma.m16n8k16). All lanes call.
GK_INLINE void gk_multiply(float* d, const gk_u32* a, const gk_u32* b, gk_f16) {
#ifdef __CUDA_ARCH__
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    gk_host_multiply(d, a, b, [](gk_u16 bits) { return gk_from_f16(gk_f16{bits}); });
#endif
}
GK_INLINE void gk_multiply(float* d, const gk_u32* a, const gk_u32* b, gk_bf16) {
#ifdef __CUDA_ARCH__
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    gk_host_multiply(d, a, b, [](gk_u16 bits) { return gk_from_bf16(gk_bf16{bits}); });
#endif
}
