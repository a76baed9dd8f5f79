#include "resample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "elements.h"
#include "isa.h"
#include "simd/half_convert.h"
#include "simd/weighted_sums_tables.h"
#include "threads.h"

namespace graphkit {
namespace {

// Rows this short are not summed one by one: the axis is treated as part of longer rows.
constexpr std::int64_t kShortRow = 16;
constexpr int kMaxTaps = 64;

template <typename C, typename T>
C value_of(T element) {
    if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
        return static_cast<C>(to_float(element));
    } else {
        return static_cast<C>(element);
    }
}

template <typename T, typename C>
T element_of(C value, bool round) {
    if constexpr (std::is_same_v<T, Float16>) {
        return to_float16(static_cast<float>(value));
    } else if constexpr (std::is_same_v<T, BFloat16>) {
        return to_bfloat16(static_cast<float>(value));
    } else if constexpr (std::is_floating_point_v<T>) {
        return static_cast<T>(value);
    } else {
        const C whole = round ? std::nearbyint(value) : std::trunc(value);
        if (!(whole > static_cast<C>(std::numeric_limits<T>::min()))) {
            return std::numeric_limits<T>::min();
        }
        return whole < static_cast<C>(std::numeric_limits<T>::max()) ? static_cast<T>(whole)
                                                                     : std::numeric_limits<T>::max();
    }
}

template <typename C>
auto rows_of(const ResampleTable& table) {
    if constexpr (std::is_same_v<C, float>) {
        return table.rows_f32;
    } else {
        return table.rows_f64;
    }
}

template <typename C>
auto row_of(const ResampleTable& table) {
    if constexpr (std::is_same_v<C, float>) {
        return table.row_f32;
    } else {
        return table.row_f64;
    }
}

void check(const Kernel& kernel, const Dims& x, const AxisTaps& a) {
    const auto length = static_cast<std::size_t>(a.resized) * static_cast<std::size_t>(a.taps);
    bool fits = a.axis >= 0 && a.axis < static_cast<std::int64_t>(x.size()) && a.taps >= 0 &&
                a.sources.size() == length && a.weights.size() == length &&
                (a.outside.empty() || a.outside.size() == static_cast<std::size_t>(a.resized));
    for (std::size_t i = 0; fits && i < length; ++i) {
        fits = a.sources[i] >= 0 && a.sources[i] < x[static_cast<std::size_t>(a.axis)];
    }
    if (!fits) {
        throw NativeError(kernel.describe() + ": the weights do not fit axis " + std::to_string(a.axis));
    }
}

}  // namespace

Resample::Resample(std::string name, Dims x, std::vector<AxisTaps> axes, double fill, bool round, ElementType type,
                   int threads)
    : Kernel(std::move(name), threads),
      fill_(fill),
      round_(round),
      in_double_(type == ElementType::f64 || (size_of(type) >= 4 && type != ElementType::f32)),
      table_(&GRAPHKIT_SELECT(kResampleBaseline, kResampleAvx2, kResampleAvx512)) {
    inputs_ = {{"x", x, type}};
    if (type == ElementType::boolean) {
        throw Unsupported(describe() + ": not a number type");
    }
    Dims y = x;
    std::size_t first = x.size();  // of the axes that change
    for (const AxisTaps& a : axes) {
        check(*this, x, a);
        y[static_cast<std::size_t>(a.axis)] = a.resized;
        first = std::min(first, static_cast<std::size_t>(a.axis));
    }
    const auto plane_of = [&](const Dims& shape) {
        return Dims(shape.begin() + static_cast<std::ptrdiff_t>(first), shape.end());
    };
    outputs_ = {{"y", y, type}};
    Dims plane = plane_of(x);
    planes_ = count(Dims(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(first)));
    plane_in_ = count(plane);
    plane_out_ = count(plane_of(y));
    // Shrinking first and growing last leaves the least to do; so does beginning with the last axis, whose elements are
    // picked one by one.
    const auto growth = [&](const AxisTaps& a) {
        return static_cast<double>(a.resized) / static_cast<double>(std::max<std::int64_t>(
                                                    x[static_cast<std::size_t>(a.axis)], 1));
    };
    std::sort(axes.begin(), axes.end(), [&](const AxisTaps& a, const AxisTaps& b) {
        return growth(a) != growth(b) ? growth(a) < growth(b) : a.axis > b.axis;
    });
    const bool converts = type != ElementType::f32 && type != ElementType::f64;
    buffer_ = converts ? std::max(plane_in_, plane_out_) : 0;
    for (AxisTaps& a : axes) {
        const AroundAxis around(plane, static_cast<std::size_t>(a.axis) - first);
        Pass pass;
        pass.outer = around.outer;
        pass.size = around.size;
        pass.inner = around.inner;
        pass.resized = a.resized;
        pass.taps = a.taps;
        pass.within_rows = around.inner < kShortRow || a.taps > kMaxTaps;
        if (pass.within_rows && around.size * around.inner > std::numeric_limits<std::int32_t>::max()) {
            throw Unsupported(describe() + ": rows of more than 2^31 elements");
        }
        std::vector<double> weights;
        if (pass.within_rows) {
            for (std::size_t i = 0; i < a.sources.size(); ++i) {
                for (std::int64_t j = 0; j < pass.inner; ++j) {
                    pass.sources.push_back(static_cast<std::int32_t>(a.sources[i] * pass.inner + j));
                    weights.push_back(a.weights[i]);
                }
            }
        } else {
            pass.sources = a.sources;
            weights = a.weights;
        }
        if (in_double_) {
            pass.weights_f64 = std::move(weights);
        } else {
            pass.weights_f32.assign(weights.begin(), weights.end());
            find_windows(pass);
        }
        plane[static_cast<std::size_t>(a.axis) - first] = a.resized;
        if (&a != &axes.back()) {
            buffer_ = std::max(buffer_, count(plane));
        }
        passes_.push_back(std::move(pass));
    }
    const Dims final_plane = plane_of(y);
    for (AxisTaps& a : axes) {
        if (!a.outside.empty()) {
            const AroundAxis around(final_plane, static_cast<std::size_t>(a.axis) - first);
            outside_.push_back({around.outer, around.inner, std::move(a.outside)});
        }
    }
    slots_ = planes_ >= threads && threads > 1 ? threads : 1;
    slot_bytes_ = static_cast<std::size_t>(2 * buffer_) * (in_double_ ? sizeof(double) : sizeof(float));
    slot_bytes_ = aligned(slot_bytes_);
}

void Resample::find_windows(Pass& pass) const {
    const std::int64_t lanes = table_->lanes;
    const std::int64_t size = pass.resized * pass.inner;
    const std::int64_t given = pass.size * pass.inner;
    if (!pass.within_rows || lanes == 0 || given < 2 * lanes || size < lanes || pass.taps == 0) {
        return;
    }
    std::vector<std::int32_t> places(pass.sources.size());
    std::vector<std::int32_t> starts;
    for (std::int64_t first = 0; first + lanes <= size; first += lanes) {
        const auto each = [&](auto&& body) {
            for (int t = 0; t < pass.taps; ++t) {
                for (std::int64_t i = first; i < first + lanes; ++i) {
                    body(static_cast<std::size_t>(t * size + i));
                }
            }
        };
        auto start = static_cast<std::int32_t>(given - 2 * lanes);  // so that the window does not leave the row
        each([&](std::size_t at) { start = std::min(start, pass.sources[at]); });
        bool fits = true;
        each([&](std::size_t at) {
            places[at] = pass.sources[at] - start;
            fits = fits && places[at] < 2 * lanes;
        });
        if (!fits) {
            return;
        }
        starts.push_back(start);
    }
    pass.starts = std::move(starts);
    pass.places = std::move(places);
}

void Resample::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    if (count(outputs_[0].shape) == 0) {
        return;
    }
    in_double_ ? run_in<double>(inputs[0], outputs[0], scratch) : run_in<float>(inputs[0], outputs[0], scratch);
}

template <typename C>
void Resample::run_in(const void* x, void* y, std::byte* scratch) const {
    with_type(inputs_[0].type, [&](auto element) {
        using T = decltype(element);
        // Each type is computed in one of the two; the other combinations never run.
        constexpr bool kDouble = std::is_same_v<T, double> || (sizeof(T) >= 4 && std::is_integral_v<T>);
        if constexpr (std::is_same_v<T, bool> || kDouble != std::is_same_v<C, double>) {
            throw NativeError("no such combination");
        } else {
            const auto planes = [&](int threads, std::int64_t begin, std::int64_t end, std::int64_t slot) {
                auto* buffer = reinterpret_cast<C*>(scratch + static_cast<std::size_t>(slot) * slot_bytes_);
                for (std::int64_t plane = begin; plane < end; ++plane) {
                    run_plane<C>(threads, static_cast<const T*>(x) + plane * plane_in_,
                                 static_cast<T*>(y) + plane * plane_out_, buffer, buffer + buffer_);
                }
            };
            const double work = static_cast<double>(planes_ * (plane_in_ + plane_out_) *
                                                    static_cast<std::int64_t>(passes_.size() + 1)) * 0.5;
            if (slots_ == 1 || threads_for(slots_, work) == 1) {
                planes(slots_ == 1 ? threads() : 1, 0, planes_, 0);
            } else {
                parallel_for(slots_, slots_, work / slots_, [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t slot = begin; slot < end; ++slot) {
                        planes(1, planes_ * slot / slots_, planes_ * (slot + 1) / slots_, slot);
                    }
                });
            }
        }
    });
}

template <typename C, typename T>
void Resample::run_plane(int threads, const T* x, T* y, C* first, C* second) const {
    const C* from = nullptr;
    C* result = nullptr;
    if constexpr (std::is_same_v<C, T>) {
        from = x;
    } else {
        parallel_for(threads, plane_in_, 1, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) {
                first[i] = value_of<C>(x[i]);
            }
        });
        from = first;
    }
    for (std::size_t i = 0; i < passes_.size(); ++i) {
        result = from == first ? second : first;
        if constexpr (std::is_same_v<C, T>) {
            if (i + 1 == passes_.size()) {
                result = y;
            }
        }
        run_pass(threads, passes_[i], from, result);
        from = result;
    }
    if constexpr (std::is_same_v<C, T>) {
        if (passes_.empty()) {
            std::copy(x, x + plane_in_, y);
        }
        fill_outside(y);
    } else {
        C* last = passes_.empty() ? first : result;
        fill_outside(last);
        parallel_for(threads, plane_out_, 2, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) {
                y[i] = element_of<T>(last[i], round_);
            }
        });
    }
}

template <typename C>
void Resample::run_pass(int threads, const Pass& pass, const C* x, C* y) const {
    const C* weights = nullptr;
    if constexpr (std::is_same_v<C, float>) {
        weights = pass.weights_f32.data();
    } else {
        weights = pass.weights_f64.data();
    }
    const std::int64_t size = pass.resized * pass.inner;
    if (pass.within_rows) {
        parallel_for(threads, pass.outer, static_cast<double>(size * pass.taps) * 0.5,
                     [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t o = begin; o < end; ++o) {
                             const C* row = x + o * pass.size * pass.inner;
                             if constexpr (std::is_same_v<C, float>) {
                                 if (!pass.starts.empty()) {
                                     const std::int64_t whole = size / table_->lanes * table_->lanes;
                                     table_->windowed_f32(row, pass.starts.data(), pass.places.data(), weights,
                                                          pass.taps, y + o * size, size);
                                     sum_rest(pass, row, weights, y + o * size, whole);
                                     continue;
                                 }
                             }
                             row_of<C>(*table_)(row, pass.sources.data(), weights, pass.taps, y + o * size, size);
                         }
                     });
        return;
    }
    const double cost = static_cast<double>(pass.inner * pass.taps) * 0.2 + 5;
    parallel_for(threads, pass.outer * pass.resized, cost, [&](std::int64_t begin, std::int64_t end) {
        const C* rows[kMaxTaps];
        C factors[kMaxTaps];
        for (std::int64_t row = begin; row < end; ++row) {
            const std::int64_t i = row % pass.resized;
            const C* base = x + row / pass.resized * pass.size * pass.inner;
            for (int t = 0; t < pass.taps; ++t) {
                const auto at = static_cast<std::size_t>(t * pass.resized + i);
                rows[t] = base + pass.sources[at] * pass.inner;
                factors[t] = weights[at];
            }
            rows_of<C>(*table_)(rows, factors, pass.taps, y + row * pass.inner, pass.inner);
        }
    });
}

// Elements `first` and beyond of one row.
void Resample::sum_rest(const Pass& pass, const float* x, const float* weights, float* y, std::int64_t first) {
    const std::int64_t size = pass.resized * pass.inner;
    for (std::int64_t i = first; i < size; ++i) {
        y[i] = 0;
        for (int t = 0; t < pass.taps; ++t) {
            const auto at = static_cast<std::size_t>(t * size + i);
            y[i] += weights[at] * x[pass.sources[at]];
        }
    }
}

template <typename C>
void Resample::fill_outside(C* y) const {
    for (const Outside& o : outside_) {
        const auto resized = static_cast<std::int64_t>(o.mask.size());
        for (std::int64_t row = 0; row < o.outer * resized; ++row) {
            if (o.mask[static_cast<std::size_t>(row % resized)] != 0) {
                std::fill_n(y + row * o.inner, o.inner, static_cast<C>(fill_));
            }
        }
    }
}

}  // namespace graphkit
