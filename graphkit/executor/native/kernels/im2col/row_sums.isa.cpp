// Adds rows to the rows of an image.
#include "kernels/im2col/row_sums.h"

#include "simd/vector.h"

namespace graphkit {
namespace {

template <typename T>
void add_rows(const RowSum<T>& sum) {
    const std::int64_t whole = sum.length / kLanes<T> * kLanes<T>;
    const std::int64_t rest = sum.length - whole;
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
        if (rest != 0) {
            store_part<T>(y + whole, load_part<T>(y + whole, rest, T{}) + load_part<T>(x + whole, rest, T{}), rest);
        }
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(RowSumTable, row_sum_table) = {add_rows<float>, add_rows<double>, add_rows<std::uint32_t>,
                                                   add_rows<std::uint64_t>};

}  // namespace graphkit
