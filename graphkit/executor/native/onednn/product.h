// Matrix products for the library's primitives, and their division into pieces.
#pragma once

#include <vector>

#include "onednn/onednn.h"
#include "primitives/partition.h"

namespace graphkit {

// One operand: batch dimensions, then matrices, which may be transposed in memory.
struct Matrices {
    Dims batch;
    std::int64_t rows = 1;
    std::int64_t columns = 1;
    bool transposed = false;

    // The descriptor of a part: of the outermost batch dimension, of the rows and of the columns. If the batch
    // broadcasts, every part has the whole of it.
    dnnl::memory::desc descriptor(ElementType type, std::int64_t batch_part, std::int64_t row_part,
                                  std::int64_t column_part) const;
    // The offset, in elements, of a part that begins there.
    std::int64_t offset(std::int64_t batch_begin, std::int64_t row_begin, std::int64_t column_begin) const;
    dnnl::memory::desc any_layout(ElementType type) const;
};

// The layout, as `layout_text` describes it, of a float32 matrix [rows, columns] in panels of 64 columns: the layout
// that the library chooses for a constant second operand with AVX-512. transposed: before packing.
std::string panel_layout(std::int64_t rows, std::int64_t columns, bool transposed);

// One piece of y = a b, with a [batch, rows, terms] and b [batch, terms, columns].
struct ProductPiece {
    Range batch;
    Range rows;
    Range columns;
    Range terms;
    std::size_t partial = 0;  // index of the range of terms: the results of all ranges must be added

    Dims extents() const { return {batch.size, rows.size, columns.size, terms.size}; }
};

// Divides the product into at most `pieces` pieces, a power of two, with the least memory traffic. Terms are divided
// only if partial results `may_add`. With a `packed` b, a piece may have few rows, because all pieces share the packed
// form.
std::vector<ProductPiece> cut_product(const Matrices& a, const Matrices& y, std::int64_t pieces, bool may_add,
                                      bool packed = false);

}  // namespace graphkit
