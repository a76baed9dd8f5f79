// Reductions of rows and of columns of integers. For *.isa.cpp only.
#pragma once

#include <cstddef>
#include <type_traits>

#include "primitives/reduction_rules.h"
#include "primitives/reduction_table.h"
#include "simd/narrow_rows.h"

namespace graphkit {
namespace {

// --- sums and products: mapped in their own type, where they wrap around, and reduced in 64 bits ---

template <typename T>
using Unsigned = std::make_unsigned_t<T>;

template <template <typename> typename Op, typename T>
inline Accumulator<T> mapped_integer(T x) {
    if constexpr (std::is_same_v<Op<T>, AbsoluteReduction<T>>) {
        return static_cast<T>(x < 0 ? Unsigned<T>{0} - static_cast<Unsigned<T>>(x) : static_cast<Unsigned<T>>(x));
    } else if constexpr (std::is_same_v<Op<T>, SquareReduction<T>>) {
        return static_cast<T>(static_cast<Unsigned<T>>(x) * std::uint64_t{static_cast<Unsigned<T>>(x)});
    } else {
        return x;
    }
}

template <template <typename> typename Op, typename Acc>
inline Acc reduced_integer(Acc a, Acc b) {
    using Bits = std::uint64_t;
    return static_cast<Acc>(Op<Bits>::combine(static_cast<Bits>(a), static_cast<Bits>(b)));
}

template <template <typename> typename Op, typename T>
void reduce_integer_rows(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t size, const Accumulator<T>*,
                         Accumulator<T>* out) {
    using Acc = Accumulator<T>;
    for (std::int64_t i = 0; i < rows; ++i) {
        const T* row = x + i * stride;
        Acc total = Op<T>::kStart;
        for (std::int64_t j = 0; j < size; ++j) {
            total = reduced_integer<Op, Acc>(total, mapped_integer<Op, T>(row[j]));
        }
        out[i] = total;
    }
}

template <template <typename> typename Op, typename T>
void reduce_integer_columns(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t width,
                            const Accumulator<T>*, Accumulator<T>* out) {
    using Acc = Accumulator<T>;
    for (std::int64_t c = 0; c < width; ++c) {
        out[c] = mapped_integer<Op, T>(x[c]);
    }
    for (std::int64_t row = 1; row < rows; ++row) {
        const T* from = x + row * stride;
        for (std::int64_t c = 0; c < width; ++c) {
            out[c] = reduced_integer<Op, Acc>(out[c], mapped_integer<Op, T>(from[c]));
        }
    }
}

// --- largest and smallest elements: in vectors of their own type -----------------------------------

template <typename Op>
constexpr bool kIsExtreme = std::is_base_of_v<Largest, Op> || std::is_base_of_v<Smallest, Op>;

// The extreme of a row of at least one vector. Vectors may overlap, because an element may count twice.
template <typename Op, int Bytes, typename T>
T extreme_in_vectors(const T* x, std::int64_t size) {
    using V = typename VectorOf<T, Bytes>::type;
    constexpr std::int64_t lanes = Bytes / static_cast<std::int64_t>(sizeof(T));
    constexpr int ways = 4;
    const auto read = [&](std::int64_t at) {
        V v;
        __builtin_memcpy(&v, x + at, sizeof v);
        return v;
    };
    V best[ways];
#pragma GCC unroll 4
    for (int way = 0; way < ways; ++way) {
        best[way] = read(0);
    }
    std::int64_t at = lanes;
    for (; at + ways * lanes <= size; at += ways * lanes) {
#pragma GCC unroll 4
        for (int way = 0; way < ways; ++way) {
            best[way] = Op::combine(best[way], read(at + way * lanes));
        }
    }
    for (; at + lanes <= size; at += lanes) {
        best[0] = Op::combine(best[0], read(at));
    }
    best[1] = Op::combine(best[1], read(size - lanes));
    return across<Op, T, Bytes>(Op::combine(Op::combine(best[0], best[1]), Op::combine(best[2], best[3])));
}

template <typename Op, typename T>
T extreme_of_row(const T* x, std::int64_t size) {
    constexpr int kShortBytes = 16;
    if (size >= kLanes<T>) {
        return extreme_in_vectors<Op, kVectorBytes>(x, size);
    }
    if (kVectorBytes > kShortBytes && size * static_cast<std::int64_t>(sizeof(T)) >= kShortBytes) {
        return extreme_in_vectors<Op, kShortBytes>(x, size);
    }
    T best = x[0];
    for (std::int64_t i = 1; i < size; ++i) {
        best = Op::combine(best, x[i]);
    }
    return best;
}

// Contiguous rows of `Columns` elements.
template <typename Op, int Columns, typename T>
void extreme_narrow_rows(const T* x, std::int64_t rows, Accumulator<T>* out) {
    for_columns_of_rows<T, Columns>(x, rows, [&](std::int64_t row, std::int64_t part, const Shuffled<T>* columns) {
        Shuffled<T> best = columns[0];
#pragma GCC unroll 8
        for (int c = 1; c < Columns; ++c) {
            best = Op::combine(best, columns[c]);
        }
        for (std::int64_t i = 0; i < part; ++i) {
            out[row + i] = best[i];
        }
    });
}

template <typename Op, typename T>
void extreme_rows(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t size, const Accumulator<T>*,
                  Accumulator<T>* out) {
    if ((stride == size || rows == 1) && size >= 2 && size <= kNarrow) {
        return with_columns(size, [&](auto narrow) { extreme_narrow_rows<Op, decltype(narrow)::value>(x, rows, out); });
    }
    for (std::int64_t i = 0; i < rows; ++i) {
        out[i] = extreme_of_row<Op>(x + i * stride, size);
    }
}

template <typename Op, typename T>
void extreme_columns(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t width, const Accumulator<T>*,
                     Accumulator<T>* out) {
    constexpr std::int64_t lanes = kLanes<T>;
    alignas(kVectorBytes) T best[kReductionTile];
    __builtin_memcpy(best, x, static_cast<std::size_t>(width) * sizeof(T));
    const auto add_rows = [&](const T* from, auto count) {
        std::int64_t c = 0;
        for (; c + lanes <= width; c += lanes) {
            Vector<T> v = load(best + c);
#pragma GCC unroll 4
            for (int r = 0; r < decltype(count)::value; ++r) {
                v = Op::combine(v, load(from + r * stride + c));
            }
            store(best + c, v);
        }
        for (; c < width; ++c) {
            for (int r = 0; r < decltype(count)::value; ++r) {
                best[c] = Op::combine(best[c], from[r * stride + c]);
            }
        }
    };
    std::int64_t row = 1;
    for (; row + 4 <= rows; row += 4) {
        add_rows(x + row * stride, std::integral_constant<int, 4>{});
    }
    for (; row < rows; ++row) {
        add_rows(x + row * stride, std::integral_constant<int, 1>{});
    }
    for (std::int64_t c = 0; c < width; ++c) {
        out[c] = best[c];
    }
}

}  // namespace
}  // namespace graphkit
