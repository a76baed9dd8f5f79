// Softmax and its logarithm along rows and columns. For *.isa.cpp only.
#pragma once

#include <algorithm>

#include "primitives/reduction_loops.h"
#include "simd/math.h"

namespace graphkit {
namespace {

// Rows of at most this many vectors stay in registers.
constexpr int kShortVectors = 8;
// Bytes of a row for which the first-level cache has room three times: for the row, its result and the next row.
constexpr std::int64_t kCachedRow = 12 << 10;
// Results of columns are prefetched this number of rows before they are written. Loads wait for stores that wait for
// memory, if the last 12 bits of the addresses are equal.
constexpr std::int64_t kRowsAhead = 16;

inline float log_of(float x) {
    return __builtin_logf(x);
}
inline double log_of(double x) {
    return __builtin_log(x);
}

// Returns the largest number of a row. It may ignore NaN, because NaN makes the sum NaN.
template <typename T>
inline T largest_of_row(const T* x, std::int64_t size) {
    constexpr std::int64_t lanes = kLanes<T>;
    constexpr T lowest = Limit<T>::kLowest;
    Vector<T> largest[4] = {splat(lowest), splat(lowest), splat(lowest), splat(lowest)};
    std::int64_t at = 0;
    for (; at + 4 * lanes <= size; at += 4 * lanes) {
#pragma GCC unroll 4
        for (int way = 0; way < 4; ++way) {
            largest[way] = max_of<T>(largest[way], load(x + at + way * lanes));
        }
    }
    for (; at + lanes <= size; at += lanes) {
        largest[0] = max_of<T>(largest[0], load(x + at));
    }
    if (at < size) {
        largest[1] = max_of<T>(largest[1], load_part(x + at, size - at, lowest));
    }
    return across<LargestNumber<T>, T>(max_of<T>(max_of<T>(largest[0], largest[1]), max_of<T>(largest[2], largest[3])));
}

// Returns the sum of exp(x - about), where about is not less than x. With Stores, y becomes these exponentials;
// without, y is prefetched, because it is written next. The row `ahead` elements after x is prefetched as well.
template <bool Stores, typename T>
T exp_row(const T* x, T about, T* y, std::int64_t size, std::int64_t ahead) {
    if (size > kRowBlock) {
        const std::int64_t half = (size / 2 + kRowBlock - 1) / kRowBlock * kRowBlock;
        const T first = exp_row<Stores>(x, about, y, half, ahead);  // first half first, in the order of memory
        return first + exp_row<Stores>(x + half, about, y + half, size - half, ahead);
    }
    constexpr std::int64_t lanes = kLanes<T>;
    const auto keep = [&](std::int64_t at, Vector<T> raised) {
        __builtin_prefetch(x + at + ahead);
        if constexpr (Stores) {
            store(y + at, raised);
        } else {
            __builtin_prefetch(y + at, 1);
        }
    };
    Vector<T> sums[4] = {};
    std::int64_t at = 0;
    for (; at + 4 * lanes <= size; at += 4 * lanes) {
#pragma GCC unroll 4
        for (int way = 0; way < 4; ++way) {
            const Vector<T> raised = exp_of_negative<T>(load(x + at + way * lanes) - about);
            keep(at + way * lanes, raised);
            sums[way] += raised;
        }
    }
    for (; at + lanes <= size; at += lanes) {
        const Vector<T> raised = exp_of_negative<T>(load(x + at) - about);
        keep(at, raised);
        sums[0] += raised;
    }
    if (at < size) {
        const Vector<T> raised = exp_of_negative<T>(load_part(x + at, size - at, Limit<T>::kLowest) - about);
        if constexpr (Stores) {
            store_part(y + at, raised, size - at);
        }
        sums[1] += raised;
    }
    return across<Add, T>((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// Combines all vectors of a row, as a balanced tree.
template <typename Op, typename T, int Count>
inline Vector<T> combine_all(const Vector<T>* v) {
    if constexpr (Count == 1) {
        return v[0];
    } else {
        constexpr int half = (Count + 1) / 2;
        return Op::combine(combine_all<Op, T, half>(v), combine_all<Op, T, Count - half>(v + half));
    }
}

// Computes rows of `Count` vectors. The last vector may be incomplete.
template <bool Log, int Count, typename T>
void softmax_short(const T* x, T* y, std::int64_t rows, std::int64_t size) {
    constexpr std::int64_t lanes = kLanes<T>;
    constexpr int whole = Count - 1;
    const std::int64_t rest = size - whole * lanes;
    for (std::int64_t row = 0; row < rows; ++row, x += size, y += size) {
        Vector<T> v[Count];
#pragma GCC unroll 8
        for (int i = 0; i < whole; ++i) {
            v[i] = load(x + i * lanes);
        }
        v[whole] = rest == lanes ? load(x + whole * lanes) : load_part(x + whole * lanes, rest, Limit<T>::kLowest);
        const T largest = across<LargestNumber<T>, T>(combine_all<LargestNumber<T>, T, Count>(v));
        Vector<T> raised[Count];
#pragma GCC unroll 8
        for (int i = 0; i < Count; ++i) {
            v[i] = v[i] - largest;
            raised[i] = exp_of_negative<T>(v[i]);
        }
        const T sum = across<Add, T>(combine_all<Add, T, Count>(raised));
        const T last = Log ? log_of(sum) : T{1} / sum;
#pragma GCC unroll 8
        for (int i = 0; i < Count; ++i) {
            v[i] = Log ? v[i] - last : raised[i] * last;
        }
#pragma GCC unroll 8
        for (int i = 0; i < whole; ++i) {
            store(y + i * lanes, v[i]);
        }
        if (rest == lanes) {
            store(y + whole * lanes, v[whole]);
        } else {
            store_part(y + whole * lanes, v[whole], rest);
        }
    }
}

// Computes rows of `Columns` elements as the columns of a tile. All rows are summed in the same order, so that a row
// has the same bits in any batch, and with any number of threads. Each loop has few steps that wait for each other.
template <bool Log, int Columns, typename T>
void softmax_narrow(const T* x, T* y, std::int64_t rows) {
    constexpr std::int64_t lanes = kLanes<T>;
    constexpr std::int64_t tile = 128;
    alignas(kVectorBytes) T panel[Columns * tile];
    alignas(kVectorBytes) T scales[tile];
    auto* bytes = reinterpret_cast<std::byte*>(panel);
    for (std::int64_t row = 0; row < rows; row += tile) {
        const std::int64_t part = rows - row < tile ? rows - row : tile;
        split_rows<T, Columns>(reinterpret_cast<const std::byte*>(x + row * Columns), bytes, tile, part);
        for (std::int64_t at = 0; at < part; at += lanes) {
            Vector<T> v[Columns];
            Vector<T> raised[Columns];
#pragma GCC unroll 8
            for (int c = 0; c < Columns; ++c) {
                const T* from = panel + c * tile + at;
                v[c] = at + lanes <= part ? load(from) : load_part(from, part - at, T{0});
            }
            const Vector<T> largest = combine_all<LargestNumber<T>, T, Columns>(v);
#pragma GCC unroll 8
            for (int c = 0; c < Columns; ++c) {
                v[c] = v[c] - largest;
                raised[c] = exp_of_negative<T>(v[c]);
                store(panel + c * tile + at, Log ? v[c] : raised[c]);
            }
            store(scales + at, combine_all<Add, T, Columns>(raised));
        }
        for (std::int64_t at = 0; at < part; at += lanes) {
            const Vector<T> sum = load(scales + at);
            const Vector<T> scale = Log ? log<T>(sum) : T{1} / sum;
#pragma GCC unroll 8
            for (int c = 0; c < Columns; ++c) {
                const Vector<T> v = load(panel + c * tile + at);
                store(panel + c * tile + at, Log ? v - scale : v * scale);
            }
        }
        join_columns<T, Columns>(bytes, reinterpret_cast<std::byte*>(y + row * Columns), tile, part);
    }
}

template <bool Log, typename T, int Count = 1>
void softmax_rows(const T* x, T* y, std::int64_t rows, std::int64_t size) {
    if constexpr (Count == 1) {
        if (size >= 2 && size <= kNarrow) {
            return with_columns(size, [&](auto narrow) { softmax_narrow<Log, decltype(narrow)::value>(x, y, rows); });
        }
    }
    if constexpr (Count <= kShortVectors) {
        if (size <= Count * kLanes<T>) {
            softmax_short<Log, Count, T>(x, y, rows, size);
        } else {
            softmax_rows<Log, T, Count + 1>(x, y, rows, size);
        }
    } else {
        const bool fits = size * static_cast<std::int64_t>(sizeof(T)) <= kCachedRow;
        // The largest number of the next row is found while the sum and the logarithm of this row are pending.
        T largest = rows > 0 ? largest_of_row(x, size) : T{0};
        for (std::int64_t row = 0; row < rows; ++row, x += size, y += size) {
            const bool more = row + 1 < rows;
            const T sum = exp_row<!Log>(x, largest, y, size, more && fits ? size : 0);
            const T next = more ? largest_of_row(x + size, size) : T{0};
            if constexpr (Log) {
                const T log_sum = log_of(sum);
                map_row(y, size, [&](auto&& read) { return (read(x, T{0}) - largest) - log_sum; });
            } else {
                const T factor = T{1} / sum;
                map_row(y, size, [&](auto&& read) { return read(y, T{0}) * factor; });
            }
            largest = next;
        }
    }
}

template <typename T>
void scaled_softmax(const T* x, T factor, T* y, std::int64_t size, T* largest, T* log_sum) {
    *largest = largest_of_row(x, size);
    const T sum = exp_row<true>(x, *largest, y, size, 0);
    *log_sum = log_of(sum);
    const T scale = factor / sum;
    map_row(y, size, [&](auto&& read) { return read(y, T{0}) * scale; });
}

// Returns a reduction from this instruction set's table, where it is already compiled.
template <typename T>
inline const ReductionFunctions<T>& own_reduction(Reduction reduction) {
    const ReductionTable& table = GRAPHKIT_ISA_PASTE(reduction_table, GRAPHKIT_ISA);
    if constexpr (std::is_same_v<T, float>) {
        return table.f32[static_cast<int>(reduction)];
    } else {
        return table.f64[static_cast<int>(reduction)];
    }
}

// Prefetches a part of a row of y that is written soon, for columns: each row may be in another page.
template <typename T>
inline void prefetch_columns(T* y, std::int64_t width) {
    constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
    for (std::int64_t c = 0; c < width; c += kLine) {
        __builtin_prefetch(y + c, 1);
    }
    __builtin_prefetch(y + width - 1, 1);
}

template <bool Log, typename T>
void softmax_columns(const T* x, T* y, std::int64_t rows, std::int64_t stride, std::int64_t width) {
    T largest[kReductionTile];
    T sums[kReductionTile];
    own_reduction<T>(Reduction::largest).columns(x, rows, stride, width, nullptr, largest);
    if constexpr (Log) {
        own_reduction<T>(Reduction::sum_exp).columns(x, rows, stride, width, largest, sums);
        map_row(sums, width, [&](auto&& read) { return log<T>(read(sums, T{1})); });
        for (std::int64_t r = 0; r < rows; ++r) {
            const T* from = x + r * stride;
            prefetch_columns(y + std::min(r + kRowsAhead, rows - 1) * stride, width);
            map_row(y + r * stride, width,
                    [&](auto&& read) { return (read(from, T{0}) - read(largest, T{0})) - read(sums, T{0}); });
        }
    } else {
        for (std::int64_t r = 0; r < rows; ++r) {
            const T* from = x + r * stride;
            prefetch_columns(y + std::min(r + kRowsAhead, rows - 1) * stride, width);
            map_row(y + r * stride, width,
                    [&](auto&& read) { return exp_of_negative<T>(read(from, T{0}) - read(largest, T{0})); });
        }
        own_reduction<T>(Reduction::sum).columns(y, rows, stride, width, nullptr, sums);
        map_row(sums, width, [&](auto&& read) { return T{1} / read(sums, T{1}); });
        for (std::int64_t r = 0; r < rows; ++r) {
            T* to = y + r * stride;
            map_row(to, width, [&](auto&& read) { return read(to, T{0}) * read(sums, T{0}); });
        }
    }
}

}  // namespace
}  // namespace graphkit
