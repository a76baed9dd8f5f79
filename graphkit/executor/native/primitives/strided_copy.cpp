#include "primitives/strided_copy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "primitives/elements.h"
#include "primitives/narrow.h"
#include "runtime/isa.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

constexpr std::size_t kMaxAxes = 32;

// Calls body(source offset, target offset, count) for iterations [begin, end) of nested loops, in runs along the last
// loop.
template <typename Body>
void for_runs(const std::vector<CopyAxis>& axes, std::int64_t begin, std::int64_t end, Body&& body) {
    if (axes.empty()) {
        body(std::int64_t{0}, std::int64_t{0}, end - begin);
        return;
    }
    const std::size_t last = axes.size() - 1;
    std::array<std::int64_t, kMaxAxes> position{};
    std::int64_t source = 0;
    std::int64_t target = 0;
    std::int64_t rest = begin;
    for (std::size_t i = axes.size(); i-- > 0;) {
        position[i] = rest % axes[i].size;
        rest /= axes[i].size;
        source += position[i] * axes[i].source;
        target += position[i] * axes[i].target;
    }
    for (std::int64_t done = begin; done < end;) {
        const std::int64_t run = std::min(end - done, axes[last].size - position[last]);
        body(source, target, run);
        done += run;
        position[last] += run;
        source += run * axes[last].source;
        target += run * axes[last].target;
        for (std::size_t i = last; i > 0 && position[i] == axes[i].size; --i) {
            position[i] = 0;
            ++position[i - 1];
            source += axes[i - 1].source - axes[i].size * axes[i].source;
            target += axes[i - 1].target - axes[i].size * axes[i].target;
        }
    }
}

std::int64_t product(const std::vector<CopyAxis>& axes) {
    std::int64_t total = 1;
    for (const CopyAxis& axis : axes) {
        total *= axis.size;
    }
    return total;
}

CopyAxis last_of(const std::vector<CopyAxis>& axes) {
    return axes.empty() ? CopyAxis{1, 0, 0} : axes.back();
}

template <typename T>
void copy_row(const std::byte* source, std::byte* target, const CopyAxis& row) {
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
    if (row.target == kSize && row.source == -kSize) {
        for (std::int64_t i = 0; i < row.size; ++i) {
            store_element(target + i * kSize, load_element<T>(source - i * kSize));
        }
    } else if (row.target == kSize && row.source == 2 * kSize) {
        for (std::int64_t i = 0; i < row.size; ++i) {
            store_element(target + i * kSize, load_element<T>(source + 2 * i * kSize));
        }
    } else {
        for (std::int64_t i = 0; i < row.size; ++i) {
            store_element(target + i * row.target, load_element<T>(source + i * row.source));
        }
    }
}

constexpr std::int64_t kLine = 64;
// Rows shorter than this are filled element by element.
constexpr std::int64_t kShortFill = 2 * kLine;

template <typename T>
void fill_row(const std::byte* source, std::byte* target, std::int64_t size, const TransposeTable& table) {
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
    const T value = load_element<T>(source);
    if (size * kSize < kShortFill) {
        for (std::int64_t i = 0; i < size; ++i) {
            store_element(target + i * kSize, value);
        }
        return;
    }
    std::byte line[kLine];
    for (std::int64_t i = 0; i < kLine; i += kSize) {
        store_element(line + i, value);
    }
    table.fill(target, line, size * kSize);
}

// Largest number of elements along each side of a block that is transposed in a buffer.
constexpr std::int64_t kBufferSide = 128;

}  // namespace

StridedCopy::StridedCopy(const Dims& sizes, const Dims& source_strides, const Dims& target_strides, std::size_t element)
    : element_(static_cast<std::int64_t>(element)), table_(&transpose_table()) {
    if (count(sizes) == 0) {
        return;
    }
    stream_ = count(sizes) * element_ >= kStreamBytes;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        CopyAxis axis{sizes[i], source_strides[i] * element_, target_strides[i] * element_};
        if (axis.size == 1) {
            continue;
        }
        if (axis.target < 0) {
            source_offset_ += (axis.size - 1) * axis.source;
            target_offset_ += (axis.size - 1) * axis.target;
            axis.source = -axis.source;
            axis.target = -axis.target;
        }
        outer_.push_back(axis);
    }
    std::stable_sort(outer_.begin(), outer_.end(),
                     [](const CopyAxis& a, const CopyAxis& b) { return a.target > b.target; });
    for (std::size_t i = outer_.size(); i-- > 1;) {
        CopyAxis& slow = outer_[i - 1];
        const CopyAxis& fast = outer_[i];
        if (slow.source == fast.source * fast.size && slow.target == fast.target * fast.size) {
            slow = {slow.size * fast.size, fast.source, fast.target};
            outer_.erase(outer_.begin() + static_cast<std::ptrdiff_t>(i));
        }
    }
    if (outer_.size() > kMaxAxes) {
        throw Unsupported("a copy of more than " + std::to_string(kMaxAxes) + " axes");
    }
    find_copies();
    choose();
}

// If an axis repeats a contiguous block that consists of several rows, only one of the blocks is copied row by row.
void StridedCopy::find_copies() {
    constexpr std::int64_t kCachedBytes = std::int64_t{1} << 20;  // of all blocks that are copied again
    if (stream_) {
        return;
    }
    std::vector<std::int64_t> inside(outer_.size() + 1, element_);  // contiguous bytes of an axis; 0: not contiguous
    for (std::size_t i = outer_.size(); i-- > 0;) {
        inside[i] = outer_[i].target == inside[i + 1] ? inside[i + 1] * outer_[i].size : 0;
    }
    std::int64_t blocks = 1;
    for (std::size_t i = 0; i + 2 < outer_.size(); blocks *= outer_[i++].size) {
        if (outer_[i].source == 0 && inside[i] != 0 && (i == 0 || blocks * inside[i + 1] <= kCachedBytes)) {
            block_ = inside[i + 1];
            for (std::size_t axis = 0; axis < i; ++axis) {
                copied_.push_back({outer_[axis].size, outer_[axis].target, outer_[axis].target});
            }
            copied_.push_back({outer_[i].size - 1, 0, block_});
            outer_.erase(outer_.begin() + static_cast<std::ptrdiff_t>(i));
            return;
        }
    }
}

void StridedCopy::choose() {
    const auto is_row = [&] {
        return !outer_.empty() && outer_.back().source == element_ && outer_.back().target == element_;
    };
    if (is_row()) {
        const std::int64_t bytes = outer_.back().size * element_;
        if (outer_.size() > 1 && (bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16)) {
            element_ = bytes;
            outer_.pop_back();
        }
    }
    if (outer_.empty() || is_row()) {
        inner_ = Inner::rows;
        row_ = outer_.empty() ? CopyAxis{1, element_, element_} : outer_.back();
        if (!outer_.empty()) {
            outer_.pop_back();
        }
        return;
    }
    row_ = outer_.back();
    outer_.pop_back();
    inner_ = Inner::elements;
    if (row_.target != element_) {
        return;
    }
    if (row_.source == 0) {
        inner_ = Inner::fill;
        return;
    }
    const auto column =
        std::find_if(outer_.begin(), outer_.end(), [&](const CopyAxis& axis) { return axis.source == element_; });
    if (column != outer_.end() && element_ <= 8) {
        inner_ = Inner::tiles;
        column_ = *column;
        outer_.erase(column);
    }
    if (inner_ == Inner::tiles && narrow()) {
        // The source is read in its order: each step writes several rows of the target anyway.
        std::stable_sort(outer_.begin(), outer_.end(),
                         [](const CopyAxis& a, const CopyAxis& b) { return a.source > b.source; });
    }
}

// Whether the source has contiguous rows of a few elements: the tile function reads any number of them at a time.
bool StridedCopy::narrow() const {
    return column_.size <= kNarrow && row_.source == column_.size * element_;
}

// Whether every step of the outer loops begins at a boundary of cache lines.
bool StridedCopy::lines_stay_whole(const std::byte* target) const {
    return reinterpret_cast<std::uintptr_t>(target) % kLine == 0 &&
           std::all_of(outer_.begin(), outer_.end(), [](const CopyAxis& axis) { return axis.target % kLine == 0; });
}

// Writes `rows` contiguous copies of a row. After the first bytes, each copy is of all copies before it.
static void repeat_row(std::byte* target, const std::byte* source, std::int64_t bytes, std::int64_t rows) {
    constexpr std::int64_t kLongest = 4096;
    const std::int64_t total = bytes * rows;
    std::memcpy(target, source, static_cast<std::size_t>(bytes));
    std::int64_t period = bytes;
    std::int64_t done = bytes;
    while (done < total) {
        const std::int64_t next = std::min(period, total - done);
        std::memcpy(target + done, target, static_cast<std::size_t>(next));
        done += next;
        period = done <= kLongest ? done : period;
    }
}

// Rows of at most this many bytes are copied by code for their size, also if they are repeated at most kFewRepeats
// times.
constexpr std::int64_t kShortRow = 32;
constexpr std::int64_t kFewRepeats = 16;

// Calls body(std::integral_constant<int, bytes>).
template <int Bytes = 1, typename Body>
static void with_bytes(std::int64_t bytes, Body&& body) {
    if constexpr (Bytes < kShortRow) {
        if (bytes != Bytes) {
            return with_bytes<Bytes + 1>(bytes, body);
        }
    }
    body(std::integral_constant<int, Bytes>{});
}

static void copy_short_rows(int threads, const std::vector<CopyAxis>& axes, std::int64_t bytes, double cost,
                            const std::byte* source, std::byte* target) {
    const CopyAxis step = last_of(axes);
    with_bytes(bytes, [&](auto size) {
        parallel_for(threads, product(axes), cost, [&](std::int64_t begin, std::int64_t end) {
            for_runs(axes, begin, end, [&](std::int64_t from, std::int64_t to, std::int64_t rows) {
                for (std::int64_t i = 0; i < rows; ++i) {
                    std::memcpy(target + to + i * step.target, source + from + i * step.source, decltype(size)::value);
                }
            });
        });
    });
}

void StridedCopy::run_repeats(int threads, const std::byte* source, std::byte* target) const {
    const std::int64_t bytes = row_.size * element_;
    const std::int64_t repeats = outer_.back().size;
    const std::vector<CopyAxis> others(outer_.begin(), outer_.end() - 1);
    const CopyAxis step = last_of(others);
    const double cost = nanoseconds(static_cast<double>(bytes * repeats)) + 1;
    with_bytes(bytes, [&](auto size) {
        constexpr int kBytes = decltype(size)::value;
        parallel_for(threads, product(others), cost, [&](std::int64_t begin, std::int64_t end) {
            for_runs(others, begin, end, [&](std::int64_t from, std::int64_t to, std::int64_t rows) {
                for (std::int64_t row = 0; row < rows; ++row) {
                    std::byte copy[kBytes];
                    std::memcpy(copy, source + from + row * step.source, kBytes);
                    std::byte* const place = target + to + row * step.target;
                    for (std::int64_t i = 0; i < repeats; ++i) {
                        std::memcpy(place + i * kBytes, copy, kBytes);
                    }
                }
            });
        });
    });
}

double StridedCopy::nanoseconds(double bytes) const {
    return bytes / kBytesPerNanosecond;
}

void StridedCopy::run(int threads, const void* source, void* target) const {
    const auto* from = static_cast<const std::byte*>(source) + source_offset_;
    auto* to = static_cast<std::byte*>(target) + target_offset_;
    run_once(threads, from, to);
    if (copied_.empty()) {
        return;
    }
    const double cost = nanoseconds(static_cast<double>(block_));
    parallel_for(threads, product(copied_), cost, [&](std::int64_t begin, std::int64_t end) {
        for_runs(copied_, begin, end, [&](std::int64_t block, std::int64_t copy, std::int64_t copies) {
            for (std::int64_t i = 1; i <= copies; ++i) {
                std::memcpy(to + copy + i * block_, to + block, static_cast<std::size_t>(block_));
            }
        });
    });
}

void StridedCopy::run_once(int threads, const std::byte* from, std::byte* to) const {
    switch (inner_) {
        case Inner::nothing:
            return;
        case Inner::rows:
            return run_rows(threads, from, to);
        case Inner::tiles:
            return run_tiles(threads, from, to);
        case Inner::fill:
        case Inner::elements:
            return run_elements(threads, from, to);
    }
}

void StridedCopy::run_rows(int threads, const std::byte* source, std::byte* target) const {
    const std::int64_t bytes = row_.size * element_;
    if (outer_.empty()) {  // one copy, in parts
        copy(threads, target, source, bytes);
        return;
    }
    const CopyAxis step = last_of(outer_);
    const double cost = nanoseconds(static_cast<double>(bytes)) + 1;
    // Prefetch: the hardware cannot predict short rows that are far from each other.
    constexpr std::int64_t kAhead = 6;
    const std::int64_t ahead = bytes >= kLine && bytes <= 1024 && step.source > bytes ? kAhead * step.source : 0;
    const bool stream_whole = stream_ && lines_stay_whole(target) && bytes % kLine == 0;
    constexpr std::int64_t kRepeatedRow = 1024;
    const bool repeats = step.source == 0 && step.target == bytes && bytes < kRepeatedRow;
    if (repeats && step.size <= kFewRepeats && bytes <= kShortRow) {
        return run_repeats(threads, source, target);
    }
    if (!repeats && !stream_ && bytes <= kShortRow) {
        return copy_short_rows(threads, outer_, bytes, cost, source, target);
    }
    parallel_for(threads, product(outer_), cost, [&](std::int64_t begin, std::int64_t end) {
        for_runs(outer_, begin, end, [&](std::int64_t from, std::int64_t to, std::int64_t rows) {
            if (repeats) {
                return repeat_row(target + to, source + from, bytes, rows);
            }
            for (std::int64_t i = 0; i < rows; ++i) {
                const std::byte* source_row = source + from + i * step.source;
                std::byte* target_row = target + to + i * step.target;
                if (ahead != 0 && i + kAhead < rows) {
                    for (std::int64_t line = 0; line < bytes; line += kLine) {
                        __builtin_prefetch(source_row + ahead + line);
                    }
                }
                if (stream_whole) {
                    stream_lines(target_row, source_row, bytes);
                } else if (stream_) {
                    stream_bytes(target_row, source_row, bytes);
                } else {
                    copy_bytes(target_row, source_row, static_cast<std::size_t>(bytes));
                }
            }
        });
        if (stream_) {
            end_stream();
        }
    });
}

void StridedCopy::run_elements(int threads, const std::byte* source, std::byte* target) const {
    const CopyAxis step = last_of(outer_);
    const double cost = static_cast<double>(row_.size) * 0.5 + 2;
    // A single row is divided among threads.
    const std::int64_t parts = outer_.empty() ? row_.size : 1;
    with_element(static_cast<std::size_t>(element_), [&](auto element) {
        using T = decltype(element);
        const auto copy_one = [&](const std::byte* from, std::byte* to, const CopyAxis& row) {
            inner_ == Inner::fill ? fill_row<T>(from, to, row.size, *table_) : copy_row<T>(from, to, row);
        };
        if (parts > 1) {
            parallel_for(threads, parts, 0.5, [&](std::int64_t begin, std::int64_t end) {
                copy_one(source + begin * row_.source, target + begin * row_.target,
                         {end - begin, row_.source, row_.target});
            });
            return;
        }
        parallel_for(threads, product(outer_), cost, [&](std::int64_t begin, std::int64_t end) {
            for_runs(outer_, begin, end, [&](std::int64_t from, std::int64_t to, std::int64_t rows) {
                for (std::int64_t i = 0; i < rows; ++i) {
                    copy_one(source + from + i * step.source, target + to + i * step.target, row_);
                }
            });
        });
    });
}

void StridedCopy::run_tiles(int threads, const std::byte* source, std::byte* target) const {
    const TransposeTable::Tile tile = table_->tile[std::countr_zero(static_cast<std::uint64_t>(element_))];
    const bool direct = stream_ && lines_stay_whole(target) && column_.target % kLine == 0;
    const bool narrow = this->narrow();
    const bool buffered = stream_ && !direct && !narrow && row_.size * element_ >= 8 * kLine;
    // Blocks contain whole rows of the source or, if these are long, long parts of a few rows, for the hardware
    // prefetchers. Blocks that go through a buffer also have long rows in the target, because only whole cache lines
    // can bypass the caches.
    const bool long_rows = !buffered && column_.size * element_ > 1024;
    const std::int64_t strip = kLine / element_;
    const std::int64_t side = std::min<std::int64_t>(512 / element_, kBufferSide);
    const std::int64_t down = buffered ? side : (long_rows ? 2048 : 1024) / element_;
    const std::int64_t few = 256 / element_;
    const bool in_strips = long_rows && row_.size > few;
    const std::int64_t along = buffered ? side : narrow ? 16384 / element_ : in_strips ? strip : few;
    // The last block gets the rest, because blocks of a few elements are slow. Only buffers limit it.
    const auto blocks_of = [&](std::int64_t size, std::int64_t block) {
        return buffered ? (size + block - 1) / block : std::max<std::int64_t>(size / block, 1);
    };
    const std::int64_t blocks_down = blocks_of(column_.size, down);
    const std::int64_t blocks_along = blocks_of(row_.size, along);
    const std::int64_t blocks = blocks_down * blocks_along;
    const auto block_bytes = static_cast<double>(std::min(along, row_.size) * std::min(down, column_.size) * element_);
    const auto move_blocks = [&](std::int64_t begin, std::int64_t end) {
        alignas(kAlignment) std::byte buffer[kBufferSide * 512];
        const auto move_block = [&](const std::byte* from, std::byte* to, std::int64_t block) {
            const std::int64_t a = block / blocks_along * down;
            const std::int64_t b = block % blocks_along * along;
            const bool ends_down = block / blocks_along + 1 == blocks_down;
            const bool ends_along = block % blocks_along + 1 == blocks_along;
            const std::int64_t rows = ends_down ? column_.size - a : down;
            const std::int64_t columns = ends_along ? row_.size - b : along;
            from += a * element_ + b * row_.source;
            to += a * column_.target + b * element_;
            if (!buffered) {
                return tile(from, to, row_.source, column_.target, rows, columns, direct);
            }
            const std::int64_t pitch = along * element_;
            for (std::int64_t column = 0; column < columns; column += strip) {
                tile(from + column * row_.source, buffer + column * element_, row_.source, pitch, rows,
                     std::min(strip, columns - column), false);
            }
            for (std::int64_t row = 0; row < rows; ++row) {
                stream_bytes(to + row * column_.target, buffer + row * pitch, columns * element_);
            }
        };
        const CopyAxis step = last_of(outer_);
        // The processor's own prefetchers do not know where the next rows begin.
        const std::int64_t source_bytes = narrow ? row_.size * row_.source : 0;
        const bool prefetches = narrow && step.source > source_bytes && source_bytes <= 4096;
        if (blocks == 1) {
            for_runs(outer_, begin, end, [&](std::int64_t from, std::int64_t to, std::int64_t rows) {
                for (std::int64_t i = 0; i < rows; ++i) {
                    if (prefetches && i + 1 < rows) {
                        const std::byte* const next = source + from + (i + 1) * step.source;
                        for (std::int64_t line = 0; line < source_bytes; line += kLine) {
                            __builtin_prefetch(next + line);
                        }
                    }
                    move_block(source + from + i * step.source, target + to + i * step.target, 0);
                }
            });
        }
        for (std::int64_t at = blocks == 1 ? end : begin; at < end;) {
            const std::int64_t first = at % blocks;
            const std::int64_t last = std::min(blocks, first + end - at);
            for_runs(outer_, at / blocks, at / blocks + 1, [&](std::int64_t from, std::int64_t to, std::int64_t) {
                for (std::int64_t block = first; block < last; ++block) {
                    move_block(source + from, target + to, block);
                }
            });
            at += last - first;
        }
        if (direct || buffered) {
            end_stream();
        }
    };
    parallel_for(threads, product(outer_) * blocks, 2 * nanoseconds(block_bytes) + 2, move_blocks);
}

void require_inside(const Kernel& kernel, const Dims& sizes, const Dims& strides, std::int64_t offset,
                    std::int64_t elements) {
    if (sizes.size() != strides.size()) {
        throw NativeError(kernel.describe() + ": sizes and strides have different lengths");
    }
    if (count(sizes) == 0) {
        return;
    }
    std::int64_t lowest = offset;
    std::int64_t highest = offset;
    bool overflows = false;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        std::int64_t reach = 0;
        overflows = __builtin_mul_overflow(sizes[i] - 1, strides[i], &reach) || overflows;
        std::int64_t& end = reach < 0 ? lowest : highest;
        overflows = __builtin_add_overflow(end, reach, &end) || overflows;
    }
    if (overflows || lowest < 0 || highest >= elements) {
        throw NativeError(kernel.describe() + ": the view leaves the array");
    }
}

}  // namespace graphkit
