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
    // The block that is copied as a whole: everything behind the last mapped axis.
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
    std::int64_t in_short_runs = 0;
    for (const Run& run : runs_) {
        in_short_runs += run.bytes < kShortRun ? run.bytes : 0;
    }
    const bool single =
        block == static_cast<std::int64_t>(element) && fits && row_bytes_ < std::numeric_limits<std::int32_t>::max();
    if (single && 2 * in_short_runs > row_bytes_) {
        for (const std::int64_t position : row.map) {
            picks_.push_back(static_cast<std::int32_t>(position < 0 ? -1 : position * row.stride));
        }
        const bool filled = std::any_of(runs_.begin(), runs_.end(), [](const Run& run) { return run.source < 0; });
        if (!filled) {
            runs_.clear();
        }
    } else if (single) {
        move_single_elements();
    }
}

void AxisGather::move_single_elements() {
    std::vector<Run> others;
    for (const Run& run : runs_) {
        if (run.bytes != static_cast<std::int64_t>(element_)) {
            others.push_back(run);
        } else if (run.source < 0) {
            filled_.push_back(static_cast<std::int32_t>(run.target));
        } else {
            single_.push_back({static_cast<std::int32_t>(run.target), static_cast<std::int32_t>(run.source)});
        }
    }
    runs_ = std::move(others);
}

// Iterates over the rows of y. For each row, gives its offset in x, or -1 if it is filled.
class AxisGather::Rows {
  public:
    Rows(const std::vector<Axis>& axes, std::int64_t row) : axes_(axes), position_(axes.size()) {
        for (std::size_t i = axes.size(); i-- > 0;) {
            position_[i] = row % axes[i].size;
            row /= axes[i].size;
            count(axes[i], position_[i], 1);
        }
    }

    std::int64_t source() const { return filled_ > 0 ? -1 : offset_; }
    void next() {
        for (std::size_t i = axes_.size(); i-- > 0;) {
            const Axis& axis = axes_[i];
            count(axis, position_[i], -1);
            position_[i] = position_[i] + 1 < axis.size ? position_[i] + 1 : 0;
            count(axis, position_[i], 1);
            if (position_[i] != 0) {
                return;
            }
        }
    }

  private:
    void count(const Axis& axis, std::int64_t position, std::int64_t sign) {
        const std::int64_t source = axis.map.empty() ? position : axis.map[static_cast<std::size_t>(position)];
        if (source < 0) {
            filled_ += sign;
        } else {
            offset_ += sign * source * axis.stride;
        }
    }

    const std::vector<Axis>& axes_;
    Dims position_;
    std::int64_t offset_ = 0;
    std::int64_t filled_ = 0;  // number of axes whose position is the fill value
};

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
        for (const Pick& pick : single_) {
            store_element(y + pick.target, load_element<T>(x + pick.source));
        }
        for (const std::int32_t target : filled_) {
            store_element(y + target, fill);
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
                        0.5 * static_cast<double>(picks_.size() + single_.size() + filled_.size()) + 5;
    with_element(element_, [&](auto element) {
        using T = decltype(element);
        const T value = load_element<T>(fill);
        parallel_for(threads, rows_, cost, [&](std::int64_t begin, std::int64_t end) {
            std::int64_t before = -2;
            Rows rows(outer_, begin);
            for (std::int64_t row = begin; row < end; ++row, rows.next()) {
                std::byte* to = y + row * row_bytes_;
                const std::int64_t source = rows.source();
                if (source < 0) {
                    fill_with(to, row_bytes_, value);
                } else if (source == before) {  // e.g. when an image is enlarged
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
