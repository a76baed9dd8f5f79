// Products of blocks of matrices by our own code.
#pragma once

#include <cstdint>

#include "runtime/isa.h"

namespace graphkit {

// y [rows, columns] = a [rows, depth] b [depth, columns]. Elements of a matrix lie any number of elements apart along
// each axis, those of a row of y side by side.
template <typename T>
struct ProductBlock {
    const T* a;
    std::int64_t a_row, a_depth;
    const T* b;
    std::int64_t b_depth, b_column;
    T* y;
    std::int64_t y_row;
    std::int64_t rows, columns, depth;
    T* scratch;
};

// Rows of a times one vector.
template <typename T>
struct ProductDots {
    const T* a;  // each row lies side by side
    std::int64_t a_row;
    const T* x;
    T* y;
    std::int64_t rows, depth;
};

// The sum of a result does not depend on the block that contains it.
template <typename T>
struct ProductFunctions {
    void (*multiply)(const ProductBlock<T>& block);
    void (*dots)(const ProductDots<T>& product);
    std::int64_t panel;    // columns that are computed together
    std::int64_t panels;   // the most of a block
    std::int64_t rows;     // a block of a multiple of so many rows is fastest
    // Elements of working memory of a block.
    std::int64_t (*scratch)(std::int64_t columns, std::int64_t depth);
};

// Integers are computed without sign, so that they wrap around.
struct ProductTable {
    ProductFunctions<float> f32;
    ProductFunctions<double> f64;
    ProductFunctions<std::uint32_t> i32;
    ProductFunctions<std::uint64_t> i64;
};

GRAPHKIT_ISA_TABLE(ProductTable, product_table);

}  // namespace graphkit
