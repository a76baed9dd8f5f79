#include "onednn/product.h"

#include <algorithm>

namespace graphkit {
namespace {

// Least sizes of a part: smaller matrix products are slow.
constexpr std::int64_t kLeastRows = 16;
constexpr std::int64_t kEnoughRows = 64;
constexpr std::int64_t kLeastColumns = 32;
constexpr std::int64_t kLeastTerms = 256;
// Parts begin at multiples of these, so that most of them have whole vectors.
constexpr std::int64_t kRowGrain = 8;
constexpr std::int64_t kColumnGrain = 16;
constexpr std::int64_t kTermGrain = 64;

}  // namespace

dnnl::memory::desc Matrices::descriptor(ElementType type, std::int64_t batch_part, std::int64_t row_part,
                                        std::int64_t column_part) const {
    Dims dims = batch;
    if (!dims.empty()) {
        dims[0] = std::min(dims[0], batch_part);
    }
    Dims strides(batch.size());
    std::int64_t step = rows * columns;
    for (std::size_t i = batch.size(); i-- > 0;) {
        strides[i] = step;
        step *= batch[i];
    }
    dims.insert(dims.end(), {row_part, column_part});
    strides.insert(strides.end(), {transposed ? 1 : columns, transposed ? rows : 1});
    return {dims, library_type(type), strides};
}

std::int64_t Matrices::offset(std::int64_t batch_begin, std::int64_t row_begin, std::int64_t column_begin) const {
    const bool broadcasts = batch.empty() || batch[0] == 1;
    const std::int64_t matrices = broadcasts ? 0 : batch_begin * (count(batch) / batch[0]);
    const std::int64_t inside = transposed ? column_begin * rows + row_begin : row_begin * columns + column_begin;
    return matrices * rows * columns + inside;
}

dnnl::memory::desc Matrices::any_layout(ElementType type) const {
    Dims dims = batch;
    dims.insert(dims.end(), {rows, columns});
    return any(dims, type);
}

std::string panel_layout(std::int64_t rows, std::int64_t columns, bool transposed) {
    // Computed here, because products that need this text alone do without the library. Its name there is BA16a64b.
    constexpr std::int64_t kRows = 16;
    constexpr std::int64_t kColumns = 64;
    const auto padded = [](std::int64_t size, std::int64_t block) { return (size + block - 1) / block * block; };
    const std::int64_t padded_rows = padded(rows, kRows);
    const Dims given = transposed ? Dims{1, rows} : Dims{columns, 1};
    return layout_text(dnnl::memory::data_type::f32, {{rows, columns},
                                                      {padded_rows, padded(columns, kColumns)},
                                                      {kRows * kColumns, padded_rows * kColumns},
                                                      {kRows, kColumns},
                                                      {0, 1},
                                                      given});
}

std::vector<ProductPiece> cut_product(const Matrices& a, const Matrices& y, std::int64_t pieces, bool may_add,
                                      bool packed) {
    const std::int64_t batch = y.batch.empty() ? 1 : y.batch[0];
    const std::int64_t batches = std::min(batch, pieces);
    const std::int64_t rest = pieces / power_of_two(batches);
    struct {
        std::int64_t rows = 1, columns = 1, terms = 1, traffic = 0;
    } best;
    // The library's better implementations compute whole rows.
    const bool by_rows = y.rows >= rest * (packed ? kLeastRows : kEnoughRows);
    for (const std::int64_t rows : numbers_of_parts(y.rows, kLeastRows, rest)) {
        for (const std::int64_t columns : numbers_of_parts(by_rows ? 1 : y.columns, kLeastColumns, rest / rows)) {
            for (const std::int64_t terms :
                 numbers_of_parts(a.columns, kLeastTerms, may_add && !by_rows ? rest / rows / columns : 1)) {
                // Each part of the columns reads all of a, and each part of the rows reads all of b.
                const std::int64_t results = (terms > 1 ? 3 * terms : 1) * y.rows * y.columns;
                const std::int64_t traffic = columns * y.rows * a.columns + rows * a.columns * y.columns + results;
                const std::int64_t made = rows * columns * terms;
                const std::int64_t most = best.rows * best.columns * best.terms;
                if (made > most || (made == most && traffic < best.traffic)) {
                    best = {rows, columns, terms, traffic};
                }
            }
        }
    }
    std::vector<ProductPiece> made;
    std::size_t partial = 0;
    for (const Range& terms : cut(a.columns, best.terms, kTermGrain)) {
        for (const Range& images : cut(batch, batches)) {
            for (const Range& rows : cut(y.rows, best.rows, kRowGrain)) {
                for (const Range& columns : cut(y.columns, best.columns, kColumnGrain)) {
                    made.push_back({images, rows, columns, terms, partial});
                }
            }
        }
        ++partial;
    }
    return made;
}

}  // namespace graphkit
