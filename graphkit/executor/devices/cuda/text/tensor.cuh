// Products of small matrices on tensor cores, with sums in float. Elements are float16, bfloat16, or floats that are
// rounded to TF32 (11 significant bits). A word contains two 16-bit elements, or one float.

// Pack two adjacent elements: in one word for 16-bit types, in two words for float.
GK_INLINE gk_u32 gk_two(gk_f16 a, gk_f16 b) {
    return (gk_u32)a.bits | (gk_u32)b.bits << 16;
}
GK_INLINE gk_u32 gk_two(gk_bf16 a, gk_bf16 b) {
    return (gk_u32)a.bits | (gk_u32)b.bits << 16;
}
template <typename T>
GK_INLINE void gk_put_two(T* to, T a, T b) {
    *reinterpret_cast<gk_u32*>(to) = gk_two(a, b);
}
GK_INLINE void gk_put_two(float* to, float a, float b) {
    to[0] = a;
    to[1] = b;
}

// Rounds an element to the precision of products: a float to the nearest TF32 number, ties away from zero.
template <typename T>
GK_INLINE T gk_factor(T x) {
    return x;
}
GK_INLINE float gk_factor(float x) {
#ifdef __CUDA_ARCH__
    gk_u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return __uint_as_float(bits);
#else
    const gk_u32 bits = __float_as_uint(x);
    return (bits & 0x7f800000u) == 0x7f800000u ? x : __uint_as_float((bits + 0x1000u) & 0xffffe000u);
#endif
}

// Load the lane's words of `a`, from its rows g and g + 8, beginning at the lane's columns; and those of `b`, from its
// column g.
template <typename T>
GK_INLINE void gk_rows(gk_u32* a, const T* upper, const T* lower) {
    a[0] = *reinterpret_cast<const gk_u32*>(upper);
    a[1] = *reinterpret_cast<const gk_u32*>(lower);
    a[2] = *reinterpret_cast<const gk_u32*>(upper + 8);
    a[3] = *reinterpret_cast<const gk_u32*>(lower + 8);
}
GK_INLINE void gk_rows(gk_u32* a, const float* upper, const float* lower) {
    a[0] = __float_as_uint(upper[0]);
    a[1] = __float_as_uint(lower[0]);
    a[2] = __float_as_uint(upper[1]);
    a[3] = __float_as_uint(lower[1]);
}
template <typename T>
GK_INLINE void gk_column(gk_u32* b, const T* column) {
    b[0] = *reinterpret_cast<const gk_u32*>(column);
    b[1] = *reinterpret_cast<const gk_u32*>(column + 8);
}
GK_INLINE void gk_column(gk_u32* b, const float* column) {
    b[0] = __float_as_uint(column[0]);
    b[1] = __float_as_uint(column[1]);
}
// The same for a `b` in row-major order: the elements of the lane's column are `stride` apart.
template <typename T>
GK_INLINE void gk_column(gk_u32* b, const T* first, gk_u32 stride) {
    b[0] = gk_two(first[0], first[stride]);
    b[1] = gk_two(first[8 * stride], first[9 * stride]);
}
GK_INLINE void gk_column(gk_u32* b, const float* first, gk_u32 stride) {
    b[0] = __float_as_uint(first[0]);
    b[1] = __float_as_uint(first[stride]);
}

// Rounds results of products to words of `a`: two adjacent tiles `d` for 16-bit elements, one for floats.
template <typename T>
GK_INLINE void gk_given(gk_u32* a, float (*d)[4], T) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        T low, high;
        gk_write(low, d[i / 2][i % 2 * 2]);
        gk_write(high, d[i / 2][i % 2 * 2 + 1]);
        a[i] = gk_two(low, high);
    }
}
GK_INLINE void gk_given(gk_u32* a, float (*d)[4], float) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        a[i] = __float_as_uint(gk_factor(d[0][i % 2 * 2 + i / 2]));
    }
}

// d += a b for a warp, with a: [16, 16], b: [16, 8], d: [16, 8] (PTX ISA, mma.m16n8k16). All lanes must call it. With
// g = lane / 4 and t = lane % 4 * 2, the words of a lane are:
// - `a`: rows g and g + 8 at columns t and t + 1, then both rows at columns t + 8 and t + 9;
// - `b`: column g at rows t and t + 1, then at rows t + 8 and t + 9;
// - `d`: columns t and t + 1 of row g, then of row g + 8.
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
// For floats, a is [16, 8] and b is [8, 8]. The words are rows g and g + 8 of `a` at column t, then at column t + 1;
// and column g of `b` at rows t and t + 1. mma.m16n8k8 expects t / 2 and t / 2 + 4 instead of t and t + 1. As both
// operands have the same permutation, only the order of the sum differs.
GK_INLINE void gk_multiply(float* d, const gk_u32* a, const gk_u32* b, float) {
#ifdef __CUDA_ARCH__
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    gk_host_multiply(d, a, b);
#endif
}
