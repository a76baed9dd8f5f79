// Transposed convolution in the standard layout: float32, up to three spatial dimensions, in groups or not. The lanes
// of a vector hold neighbouring elements of x, so data are not transposed. Each element is multiplied by the taps of
// some filters; the products, which stay in the second-level cache, are added up for each line of the result. Padding
// adds no terms. Results do not depend on the number of threads.
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/conv/shallow_table.h"
#include "kernels/conv/transposed_axis.h"
#include "kernels/conv/transposed_conv.h"
#include "kernels/conv/transposed_planes_table.h"
#include "primitives/rounding.h"
#include "runtime/bindings.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// Products of at least this many taps fill the registers.
constexpr std::int64_t kManyTaps = 56;
// Most floats of products that are kept, and of the products of one line.
constexpr std::int64_t kKeptFloats = 3 << 15;
constexpr std::int64_t kMostKeptFloats = 1 << 20;
// Elements of x that are copied, and stay in the near caches while they are multiplied by all taps of some filters. A
// channel of the copy has kCopied floats: a power of 2 would place all channels in one set of the cache.
constexpr std::int64_t kElements = 128;
constexpr std::int64_t kCopied = 144;
constexpr std::int64_t kUnitsPerThread = 4;
constexpr double kProductNanoseconds = 0.02;
constexpr double kSumNanoseconds = 0.1;

// x [N, groups * C, spatial], w [groups * C, M, kernel], y [N, groups * M, spatial]. Each group of channels of an image
// is computed like an image. Constant weights may come packed.
class TransposedPlanes final : public Kernel {
  public:
    // Throws Unsupported for shapes that `covers` rejects, NativeError for shapes that do not match.
    TransposedPlanes(const Dims& x, const Dims& w, const Dims& y, const Window& window, bool bias, bool pack_weights,
                     int threads);

    static bool covers(const Dims& x, const Dims& w, const Dims& y, const Window& window);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<int> packed_inputs() const override { return packed_ ? std::vector{1} : std::vector<int>{}; }
    std::size_t packed_bytes(int input) const override;
    std::string packed_layout(int input) const override;
    void pack(int input, const void* plain, void* packed) const override;
    std::string implementation() const override { return "scattered:" + isa_; }

  private:
    // A tap of the inner axis: its product with element i is added to position (i + shift) * stride + phase.
    struct InnerTap {
        std::int64_t tap, phase, shift;
    };

    // The terms of a line of the result. The vectors are reused by the next line.
    struct Terms {
        std::vector<std::int64_t> lines;
        std::vector<TransposedTerm> terms;
        std::vector<std::int64_t> begins;
    };

    // Some filters, at some positions along the outer axis of an image.
    struct Unit {
        std::int64_t image;
        std::int64_t filter, filters;
        std::int64_t begin, end;
    };

    void divide();
    void place_taps();
    std::int64_t taps() const { return outer_.taps * middle_.taps * inner_.taps; }
    std::int64_t line() const { return middle_.size * inner_.size; }  // of an element of the outer axis
    std::int64_t filter_parts() const { return divide_up(filters_, part_filters_); }
    std::int64_t bands() const { return divide_up(outer_.positions, band_); }
    std::int64_t units() const { return images_ * filter_parts() * bands(); }
    // Elements of the outer axis that contribute to a band.
    std::int64_t band_elements() const {
        return std::min(outer_.size, (band_ - 1) / outer_.stride + outer_.span() + 1);
    }
    std::int64_t kept_floats() const { return part_filters_ * taps() * pitch_ + 2 * kTransposedMargin; }
    std::size_t own_bytes() const;
    std::size_t weight_bytes() const {
        return aligned(static_cast<std::size_t>(count(inputs_[1].shape)) * sizeof(float));
    }
    Unit unit(std::int64_t number) const;
    void arrange(const float* w, float* to) const;
    void multiply(const Unit& unit, const float* image, const float* weights, float* kept, float* copied) const;
    void find_terms(std::int64_t place, std::int64_t first, Terms& found) const;
    void add_up(const Unit& unit, const float* kept, const float* bias, float* y, Terms& terms) const;

    const ShallowTable& products_;
    const TransposedPlanesTable& sums_;
    std::string isa_;
    bool packed_;
    std::int64_t groups_;
    std::int64_t images_ = 0;    // times groups
    std::int64_t channels_ = 0;  // of a group
    std::int64_t filters_ = 0;   // of a group
    Axis outer_, middle_, inner_;
    std::int64_t part_filters_ = 1;
    std::int64_t band_ = 1;  // positions of the outer axis
    std::vector<InnerTap> inner_taps_;  // ordered by phase
    std::vector<std::int64_t> phase_begins_;  // the taps of phase p are phase_begins_[p] to phase_begins_[p + 1]
    std::int64_t most_shift_ = 0;
    std::int64_t pitch_ = 0;  // floats from the products of one tap to those of the next
    std::vector<std::int64_t> offsets_;  // of each channel in a copy
};

}  // namespace

bool TransposedPlanes::covers(const Dims& x, const Dims& w, const Dims& y, const Window& window) {
    const std::size_t axes = window.strides.size();
    if (!covers_axes(x, w, y, window, 3) || count(w) == 0 || window.groups < 1) {
        return false;
    }
    // The products of whole lines are kept.
    const std::int64_t lines = axes == 1 ? 1 : (w[2] - 1) * window.dilations[0] / window.strides[0] + 2;
    const std::int64_t line = count(x) == 0 ? 1 : count(Dims(x.begin() + (axes == 1 ? 2 : 3), x.end()));
    return lines * line * std::max(kManyTaps, 2 * count(Dims(w.begin() + 2, w.end()))) <= kMostKeptFloats;
}

TransposedPlanes::TransposedPlanes(const Dims& x, const Dims& w, const Dims& y, const Window& window, bool bias,
                                   bool pack_weights, int threads)
    : Kernel("TransposedPlanes", threads > 0 ? threads : default_threads()),
      products_(shallow_table()),
      sums_(transposed_planes_table()),
      isa_(isa_name()),
      packed_(pack_weights),
      groups_(window.groups) {
    inputs_ = {{"x", x}, {"w", w}};
    outputs_ = {{"y", y}};
    if (!covers(x, w, y, window)) {
        throw Unsupported(describe() + ": not by the method scattered");
    }
    Axis* const axes[] = {&outer_, &middle_, &inner_};
    const std::size_t rank = window.strides.size();
    for (std::size_t i = 0; i < rank; ++i) {
        *(i + 1 == rank ? &inner_ : axes[i]) = spatial_axis(x, w, y, window, i, *this);
    }
    if (x[0] != y[0] || x[1] != w[0] || x[1] % groups_ != 0 || y[1] != groups_ * w[1]) {
        throw NativeError(describe() + ": batch or channels do not fit");
    }
    images_ = x[0] * groups_;
    channels_ = x[1] / groups_;
    filters_ = w[1];
    inputs_.push_back({"bias", {y[1]}, ElementType::f32, !bias});
    divide();
    place_taps();
}

// Divides the work. The products of a band are computed from all elements that contribute to it, so neighbouring bands
// compute some of them twice.
void TransposedPlanes::divide() {
    part_filters_ = std::min(filters_, divide_up(kManyTaps, taps()));
    part_filters_ = divide_up(filters_, divide_up(filters_, part_filters_));
    const std::int64_t floats = part_filters_ * taps() * std::max<std::int64_t>(line(), 1);
    std::int64_t elements = std::clamp<std::int64_t>(kKeptFloats / floats, 1, std::max<std::int64_t>(outer_.size, 1));
    if (threads() > 1 && images_ > 0) {
        const std::int64_t wanted = divide_up(kUnitsPerThread * threads(), images_ * filter_parts());
        elements = std::min(elements, std::max(divide_up(outer_.size, wanted), kUnitsPerThread * outer_.span()));
    }
    band_ = std::max<std::int64_t>(elements, 1) * outer_.stride;
    pitch_ = round_up(band_elements() * line(), kLongestVector) + kLongestVector;
}

void TransposedPlanes::place_taps() {
    for (std::int64_t tap = 0; tap < inner_.taps; ++tap) {
        const std::int64_t at = tap * inner_.dilation;
        inner_taps_.push_back({tap, at % inner_.stride, at / inner_.stride});
        most_shift_ = at / inner_.stride;
    }
    std::stable_sort(inner_taps_.begin(), inner_taps_.end(),
                     [](const InnerTap& a, const InnerTap& b) { return a.phase < b.phase; });
    for (std::int64_t phase = 0; phase <= inner_.stride; ++phase) {
        phase_begins_.push_back(std::count_if(inner_taps_.begin(), inner_taps_.end(),
                                              [&](const InnerTap& tap) { return tap.phase < phase; }));
    }
    for (std::int64_t c = 0; c < channels_; ++c) {
        offsets_.push_back(c * kCopied);
    }
}

TransposedPlanes::Unit TransposedPlanes::unit(std::int64_t number) const {
    Unit u{};
    u.begin = number % bands() * band_;
    u.end = std::min(u.begin + band_, outer_.positions);
    number /= bands();
    u.filter = number % filter_parts() * part_filters_;
    u.filters = std::min(part_filters_, filters_ - u.filter);
    u.image = number / filter_parts();
    return u;
}

std::size_t TransposedPlanes::own_bytes() const {
    return aligned(static_cast<std::size_t>(kept_floats() + channels_ * kCopied) * sizeof(float));
}

// The weights, then for each thread products and a copy of a part of x.
std::size_t TransposedPlanes::scratch_bytes() const {
    const auto workers = static_cast<std::size_t>(std::clamp<std::int64_t>(units(), 1, threads()));
    return (packed_ ? 0 : weight_bytes()) + workers * own_bytes();
}

std::size_t TransposedPlanes::packed_bytes(int input) const {
    require_packed(input);
    return weight_bytes();
}

std::string TransposedPlanes::packed_layout(int input) const {
    require_packed(input);
    return implementation() + " " + to_string(inputs_[1].shape) + " groups " + std::to_string(groups_);
}

void TransposedPlanes::pack(int input, const void* plain, void* packed) const {
    require_packed(input);
    arrange(static_cast<const float*>(plain), static_cast<float*>(packed));
}

// Arranges w [groups, C, M, taps]: for each group and each part of the filters, the taps in the order of ShallowLine.
void TransposedPlanes::arrange(const float* w, float* to) const {
    const std::int64_t step = filters_ * taps();
    for (std::int64_t group = 0; group < groups_; ++group, w += channels_ * step) {
        for (std::int64_t filter = 0; filter < filters_; filter += part_filters_) {
            const std::int64_t rows = std::min(part_filters_, filters_ - filter) * taps();
            for_each_group(products_.group, rows, [&](std::int64_t begin, std::int64_t some) {
                for (std::int64_t c = 0; c < channels_; ++c, to += some) {
                    std::copy_n(w + c * step + filter * taps() + begin, some, to);
                }
            });
        }
    }
}

// Multiplies the elements that contribute to a band.
void TransposedPlanes::multiply(const Unit& unit, const float* image, const float* weights, float* kept,
                                float* copied) const {
    const std::int64_t first = outer_.first(unit.begin) * line();
    const std::int64_t end = (outer_.last(unit.end - 1) + 1) * line();
    ShallowLine product{};
    product.x = copied;
    product.offsets = offsets_.data();
    product.elements = product.end = channels_;
    product.w = weights;
    product.filters = unit.filters * taps();
    product.filter_step = pitch_;
    for (std::int64_t at = first; at < end; at += kElements) {
        product.count = std::min(kElements, end - at);
        product.y = kept + (at - first);
        for (std::int64_t c = 0; c < channels_; ++c) {
            products_.separate({image + c * outer_.size * line() + at, 1, product.count, copied + c * kCopied, 0});
        }
        products_.run(product);
    }
}

// Finds the terms of a line of the result. `first`: the first element of the outer axis whose products are kept.
void TransposedPlanes::find_terms(std::int64_t place, std::int64_t first, Terms& found) const {
    found.lines.clear();
    outer_.for_each_term(place / middle_.positions, [&](std::int64_t element, std::int64_t outer_tap) {
        middle_.for_each_term(place % middle_.positions, [&](std::int64_t row, std::int64_t tap) {
            found.lines.push_back((outer_tap * middle_.taps + tap) * inner_.taps * pitch_ + (element - first) * line() +
                                  row * inner_.size);
        });
    });
    found.terms.resize(found.lines.size() * inner_taps_.size());
    auto term = found.terms.begin();
    for (const InnerTap& tap : inner_taps_) {
        for (const std::int64_t line : found.lines) {
            *term++ = {line + tap.tap * pitch_, tap.shift};
        }
    }
    found.begins.resize(phase_begins_.size());
    std::transform(phase_begins_.begin(), phase_begins_.end(), found.begins.begin(),
                   [&](std::int64_t begin) { return begin * static_cast<std::int64_t>(found.lines.size()); });
}

// Writes the lines of a band.
void TransposedPlanes::add_up(const Unit& unit, const float* kept, const float* bias, float* y, Terms& terms) const {
    TransposedSum sum{};
    sum.most_shift = most_shift_;
    sum.elements = inner_.size;
    sum.stride = inner_.stride;
    sum.begin = inner_.begin;
    sum.count = inner_.positions;
    const std::int64_t first = outer_.first(unit.begin);
    for (std::int64_t place = unit.begin * middle_.positions; place < unit.end * middle_.positions; ++place) {
        find_terms(place, first, terms);
        sum.terms = terms.terms.data();
        sum.begins = terms.begins.data();
        for (std::int64_t filter = 0; filter < unit.filters; ++filter) {
            sum.products = kept + filter * taps() * pitch_;
            sum.bias = bias == nullptr ? 0.0F : bias[filter];
            sum.y = y + (filter * outer_.positions * middle_.positions + place) * inner_.positions;
            sums_.add_up(sum);
        }
    }
}

void TransposedPlanes::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto* weights = static_cast<const float*>(inputs[1]);
    if (!packed_) {
        arrange(weights, reinterpret_cast<float*>(scratch));
        weights = reinterpret_cast<const float*>(scratch);
        scratch += weight_bytes();
    }
    const auto* x = static_cast<const float*>(inputs[0]);
    const auto* bias = static_cast<const float*>(inputs[2]);
    auto* y = static_cast<float*>(outputs[0]);
    const std::int64_t plane = outer_.size * line();
    const std::int64_t out_plane = outer_.positions * middle_.positions * inner_.positions;
    const double elements = static_cast<double>(band_elements() * line() * part_filters_ * taps());
    const double cost = elements * (kProductNanoseconds * static_cast<double>(channels_) + kSumNanoseconds);
    parallel_for(threads(), units(), cost, [&](std::int64_t begin, std::int64_t end) {
        auto* const own = reinterpret_cast<float*>(scratch + static_cast<std::size_t>(thread_number()) * own_bytes());
        float* const kept = own + kTransposedMargin;
        Terms terms;
        for (std::int64_t at = begin; at < end; ++at) {
            const Unit u = unit(at);
            const std::int64_t group = u.image % groups_;
            const std::int64_t filter = group * filters_ + u.filter;
            const std::int64_t taps_before = channels_ * taps() * filter;
            multiply(u, x + u.image * channels_ * plane, weights + taps_before, kept, own + kept_floats());
            add_up(u, kept, bias == nullptr ? nullptr : bias + filter, y + (u.image * filters_ + u.filter) * out_plane,
                   terms);
        }
    });
}

bool covers_transposed_planes(const Dims& x, const Dims& w, const Dims& y, const Window& window) {
    return TransposedPlanes::covers(x, w, y, window);
}

std::unique_ptr<Kernel> transposed_planes(const Dims& x, const Dims& w, const Dims& y, const Window& window, bool bias,
                                          bool pack_weights, int threads) {
    return std::make_unique<TransposedPlanes>(x, w, y, window, bias, pack_weights, threads);
}

static const RecipeKind transposed_planes_recipe(
    "TransposedPlanes",
    +[](TransposedPlanes* self, const Dims& x, const Dims& w, const Dims& y, const Window& window, bool bias,
        bool pack_weights, int threads) { new (self) TransposedPlanes(x, w, y, window, bias, pack_weights, threads); });

GRAPHKIT_BINDINGS(transposed_planes, "conv") {
    nb::class_<TransposedPlanes, Kernel>(m, "TransposedPlanes")
        .def("__init__", transposed_planes_recipe.init(), "x"_a, "w"_a, "y"_a, "window"_a, nb::kw_only(),
             "bias"_a = false, "pack_weights"_a = false, "threads"_a = 0, NoGil());
}

}  // namespace graphkit
