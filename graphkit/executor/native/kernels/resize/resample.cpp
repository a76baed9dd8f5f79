#include "kernels/resize/resample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "primitives/elements.h"
#include "runtime/bindings.h"
#include "runtime/isa.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"
#include "simd/half_convert.h"

namespace graphkit {
namespace {

// Rows that are this short are not summed as rows: the axis is treated as part of longer rows.
constexpr std::int64_t kShortRow = 16;
// Largest number of rows that are summed at once.
constexpr std::int64_t kMaxTaps = 64;
constexpr std::int64_t kMostPadding = 4;

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
        const C whole = round ? std::nearbyint(value) : value;  // a conversion discards the fraction
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
    const auto length = static_cast<std::int64_t>(a.sources.size());
    bool fits = a.axis >= 0 && a.axis < static_cast<std::int64_t>(x.size()) && !a.starts.empty() &&
                a.starts.front() == 0 && a.starts.back() == length && a.weights.size() == a.sources.size() &&
                std::is_sorted(a.starts.begin(), a.starts.end()) &&
                (a.outside.empty() || a.outside.size() + 1 == a.starts.size());
    for (std::size_t k = 0; fits && k < a.sources.size(); ++k) {
        fits = a.sources[k] >= 0 && a.sources[k] < x[static_cast<std::size_t>(a.axis)];
    }
    if (!fits) {
        throw NativeError(kernel.describe() + ": the weights do not fit axis " + std::to_string(a.axis));
    }
}

// Returns how many taps all elements get. Elements with fewer taps are padded, but all together by at most a factor of
// kMostPadding.
std::int64_t common_taps(const AxisTaps& a) {
    std::int64_t longest = 0;
    for (std::size_t i = 0; i + 1 < a.starts.size(); ++i) {
        longest = std::max(longest, a.starts[i + 1] - a.starts[i]);
    }
    const auto number = static_cast<std::int64_t>(a.sources.size());
    return longest * a.resized() <= kMostPadding * number ? longest
                                                          : number / std::max<std::int64_t>(a.resized(), 1) + 1;
}

}  // namespace

Resample::Resample(std::string name, Dims x, std::vector<AxisTaps> axes, double fill, bool round, ElementType type,
                   int threads)
    : Kernel(std::move(name), threads),
      fill_(fill),
      round_(round),
      in_double_(type == ElementType::f64 || (size_of(type) >= 4 && type != ElementType::f32)),
      table_(&resample_table()) {
    inputs_ = {{"x", x, type}};
    if (type == ElementType::boolean) {
        throw Unsupported(describe() + ": not a number type");
    }
    Dims y = x;
    std::size_t first = x.size();  // of the axes that change
    for (const AxisTaps& a : axes) {
        check(*this, x, a);
        y[static_cast<std::size_t>(a.axis)] = a.resized();
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
    // Shrinking axes come first and growing axes last, which leaves the least work. Of equal axes the last one comes
    // first, because its elements are picked one by one.
    const auto growth = [&](const AxisTaps& a) {
        return static_cast<double>(a.resized()) /
               static_cast<double>(std::max<std::int64_t>(x[static_cast<std::size_t>(a.axis)], 1));
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
        pass.resized = a.resized();
        pass.within_rows = around.inner < kShortRow;
        if (pass.within_rows && around.size * around.inner > std::numeric_limits<std::int32_t>::max()) {
            throw Unsupported(describe() + ": rows of more than 2^31 elements");
        }
        if (pass.within_rows) {
            set_elements(pass, a);
        }
        set_rows(pass, a, pass.taps);
        plane[static_cast<std::size_t>(a.axis) - first] = a.resized();
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

template <>
const float* Resample::Weights::data<float>() const {
    return f32.data();
}

template <>
const double* Resample::Weights::data<double>() const {
    return f64.data();
}

Resample::Weights Resample::converted(std::vector<double> weights) const {
    Weights result;
    if (in_double_) {
        result.f64 = std::move(weights);
    } else {
        result.f32.assign(weights.begin(), weights.end());
    }
    return result;
}

// Sets the taps of every element except the first `skipped` ones.
void Resample::set_rows(Pass& pass, const AxisTaps& axis, std::int64_t skipped) const {
    std::vector<double> weights;
    pass.row_starts = {0};
    for (std::int64_t i = 0; i < pass.resized; ++i) {
        const std::int64_t begin = axis.starts[static_cast<std::size_t>(i)] + skipped;
        const std::int64_t end = axis.starts[static_cast<std::size_t>(i) + 1];
        if (pass.within_rows && begin >= end) {
            continue;
        }
        pass.rows.push_back(i);
        pass.row_sources.insert(pass.row_sources.end(), axis.sources.begin() + begin, axis.sources.begin() + end);
        weights.insert(weights.end(), axis.weights.begin() + begin, axis.weights.begin() + end);
        pass.row_starts.push_back(static_cast<std::int64_t>(weights.size()));
    }
    pass.row_weights = converted(std::move(weights));
}

void Resample::set_elements(Pass& pass, const AxisTaps& axis) const {
    pass.taps = static_cast<int>(common_taps(axis));
    const std::int64_t size = pass.resized * pass.inner;
    pass.sources.resize(static_cast<std::size_t>(pass.taps * size));
    std::vector<double> weights(pass.sources.size());
    for (std::int64_t i = 0; i < pass.resized; ++i) {
        const std::int64_t begin = axis.starts[static_cast<std::size_t>(i)];
        const std::int64_t number = axis.starts[static_cast<std::size_t>(i) + 1] - begin;
        if (number == 0) {
            pass.empty.push_back(i);
        }
        for (std::int64_t t = 0; t < pass.taps; ++t) {
            // Elements with fewer taps repeat their first tap, with weight 0.
            const auto k = static_cast<std::size_t>(t < number ? begin + t : begin);
            const std::int64_t source = number == 0 ? 0 : axis.sources[k];
            for (std::int64_t j = 0; j < pass.inner; ++j) {
                const auto at = static_cast<std::size_t>(t * size + i * pass.inner + j);
                pass.sources[at] = static_cast<std::int32_t>(source * pass.inner + j);
                weights[at] = t < number ? axis.weights[k] : 0.0;
            }
        }
    }
    pass.weights = converted(std::move(weights));
    if (!in_double_) {
        find_windows(pass);
    }
}

void Resample::find_windows(Pass& pass) const {
    const std::int64_t lanes = table_->lanes;
    const std::int64_t size = pass.resized * pass.inner;
    const std::int64_t given = pass.size * pass.inner;
    if (lanes == 0 || given < 2 * lanes || size < lanes || pass.taps == 0) {
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
        auto start = static_cast<std::int32_t>(given - 2 * lanes);  // so that the window stays inside of the row
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
        // Each type is computed either in float or in double; the other combination never runs.
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
                                                    static_cast<std::int64_t>(passes_.size() + 1)) *
                                0.5;
            if (slots_ == 1 || threads_for(slots_, work) == 1) {
                planes(slots_ == 1 ? threads() : 1, 0, planes_, 0);
            } else {
                parallel_calls(slots_, slots_, work / slots_, [&](std::int64_t begin, std::int64_t end) {
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
    if (pass.within_rows) {
        run_elements(threads, pass, x, y);
    }
    const C* weights = pass.row_weights.data<C>();
    const auto rows = static_cast<std::int64_t>(pass.rows.size());
    const double taps =
        static_cast<double>(pass.row_sources.size()) / static_cast<double>(std::max<std::int64_t>(rows, 1));
    const double cost = static_cast<double>(pass.inner) * taps * 0.2 + 5;
    parallel_calls(threads, pass.outer * rows, cost, [&](std::int64_t begin, std::int64_t end) {
        const C* read[kMaxTaps];
        for (std::int64_t row = begin; row < end; ++row) {
            const auto at = static_cast<std::size_t>(row % rows);
            const C* base = x + row / rows * pass.size * pass.inner;
            C* result = y + (row / rows * pass.resized + pass.rows[at]) * pass.inner;
            std::int64_t k = pass.row_starts[at];
            if (!pass.within_rows) {
                const std::int64_t taken = std::min(kMaxTaps, pass.row_starts[at + 1] - k);
                for (std::int64_t t = 0; t < taken; ++t) {
                    read[t] = base + pass.row_sources[static_cast<std::size_t>(k + t)] * pass.inner;
                }
                rows_of<C> (*table_)(read, weights + k, static_cast<int>(taken), result, pass.inner);
                k += taken;
            }
            for (; k < pass.row_starts[at + 1]; ++k) {
                const C* source = base + pass.row_sources[static_cast<std::size_t>(k)] * pass.inner;
                for (std::int64_t j = 0; j < pass.inner; ++j) {
                    result[j] += weights[k] * source[j];
                }
            }
        }
    });
}

template <typename C>
void Resample::sum_elements(const Pass& pass, const C* x, const C* weights, C* y) const {
    const std::int64_t size = pass.resized * pass.inner;
    if constexpr (std::is_same_v<C, float>) {
        if (!pass.starts.empty()) {
            table_->windowed_f32(x, pass.starts.data(), pass.places.data(), weights, pass.taps, y, size);
            sum_rest(pass, x, weights, y, size / table_->lanes * table_->lanes);
            return;
        }
    }
    row_of<C> (*table_)(x, pass.sources.data(), weights, pass.taps, y, size);
}

template <typename C>
void Resample::run_elements(int threads, const Pass& pass, const C* x, C* y) const {
    const C* weights = pass.weights.data<C>();
    const std::int64_t size = pass.resized * pass.inner;
    parallel_calls(threads, pass.outer, static_cast<double>(size * pass.taps) * 0.5,
                   [&](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t o = begin; o < end; ++o) {
                           const C* row = x + o * pass.size * pass.inner;
                           C* result = y + o * size;
                           sum_elements(pass, row, weights, result);
                           for (const std::int64_t i : pass.empty) {
                               std::fill_n(result + i * pass.inner, pass.inner, C{});
                           }
                       }
                   });
}

// Computes the elements of a row from `first` on.
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

namespace {

using TapsTuple = std::tuple<std::int64_t, RawBytes, RawBytes, RawBytes, RawBytes>;

template <typename T>
std::vector<T> elements_of(const RawBytes& value) {
    std::vector<T> elements(value.data.size() / sizeof(T));
    std::copy_n(value.data.data(), elements.size() * sizeof(T), reinterpret_cast<char*>(elements.data()));
    return elements;
}

}  // namespace

static const RecipeKind resample_recipe(
    "Resample", +[](Resample* self, Text name, Dims x, const std::vector<TapsTuple>& axes, double fill, bool round,
                    Text dtype, int threads) {
        std::vector<AxisTaps> taps;
        for (const auto& [axis, starts, sources, weights, outside] : axes) {
            taps.push_back({axis, elements_of<std::int64_t>(starts), elements_of<std::int32_t>(sources),
                            elements_of<double>(weights), elements_of<std::uint8_t>(outside)});
        }
        new (self) Resample(name, std::move(x), std::move(taps), fill, round, element_type(dtype), threads);
    });

GRAPHKIT_BINDINGS(resample) {
    nb::class_<Resample, Kernel>(
        m, "Resample", "Weighted sums along axes, each (axis, starts, sources, weights, outside), arrays as bytes.")
        .def("__init__", resample_recipe.init(), "name"_a, "x"_a, "axes"_a, "fill"_a, "round"_a, "dtype"_a,
             "threads"_a = 0);
}

}  // namespace graphkit
