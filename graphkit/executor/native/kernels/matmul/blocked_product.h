// Products of blocks of matrices by graphkit's own code.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/isa.h"

namespace graphkit {

// With a depth of 1 to this, and contiguous rows of b, blocks are computed row by row. Columns need not be divided.
constexpr std::int64_t kShallowDepth = 4;

// y [rows, columns] = a [rows, depth] b [depth, columns]. Matrices may have any strides, given in elements; the rows of
// y are contiguous.
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
    // Transposes elements of this size, like TransposeTable::Tile.
    void (*transpose)(const std::byte* source, std::byte* target, std::int64_t source_stride,
                      std::int64_t target_stride, std::int64_t rows, std::int64_t columns, bool stream);
};

// The product of a matrix a with a vector x.
template <typename T>
struct ProductDots {
    const T* a;  // its rows are contiguous
    std::int64_t a_row;
    const T* x;
    T* y;
    std::int64_t rows, depth;
};

// The bits of a result do not depend on the block that contains it.
template <typename T>
struct ProductFunctions {
    void (*multiply)(const ProductBlock<T>& block);
    void (*dots)(const ProductDots<T>& product);
    std::int64_t panel;    // columns that are computed together
    std::int64_t panels;   // largest number of panels of a block
    std::int64_t rows;     // blocks are fastest if their number of rows is a multiple of this
    // Returns the elements of working memory of a block.
    std::int64_t (*scratch)(std::int64_t columns, std::int64_t depth);
};

// Integers are computed as unsigned, so that they wrap around.
struct ProductTable {
    ProductFunctions<float> f32;
    ProductFunctions<double> f64;
    ProductFunctions<std::uint32_t> i32;
    ProductFunctions<std::uint64_t> i64;
};

GRAPHKIT_ISA_TABLE(ProductTable, product_table);

}  // namespace graphkit
