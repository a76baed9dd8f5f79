#include "primitives/axis_gather.h"

#include <algorithm>
#include <array>
#include <limits>

#include "primitives/elements.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// Runs shorter than this are copied element by element.
constexpr std::int64_t kShortRun = 24;

template <typename T>
void fill_with(std::byte* to, std::int64_t bytes, T value) {
    for (std::int64_t i = 0; i < bytes; i += static_cast<std::int64_t>(sizeof(T))) {
        store_element(to + i, value);
    }
}

bool is_identity(const Dims& map, std::int64_t size) {
    for (std::size_t i = 0; i < map.size(); ++i) {
        if (map[i] != static_cast<std::int64_t>(i)) {
            return false;
        }
    }
    return static_cast<std::int64_t>(map.size()) == size;
}

}  // namespace

AxisGather::AxisGather(const Dims& x, const Maps& maps, std::size_t element, Dims& y) : element_(element) {
    if (maps.size() != x.size()) {
        throw NativeError("a map is needed for each of " + std::to_string(x.size()) + " axes");
    }
    y.clear();
    const Dims strides = row_major(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
        const Dims map = maps[i].value_or(Dims{});
        for (const std::int64_t position : map) {
            if (position < -1 || position >= x[i]) {
                throw NativeError("position " + std::to_string(position) + " is outside axis " + std::to_string(i) +
                                  " of " + to_string(x));
            }
        }
        y.push_back(maps[i] ? static_cast<std::int64_t>(map.size()) : x[i]);
        Axis axis{y.back(), strides[i] * static_cast<std::int64_t>(element), map};
        if (!maps[i] || is_identity(map, x[i])) {
            axis.map.clear();
            if (!outer_.empty() && outer_.back().map.empty()) {
                outer_.back().size *= axis.size;
                outer_.back().stride = axis.stride;
                continue;
            }
        }
        outer_.push_back(std::move(axis));
    }
    const std::int64_t total = count(y);
    if (total == 0) {
        return;
    }
    // What is copied whole below the last mapped axis.
    auto block = static_cast<std::int64_t>(element);
    if (!outer_.empty() && outer_.back().map.empty()) {
        block *= outer_.back().size;
        outer_.pop_back();
    }
    Axis row{1, 0, {0}};
    if (!outer_.empty()) {
        row = std::move(outer_.back());
        outer_.pop_back();
    }
    row_bytes_ = row.size * block;
    rows_ = total * static_cast<std::int64_t>(element) / row_bytes_;
    for (std::int64_t i = 0; i < row.size; ++i) {
        const std::int64_t position = row.map[static_cast<std::size_t>(i)];
        const std::int64_t source = position < 0 ? -1 : position * row.stride;
        const bool joins = !runs_.empty() && (source < 0 ? runs_.back().source < 0
                                                         : runs_.back().source >= 0 &&
                                                               source == runs_.back().source + runs_.back().bytes);
        if (joins) {
            runs_.back().bytes += block;
        } else {
            runs_.push_back({i * block, block, source});
        }
    }
    const bool fits = row.stride * std::max<std::int64_t>(row.size, 1) < std::numeric_limits<std::int32_t>::max() &&
                      (row.map.empty() || *std::max_element(row.map.begin(), row.map.end()) * row.stride <
                                              std::numeric_limits<std::int32_t>::max());
    if (block == static_cast<std::int64_t>(element) && fits &&
        row_bytes_ < kShortRun * static_cast<std::int64_t>(runs_.size())) {
        for (const std::int64_t position : row.map) {
            picks_.push_back(static_cast<std::int32_t>(position < 0 ? -1 : position * row.stride));
        }
        const bool filled = std::any_of(runs_.begin(), runs_.end(), [](const Run& run) { return run.source < 0; });
        if (!filled) {
            runs_.clear();
        }
    }
}

// The offset in x of a row of y, or -1 when it is filled.
std::int64_t AxisGather::source_of(std::int64_t row) const {
    std::int64_t offset = 0;
    for (std::size_t i = outer_.size(); i-- > 0;) {
        const Axis& axis = outer_[i];
        const std::int64_t position = row % axis.size;
        row /= axis.size;
        const std::int64_t source = axis.map.empty() ? position : axis.map[static_cast<std::size_t>(position)];
        if (source < 0) {
            return -1;
        }
        offset += source * axis.stride;
    }
    return offset;
}

template <typename T>
void AxisGather::copy_row(const std::byte* x, std::byte* y, T fill) const {
    if (picks_.empty()) {
        for (const Run& run : runs_) {
            if (run.source < 0) {
                fill_with(y + run.target, run.bytes, fill);
            } else {
                copy_bytes(y + run.target, x + run.source, static_cast<std::size_t>(run.bytes));
            }
        }
    } else if (runs_.empty()) {
        for (std::size_t i = 0; i < picks_.size(); ++i) {
            store_element(y + i * sizeof(T), load_element<T>(x + picks_[i]));
        }
    } else {
        for (std::size_t i = 0; i < picks_.size(); ++i) {
            store_element(y + i * sizeof(T), picks_[i] < 0 ? fill : load_element<T>(x + picks_[i]));
        }
    }
}

void AxisGather::run(int threads, const std::byte* x, std::byte* y, const std::byte* fill) const {
    const double cost = static_cast<double>(row_bytes_) / kBytesPerNanosecond + 2 * static_cast<double>(runs_.size()) +
                        0.5 * static_cast<double>(picks_.size()) + 5;
    with_element(element_, [&](auto element) {
        using T = decltype(element);
        const T value = load_element<T>(fill);
        parallel_for(threads, rows_, cost, [&](std::int64_t begin, std::int64_t end) {
            std::int64_t before = -2;
            for (std::int64_t row = begin; row < end; ++row) {
                std::byte* to = y + row * row_bytes_;
                const std::int64_t source = source_of(row);
                if (source < 0) {
                    fill_with(to, row_bytes_, value);
                } else if (source == before) {  // as when an image is enlarged
                    copy_bytes(to, to - row_bytes_, static_cast<std::size_t>(row_bytes_));
                } else {
                    copy_row<T>(x + source, to, value);
                }
                before = source;
            }
        });
    });
}

}  // namespace graphkit
