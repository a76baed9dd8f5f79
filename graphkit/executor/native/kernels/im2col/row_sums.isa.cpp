// Adds rows to the rows of an image.
#include "kernels/im2col/row_sums.h"

#include "simd/vector.h"

namespace graphkit {
namespace {

// Adds less than `2 * Bytes` bytes of elements: half of a vector, a quarter, and so on.
template <typename T, int Bytes>
inline void add_rest(T* y, const T* x, std::int64_t count) {
    if constexpr (Bytes > sizeof(T)) {
        using Part = typename VectorOf<T, Bytes>::type;
        constexpr auto kPart = static_cast<std::int64_t>(Bytes / sizeof(T));
        if (count >= kPart) {
            Part a;
            Part b;
            __builtin_memcpy(&a, y, sizeof a);
            __builtin_memcpy(&b, x, sizeof b);
            a += b;
            __builtin_memcpy(y, &a, sizeof a);
            y += kPart;
            x += kPart;
            count -= kPart;
        }
        add_rest<T, Bytes / 2>(y, x, count);
    } else if (count > 0) {
        *y += *x;
    }
}

template <typename T>
void add_rows(const RowSum<T>& sum) {
    const std::int64_t whole = sum.length / kLanes<T> * kLanes<T>;
    const std::int64_t rest = sum.length - whole;
    // A load waits for an earlier store of a part of a vector if it overlaps the missing part.
    const bool apart = whole + kLanes<T> <= sum.y_row;
    for (std::int64_t r = 0; r < sum.rows; ++r) {
        T* __restrict const y = sum.y + r * sum.y_row;
        const T* __restrict const x = sum.x + r * sum.x_row;
        if (sum.y_step != 1) {
            for (std::int64_t i = 0; i < sum.length; ++i) {
                y[i * sum.y_step] += x[i];
            }
            continue;
        }
        for (std::int64_t i = 0; i < whole; i += kLanes<T>) {
            store(y + i, load(y + i) + load(x + i));
        }
        if (rest == 0) {
            continue;
        }
        if (apart) {
            store_part<T>(y + whole, load_part<T>(y + whole, rest, T{}) + load_part<T>(x + whole, rest, T{}), rest);
        } else {
            add_rest<T, kVectorBytes / 2>(y + whole, x + whole, rest);
        }
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(RowSumTable, row_sum_table) = {add_rows<float>, add_rows<double>, add_rows<std::uint32_t>,
                                                   add_rows<std::uint64_t>};

}  // namespace graphkit
