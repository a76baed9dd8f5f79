// Products of matrices, as the library's primitives take them: whole ones, and the pieces that they are cut into.
#pragma once

#include <vector>

#include "onednn/onednn.h"
#include "primitives/partition.h"

namespace graphkit {

// One operand: batch dimensions, then a matrix with steps between its rows and columns.
struct Matrices {
    Dims batch;
    std::int64_t rows = 1;
    std::int64_t columns = 1;
    bool transposed = false;

    // A part of the outermost batch dimension, of the rows and of the columns. Where the batch broadcasts, all its
    // parts are the one there is.
    dnnl::memory::desc descriptor(ElementType type, std::int64_t batch_part, std::int64_t row_part,
                                  std::int64_t column_part) const;
    // Elements before a part that begins there.
    std::int64_t offset(std::int64_t batch_begin, std::int64_t row_begin, std::int64_t column_begin) const;
    dnnl::memory::desc any_layout(ElementType type) const;
};

// One piece of y = a b, with a [batch, rows, terms] and b [batch, terms, columns].
struct ProductPiece {
    Range batch;
    Range rows;
    Range columns;
    Range terms;
    std::size_t partial = 0;  // which range of terms it is: these results have to be added

    Dims extents() const { return {batch.size, rows.size, columns.size, terms.size}; }
};

// Cuts the product into at most `pieces`, a power of two, such that they read and write least. Terms are cut when
// partial results `may_add`. With a `packed` b, few rows are enough for a piece: all pieces share its one form.
std::vector<ProductPiece> cut_product(const Matrices& a, const Matrices& y, std::int64_t pieces, bool may_add,
                                      bool packed = false);

}  // namespace graphkit
