#include "kernels/conv/window_products.h"

#include <algorithm>
#include <bit>

#include "primitives/rounding.h"
#include "simd/half.h"

namespace graphkit {
namespace {

// Number of units, if there is enough work. At most this many threads can be used.
constexpr std::int64_t kUnits = 16;
constexpr std::int64_t kLeastFilters = 16;
// Most positions of a segment, most floats of a segment whose windows are copied, and least segments of a part, which
// has partial results of its own.
constexpr std::int64_t kMostPositions = 256;
constexpr std::int64_t kCopiedFloats = 1 << 16;
constexpr std::int64_t kLeastSegments = 4;
// With at least this many adjacent channels, copying the elements of windows one by one pays off.
constexpr std::int64_t kChannelsTogether = 4;

// Most floats of a line of windows.
constexpr double kMostLineFloats = 0x1p40;

std::int64_t padded(std::int64_t columns) {
    return divide_up(columns, kWindowGrain) * kWindowGrain;
}

float value(float x) {
    return x;
}

float value(BFloat16 x) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

}  // namespace

WindowProducts::WindowProducts(const Dims& x, const Dims& dy, const Dims& dw, const Window& window, bool last,
                               ElementType type, int threads)
    : table_(window_table()),
      last_(last),
      type_(type),
      threads_(threads),
      images_(x[0]),
      groups_(window.groups),
      channels_(dw[1]),
      filters_(dw[0] / window.groups),
      together_(last ? channels_ : 1) {
    const std::size_t rank = x.size() - 2;
    for (std::size_t i = 0; i < rank; ++i) {
        const std::size_t axis = 3 - rank + i;
        image_[axis] = x[i + 2];
        kernel_[axis] = dw[i + 2];
        result_[axis] = dy[i + 2];
        strides_[axis] = window.strides[i];
        dilations_[axis] = window.dilations[i];
        begin_[axis] = window.pads_begin[i];
    }
    lines_ = kernel_[0] * kernel_[1] * (channels_ / together_);
    segment_ = std::min(result_[2], dilations_[2] == 1
                                        ? kMostPositions
                                        : std::clamp<std::int64_t>(kCopiedFloats / columns(), 8, kMostPositions));
    segments_ = divide_up(result_[2], segment_);
    const auto apart = static_cast<double>(dilations_[2] == 1 ? strides_[2] : kernel_[2]);
    if (apart * static_cast<double>(segment_) * static_cast<double>(together_) > kMostLineFloats) {
        throw Unsupported("the windows of a convolution are too far apart");
    }
    const std::int64_t all = images_ * result_[0] * result_[1] * segments_;
    const auto filters =
        cut(filters_, std::clamp<std::int64_t>(kUnits / (groups_ * lines_), 1, divide_up(filters_, kLeastFilters)));
    const std::int64_t there = groups_ * lines_ * static_cast<std::int64_t>(filters.size());
    // Partial results take at most as much memory as the operands.
    const std::int64_t most = std::max<std::int64_t>(1, (count(x) + count(dy)) / sums_size());
    parts_ = cut(all, std::clamp<std::int64_t>(std::min(kUnits / there, all / kLeastSegments), 1, most));
    for (std::size_t part = 0; part < parts_.size(); ++part) {
        for (std::int64_t group = 0; group < groups_; ++group) {
            for (std::int64_t line = 0; line < lines_; ++line) {
                for (const Range& range : filters) {
                    units_.push_back({static_cast<std::int64_t>(part), group, line, range});
                }
            }
        }
    }
}

bool WindowProducts::suits(const Dims& dw, const Window& window, bool last) {
    const std::int64_t together = last ? dw[1] : 1;
    const std::int64_t columns = dw.back() * together;
    const bool lie_together = window.strides.back() == 1 && window.dilations.back() == 1;
    const bool fill = 4 * columns >= 3 * padded(columns) || columns > kWindowGrain;
    return fill && (lie_together || together >= kChannelsTogether);
}

std::int64_t WindowProducts::padded_columns() const {
    return padded(columns());
}

// Floats of a line of windows. With a dilation, the windows are copied one after the other; else they overlap.
std::int64_t WindowProducts::line_floats() const {
    const std::int64_t apart = dilations_[2] == 1 ? strides_[2] * together_ : columns();
    return (segment_ - 1) * apart + padded_columns();
}

std::int64_t WindowProducts::own_floats() const {
    const std::int64_t left = type_ == ElementType::f32 ? 0 : segment_ * filters_;
    return divide_up(line_floats() + left, kWindowGrain) * kWindowGrain;
}

std::size_t WindowProducts::scratch_bytes() const {
    const auto sums = static_cast<std::int64_t>(parts_.size()) * sums_size();
    return static_cast<std::size_t>(sums + threads_ * own_floats()) * sizeof(float);
}

WindowProducts::Segment WindowProducts::segment(std::int64_t number) const {
    Segment at;
    at.begin = number % segments_ * segment_;
    at.size = std::min(segment_, result_[2] - at.begin);
    number /= segments_;
    at.height = number % result_[1];
    number /= result_[1];
    at.depth = number % result_[0];
    at.image = number / result_[0];
    return at;
}

// Copies windows from a line along the last axis of an image. `row` is the line's first element, and elements, of
// `together_` channels each, are `step` apart. Copies the windows of `positions` positions; the first window begins at
// element `first`. Padding becomes zero.
template <typename T>
void WindowProducts::copy_line(const T* row, std::int64_t step, std::int64_t first, std::int64_t positions,
                               float* to) const {
    const auto copy_run = [&](std::int64_t begin, std::int64_t size) {
        for (std::int64_t w = begin; w < begin + size; ++w, to += together_) {
            if (w < 0 || w >= image_[2]) {
                std::fill_n(to, together_, 0.0F);
            } else {
                const T* from = row + w * step;
                for (std::int64_t c = 0; c < together_; ++c) {
                    to[c] = value(from[c]);
                }
            }
        }
    };
    float* const end = to + line_floats();
    if (dilations_[2] == 1) {
        copy_run(first, (positions - 1) * strides_[2] + kernel_[2]);
    } else {
        for (std::int64_t i = 0; i < positions; ++i) {
            for (std::int64_t k = 0; k < kernel_[2]; ++k) {
                copy_run(first + i * strides_[2] + k * dilations_[2], 1);
            }
        }
    }
    std::fill(to, std::min(end, to + kWindowGrain), 0.0F);  // columns behind the last one are read, but not used
}

template <typename T>
void WindowProducts::multiply(const Unit& unit, const T* x, const T* dy, float* sums, float* own) const {
    std::fill_n(sums, unit.filters.size * padded_columns(), 0.0F);
    const std::int64_t plane = image_[0] * image_[1] * image_[2];
    const std::int64_t all_channels = groups_ * channels_;
    const std::int64_t all_filters = groups_ * filters_;
    const std::int64_t row_of_kernel = unit.line % (kernel_[0] * kernel_[1]);
    const std::int64_t channel = unit.group * channels_ + unit.line / (kernel_[0] * kernel_[1]);
    const std::int64_t filter = unit.group * filters_ + unit.filters.begin;
    WindowProduct product{};
    product.windows = own;
    product.sums = sums;
    product.filters = unit.filters.size;
    product.columns = columns();
    product.window_step = dilations_[2] == 1 ? strides_[2] * together_ : columns();
    product.sums_step = padded_columns();
    const Range range = parts_[static_cast<std::size_t>(unit.part)];
    for (std::int64_t number = range.begin; number < range.begin + range.size; ++number) {
        const Segment at = segment(number);
        const std::int64_t d = at.depth * strides_[0] + row_of_kernel / kernel_[1] * dilations_[0] - begin_[0];
        const std::int64_t h = at.height * strides_[1] + row_of_kernel % kernel_[1] * dilations_[1] - begin_[1];
        if (d < 0 || d >= image_[0] || h < 0 || h >= image_[1]) {
            continue;
        }
        const std::int64_t row = (d * image_[1] + h) * image_[2];
        const T* line = last_ ? x + (at.image * plane + row) * all_channels + unit.group * channels_
                              : x + (at.image * all_channels + channel) * plane + row;
        copy_line(line, last_ ? all_channels : 1, at.begin * strides_[2] - begin_[2], at.size, own);
        const std::int64_t position = (at.depth * result_[1] + at.height) * result_[2] + at.begin;
        const T* left = last_ ? dy + (at.image * positions() + position) * all_filters + filter
                              : dy + (at.image * all_filters + filter) * positions() + position;
        product.count = at.size;
        product.left_row = last_ ? all_filters : 1;
        product.left_filter = last_ ? 1 : positions();
        if constexpr (std::is_same_v<T, float>) {
            product.left = left;
        } else {
            float* wide = own + line_floats();
            for (std::int64_t i = 0; i < at.size; ++i) {
                for (std::int64_t f = 0; f < unit.filters.size; ++f) {
                    wide[i * unit.filters.size + f] = value(left[i * product.left_row + f * product.left_filter]);
                }
            }
            product.left = wide;
            product.left_row = unit.filters.size;
            product.left_filter = 1;
        }
        table_.add(product);
    }
}

// Adds the partial results, [parts, groups, lines, filters, padded columns], and writes dw.
void WindowProducts::collect(const float* sums, float* dw) const {
    const std::int64_t taps = kernel_[0] * kernel_[1] * kernel_[2];
    const std::int64_t window = channels_ * taps;
    const double cost = 0.5 * static_cast<double>(parts_.size()) * static_cast<double>(columns());
    parallel_for(threads_, groups_ * lines_ * filters_, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t line = i / filters_ % lines_;
            const std::int64_t filter = i / filters_ / lines_ * filters_ + i % filters_;
            float* to = dw + filter * window + line * kernel_[2];
            for (std::int64_t k = 0; k < columns(); ++k) {
                float sum = 0;
                for (std::size_t part = 0; part < parts_.size(); ++part) {
                    sum += sums[static_cast<std::int64_t>(part) * sums_size() + i * padded_columns() + k];
                }
                to[k % together_ * taps + k / together_] = sum;
            }
        }
    });
}

template <typename T>
void WindowProducts::add_up(const T* dy, float* dbias) const {
    const std::int64_t all = groups_ * filters_;
    const std::int64_t step = last_ ? all : 1;
    const double cost = static_cast<double>(images_ * positions());
    parallel_for(threads_, all, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t f = begin; f < end; ++f) {
            double sum = 0;
            for (std::int64_t n = 0; n < images_; ++n) {
                const T* from = dy + n * all * positions() + (last_ ? f : f * positions());
                for (std::int64_t i = 0; i < positions(); ++i) {
                    sum += value(from[i * step]);
                }
            }
            dbias[f] = static_cast<float>(sum);
        }
    });
}

void WindowProducts::run(const void* x, const void* dy, float* dw, float* dbias, std::byte* scratch) const {
    auto* sums = reinterpret_cast<float*>(scratch);
    float* rest = sums + static_cast<std::int64_t>(parts_.size()) * sums_size();
    const auto as = [&]<typename T>(T) {
        const auto units = static_cast<std::int64_t>(units_.size());
        const double work = static_cast<double>(images_ * positions() * filters_) * static_cast<double>(columns());
        const double cost = 0.05 * work * static_cast<double>(groups_ * lines_) / static_cast<double>(units);
        parallel_for(threads_, units, cost, [&](std::int64_t begin, std::int64_t end) {
            float* own = rest + thread_number() * own_floats();
            for (std::int64_t u = begin; u < end; ++u) {
                const Unit& unit = units_[static_cast<std::size_t>(u)];
                const std::int64_t row = (unit.group * lines_ + unit.line) * filters_ + unit.filters.begin;
                multiply(unit, static_cast<const T*>(x), static_cast<const T*>(dy),
                         sums + unit.part * sums_size() + row * padded_columns(), own);
            }
        });
        if (dbias != nullptr) {
            add_up(static_cast<const T*>(dy), dbias);
        }
    };
    type_ == ElementType::f32 ? as(float{}) : as(BFloat16{});
    collect(sums, dw);
}

}  // namespace graphkit
