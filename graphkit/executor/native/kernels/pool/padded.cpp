#include "kernels/pool/padded.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>

#include "runtime/threads.h"

namespace graphkit {
namespace {

// Elements of a padded copy that fit into the first-level cache, beside what is read and written meanwhile.
constexpr std::int64_t kCopied = 8192;
// Longer lists of what a window reads, and longer padded rows, are left to the loops without copies.
constexpr std::int64_t kMostTaps = 1 << 16;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

std::int64_t floor_divided(std::int64_t value, std::int64_t by) {
    return value >= 0 ? value / by : -((by - 1 - value) / by);
}

// Widens the range from `low` to `high` - 1 to what a window reads along an axis.
void widen(const PaddedHeights& reach, std::int64_t dilation, std::int64_t& low, std::int64_t& high) {
    if (reach.count > 0) {
        low = std::min(low, reach.height);
        high = std::max(high, reach.height + (reach.count - 1) * dilation + 1);
    }
}

}  // namespace

std::shared_ptr<const PaddedPool> PaddedPool::maximum(const PoolGeometry& geometry) {
    std::shared_ptr<const PaddedPool> made(new PaddedPool(geometry, false, false));
    return made->parts_.empty() ? nullptr : made;
}

std::shared_ptr<const PaddedPool> PaddedPool::mean(const PoolGeometry& geometry, bool include_pad) {
    std::shared_ptr<const PaddedPool> made(new PaddedPool(geometry, true, include_pad));
    return made->parts_.empty() ? nullptr : made;
}

PaddedPool::PaddedPool(const PoolGeometry& geometry, bool mean, bool include_pad)
    : functions_(padded_pool_functions()), mean_(mean), planes_(geometry.planes), output_size_(geometry.output_size()) {
    std::copy_n(geometry.input, 3, input_);
    std::copy_n(geometry.dilation, 3, dilation_);
    if (planes_ == 0 || output_size_ == 0 || !lay_out_rows(geometry)) {
        return;
    }
    for (int axis = 0; axis < 2; ++axis) {
        for (const Span& span : geometry.windows[axis]) {
            reaches_[axis].push_back({span.start + span.first * dilation_[axis], span.count()});
            kernel_[axis] = std::max(kernel_[axis], span.count());
        }
    }
    if (mean && kernel_[1] * layout_.taps > kMostTaps) {
        return;
    }
    lay_out_offsets();
    if (mean) {
        add_divisors(geometry, include_pad);
        divide_means();
    } else {
        divide_maxima();
    }
}

// Element i of a row is number i / stride of phase i % stride. Window w reads at w + shift of a phase, for each tap.
bool PaddedPool::lay_out_rows(const PoolGeometry& g) {
    if (g.stride > kPaddedStride || g.taps.empty()) {
        return false;
    }
    std::int64_t least = 0;
    std::int64_t most = 0;
    for (const Tap& tap : g.taps) {
        const std::int64_t moved = floor_divided(tap.offset, g.stride);
        least = std::min(least, moved);
        most = std::max(most, moved);
        const std::int64_t phase = tap.offset - moved * g.stride;
        if (std::none_of(phases_.begin(), phases_.end(), [&](const PaddedPhase& p) { return p.phase == phase; })) {
            phases_.push_back({phase, 0});
        }
    }
    const std::int64_t lanes = functions_.lanes;
    const std::int64_t needed = (g.input[2] + g.stride - 1) / g.stride;
    // Elements in front, so many that copies are aligned.
    const std::int64_t front = rounded_up(-least, lanes);
    const std::int64_t length = front + rounded_up(std::max(needed, rounded_up(g.row(), lanes) + most), lanes);
    if (length > 4 * (needed + g.row() + 2 * lanes)) {
        return false;
    }
    for (std::size_t i = 0; i < phases_.size(); ++i) {
        phases_[i].offset = static_cast<std::int64_t>(i) * length + front;
    }
    for (const Tap& tap : g.taps) {
        const std::int64_t moved = floor_divided(tap.offset, g.stride);
        const auto phase = std::find_if(phases_.begin(), phases_.end(),
                                        [&](const PaddedPhase& p) { return p.phase == tap.offset - moved * g.stride; });
        shifts_.push_back(phase->offset + moved);
    }
    layout_.width = g.input[2];
    layout_.stride = g.stride;
    layout_.row = static_cast<std::int64_t>(phases_.size()) * length;
    layout_.phase_count = static_cast<std::int64_t>(phases_.size());
    layout_.phases = phases_.data();
    layout_.columns = g.row();
    layout_.taps = static_cast<std::int64_t>(shifts_.size());
    return true;
}

// Maxima read one padded row, means all rows of the kernel.
void PaddedPool::lay_out_offsets() {
    for (std::int64_t row = 0; row < (mean_ ? kernel_[1] : 1); ++row) {
        for (const std::int64_t shift : shifts_) {
            offsets_.push_back(row * dilation_[1] * layout_.row + shift);
        }
    }
    layout_.offsets = offsets_.data();
}

void PaddedPool::add_divisors(const PoolGeometry& g, bool include_pad) {
    const auto extent_of = [&](const Span& span) { return include_pad ? span.padded : span.count(); };
    const std::int64_t length = rounded_up(g.row(), functions_.lanes);
    std::map<std::int64_t, std::int64_t> known;
    for (const Span& depth : g.windows[0]) {
        for (const Span& height : g.windows[1]) {
            const auto [entry, is_new] =
                known.try_emplace(extent_of(depth) * extent_of(height), static_cast<std::int64_t>(known.size()));
            divisor_rows_.push_back(entry->second);
            if (is_new) {
                for (const Span& width : g.windows[2]) {
                    divisors_.push_back(pool_divisor(include_pad, depth, height, width));
                }
                divisors_.resize(static_cast<std::size_t>((entry->second + 1) * length), 1.0F);
            }
        }
    }
}

std::vector<bool> PaddedPool::read_positions(int axis) const {
    std::vector<bool> read(static_cast<std::size_t>(input_[axis]));
    for (const Reach& reach : reaches_[axis]) {
        for (std::int64_t k = 0; k < reach.count; ++k) {
            read[static_cast<std::size_t>(reach.height + k * dilation_[axis])] = true;
        }
    }
    return read;
}

PaddedPool::Part PaddedPool::part_of(std::int64_t first_depth, std::int64_t last_depth, std::int64_t first_row,
                                     std::int64_t last_row) const {
    const std::int64_t first[2] = {first_depth, first_row};
    const std::int64_t last[2] = {last_depth, last_row};
    std::int64_t low[2] = {input_[0], input_[1]};
    std::int64_t high[2] = {0, 0};
    for (int axis = 0; axis < 2; ++axis) {
        for (std::int64_t i = first[axis]; i < last[axis]; ++i) {
            widen(reaches_[axis][static_cast<std::size_t>(i)], dilation_[axis], low[axis], high[axis]);
        }
        high[axis] = std::max(low[axis], high[axis]);
    }
    return {first_depth, last_depth, first_row, last_row, low[0], high[0] - low[0], low[1], high[1] - low[1], 0, 0};
}

// The end of the longest range of windows from `first` on that a small copy serves, with `others` rows for each
// position of the axis. Ranges have as many windows as the kernel has positions at least, so that few elements are
// copied twice.
std::int64_t PaddedPool::last_fitting(int axis, std::int64_t others, std::int64_t first) const {
    const std::vector<Reach>& reaches = reaches_[axis];
    const auto count = static_cast<std::int64_t>(reaches.size());
    const std::int64_t least = first + (axis == 0 ? 1 : kernel_[1]);
    std::int64_t low = input_[axis];
    std::int64_t high = 0;
    std::int64_t last = first;
    for (; last < count; ++last) {
        widen(reaches[static_cast<std::size_t>(last)], dilation_[axis], low, high);
        if (last >= least && (high - low) * others * layout_.row > kCopied) {
            break;
        }
    }
    return last;
}

// Maxima need a padded row for each row of windows.
void PaddedPool::divide_maxima() {
    const auto rows = static_cast<std::int64_t>(reaches_[1].size());
    const std::int64_t fitting = std::clamp<std::int64_t>(kCopied / layout_.row, 1, rows);
    for (std::int64_t depth = 0; depth < static_cast<std::int64_t>(reaches_[0].size()); ++depth) {
        for (std::int64_t row = 0; row < rows; row += fitting) {
            Part part{};
            part.first_depth = depth;
            part.last_depth = depth + 1;
            part.first_row = row;
            part.last_row = std::min(rows, row + fitting);
            parts_.push_back(part);
        }
    }
    copied_ = fitting * layout_.row;
}

void PaddedPool::divide_means() {
    const auto depths = static_cast<std::int64_t>(reaches_[0].size());
    const auto rows = static_cast<std::int64_t>(reaches_[1].size());
    for (std::int64_t depth = 0; depth < depths;) {
        const std::int64_t last = last_fitting(0, part_of(depth, depth, 0, rows).input_rows, depth);
        if (last - depth > 1) {
            parts_.push_back(part_of(depth, last, 0, rows));
            depth = last;
            continue;
        }
        for (std::int64_t row = 0; row < rows;) {
            const std::int64_t end = last_fitting(1, part_of(depth, depth + 1, 0, 0).input_depths, row);
            parts_.push_back(part_of(depth, depth + 1, row, end));
            row = end;
        }
        ++depth;
    }
    read_ = read_positions(0);
    const std::vector<bool> read = read_positions(1);
    for (Part& part : parts_) {
        part.first_run = static_cast<std::int64_t>(runs_.size());
        for (std::int64_t row = part.input_row; row < part.input_row + part.input_rows; ++row) {
            if (!read[static_cast<std::size_t>(row)]) {
                continue;
            }
            const bool goes_on = static_cast<std::int64_t>(runs_.size()) > part.first_run &&
                                 runs_.back().row + runs_.back().count == row;
            goes_on ? void(++runs_.back().count) : runs_.push_back({row, 1});
        }
        part.last_run = static_cast<std::int64_t>(runs_.size());
        copied_ = std::max(copied_, part.input_depths * part.input_rows * layout_.row);
    }
}

void PaddedPool::copy(const Part& part, const float* plane, float* padded) const {
    for (std::int64_t depth = part.input_depth; depth < part.input_depth + part.input_depths; ++depth) {
        if (!read_[static_cast<std::size_t>(depth)]) {
            continue;
        }
        const float* from = plane + depth * input_[1] * input_[2];
        float* to = padded + (depth - part.input_depth) * part.input_rows * layout_.row;
        for (std::int64_t i = part.first_run; i < part.last_run; ++i) {
            const Run& run = runs_[static_cast<std::size_t>(i)];
            functions_.copy(layout_, from + run.row * input_[2], run.count,
                            to + (run.row - part.input_row) * layout_.row);
        }
    }
}

void PaddedPool::run_part(const Part& part, const float* plane, float* y, float* padded) const {
    const auto rows = static_cast<std::int64_t>(reaches_[1].size());
    if (mean_) {
        copy(part, plane, padded);
    }
    const std::int64_t depth_size = mean_ ? part.input_rows * layout_.row : input_[1] * input_[2];
    const float* const first = mean_ ? padded - part.input_depth * depth_size : plane;
    for (std::int64_t depth = part.first_depth; depth < part.last_depth; ++depth) {
        const Reach& reach = reaches_[0][static_cast<std::size_t>(depth)];
        const std::int64_t at = depth * rows + part.first_row;
        PaddedWindows windows{};
        windows.rows = reach.count > 0 ? first + reach.height * depth_size : padded;
        windows.first_height = part.input_row;
        windows.heights = reaches_[1].data() + part.first_row;
        windows.count = part.last_row - part.first_row;
        windows.row_step = dilation_[1] * input_[2];
        windows.depths = reach.count;
        windows.depth_step = dilation_[0] * depth_size;
        windows.padded = padded;
        windows.divisor_rows = mean_ ? divisor_rows_.data() + at : nullptr;
        windows.divisors = divisors_.data();
        (mean_ ? functions_.mean : functions_.maximum)(layout_, windows, y + at * layout_.columns);
    }
}

void PaddedPool::run(int threads, const float* x, float* y) const {
    const auto parts = static_cast<std::int64_t>(parts_.size());
    const std::int64_t size = input_[0] * input_[1] * input_[2];
    const double work =
        static_cast<double>(output_size_) * static_cast<double>(kernel_[0] * kernel_[1] * (mean_ ? layout_.taps : 1)) +
        static_cast<double>(size);
    const double cost = 20 + 0.05 * work / static_cast<double>(parts);
    parallel_calls(threads, planes_ * parts, cost, [&](std::int64_t begin, std::int64_t end) {
        const auto space = static_cast<std::size_t>(copied_) * sizeof(float);
        std::vector<float> memory((space + kAlignment) / sizeof(float), mean_ ? 0.0F : kLowest);
        void* start = memory.data();
        std::size_t left = memory.size() * sizeof(float);
        auto* padded = static_cast<float*>(std::align(kAlignment, space, start, left));
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t plane = i / parts;
            run_part(parts_[static_cast<std::size_t>(i % parts)], x + plane * size, y + plane * output_size_, padded);
        }
    });
}

}  // namespace graphkit
