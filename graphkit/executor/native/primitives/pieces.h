// Arrays that are concatenated along an axis: in each row of the whole array, the pieces follow each other; each piece
// is also an array of its own.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "primitives/elements.h"
#include "primitives/narrow.h"
#include "runtime/threads.h"

namespace graphkit {

// The whole array as rows of bytes. Each row contains a part of every piece.
struct Pieces {
    std::int64_t rows = 0;
    std::vector<std::int64_t> ends;  // the end of each piece in a row, in bytes; the last one is the row's length

    // Whether there are several rows, and the parts of a row have at most kShortPiece bytes on average.
    bool are_short() const;

    // The bytes of each part of a row, if rows are narrow and all parts are single elements of 1, 2, 4 or 8 bytes; else
    // 0.
    std::int64_t column_bytes() const;

    std::int64_t row() const { return ends.empty() ? 0 : ends.back(); }
};

inline void copy_piece(std::byte* to, const std::byte* from, std::int64_t bytes, bool stream) {
    if (stream) {
        stream_bytes(to, from, bytes);
    } else {
        copy_bytes(to, from, static_cast<std::size_t>(bytes));
    }
}

// Parts of about this many bytes are copied piece by piece for some rows at a time.
constexpr std::int64_t kShortPiece = 32;

inline std::int64_t Pieces::column_bytes() const {
    const auto parts = static_cast<std::int64_t>(ends.size());
    const std::int64_t bytes = parts < 2 || parts > kNarrow ? 0 : ends[0];
    if (rows < 2 || bytes > 8 || !std::has_single_bit(static_cast<std::uint64_t>(bytes))) {
        return 0;
    }
    for (std::size_t i = 1; i < ends.size(); ++i) {
        if (ends[i] - ends[i - 1] != bytes) {
            return 0;
        }
    }
    return bytes;
}

inline bool Pieces::are_short() const {
    return rows > 1 && row() > 0 && row() <= kShortPiece * static_cast<std::int64_t>(ends.size());
}

// Copies `rows` parts of `bytes` bytes, which are to_step and from_step bytes apart.
inline void copy_parts_of_rows(std::byte* to, std::int64_t to_step, const std::byte* from, std::int64_t from_step,
                               std::int64_t bytes, std::int64_t rows) {
    const auto size = static_cast<std::size_t>(bytes);
    if (size <= sizeof(Block16) && std::has_single_bit(size)) {
        return with_element(size, [&](auto word) {
            for (std::int64_t row = 0; row < rows; ++row) {
                store_element(to + row * to_step, load_element<decltype(word)>(from + row * from_step));
            }
        });
    }
    for (std::int64_t row = 0; row < rows; ++row) {
        copy_bytes(to + row * to_step, from + row * from_step, size);
    }
}

// Calls body(piece, offset in it, offset in the whole, bytes, rows) for blocks of rows that stay in a near cache.
template <typename Body>
void for_short_parts(int threads, const Pieces& pieces, Body&& body) {
    const std::int64_t row = pieces.row();
    const std::int64_t block = std::max<std::int64_t>(1, 16384 / row);
    const double cost = 2 * static_cast<double>(row) / kBytesPerNanosecond + static_cast<double>(pieces.ends.size());
    parallel_for(threads, pieces.rows, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t first = begin; first < end; first += block) {
            const std::int64_t rows = std::min(block, end - first);
            std::int64_t start = 0;
            for (std::size_t piece = 0; piece < pieces.ends.size(); ++piece) {
                const std::int64_t length = pieces.ends[piece] - start;
                if (length > 0) {
                    body(piece, first * length, first * row + start, length, rows);
                }
                start = pieces.ends[piece];
            }
        }
    });
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
