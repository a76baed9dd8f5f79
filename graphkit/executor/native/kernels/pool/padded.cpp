#include "kernels/pool/padded.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>

#include "runtime/threads.h"

namespace graphkit {
namespace {

// Floats of padded rows that fit into the first-level cache, beside the rows that are read and written.
constexpr std::int64_t kPadded = 8192;

std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

std::int64_t floor_divided(std::int64_t value, std::int64_t by) {
    return value >= 0 ? value / by : -((by - 1 - value) / by);
}

}  // namespace

std::shared_ptr<const PaddedPool> PaddedPool::maximum(const PoolGeometry& geometry) {
    const std::shared_ptr<const PaddedPool> made(new PaddedPool(geometry, false));
    return made->offsets_.empty() ? nullptr : made;
}

std::shared_ptr<const PaddedPool> PaddedPool::mean(const PoolGeometry& geometry, bool include_pad) {
    const std::shared_ptr<PaddedPool> made(new PaddedPool(geometry, true));
    if (made->offsets_.empty()) {
        return nullptr;
    }
    made->add_divisors(geometry, include_pad);
    return made;
}

PaddedPool::PaddedPool(const PoolGeometry& geometry, bool mean)
    : functions_(padded_pool_functions()), mean_(mean), planes_(geometry.planes), output_size_(geometry.output_size()) {
    std::copy_n(geometry.input, 3, input_);
    std::copy_n(geometry.dilation, 3, dilation_);
    if (planes_ == 0 || output_size_ == 0 || !lay_out_rows(geometry)) {
        return;
    }
    for (int axis = 0; axis < 2; ++axis) {
        std::int64_t most = 1;
        for (const Span& span : geometry.windows[axis]) {
            reaches_[axis].push_back({span.start + span.first * dilation_[axis], span.count()});
            most = std::max(most, span.count());
        }
        most_rows_ *= most;
    }
}

// Chooses the layout of padded rows; returns false if it is not suitable. Element i of a row is element i / stride of
// phase i % stride. For each tap, window w reads element w + shift of a phase.
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
    // Elements before the row, a number such that copies are aligned.
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
        offsets_.push_back(phase->offset + moved);
    }
    layout_.width = g.input[2];
    layout_.stride = g.stride;
    layout_.row = static_cast<std::int64_t>(phases_.size()) * length;
    layout_.phase_count = static_cast<std::int64_t>(phases_.size());
    layout_.phases = phases_.data();
    layout_.columns = g.row();
    layout_.taps = static_cast<std::int64_t>(offsets_.size());
    layout_.offsets = offsets_.data();
    return true;
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

void PaddedPool::run_rows(std::int64_t depth, std::int64_t first, std::int64_t last, const float* plane, float* y,
                          float* padded) const {
    const PoolReach& reach = reaches_[0][static_cast<std::size_t>(depth)];
    const std::int64_t depth_size = input_[1] * input_[2];
    const std::int64_t at = depth * static_cast<std::int64_t>(reaches_[1].size()) + first;
    PaddedWindows windows{};
    windows.x = plane + (reach.count > 0 ? reach.first * depth_size : 0);
    windows.heights = reaches_[1].data() + first;
    windows.count = last - first;
    windows.row_step = dilation_[1] * input_[2];
    windows.depths = reach.count;
    windows.depth_step = dilation_[0] * depth_size;
    windows.padded = padded;
    windows.divisor_rows = mean_ ? divisor_rows_.data() + at : nullptr;
    windows.divisors = divisors_.data();
    (mean_ ? functions_.mean : functions_.maximum)(layout_, windows, y + at * layout_.columns);
}

std::int64_t PaddedPool::together() const {
    return std::clamp<std::int64_t>(kPadded / layout_.row, 1, static_cast<std::int64_t>(reaches_[1].size()));
}

std::int64_t PaddedPool::parts() const {
    const auto rows = static_cast<std::int64_t>(reaches_[1].size());
    return planes_ * static_cast<std::int64_t>(reaches_[0].size()) * ((rows + together() - 1) / together());
}

std::size_t PaddedPool::padded_bytes() const {
    return aligned(static_cast<std::size_t>(together() * layout_.row) * sizeof(float));
}

std::size_t PaddedPool::scratch_bytes(int threads) const {
    return static_cast<std::size_t>(std::clamp<std::int64_t>(parts(), 1, std::max(1, threads))) * padded_bytes();
}

double PaddedPool::nanoseconds() const {
    const std::int64_t vector = functions_.lanes * layout_.stride;
    const std::int64_t merged = most_rows_ * ((layout_.width + vector - 1) / vector * layout_.stride);
    const std::int64_t read = layout_.taps * ((layout_.columns + functions_.lanes - 1) / functions_.lanes);
    const double row = 3.5 + 0.85 * static_cast<double>(merged) + 1.55 * static_cast<double>(read);
    return 30 * static_cast<double>(parts()) + row * static_cast<double>(planes_ * output_size_ / layout_.columns);
}

// Each thread computes rows of windows.
void PaddedPool::run(int threads, const float* x, float* y, std::byte* scratch) const {
    const auto depths = static_cast<std::int64_t>(reaches_[0].size());
    const auto rows = static_cast<std::int64_t>(reaches_[1].size());
    const std::int64_t of_depth = (rows + together() - 1) / together();
    const std::int64_t size = input_[0] * input_[1] * input_[2];
    parallel_calls(
        threads, parts(), nanoseconds() / static_cast<double>(parts()), [&](std::int64_t begin, std::int64_t end) {
            auto* padded =
                reinterpret_cast<float*>(scratch + static_cast<std::size_t>(thread_number()) * padded_bytes());
            std::fill_n(padded, together() * layout_.row, mean_ ? 0.0F : -std::numeric_limits<float>::infinity());
            for (std::int64_t i = begin; i < end; ++i) {
                const std::int64_t plane = i / (depths * of_depth);
                const std::int64_t first = i % of_depth * together();
                run_rows(i / of_depth % depths, first, std::min(rows, first + together()), x + plane * size,
                         y + plane * output_size_, padded);
            }
        });
}

}  // namespace graphkit
