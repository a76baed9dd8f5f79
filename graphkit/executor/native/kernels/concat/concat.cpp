// Concat and Split: pieces that lie one after the other along an axis.
#include <algorithm>

#include "primitives/elements.h"
#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// An array as rows of bytes, each of which has a part of every piece.
struct Pieces {
    std::int64_t rows = 0;
    std::vector<std::int64_t> ends;  // of each piece in a row; the last one is the row's length

    std::int64_t row() const { return ends.empty() ? 0 : ends.back(); }
};

// y = the operands one after the other along `axis`. Any element type.
class Concat final : public Kernel {
  public:
    Concat(const std::vector<Dims>& xs, std::int64_t axis, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    Pieces pieces_;
};

// Parts of x along `axis`, of the given sizes. Outputs that nobody reads may be left out. Any element type.
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

void copy_piece(std::byte* to, const std::byte* from, std::int64_t bytes, bool stream) {
    if (stream) {
        stream_bytes(to, from, bytes);
    } else {
        copy_bytes(to, from, static_cast<std::size_t>(bytes));
    }
}

// Calls body(piece, offset in it, offset in the whole, bytes, stream) for all bytes, in parts that lie together on both
// sides; `stream` when the whole does not fit into the caches.
template <typename Body>
void for_parts(int threads, const Pieces& pieces, Body&& body) {
    const std::int64_t row = pieces.row();
    const double pieces_per_byte =
        static_cast<double>(pieces.ends.size()) / static_cast<double>(std::max<std::int64_t>(row, 1));
    const double cost = 1 / kBytesPerNanosecond + 3 * pieces_per_byte;
    parallel_for(
        threads, pieces.rows * row, cost,
        [&](std::int64_t begin, std::int64_t end) {
            std::int64_t number = begin / row;
            std::int64_t inside = begin % row;
            std::size_t piece = static_cast<std::size_t>(
                std::upper_bound(pieces.ends.begin(), pieces.ends.end(), inside) - pieces.ends.begin());
            const bool stream = pieces.rows * row >= kStreamBytes;
            for (std::int64_t at = begin; at < end;) {
                const std::int64_t start = piece == 0 ? 0 : pieces.ends[piece - 1];
                const std::int64_t length = pieces.ends[piece] - start;
                const std::int64_t bytes = std::min(end - at, start + length - inside);
                body(piece, number * length + inside - start, at, bytes, stream);
                at += bytes;
                inside += bytes;
                if (++piece == pieces.ends.size()) {
                    piece = 0;
                    inside = 0;
                    ++number;
                }
            }
            if (stream) {
                end_stream();
            }
        },
        kAlignment);
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
            throw NativeError(describe() + ": the operands differ beside axis " + std::to_string(along));
        }
        joined[along] += x[along];
    }
    outputs_ = {{"y", joined, type}};
    pieces_ = make_pieces(inputs_, along);
}

void Concat::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    auto* y = static_cast<std::byte*>(outputs[0]);
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
        throw NativeError(describe() + ": the parts do not add up to axis " + std::to_string(along));
    }
    pieces_ = make_pieces(outputs_, along);
}

void Split::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    const auto* x = static_cast<const std::byte*>(inputs[0]);
    for_parts(threads(), pieces_, [&](std::size_t piece, std::int64_t to, std::int64_t from, auto bytes, bool stream) {
        if (outputs[piece] != nullptr) {
            copy_piece(static_cast<std::byte*>(outputs[piece]) + to, x + from, bytes, stream);
        }
    });
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
