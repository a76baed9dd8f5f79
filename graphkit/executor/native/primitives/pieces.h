// Arrays that are concatenated along an axis: in each row of the whole array, the pieces follow each other; each piece
// is also an array of its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "primitives/elements.h"
#include "runtime/threads.h"

namespace graphkit {

// The whole array as rows of bytes. Each row contains a part of every piece.
struct Pieces {
    std::int64_t rows = 0;
    std::vector<std::int64_t> ends;  // the end of each piece in a row, in bytes; the last one is the row's length

    std::int64_t row() const { return ends.empty() ? 0 : ends.back(); }
};

inline void copy_piece(std::byte* to, const std::byte* from, std::int64_t bytes, bool stream) {
    if (stream) {
        stream_bytes(to, from, bytes);
    } else {
        copy_bytes(to, from, static_cast<std::size_t>(bytes));
    }
}

// Calls body(piece, offset in it, offset in the whole, bytes, stream) for all bytes, in parts that are contiguous on
// both sides. `stream`: the whole does not fit into the caches.
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

}  // namespace graphkit
