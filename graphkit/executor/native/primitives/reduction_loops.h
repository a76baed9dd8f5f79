// Reductions of rows and of columns. For *.isa.cpp only.
#pragma once

#include <cstddef>

#include "primitives/integer_reduction_loops.h"
#include "primitives/reduction_rules.h"
#include "primitives/reduction_table.h"
#include "simd/across_each.h"
#include "simd/exp.h"
#include "simd/half_convert.h"
#include "simd/narrow_rows.h"
#include "simd/row_loops.h"

namespace graphkit {
namespace {

// Like kRowBlock, for sums over many rows.
constexpr std::int64_t kColumnBlock = 64;
constexpr int kRowsTogether = 8;
// Number of vectors of columns whose totals are kept in registers, and the largest width that is read in such strips.
constexpr int kStripVectors = kVectorBytes == 64 ? 16 : 8;
constexpr std::int64_t kStripWidth = 256;

// Number of vectors of a row that are reduced separately from each other.
constexpr int kWays = 8;

// --- float and double -----------------------------------------------------------------------------

// Returns the reduction of `total` and of a row from element `at` on, one vector after the other.
template <typename Op, typename T>
inline Vector<T> reduce_vectors(Vector<T> total, const T* x, std::int64_t at, std::int64_t size, T shift) {
    const Vector<T> about = splat(shift);
    for (; at + kLanes<T> <= size; at += kLanes<T>) {
        total = Op::combine(total, Op::map(load(x + at), about));
    }
    if (at < size) {
        const T fill = std::is_same_v<Op, SquareAboutReduction<T>> ? shift : T{Op::kFill};
        total = Op::combine(total, Op::map(load_part(x + at, size - at, fill), about));
    }
    return total;
}

template <typename Op, typename T>
T reduce_row(const T* x, std::int64_t size, T shift) {
    if (size > kRowBlock) {
        const std::int64_t half = (size / 2 + kRowBlock - 1) / kRowBlock * kRowBlock;
        const T first = reduce_row<Op, T>(x, half, shift);  // first half first, in the order of memory
        return Op::combine(first, reduce_row<Op, T>(x + half, size - half, shift));
    }
    constexpr std::int64_t lanes = kLanes<T>;
    const Vector<T> about = splat(shift);
    Vector<T> total = splat(T{Op::kStart});
    std::int64_t at = 0;
    if (size >= kWays * lanes) {
        Vector<T> sums[kWays];
#pragma GCC unroll 8
        for (int way = 0; way < kWays; ++way) {
            sums[way] = Op::map(load(x + way * lanes), about);
        }
        for (at = kWays * lanes; at + kWays * lanes <= size; at += kWays * lanes) {
#pragma GCC unroll 8
            for (int way = 0; way < kWays; ++way) {
                sums[way] = Op::combine(sums[way], Op::map(load(x + at + way * lanes), about));
            }
        }
        total = Op::combine(Op::combine(Op::combine(sums[0], sums[1]), Op::combine(sums[2], sums[3])),
                            Op::combine(Op::combine(sums[4], sums[5]), Op::combine(sums[6], sums[7])));
    }
    return across<Op, T>(reduce_vectors<Op>(total, x, at, size, shift));
}

// Reduces contiguous rows of `Columns` elements, as many together as a vector has lanes.
template <typename Op, int Columns, typename T>
void reduce_narrow_rows(const T* x, std::int64_t rows, const T* shift, T* out) {
    for_columns_of_rows<T, Columns>(x, rows, [&](std::int64_t row, std::int64_t part, const Vector<T>* columns) {
        const Vector<T> about = shift == nullptr ? splat(T{0}) : load_part(shift + row, part, T{0});
        Vector<T> total = Op::map(columns[0], about);
#pragma GCC unroll 8
        for (int c = 1; c < Columns; ++c) {
            total = Op::combine(total, Op::map(columns[c], about));
        }
        store_part(out + row, total, part);
    });
}

// Reduces kLanes<T> rows of less than kWays vectors at a time, with the bits of reduce_row. Returns the number of rows.
template <typename Op, typename T>
std::int64_t reduce_short_rows(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t size, T* out) {
    constexpr auto lanes = static_cast<int>(kLanes<T>);
    std::int64_t row = 0;
    for (; row + lanes <= rows; row += lanes) {
        Vector<T> totals[lanes];
        for (int r = 0; r < lanes; ++r) {
            totals[r] = reduce_vectors<Op>(splat(T{Op::kStart}), x + (row + r) * stride, 0, size, T{0});
        }
        across_each<Op, T>(totals);
        store(out + row, totals[0]);
    }
    return row;
}

template <typename Op, typename T>
void reduce_rows(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t size, const T* shift, T* out) {
    if ((stride == size || rows == 1) && size >= 2 && size <= kNarrow) {
        return with_columns(size,
                            [&](auto narrow) { reduce_narrow_rows<Op, decltype(narrow)::value>(x, rows, shift, out); });
    }
    std::int64_t done = 0;
    if (shift == nullptr && size < kWays * kLanes<T>) {
        done = reduce_short_rows<Op, T>(x, rows, stride, size, out);
    }
    for (std::int64_t i = done; i < rows; ++i) {
        out[i] = reduce_row<Op, T>(x + i * stride, size, shift == nullptr ? T{0} : shift[i]);
    }
}

// acc = the reduction of acc and of `Rows` rows; of the rows alone if `first`.
template <typename Op, int Rows, typename T>
void reduce_few_rows(const T* x, std::int64_t stride, std::int64_t width, const T* shift, T* acc, bool first) {
    constexpr std::int64_t lanes = kLanes<T>;
    const auto column = [&](auto&& read, Vector<T> about) {
        Vector<T> part[Rows];
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            part[r] = Op::map(read(x + r * stride), about);
        }
#pragma GCC unroll 4
        for (int step = 1; step < Rows; step *= 2) {
#pragma GCC unroll 8
            for (int r = 0; r + step < Rows; r += 2 * step) {
                part[r] = Op::combine(part[r], part[r + step]);
            }
        }
        return part[0];
    };
    std::int64_t c = 0;
    for (; c + lanes <= width; c += lanes) {
        const Vector<T> about = shift == nullptr ? splat(T{0}) : load(shift + c);
        const Vector<T> total = column([&](const T* from) { return load(from + c); }, about);
        store(acc + c, first ? total : Op::combine(load(acc + c), total));
    }
    if (c < width) {
        const std::int64_t rest = width - c;
        const Vector<T> about = shift == nullptr ? splat(T{0}) : load_part(shift + c, rest, T{0});
        const Vector<T> total = column([&](const T* from) { return load_part(from + c, rest, T{Op::kFill}); }, about);
        store_part(acc + c, first ? total : Op::combine(load_part(acc + c, rest, T{Op::kStart}), total), rest);
    }
}

// Reduces all rows for Count vectors of columns. The last vector has `rest` elements. Totals stay in registers.
template <typename Op, int Count, typename T>
void reduce_strip(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t rest, const T* shift, T* out) {
    constexpr std::int64_t lanes = kLanes<T>;
    const auto read = [&](const T* from, int i, T fill) {
        return i + 1 < Count || rest == lanes ? load(from + i * lanes) : load_part(from + i * lanes, rest, fill);
    };
    // Several rows at a time, if there are registers for them: the chains of sums are shorter, and independent of each
    // other.
    constexpr int ways = Count <= 4 ? 4 : 1;
    Vector<T> about[Count];
    Vector<T> totals[ways][Count];
#pragma GCC unroll 16
    for (int i = 0; i < Count; ++i) {
        about[i] = shift == nullptr ? splat(T{0}) : read(shift, i, T{0});
#pragma GCC unroll 4
        for (int way = 0; way < ways; ++way) {
            totals[way][i] = splat(T{Op::kStart});
        }
    }
    const auto add = [&](const T* from, Vector<T>(&total)[Count]) {
#pragma GCC unroll 16
        for (int i = 0; i < Count; ++i) {
            total[i] = Op::combine(total[i], Op::map(read(from, i, T{Op::kFill}), about[i]));
        }
    };
    std::int64_t row = 0;
    for (; row + ways <= rows; row += ways, x += ways * stride) {
#pragma GCC unroll 4
        for (int way = 0; way < ways; ++way) {
            add(x + way * stride, totals[way]);
        }
    }
    for (; row < rows; ++row, x += stride) {
        add(x, totals[0]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < Count; ++i) {
        Vector<T> total = totals[0][i];
        if constexpr (ways == 4) {
            total = Op::combine(Op::combine(total, totals[1][i]), Op::combine(totals[2][i], totals[3][i]));
        }
        if (i + 1 < Count || rest == lanes) {
            store(out + i * lanes, total);
        } else {
            store_part(out + i * lanes, total, rest);
        }
    }
}

template <typename Op, int Count, typename T>
void reduce_strips(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t width, const T* shift, T* out) {
    constexpr std::int64_t lanes = kLanes<T>;
    for (; width >= Count * lanes; width -= Count * lanes) {
        reduce_strip<Op, Count, T>(x, rows, stride, lanes, shift, out);
        x += Count * lanes;
        out += Count * lanes;
        shift += shift == nullptr ? 0 : Count * lanes;
    }
    if constexpr (Count > 1) {
        reduce_strips<Op, Count / 2, T>(x, rows, stride, width, shift, out);
    } else if (width > 0) {
        reduce_strip<Op, 1, T>(x, rows, stride, width, shift, out);
    }
}

template <typename Op, typename T>
void reduce_columns(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t width, const T* shift, T* out) {
    const std::int64_t block = width <= 4 * kLanes<T> ? 4 * kColumnBlock : kColumnBlock;
    if (rows > block) {
        const std::int64_t half = (rows / 2 + block - 1) / block * block;
        T other[kReductionTile];
        reduce_columns<Op, T>(x, half, stride, width, shift, out);
        reduce_columns<Op, T>(x + half * stride, rows - half, stride, width, shift, other);
        for (std::int64_t c = 0; c < width; ++c) {
            out[c] = Op::combine(out[c], other[c]);
        }
        return;
    }
    if (width <= kStripWidth) {
        reduce_strips<Op, kStripVectors, T>(x, rows, stride, width, shift, out);
        return;
    }
    // Aligned, because unaligned totals would be slow to read again just after they were written.
    alignas(kVectorBytes) T total[kReductionTile];
    std::int64_t row = 0;
    for (; row + kRowsTogether <= rows; row += kRowsTogether) {
        reduce_few_rows<Op, kRowsTogether, T>(x + row * stride, stride, width, shift, total, row == 0);
    }
    for (; row < rows; ++row) {
        reduce_few_rows<Op, 1, T>(x + row * stride, stride, width, shift, total, row == 0);
    }
    __builtin_memcpy(out, total, static_cast<std::size_t>(width) * sizeof(T));
}

// --- float16 and bfloat16, through blocks of float ------------------------------------------------

template <typename Op, typename Half>
float reduce_half_row(const Half* x, std::int64_t size, float shift) {
    if (size > kReductionTile) {
        const std::int64_t half = (size / 2 + kReductionTile - 1) / kReductionTile * kReductionTile;
        const float first = reduce_half_row<Op>(x, half, shift);
        return Op::combine(first, reduce_half_row<Op>(x + half, size - half, shift));
    }
    float wide[kReductionTile];
    widen(x, wide, size);
    return reduce_row<Op, float>(wide, size, shift);
}

template <typename Op, typename Half>
void reduce_half_rows(const Half* x, std::int64_t rows, std::int64_t stride, std::int64_t size, const float* shift,
                      float* out) {
    for (std::int64_t i = 0; i < rows; ++i) {
        out[i] = reduce_half_row<Op>(x + i * stride, size, shift == nullptr ? 0.0F : shift[i]);
    }
}

template <typename Op, typename Half>
void reduce_half_columns(const Half* x, std::int64_t rows, std::int64_t stride, std::int64_t width, const float* shift,
                         float* out) {
    alignas(kVectorBytes) float wide[kReductionTile];
    if (rows > kColumnBlock) {
        const std::int64_t half = (rows / 2 + kColumnBlock - 1) / kColumnBlock * kColumnBlock;
        reduce_half_columns<Op>(x, half, stride, width, shift, out);
        reduce_half_columns<Op>(x + half * stride, rows - half, stride, width, shift, wide);
        for (std::int64_t c = 0; c < width; ++c) {
            out[c] = Op::combine(out[c], wide[c]);
        }
        return;
    }
    alignas(kVectorBytes) float total[kReductionTile];
    for (std::int64_t row = 0; row < rows; ++row) {
        widen(x + row * stride, wide, width);
        reduce_few_rows<Op, 1, float>(wide, 0, width, shift, total, row == 0);
    }
    __builtin_memcpy(out, total, static_cast<std::size_t>(width) * sizeof(float));
}

template <template <typename> typename Op, typename T>
constexpr ReductionFunctions<T> reduction_of() {
    if constexpr (std::is_integral_v<T>) {
        if constexpr (kIsExtreme<Op<T>>) {
            return {extreme_rows<Op<T>, T>, extreme_columns<Op<T>, T>};
        } else {
            return {reduce_integer_rows<Op, T>, reduce_integer_columns<Op, T>};
        }
    } else if constexpr (std::is_floating_point_v<T>) {
        return {reduce_rows<Op<T>, T>, reduce_columns<Op<T>, T>};
    } else {
        return {reduce_half_rows<Op<float>, T>, reduce_half_columns<Op<float>, T>};
    }
}

// Fills the table in the order of Reduction. Integers have no reductions with a shift.
template <typename T>
constexpr void set_reductions(Reductions<T>& reductions) {
    reductions[0] = reduction_of<SumReduction, T>();
    reductions[1] = reduction_of<ProductReduction, T>();
    reductions[2] = reduction_of<LargestReduction, T>();
    reductions[3] = reduction_of<SmallestReduction, T>();
    reductions[4] = reduction_of<AbsoluteReduction, T>();
    reductions[5] = reduction_of<SquareReduction, T>();
    if constexpr (std::is_integral_v<T>) {
        reductions[6] = reductions[7] = {nullptr, nullptr};
    } else {
        reductions[6] = reduction_of<ExpReduction, T>();
        reductions[7] = reduction_of<SquareAboutReduction, T>();
    }
}

}  // namespace
}  // namespace graphkit
