// Rows of a few elements, and their columns, exchanged in registers. For *.isa.cpp only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "primitives/narrow.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

// Instruction sets without shuffles of single bytes across a whole vector have them for 16 bytes.
template <typename T>
constexpr int kShuffleBytes = sizeof(T) == 1 ? 16 : kVectorBytes;
template <typename T>
using Shuffled = typename VectorOf<T, kShuffleBytes<T>>::type;
template <typename T>
constexpr int kShuffleLanes = kShuffleBytes<T> / static_cast<int>(sizeof(T));
template <typename T>
using ShuffleLanes = std::make_integer_sequence<int, kShuffleLanes<T>>;

// Returns the lanes of `column` and, for those elements of column `Column` that are in vector `Source` of the rows, the
// elements. Vector 0 must be in `column`, if Source is 1.
template <int Columns, int Column, int Source, typename V, int... Lane>
inline V take_column(V column, V source, std::integer_sequence<int, Lane...>) {
    constexpr int lanes = sizeof...(Lane);
    constexpr auto place = [](int lane) {
        const int at = lane * Columns + Column;
        return at / lanes == Source ? lanes + at % lanes : Source == 1 && at < lanes ? at : lane;
    };
    return __builtin_shufflevector(column, source, place(Lane)...);
}

template <int Columns, int Column, typename V, typename Lanes, int... Later>
inline V column_of(const V* rows, Lanes lanes, std::integer_sequence<int, Later...>) {
    V column = take_column<Columns, Column, 1>(rows[0], rows[1], lanes);
    ((column = take_column<Columns, Column, Later + 2>(column, rows[Later + 2], lanes)), ...);
    return column;
}

// Returns the lanes of `row` and, for those elements of vector `Part` of the rows that are in column `Column`, the
// elements. Column 0 must be in `row`, if Column is 1.
template <int Columns, int Column, int Part, typename V, int... Lane>
inline V take_row(V row, V column, std::integer_sequence<int, Lane...>) {
    constexpr int lanes = sizeof...(Lane);
    constexpr auto place = [](int lane) {
        const int at = Part * lanes + lane;
        return at % Columns == Column ? lanes + at / Columns : Column == 1 && at % Columns == 0 ? at / Columns : lane;
    };
    return __builtin_shufflevector(row, column, place(Lane)...);
}

template <int Columns, int Part, typename V, typename Lanes, int... Later>
inline V row_part(const V* columns, Lanes lanes, std::integer_sequence<int, Later...>) {
    V part = take_row<Columns, 1, Part>(columns[0], columns[1], lanes);
    ((part = take_row<Columns, Later + 2, Part>(part, columns[Later + 2], lanes)), ...);
    return part;
}

template <typename T, int Columns, int... Column>
inline void columns_of(const Shuffled<T>* rows, Shuffled<T>* columns, std::integer_sequence<int, Column...>) {
    constexpr auto later = std::make_integer_sequence<int, Columns - 2>();
    ((columns[Column] = column_of<Columns, Column>(rows, ShuffleLanes<T>(), later)), ...);
}

template <typename T, int Columns, int... Part>
inline void rows_of(const Shuffled<T>* columns, Shuffled<T>* rows, std::integer_sequence<int, Part...>) {
    constexpr auto later = std::make_integer_sequence<int, Columns - 2>();
    ((rows[Part] = row_part<Columns, Part>(columns, ShuffleLanes<T>(), later)), ...);
}

// Reads kShuffleLanes<T> contiguous rows of `Columns` elements as their columns.
template <typename T, int Columns>
inline void load_columns(const T* from, Shuffled<T>* columns) {
    Shuffled<T> rows[Columns];
    __builtin_memcpy(rows, from, sizeof rows);
    columns_of<T, Columns>(rows, columns, std::make_integer_sequence<int, Columns>());
}

// Calls body(first row, rows, columns) for each kShuffleLanes<T> of contiguous rows of `Columns` elements. Lanes behind
// the last row are 0.
template <typename T, int Columns, typename Body>
inline void for_columns_of_rows(const T* x, std::int64_t rows, Body&& body) {
    constexpr std::int64_t lanes = kShuffleLanes<T>;
    T last[Columns * lanes] = {};
    for (std::int64_t row = 0; row < rows; row += lanes) {
        const std::int64_t part = rows - row < lanes ? rows - row : lanes;
        const T* from = x + row * Columns;
        if (part < lanes) {
            __builtin_memcpy(last, from, static_cast<std::size_t>(part) * Columns * sizeof(T));
            from = last;
        }
        Shuffled<T> columns[Columns];
        load_columns<T, Columns>(from, columns);
        body(row, part, columns);
    }
}

// Writes kShuffleLanes<T> contiguous rows of `Columns` elements from their columns.
template <typename T, int Columns>
inline void store_columns(const Shuffled<T>* columns, T* to) {
    Shuffled<T> rows[Columns];
    rows_of<T, Columns>(columns, rows, std::make_integer_sequence<int, Columns>());
    __builtin_memcpy(to, rows, sizeof rows);
}

// Bytes from a store to the line that is prefetched with it.
constexpr std::int64_t kLinesAhead = 512;

// to[c * pitch + r] = from[r * Columns + c]. Pointers need not be aligned. `Far`: `to` is not in the caches. Then its
// lines are prefetched, because the processor's own prefetchers follow few arrays that are written at the same time.
template <typename T, int Columns, bool Far = false>
void split_rows(const std::byte* from, std::byte* to, std::int64_t pitch, std::int64_t rows) {
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
    constexpr std::int64_t lanes = kShuffleLanes<T>;
    std::int64_t at = 0;
    for (; at + lanes <= rows; at += lanes) {
        Shuffled<T> columns[Columns];
        load_columns<T, Columns>(reinterpret_cast<const T*>(from) + at * Columns, columns);
#pragma GCC unroll 8
        for (int c = 0; c < Columns; ++c) {
            std::byte* const place = to + (c * pitch + at) * kSize;
            if constexpr (Far) {
                __builtin_prefetch(place + kLinesAhead, 1);
            }
            __builtin_memcpy(place, &columns[c], sizeof columns[c]);
        }
    }
    for (; at < rows; ++at) {
        for (int c = 0; c < Columns; ++c) {
            __builtin_memcpy(to + (c * pitch + at) * kSize, from + (at * Columns + c) * kSize, sizeof(T));
        }
    }
}

// to[r * Columns + c] = from[c * pitch + r]. Pointers need not be aligned.
template <typename T, int Columns>
void join_columns(const std::byte* from, std::byte* to, std::int64_t pitch, std::int64_t rows) {
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
    constexpr std::int64_t lanes = kShuffleLanes<T>;
    std::int64_t at = 0;
    for (; at + lanes <= rows; at += lanes) {
        Shuffled<T> columns[Columns];
#pragma GCC unroll 8
        for (int c = 0; c < Columns; ++c) {
            __builtin_memcpy(&columns[c], from + (c * pitch + at) * kSize, sizeof columns[c]);
        }
        store_columns<T, Columns>(columns, reinterpret_cast<T*>(to) + at * Columns);
    }
    for (; at < rows; ++at) {
        for (int c = 0; c < Columns; ++c) {
            __builtin_memcpy(to + (at * Columns + c) * kSize, from + (c * pitch + at) * kSize, sizeof(T));
        }
    }
}

}  // namespace
}  // namespace graphkit
