// Copies of slices from arbitrary places.
#pragma once

#include <algorithm>

#include "primitives/elements.h"

namespace graphkit {

// Calls body(T{}) if a slice has the size of a type T of 1 to 16 bytes; returns false for other sizes.
template <typename Body>
bool with_small_slice(std::int64_t bytes, Body&& body) {
    if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8 && bytes != 16) {
        return false;
    }
    with_element(static_cast<std::size_t>(bytes), body);
    return true;
}

// Slice (row, column) of y = slice number source(row, column) of x. `source` must hold its data by value: a store of
// bytes may change data that it refers to, so that the compiler would reload them after each store.
template <typename Source>
void copy_slices(int threads, const std::byte* x, std::byte* y, std::int64_t rows, std::int64_t columns,
                 std::int64_t bytes, Source source) {
    const double cost = static_cast<double>(bytes) / kBytesPerNanosecond + 2;
    parallel_for(threads, rows * columns, cost, [=](std::int64_t begin, std::int64_t end) {
        const auto each = [=](auto copy_slice) {
            for (std::int64_t row = begin / columns; row * columns < end; ++row) {
                const std::int64_t first = std::max<std::int64_t>(begin - row * columns, 0);
                const std::int64_t last = std::min(columns, end - row * columns);
                for (std::int64_t column = first; column < last; ++column) {
                    copy_slice(row * columns + column, source(row, column));
                }
            }
        };
        const bool small = with_small_slice(bytes, [=](auto slice) {
            using T = decltype(slice);
            constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
            each([=](std::int64_t to, std::int64_t from) {
                store_element(y + to * kSize, load_element<T>(x + from * kSize));
            });
        });
        if (!small) {
            // Prefetch: the hardware cannot predict slices that are far from each other.
            constexpr std::int64_t kAhead = 4;
            constexpr std::int64_t kLine = 64;
            constexpr std::int64_t kMostLines = 8;
            const std::int64_t fetched = std::min(bytes, kMostLines * kLine);
            for (std::int64_t row = begin / columns; row * columns < end; ++row) {
                const std::int64_t first = std::max<std::int64_t>(begin - row * columns, 0);
                const std::int64_t last = std::min(columns, end - row * columns);
                for (std::int64_t column = first; column < last; ++column) {
                    if (column + kAhead < last) {
                        const std::byte* const next = x + source(row, column + kAhead) * bytes;
                        for (std::int64_t line = 0; line < fetched; line += kLine) {
                            __builtin_prefetch(next + line);
                        }
                    }
                    copy_bytes(y + (row * columns + column) * bytes, x + source(row, column) * bytes,
                               static_cast<std::size_t>(bytes));
                }
            }
        }
    });
}

}  // namespace graphkit
