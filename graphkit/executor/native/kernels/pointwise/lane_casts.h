// Vectors with few lanes, and their conversions between element types. For *.isa.cpp only.
#pragma once

#include "kernels/pointwise/pointwise_functions.h"
#include "simd/bytes.h"

namespace graphkit {
namespace {

// A vector with `Size` elements of type T.
template <typename T, std::int64_t Size>
using Lanes = typename VectorOf<T, static_cast<int>(static_cast<std::int64_t>(sizeof(T)) * Size)>::type;

template <typename V, typename T>
inline V load_lanes(const T* from) {
    V v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}

template <typename V, typename T>
inline void store_lanes(T* to, V v) {
    __builtin_memcpy(to, &v, sizeof v);
}

// Signed integers with the size of T.
template <typename T>
using SignedOf = std::make_signed_t<typename UnsignedBitsOf<T>::type>;

// The integer of Bytes bytes that is signed if T is.
template <typename T, std::size_t Bytes>
using IntegerLike = std::conditional_t<Bytes == 2, std::conditional_t<std::is_signed_v<T>, std::int16_t, std::uint16_t>,
                                       std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>>;

// Converts integers. Each step doubles or halves the elements: for larger steps, the compiler converts element by
// element.
template <typename From, typename To, std::int64_t Size>
inline Lanes<To, Size> resized(Lanes<From, Size> v) {
    if constexpr (sizeof(To) > 2 * sizeof(From)) {
        using Next = IntegerLike<From, 2 * sizeof(From)>;
        return resized<Next, To, Size>(__builtin_convertvector(v, Lanes<Next, Size>));
    } else if constexpr (sizeof(From) > 2 * sizeof(To)) {
#if defined(__AVX512F__)
        using Next = IntegerLike<From, sizeof(From) / 2>;
        return resized<Next, To, Size>(__builtin_convertvector(v, Lanes<Next, Size>));
#else
        if constexpr (sizeof(To) == 1 && sizeof v == kVectorBytes) {
            return bit_cast<Lanes<To, Size>>(low_bytes<SignedOf<From>>(bit_cast<Vector<SignedOf<From>>>(v)));
        } else {
            return __builtin_convertvector(v, Lanes<To, Size>);
        }
#endif
    } else {
        return __builtin_convertvector(v, Lanes<To, Size>);
    }
}

// A float outside of the integer type's range gives an unspecified result, as in numpy: the low bits of a wider
// conversion.
template <typename From, typename To, std::int64_t Size>
inline Lanes<To, Size> converted_lanes(Lanes<From, Size> v) {
    if constexpr (std::is_floating_point_v<From> && std::is_same_v<To, std::uint64_t>) {
        // Numbers from 2^63 on do not fit into the signed conversion.
        using Wide = Lanes<std::int64_t, Size>;
        constexpr From kHalf = 0x1p63;
        const auto is_large = __builtin_convertvector(v >= kHalf, Wide);
        const auto low = __builtin_convertvector(v >= kHalf ? v - kHalf : v, Wide);
        return __builtin_convertvector(low ^ (is_large & std::numeric_limits<std::int64_t>::min()), Lanes<To, Size>);
    } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To> && sizeof(To) < 8) {
        using Between = std::conditional_t<std::is_same_v<To, std::uint32_t>, std::int64_t, std::int32_t>;
        return resized<Between, To, Size>(__builtin_convertvector(v, Lanes<Between, Size>));
    } else if constexpr (std::is_integral_v<From> && std::is_integral_v<To>) {
        return resized<From, To, Size>(v);
    } else if constexpr (std::is_integral_v<From> && sizeof(From) == 2) {
        return __builtin_convertvector(resized<From, std::int32_t, Size>(v), Lanes<To, Size>);
    } else {
        return __builtin_convertvector(v, Lanes<To, Size>);
    }
}

}  // namespace
}  // namespace graphkit
