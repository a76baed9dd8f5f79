// The block functions of pointwise kernels (see pointwise_table.h), for the instruction set of this translation unit.
#include "kernels/pointwise/integer_vectors.h"
#include "kernels/pointwise/lane_casts.h"
#include "kernels/pointwise/pointwise_functions.h"
#include "kernels/pointwise/pointwise_table.h"
#include "simd/bytes.h"
#include "simd/prefetch.h"

namespace graphkit {
namespace {

template <typename T>
inline const T* data(const BlockOperand& operand) {
    return reinterpret_cast<const T*>(operand.data);
}

template <typename T>
inline T* data(std::byte* y) {
    return reinterpret_cast<T*>(y);
}

// --- loops ----------------------------------------------------------------------------------------------------

// y[i] = compute(i) for the first element i of each vector of T. Two vectors are loaded before any is stored: a load
// after a store waits for it if the last 12 bits of the addresses are equal.
template <typename T, int Operands, typename Compute>
inline void store_vectors(T* y, const BlockOperand* x, std::int64_t count, Compute&& compute) {
    std::int64_t i = 0;
    while (count - i > kPiece<T>) {
        prefetch_page(y + i);
        for (int operand = 0; operand < Operands; ++operand) {
            if (x[operand].mask != 0) {
                prefetch_page(data<T>(x[operand]) + i);
            }
        }
        for (const std::int64_t end = i + kPiece<T>; i < end; i += 2 * kLanes<T>) {
            const Vector<T> first = compute(i);
            const Vector<T> second = compute(i + kLanes<T>);
            store(y + i, first);
            store(y + i + kLanes<T>, second);
        }
    }
    for (; i < count; i += kLanes<T>) {
        store(y + i, compute(i));
    }
}

template <typename F, typename T>
void unary(std::byte* y, const BlockOperand* x, std::int64_t count) {
    const T* a = data<T>(x[0]);
    const std::int64_t mask = x[0].mask;
    store_vectors<T, 1>(data<T>(y), x, count,
                        [&](std::int64_t i) { return F::template apply<T>(load(a + (i & mask))); });
}

template <typename F, typename T>
void binary(std::byte* y, const BlockOperand* x, std::int64_t count) {
    const T* a = data<T>(x[0]);
    const T* b = data<T>(x[1]);
    const std::int64_t mask_a = x[0].mask;
    const std::int64_t mask_b = x[1].mask;
    store_vectors<T, 2>(data<T>(y), x, count, [&](std::int64_t i) {
        return F::template apply<T>(load(a + (i & mask_a)), load(b + (i & mask_b)));
    });
}

template <typename F, typename T>
void ternary(std::byte* y, const BlockOperand* x, std::int64_t count) {
    const T* a = data<T>(x[0]);
    const T* b = data<T>(x[1]);
    const T* c = data<T>(x[2]);
    const std::int64_t mask_a = x[0].mask;
    const std::int64_t mask_b = x[1].mask;
    const std::int64_t mask_c = x[2].mask;
    if ((mask_b | mask_c) == 0) {
        const Vector<T> second = load(b);
        const Vector<T> third = load(c);
        for (std::int64_t i = 0; i < count; i += kLanes<T>) {
            store(data<T>(y) + i, F::template apply<T>(load(a + (i & mask_a)), second, third));
        }
        return;
    }
    for (std::int64_t i = 0; i < count; i += kLanes<T>) {
        store(data<T>(y) + i,
              F::template apply<T>(load(a + (i & mask_a)), load(b + (i & mask_b)), load(c + (i & mask_c))));
    }
}

// Functions that are computed element by element, because there are no vector instructions for them.
template <typename F, typename T>
void unary_scalar(std::byte* y, const BlockOperand* x, std::int64_t count) {
    const T* a = data<T>(x[0]);
    for (std::int64_t i = 0; i < count; ++i) {
        data<T>(y)[i] = F::apply(a[i & x[0].mask]);
    }
}

template <typename F, typename T>
void binary_scalar(std::byte* y, const BlockOperand* x, std::int64_t count) {
    const T* a = data<T>(x[0]);
    const T* b = data<T>(x[1]);
    const std::int64_t mask_a = x[0].mask;
    const std::int64_t mask_b = x[1].mask;
    for (std::int64_t i = 0; i < count; ++i) {
        data<T>(y)[i] = F::apply(a[i & mask_a], b[i & mask_b]);
    }
}

// Functions of float elements that are computed in double.
template <typename F>
void unary_wide(std::byte* y, const BlockOperand* x, std::int64_t count) {
    const float* a = data<float>(x[0]);
    for (std::int64_t i = 0; i < count; i += kLanes<double>) {
        store_lanes(data<float>(y) + i, narrow(F::apply(widen(load_lanes<HalfFloats>(a + (i & x[0].mask))))));
    }
}

template <typename F>
void binary_wide(std::byte* y, const BlockOperand* x, std::int64_t count) {
    const float* a = data<float>(x[0]);
    const float* b = data<float>(x[1]);
    for (std::int64_t i = 0; i < count; i += kLanes<double>) {
        const Vector<double> wide_a = widen(load_lanes<HalfFloats>(a + (i & x[0].mask)));
        const Vector<double> wide_b = widen(load_lanes<HalfFloats>(b + (i & x[1].mask)));
        store_lanes(data<float>(y) + i, narrow(F::apply(wide_a, wide_b)));
    }
}

// Writes 1 for each element of `holds` with all bits set, else 0.
template <typename T>
inline void store_truth(std::byte* y, Vector<SignedOf<T>> holds) {
    store_lanes(y, low_bytes<SignedOf<T>>(holds) & std::int8_t{1});
}

// y[i] = the truth of compute(i), with all bits set if true, for the first element i of each vector of T.
template <typename T, int Operands, typename Compute>
inline void store_truths(std::byte* y, const BlockOperand* x, std::int64_t count, Compute&& compute) {
    std::int64_t i = 0;
    while (count - i > kPiece<T>) {
        prefetch_page(y + i);
        for (int operand = 0; operand < Operands; ++operand) {
            if (x[operand].mask != 0) {
                prefetch_page(data<T>(x[operand]) + i);
            }
        }
        for (const std::int64_t end = i + kPiece<T>; i < end; i += 2 * kLanes<T>) {
            const auto first = compute(i);
            const auto second = compute(i + kLanes<T>);
            store_truth<T>(y + i, first);
            store_truth<T>(y + i + kLanes<T>, second);
        }
    }
    for (; i < count; i += kLanes<T>) {
        store_truth<T>(y + i, compute(i));
    }
}

template <typename F, typename T>
void compare(std::byte* y, const BlockOperand* x, std::int64_t count) {
    const T* a = data<T>(x[0]);
    const T* b = data<T>(x[1]);
    const std::int64_t mask_a = x[0].mask;
    const std::int64_t mask_b = x[1].mask;
    store_truths<T, 2>(y, x, count, [&](std::int64_t i) {
        return F::template apply<T>(load(a + (i & mask_a)), load(b + (i & mask_b)));
    });
}

// T: an unsigned integer with the size of the elements.
template <typename T>
void select(std::byte* y, const BlockOperand* x, std::int64_t count) {
    const T* a = data<T>(x[1]);
    const T* b = data<T>(x[2]);
    const std::int64_t mask_c = x[0].mask;
    const std::int64_t mask_a = x[1].mask;
    const std::int64_t mask_b = x[2].mask;
    for (std::int64_t i = 0; i < count; i += kLanes<T>) {
        const auto truth = widen_bytes<std::make_signed_t<T>>(data<std::uint8_t>(x[0]) + (i & mask_c));
        const auto holds = truth != 0;
        store(data<T>(y) + i, holds ? load(a + (i & mask_a)) : load(b + (i & mask_b)));
    }
}

// Compares, then selects by the result, without storing the booleans.
template <typename F, typename T>
void select_by(std::byte* y, const BlockOperand* x, std::int64_t count) {
    const T* a = data<T>(x[0]);
    const T* b = data<T>(x[1]);
    const T* c = data<T>(x[2]);
    const T* d = data<T>(x[3]);
    const std::int64_t mask_a = x[0].mask;
    const std::int64_t mask_b = x[1].mask;
    const std::int64_t mask_c = x[2].mask;
    const std::int64_t mask_d = x[3].mask;
    for (std::int64_t i = 0; i < count; i += kLanes<T>) {
        const auto holds = F::template apply<T>(load(a + (i & mask_a)), load(b + (i & mask_b)));
        store(data<T>(y) + i, holds ? load(c + (i & mask_c)) : load(d + (i & mask_d)));
    }
}

// --- conversions ------------------------------------------------------------------------------------------------

template <typename From, typename To>
void cast(std::byte* y, const BlockOperand* x, std::int64_t count) {
    constexpr std::int64_t kStep = std::min(kLanes<From>, kLanes<To>);
    constexpr std::int64_t kCastPiece = std::min(kPiece<From>, kPiece<To>);
    const From* a = data<From>(x[0]);
    const std::int64_t mask = x[0].mask;
    for (std::int64_t i = 0; i < count;) {
        const std::int64_t end = std::min(count, i + kCastPiece);
        if (end < count) {
            prefetch_page(data<To>(y) + i);
            if (mask != 0) {
                prefetch_page(a + i);
            }
        }
        for (; i < end; i += kStep) {
            if constexpr (sizeof(From) == 1 && sizeof(To) > 1) {
                using Wide = SignedOf<To>;
                const Vector<Wide> wide = widen_bytes<Wide>(a + (i & mask));
                store(data<To>(y) + i, __builtin_convertvector(wide, Vector<To>));
            } else {
                const auto v = load_lanes<Lanes<From, kStep>>(a + (i & mask));
                store_lanes(data<To>(y) + i, converted_lanes<From, To, kStep>(v));
            }
        }
    }
}

template <typename From>
void cast_to_bool(std::byte* y, const BlockOperand* x, std::int64_t count) {
    const From* a = data<From>(x[0]);
    const std::int64_t mask = x[0].mask;
    store_truths<From, 1>(y, x, count, [&](std::int64_t i) { return load(a + (i & mask)) != From{0}; });
}

// A single value is stored as one vector of copies: no more than that may be read.
inline std::int64_t needed(const BlockOperand& x, std::int64_t count) {
    return x.mask == 0 ? std::min<std::int64_t>(count, kLanes<float>) : count;
}

template <typename Half>
void widen_halves(std::byte* y, const BlockOperand* x, std::int64_t count) {
    widen(data<Half>(x[0]), data<float>(y), needed(x[0], count));
}

template <typename Half>
void narrow_halves(std::byte* y, const BlockOperand* x, std::int64_t count) {
    const std::int64_t size = needed(x[0], count);
    narrow(data<float>(x[0]), data<Half>(y), size);
    for (std::int64_t i = size; i < count; ++i) {
        data<Half>(y)[i] = data<Half>(y)[0];
    }
}

template <typename Half>
void round_halves(std::byte* y, const BlockOperand* x, std::int64_t count) {
    constexpr std::int64_t kStep = 64;
    Half halves[kStep];
    for (std::int64_t i = 0; i < count; i += kStep) {
        const std::int64_t size = std::min(kStep, count - i);
        narrow(data<float>(x[0]) + (i & x[0].mask), halves, size);
        widen(halves, data<float>(y) + i, size);
    }
}

inline void narrow_to_odd(std::byte* y, const BlockOperand* x, std::int64_t count) {
    const double* a = data<double>(x[0]);
    for (std::int64_t i = 0; i < count; ++i) {
        const double exact = a[i & x[0].mask];
        const auto near = static_cast<float>(exact);
        auto bits = bit_cast<std::uint32_t>(near);
        const auto wide = static_cast<double>(near);
        if (wide != exact && exact == exact && (bits & 1U) == 0 && std::isfinite(near)) {
            bits += (std::fabs(wide) < std::fabs(exact)) ? 1U : 0xffffffffU;
        }
        data<float>(y)[i] = bit_cast<float>(bits);
    }
}

// --- moves ------------------------------------------------------------------------------------------------------

template <typename T>
void copy(std::byte* y, const BlockOperand* x, std::int64_t count) {
    if (x[0].mask != 0) {
        __builtin_memmove(y, x[0].data, static_cast<std::size_t>(count) * sizeof(T));
        return;
    }
    const Vector<T> value = load(data<T>(x[0]));
    for (std::int64_t i = 0; i < count; i += kLanes<T>) {
        store(data<T>(y) + i, value);
    }
}

inline void stream_lines(std::byte* y, const std::byte* x, std::int64_t bytes) {
#if defined(__AVX512F__)
    for (std::int64_t i = 0; i < bytes; i += 64) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(y + i), _mm512_loadu_si512(x + i));
    }
#elif defined(__AVX2__)
    for (std::int64_t i = 0; i < bytes; i += 32) {
        _mm256_stream_si256(reinterpret_cast<__m256i*>(y + i),
                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)));
    }
#else
    __builtin_memcpy(y, x, static_cast<std::size_t>(bytes));
#endif
}

template <typename T>
inline void splat_as(std::byte* y, const std::byte* x) {
    T value;
    __builtin_memcpy(&value, x, sizeof value);
    const Vector<T> copies = splat(value);
    for (std::size_t i = 0; i < 64; i += sizeof copies) {
        __builtin_memcpy(y + i, &copies, sizeof copies);
    }
}

inline void splat_element(std::byte* y, const std::byte* x, std::size_t size) {
    switch (size) {
        case 1:
            return splat_as<std::uint8_t>(y, x);
        case 2:
            return splat_as<std::uint16_t>(y, x);
        case 4:
            return splat_as<std::uint32_t>(y, x);
        default:
            return splat_as<std::uint64_t>(y, x);
    }
}

// --- the table --------------------------------------------------------------------------------------------------

template <typename T>
constexpr ElementType kTypeOf = ElementType::boolean;
template <>
constexpr ElementType kTypeOf<float> = ElementType::f32;
template <>
constexpr ElementType kTypeOf<double> = ElementType::f64;
template <>
constexpr ElementType kTypeOf<std::int8_t> = ElementType::i8;
template <>
constexpr ElementType kTypeOf<std::int16_t> = ElementType::i16;
template <>
constexpr ElementType kTypeOf<std::int32_t> = ElementType::i32;
template <>
constexpr ElementType kTypeOf<std::int64_t> = ElementType::i64;
template <>
constexpr ElementType kTypeOf<std::uint8_t> = ElementType::u8;
template <>
constexpr ElementType kTypeOf<std::uint16_t> = ElementType::u16;
template <>
constexpr ElementType kTypeOf<std::uint32_t> = ElementType::u32;
template <>
constexpr ElementType kTypeOf<std::uint64_t> = ElementType::u64;

constexpr std::size_t index(ElementType type) {
    return static_cast<std::size_t>(type);
}

struct TableBuilder {
    PointwiseTable table{};

    template <typename T>
    constexpr BlockFunction& at(Opcode opcode) {
        return table.functions[static_cast<std::size_t>(opcode)][index(kTypeOf<T>)];
    }

    // Functions that depend only on the size of the elements.
    template <typename T, typename U>
    constexpr void moves() {
        at<T>(Opcode::copy) = &copy<U>;
        at<T>(Opcode::select) = &select<U>;
    }

    template <typename T>
    constexpr void numbers() {
        // Integers wrap around: unsigned arithmetic is correct for signed and unsigned types.
        using U = typename UnsignedOf<T>::type;
        moves<T, typename UnsignedBitsOf<T>::type>();
        at<T>(Opcode::add) = &binary<functions::Add, U>;
        at<T>(Opcode::sub) = &binary<functions::Sub, U>;
        at<T>(Opcode::mul) = &binary<functions::Mul, U>;
        at<T>(Opcode::minimum) = &binary<functions::Minimum, T>;
        at<T>(Opcode::maximum) = &binary<functions::Maximum, T>;
        at<T>(Opcode::equal) = &compare<functions::Equal, U>;
        at<T>(Opcode::not_equal) = &compare<functions::NotEqual, U>;
        at<T>(Opcode::less) = &compare<functions::Less, T>;
        at<T>(Opcode::less_equal) = &compare<functions::LessEqual, T>;
        at<T>(Opcode::select_equal) = &select_by<functions::Equal, U>;
        at<T>(Opcode::select_not_equal) = &select_by<functions::NotEqual, U>;
        at<T>(Opcode::select_less) = &select_by<functions::Less, T>;
        at<T>(Opcode::select_less_equal) = &select_by<functions::LessEqual, T>;
        at<T>(Opcode::neg) = &unary<functions::Neg, U>;
        at<T>(Opcode::abs) = &unary<functions::Abs, T>;
        at<T>(Opcode::sign) = &unary<functions::Sign, T>;
        at<T>(Opcode::prelu) = &binary<functions::PRelu, T>;
        at<T>(Opcode::clip) = &ternary<functions::Clip, T>;
        at<T>(Opcode::mul_add) = &ternary<functions::MulAdd, U>;
        at<T>(Opcode::mul_sub) = &ternary<functions::MulSub, U>;
        at<T>(Opcode::nmul_add) = &ternary<functions::NegMulAdd, U>;
    }

    template <typename T>
    constexpr void integers() {
        using U = std::make_unsigned_t<T>;
        numbers<T>();
        at<T>(Opcode::div) = &divide_integers<Quotients, T>;
        at<T>(Opcode::fmod) = &divide_integers<Remainders, T>;
        at<T>(Opcode::mod) = &divide_integers<FlooredRemainders, T>;
        at<T>(Opcode::bit_and) = &binary<functions::BitAnd, U>;
        at<T>(Opcode::bit_or) = &binary<functions::BitOr, U>;
        at<T>(Opcode::bit_xor) = &binary<functions::BitXor, U>;
        at<T>(Opcode::shift_left) = &binary<functions::ShiftLeft, T>;
        at<T>(Opcode::shift_right) = &binary<functions::ShiftRight, T>;
        at<T>(Opcode::pow) = &integer_powers<T>;
    }

    template <typename T>
    constexpr void floats() {
        numbers<T>();
        at<T>(Opcode::div) = &binary<functions::Div, T>;
        at<T>(Opcode::floor) = &unary<functions::Floor, T>;
        at<T>(Opcode::ceil) = &unary<functions::Ceil, T>;
        at<T>(Opcode::round) = &unary<functions::Round, T>;
        at<T>(Opcode::sqrt) = &unary<functions::Sqrt, T>;
        at<T>(Opcode::exp) = &unary<functions::Exp, T>;
        at<T>(Opcode::expm1) = &unary<functions::Expm1, T>;
        at<T>(Opcode::log) = &unary<functions::Log, T>;
        at<T>(Opcode::tanh) = &unary<functions::Tanh, T>;
        at<T>(Opcode::sigmoid) = &unary<functions::Sigmoid, T>;
        at<T>(Opcode::softplus) = &unary<functions::Softplus, T>;
        at<T>(Opcode::gelu_tanh) = &unary<functions::GeluTanh, T>;
        at<T>(Opcode::mish) = &unary<functions::Mish, T>;
        at<T>(Opcode::softsign) = &unary<functions::Softsign, T>;
        at<T>(Opcode::threshold) = &binary<functions::Threshold, T>;
        at<T>(Opcode::unit_line) = &ternary<functions::UnitLine, T>;
        at<T>(Opcode::hard_swish_grad) = &binary<functions::HardSwishGrad, T>;
        at<T>(Opcode::swish) = &binary<functions::Swish, T>;
        at<T>(Opcode::cosh) = &unary<functions::Cosh, T>;
    }

    template <typename From, typename... To>
    constexpr void casts_from(ElementType from) {
        ((table.casts[index(from)][index(kTypeOf<To>)] = &cast<From, To>), ...);
        table.casts[index(from)][index(ElementType::boolean)] = &cast_to_bool<From>;
    }

    template <typename... T>
    constexpr void casts() {
        (casts_from<T, T...>(kTypeOf<T>), ...);
        casts_from<std::uint8_t, T...>(ElementType::boolean);
        table.casts[index(ElementType::f16)][index(ElementType::f32)] = &widen_halves<Float16>;
        table.casts[index(ElementType::bf16)][index(ElementType::f32)] = &widen_halves<BFloat16>;
        table.casts[index(ElementType::f32)][index(ElementType::f16)] = &narrow_halves<Float16>;
        table.casts[index(ElementType::f32)][index(ElementType::bf16)] = &narrow_halves<BFloat16>;
        table.narrow_to_odd = &narrow_to_odd;
    }

    constexpr void booleans() {
        using Bool = bool;  // one byte, 0 or 1
        moves<Bool, std::uint8_t>();
        at<Bool>(Opcode::equal) = &compare<functions::Equal, std::uint8_t>;
        at<Bool>(Opcode::not_equal) = &compare<functions::NotEqual, std::uint8_t>;
        at<Bool>(Opcode::bit_and) = &binary<functions::BitAnd, std::uint8_t>;
        at<Bool>(Opcode::bit_or) = &binary<functions::BitOr, std::uint8_t>;
        at<Bool>(Opcode::bit_xor) = &binary<functions::BitXor, std::uint8_t>;
    }

    constexpr void float_only() {
        at<float>(Opcode::erf) = &unary<functions::Erf, float>;
        at<float>(Opcode::gelu) = &unary<functions::Gelu, float>;
        at<float>(Opcode::sin) = &unary_wide<functions::Sine<0>>;
        at<float>(Opcode::cos) = &unary_wide<functions::Sine<1>>;
        at<float>(Opcode::fmod) = &binary_wide<functions::FloatRemainder>;
        at<float>(Opcode::mod) = &binary_wide<functions::FloatFlooredRemainder>;
        at<float>(Opcode::pow) = &binary_wide<functions::FloatPower>;
        at<float>(Opcode::tan) = &unary_wide<functions::Tan>;
        at<float>(Opcode::asin) = &unary<functions::Asin, float>;
        at<float>(Opcode::acos) = &unary<functions::Acos, float>;
        at<float>(Opcode::atan) = &unary<functions::Atan, float>;
        at<float>(Opcode::sinh) = &unary<functions::Sinh, float>;
        at<float>(Opcode::asinh) = &unary_wide<functions::Asinh>;
        at<float>(Opcode::acosh) = &unary_wide<functions::Acosh>;
        at<float>(Opcode::atanh) = &unary_wide<functions::Atanh>;
        at<float>(Opcode::round_float16) = &round_halves<Float16>;
        at<float>(Opcode::round_bfloat16) = &round_halves<BFloat16>;
    }

    constexpr void double_only() {
        at<double>(Opcode::erf) = &unary_scalar<functions::DoubleErf, double>;
        at<double>(Opcode::gelu) = &unary_scalar<functions::DoubleGelu, double>;
        at<double>(Opcode::sin) = &unary_scalar<functions::DoubleSin, double>;
        at<double>(Opcode::cos) = &unary_scalar<functions::DoubleCos, double>;
        at<double>(Opcode::tan) = &unary_scalar<functions::DoubleTan, double>;
        at<double>(Opcode::asin) = &unary_scalar<functions::DoubleAsin, double>;
        at<double>(Opcode::acos) = &unary_scalar<functions::DoubleAcos, double>;
        at<double>(Opcode::atan) = &unary_scalar<functions::DoubleAtan, double>;
        at<double>(Opcode::sinh) = &unary_scalar<functions::DoubleSinh, double>;
        at<double>(Opcode::asinh) = &unary_scalar<functions::DoubleAsinh, double>;
        at<double>(Opcode::acosh) = &unary_scalar<functions::DoubleAcosh, double>;
        at<double>(Opcode::atanh) = &unary_scalar<functions::DoubleAtanh, double>;
        at<double>(Opcode::pow) = &binary_scalar<functions::DoublePower, double>;
#if defined(__FMA__)
        at<double>(Opcode::fmod) = &binary<functions::DoubleRemainder, double>;
        at<double>(Opcode::mod) = &binary<functions::DoubleFlooredRemainder, double>;
#else
        at<double>(Opcode::fmod) = &binary_scalar<functions::TruncatedRemainder, double>;
        at<double>(Opcode::mod) = &binary_scalar<functions::FlooredRemainder, double>;
#endif
    }
};

constexpr PointwiseTable make_pointwise_table() {
    TableBuilder builder;
    builder.floats<float>();
    builder.floats<double>();
    builder.integers<std::int8_t>();
    builder.integers<std::int16_t>();
    builder.integers<std::int32_t>();
    builder.integers<std::int64_t>();
    builder.integers<std::uint8_t>();
    builder.integers<std::uint16_t>();
    builder.integers<std::uint32_t>();
    builder.integers<std::uint64_t>();
    builder.booleans();
    builder.float_only();
    builder.double_only();
    builder.casts<float, double, std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t, std::uint16_t,
                  std::uint32_t, std::uint64_t>();
    builder.table.stream = &stream_lines;
    builder.table.splat = &splat_element;
    return builder.table;
}

}  // namespace

GRAPHKIT_ISA_DEFINE(PointwiseTable, pointwise_table) = make_pointwise_table();

}  // namespace graphkit
