// Concat and Split: arrays that are concatenated along an axis.
#include <algorithm>
#include <bit>
#include <cstring>

#include "primitives/elements.h"
#include "primitives/pieces.h"
#include "primitives/strided_copy.h"
#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "runtime/operator_kernels.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// y = the operands, concatenated along `axis`. Any element type.
class Concat final : public Kernel {
  public:
    Concat(const std::vector<Dims>& xs, std::int64_t axis, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    Pieces pieces_;
};

// Splits x along `axis` into parts of the given sizes. Unused outputs may be absent. Any element type.
class Split final : public Kernel {
  public:
    Split(Dims x, const Dims& sizes, std::int64_t axis, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    Pieces pieces_;
};

Pieces make_pieces(const std::vector<TensorSpec>& parts, std::size_t axis) {
    Pieces pieces;
    std::int64_t end = 0;
    for (const TensorSpec& part : parts) {
        const AroundAxis around(part.shape, axis);
        pieces.rows = around.outer;
        end += around.size * around.inner * static_cast<std::int64_t>(size_of(part.type));
        pieces.ends.push_back(end);
    }
    return pieces;
}

// Calls body(buffer, offset in a piece, rows, tile) for blocks of rows that fit into the buffer, column by column.
// `tile` exchanges the rows and columns of elements of a piece.
template <typename Body>
void for_column_blocks(int threads, const Pieces& pieces, Body&& body) {
    constexpr std::int64_t kBuffer = 8192;
    const std::int64_t bytes = pieces.column_bytes();
    const auto tile = transpose_table().tile[std::countr_zero(static_cast<std::uint64_t>(bytes))];
    const std::int64_t most = kBuffer / pieces.row();
    const double cost = 3 * static_cast<double>(pieces.row()) / kBytesPerNanosecond;
    parallel_for(threads, pieces.rows, cost, [&](std::int64_t begin, std::int64_t end) {
        alignas(kAlignment) std::byte buffer[kBuffer];
        for (std::int64_t first = begin; first < end; first += most) {
            body(buffer, first * bytes, std::min(most, end - first), tile);
        }
    });
}

}  // namespace

Concat::Concat(const std::vector<Dims>& xs, std::int64_t axis, ElementType type, int threads)
    : Kernel("Concat", threads) {
    if (xs.empty()) {
        throw NativeError("Concat: no operands");
    }
    const std::size_t along = checked_axis(axis, xs[0].size());
    Dims joined = xs[0];
    joined[along] = 0;
    for (const Dims& x : xs) {
        Dims beside = x;
        if (beside.size() == joined.size()) {
            beside[along] = joined[along];
        }
        inputs_.push_back({std::string("x").append(std::to_string(inputs_.size())), x, type});
        if (beside != joined) {
            throw NativeError(describe() + ": the shapes of the operands must be equal except on axis " +
                              std::to_string(along));
        }
        joined[along] += x[along];
    }
    outputs_ = {{"y", joined, type}};
    pieces_ = make_pieces(inputs_, along);
}

void Concat::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    auto* y = static_cast<std::byte*>(outputs[0]);
    const auto columns = static_cast<std::int64_t>(pieces_.ends.size());
    if (const std::int64_t bytes = pieces_.column_bytes(); bytes > 0) {
        return for_column_blocks(
            threads(), pieces_, [&](std::byte* buffer, std::int64_t at, std::int64_t rows, TransposeTable::Tile tile) {
                for (std::int64_t i = 0; i < columns; ++i) {
                    const auto* x = static_cast<const std::byte*>(inputs[i]) + at;
                    std::memcpy(buffer + i * rows * bytes, x, static_cast<std::size_t>(rows * bytes));
                }
                tile(buffer, y + at * columns, rows * bytes, columns * bytes, rows, columns, false);
            });
    }
    if (pieces_.are_short()) {
        return for_short_parts(
            threads(), pieces_,
            [&](std::size_t piece, std::int64_t from, std::int64_t to, std::int64_t bytes, std::int64_t rows) {
                const auto* x = static_cast<const std::byte*>(inputs[piece]) + from;
                copy_parts_of_rows(y + to, pieces_.row(), x, bytes, bytes, rows);
            });
    }
    for_parts(threads(), pieces_, [&](std::size_t piece, std::int64_t from, std::int64_t to, auto bytes, bool stream) {
        copy_piece(y + to, static_cast<const std::byte*>(inputs[piece]) + from, bytes, stream);
    });
}

Split::Split(Dims x, const Dims& sizes, std::int64_t axis, ElementType type, int threads) : Kernel("Split", threads) {
    const std::size_t along = checked_axis(axis, x.size());
    std::int64_t total = 0;
    for (const std::int64_t size : sizes) {
        Dims part = x;
        part[along] = size;
        total += size;
        outputs_.push_back({std::string("y").append(std::to_string(outputs_.size())), part, type, true});
    }
    inputs_ = {{"x", std::move(x), type}};
    if (total != inputs_[0].shape[along] || std::any_of(sizes.begin(), sizes.end(), [](auto n) { return n < 0; })) {
        throw NativeError(describe() + ": the sizes of the parts must be at least 0 and add up to the size of axis " +
                          std::to_string(along));
    }
    pieces_ = make_pieces(outputs_, along);
}

void Split::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    const auto* x = static_cast<const std::byte*>(inputs[0]);
    const auto columns = static_cast<std::int64_t>(pieces_.ends.size());
    if (const std::int64_t bytes = pieces_.column_bytes(); bytes > 0) {
        return for_column_blocks(
            threads(), pieces_, [&](std::byte* buffer, std::int64_t at, std::int64_t rows, TransposeTable::Tile tile) {
                tile(x + at * columns, buffer, columns * bytes, rows * bytes, columns, rows, false);
                for (std::int64_t i = 0; i < columns; ++i) {
                    if (outputs[i] != nullptr) {
                        auto* y = static_cast<std::byte*>(outputs[i]) + at;
                        std::memcpy(y, buffer + i * rows * bytes, static_cast<std::size_t>(rows * bytes));
                    }
                }
            });
    }
    if (pieces_.are_short()) {
        return for_short_parts(
            threads(), pieces_,
            [&](std::size_t piece, std::int64_t to, std::int64_t from, std::int64_t bytes, std::int64_t rows) {
                if (outputs[piece] != nullptr) {
                    auto* y = static_cast<std::byte*>(outputs[piece]) + to;
                    copy_parts_of_rows(y, bytes, x + from, pieces_.row(), bytes, rows);
                }
            });
    }
    for_parts(threads(), pieces_, [&](std::size_t piece, std::int64_t to, std::int64_t from, auto bytes, bool stream) {
        if (outputs[piece] != nullptr) {
            copy_piece(static_cast<std::byte*>(outputs[piece]) + to, x + from, bytes, stream);
        }
    });
}

GRAPHKIT_KERNEL_READING("", Concat) {
    std::vector<Dims> xs;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        xs.push_back(node.input(i).tensor.shape);
    }
    return std::make_unique<Concat>(xs, node.integer("axis"), node.input(0).tensor.type, node.threads);
}

GRAPHKIT_KERNEL_READING("", Split) {
    const TensorSpec& x = node.input(0).tensor;
    const std::int64_t axis = node.integer("axis");
    const std::size_t place = checked_axis(axis, x.shape.size());
    Dims sizes;
    for (const TensorSpec& y : node.outputs) {
        sizes.push_back(y.shape.at(place));
    }
    return std::make_unique<Split>(x.shape, sizes, axis, x.type, node.threads);
}

GRAPHKIT_BINDINGS(concat) {
    nb::class_<Concat, Kernel>(m, "Concat")
        .def(
            "__init__",
            [](Concat* self, const std::vector<Dims>& xs, std::int64_t axis, Text dtype, int threads) {
                new (self) Concat(xs, axis, element_type(dtype), threads);
            },
            "xs"_a, "axis"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<Split, Kernel>(m, "Split")
        .def(
            "__init__",
            [](Split* self, Dims x, const Dims& sizes, std::int64_t axis, Text dtype, int threads) {
                new (self) Split(std::move(x), sizes, axis, element_type(dtype), threads);
            },
            "x"_a, "sizes"_a, "axis"_a, "dtype"_a, "threads"_a = 0);
}

}  // namespace graphkit
