#include "kernels/conv/depthwise_copied.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "primitives/row_table.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// Channels of a copy: two vectors of the widest instruction set.
constexpr std::int64_t kGroup = 32;
// For windows with fewer elements, copying takes longer than it saves.
constexpr std::int64_t kFewTaps = 25;
// Floats of a copy that fits into the second-level cache.
constexpr std::int64_t kCopyFloats = 1 << 16;
constexpr double kProductNanoseconds = 0.02;

std::int64_t window_step(const std::vector<Span>& windows) {
    return windows.size() > 1 ? windows[1].start - windows[0].start : 1;
}

// Properties of the lines of windows along the first axis.
struct Lines {
    std::int64_t kernel, reach, step, count;

    std::int64_t rows(std::int64_t lines) const { return (lines - 1) * step + reach; }
    // How many lines, each `width` columns wide, are computed from one copy.
    std::int64_t together(std::int64_t width) const {
        return std::clamp<std::int64_t>((kCopyFloats / (width * kGroup) - reach) / step + 1, 1, count);
    }
    // Whether copying reads fewer rows than the windows would. It does not if a copy holds only few lines because it is
    // wide, or if windows are far apart or dilated, so that many rows between them are not used.
    bool share_rows(std::int64_t width) const { return rows(together(width)) < kernel * together(width); }
};

Lines lines_of(const PoolGeometry& g) {
    return {g.kernel[1], (g.kernel[1] - 1) * g.dilation[1] + 1, window_step(g.windows[1]),
            static_cast<std::int64_t>(g.windows[1].size())};
}

}  // namespace

bool CopiedDepthwise::covers(const PoolGeometry& g) {
    const bool is_plane = g.kernel[0] == 1 && g.input[0] == 1 && g.windows[0].size() == 1 && g.windows[0][0].start == 0;
    const bool is_dense = g.stride == 1 && g.dilation[2] == 1 && (g.kernel[2] == 5 || g.kernel[2] == 7);
    return is_plane && is_dense && g.kernel[1] * g.kernel[2] >= kFewTaps && g.planes * g.output_size() > 0 &&
           lines_of(g).share_rows(g.row() - 1 + g.kernel[2]);
}

bool CopiedDepthwise::suits_window(const Dims& y, const PoolWindow& window) {
    // In narrower images, most windows contain padding, which this kernel multiplies like other elements.
    constexpr std::int64_t kNarrow = 12;
    const std::int64_t columns = window.kernel.back();
    const std::int64_t rows = window.kernel.front();
    const Lines lines{rows, (rows - 1) * window.dilations.front() + 1, window.strides.front(), y[y.size() - 2]};
    return window.kernel.size() == 2 && window.strides.back() == 1 && window.dilations.back() == 1 &&
           (columns == 5 || columns == 7) && columns * rows >= kFewTaps && y.back() >= kNarrow && lines.count > 0 &&
           lines.share_rows(y.back() - 1 + columns);
}

CopiedDepthwise::CopiedDepthwise(const PoolGeometry& g, std::int64_t images, std::int64_t channels, int threads)
    : threads_(threads), channels_(channels) {
    taps_ = g.kernel[1] * g.kernel[2];
    if (!covers(g)) {
        return;
    }
    functions_ = &slide_table();
    for (int axis = 0; axis < 2; ++axis) {
        const std::vector<Span>& windows = g.windows[axis + 1];
        input_[axis] = g.input[axis + 1];
        output_[axis] = static_cast<std::int64_t>(windows.size());
        begin_[axis] = -windows[0].start;
        kernel_[axis] = g.kernel[axis + 1];
        reach_[axis] = (kernel_[axis] - 1) * g.dilation[axis + 1] + 1;
    }
    line_step_ = window_step(g.windows[1]);
    dilation_ = g.dilation[1];
    width_ = output_[1] - 1 + reach_[1];
    lines_ = lines_of(g).together(width_);
    line_parts_ = (output_[0] + lines_ - 1) / lines_;
    groups_ = (channels_ + kGroup - 1) / kGroup;
    parts_ = images * groups_ * line_parts_;
    chunks_ = std::min<std::int64_t>(parts_, std::max(threads, 1));
}

std::size_t CopiedDepthwise::chunk_bytes() const {
    const std::int64_t floats = (copied_rows(lines_) * width_ + taps_) * kGroup;
    return static_cast<std::size_t>(floats) * sizeof(float);
}

bool CopiedDepthwise::suits(const float* filters) const {
    if (functions_ == nullptr) {
        return false;
    }
    return row_table().f32.all_finite(filters, taps_ * channels_);
}

// Copies a row of at most kGroup channels.
static void copy_channels(const float* from, std::int64_t channels, float* to) {
    if (channels == kGroup) {
        std::memcpy(to, from, kGroup * sizeof(float));
    } else {
        std::copy_n(from, channels, to);
    }
}

CopiedDepthwise::Part CopiedDepthwise::part(std::int64_t number) const {
    const std::int64_t line = number % line_parts_ * lines_;
    const std::int64_t rest = number / line_parts_;
    const std::int64_t channel = rest % groups_ * kGroup;
    return {rest / groups_, channel, std::min(kGroup, channels_ - channel), line, std::min(lines_, output_[0] - line)};
}

void CopiedDepthwise::copy_lines(const Part& p, const float* x, float* to) const {
    const float* image = x + p.image * input_[0] * input_[1] * channels_ + p.channel;
    const std::int64_t before = std::min(begin_[1], width_);
    const std::int64_t inside = std::clamp<std::int64_t>(width_ - before, 0, input_[1]);
    const std::int64_t first = p.line * line_step_ - begin_[0];
    for (std::int64_t row = first; row < first + copied_rows(p.lines); ++row, to += width_ * p.channels) {
        if (row < 0 || row >= input_[0]) {
            continue;  // not read
        }
        float* place = std::fill_n(to, before * p.channels, 0.0F);
        const float* from = image + row * input_[1] * channels_;
        for (std::int64_t i = 0; i < inside; ++i, from += channels_, place += p.channels) {
            copy_channels(from, p.channels, place);
        }
        std::fill_n(place, (width_ - before - inside) * p.channels, 0.0F);
    }
}

void CopiedDepthwise::copy_filters(const Part& p, const float* filters, float* to) const {
    for (std::int64_t t = 0; t < taps_; ++t) {
        copy_channels(filters + t * channels_ + p.channel, p.channels, to + t * p.channels);
    }
}

void CopiedDepthwise::compute(const Part& p, const float* x, const float* filters, const DepthwiseFinish& finish,
                              float* y, float* own) const {
    float* const copied_filters = own;
    float* const copied = own + taps_ * kGroup;
    copy_filters(p, filters, copied_filters);
    copy_lines(p, x, copied);
    DepthwiseFinish last(finish);
    last.bias = finish.bias == nullptr ? nullptr : finish.bias + p.channel;
    const std::int64_t row_floats = width_ * p.channels;
    for (std::int64_t line = 0; line < p.lines; ++line) {
        const std::int64_t at = p.line + line;
        // Skips the lines of the window that are outside of the image.
        const std::int64_t top = at * line_step_ - begin_[0];
        const std::int64_t first = std::min(top < 0 ? (-top + dilation_ - 1) / dilation_ : 0, kernel_[0]);
        const std::int64_t end = top >= input_[0] ? 0 : std::min((input_[0] - 1 - top) / dilation_ + 1, kernel_[0]);
        const DepthwiseLine made{copied + (line * line_step_ + first * dilation_) * row_floats,
                                 dilation_ * row_floats,
                                 copied_filters + first * kernel_[1] * p.channels,
                                 std::max<std::int64_t>(end - first, 0),
                                 kernel_[1],
                                 p.channels,
                                 output_[1],
                                 y + (p.image * output_[0] + at) * output_[1] * channels_ + p.channel,
                                 channels_};
        functions_->slide(made, last);
    }
}

void CopiedDepthwise::run(const float* x, const float* filters, const DepthwiseFinish& finish, float* y,
                          std::byte* scratch) const {
    const double cost = kProductNanoseconds * static_cast<double>(parts_ * lines_ * output_[1] * taps_ * kGroup);
    for_each_chunk(threads_for(threads_, cost), chunks_, cost, [&](std::int64_t chunk) {
        auto* own = reinterpret_cast<float*>(scratch + static_cast<std::size_t>(chunk) * chunk_bytes());
        for (std::int64_t at = parts_ * chunk / chunks_; at < parts_ * (chunk + 1) / chunks_; ++at) {
            compute(part(at), x, filters, finish, y, own);
        }
    });
}

}  // namespace graphkit
