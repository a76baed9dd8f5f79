// The k best elements of rows of a few elements.
#pragma once

#include <cstdint>

#include "kernels/sorting/key.h"

namespace graphkit {

// Writes the k best elements of each row, and their positions. The rank of an element is the number of elements that
// precede it, which takes no branches.
template <int Size, typename T>
void top_of_short_rows(const T* x, std::int64_t rows, std::int64_t k, bool largest, T* values, std::int64_t* indices) {
    for (std::int64_t row = 0; row < rows; ++row, x += Size) {
        Key<T> keys[Size];
        int ranks[Size] = {};
        std::int64_t order[Size];
#pragma GCC unroll 8
        for (int i = 0; i < Size; ++i) {
            keys[i] = rank_key(x[i], largest);
        }
#pragma GCC unroll 8
        for (int i = 0; i < Size; ++i) {
#pragma GCC unroll 8
            for (int j = i + 1; j < Size; ++j) {
                const int follows = keys[j] < keys[i] ? 1 : 0;
                ranks[i] += follows;
                ranks[j] += 1 - follows;
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < Size; ++i) {
            order[ranks[i]] = i;
        }
        for (std::int64_t i = 0; values != nullptr && i < k; ++i) {
            values[row * k + i] = x[order[i]];
        }
        for (std::int64_t i = 0; indices != nullptr && i < k; ++i) {
            indices[row * k + i] = order[i];
        }
    }
}

}  // namespace graphkit
