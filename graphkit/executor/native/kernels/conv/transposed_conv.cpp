// Transposed convolution by graphkit's own code, of channels-last data: float32, one or two spatial dimensions, one
// group. Each element of x is multiplied by all taps of some filters; the result sums these products, which stay in the
// second-level cache. Nothing is prepared for certain sizes, and padding adds no terms. Results do not depend on the
// number of threads.
#include "kernels/conv/transposed_conv.h"

#include <algorithm>
#include <vector>

#include "kernels/conv/transposed_axis.h"
#include "kernels/conv/transposed_table.h"
#include "kernels/conv/window.h"
#include "runtime/bindings.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// Floats of products that are kept at a time; kMostKeptFloats if lines of x have more.
constexpr std::int64_t kKeptFloats = 1 << 16;
constexpr std::int64_t kMostKeptFloats = 1 << 22;
constexpr std::int64_t kUnitsPerThread = 4;
// If lines are divided among units, both units at a border compute the products of its lines.
constexpr std::int64_t kLinesPerBorder = 4;
constexpr double kProductNanoseconds = 0.02;
constexpr double kSumNanoseconds = 0.1;

// y = conv_transpose(x, w) + bias. Shapes are given as [N, C, spatial]; in memory, arrays are [N, spatial, C]. w is [C,
// M, kernel] in memory, too. Constant weights may come packed.
class TransposedConvolution final : public Kernel {
  public:
    // Throws Unsupported for shapes that `covers` rejects, NativeError for shapes that do not match.
    TransposedConvolution(const Dims& x, const Dims& w, const Dims& y, const Window& window, bool bias,
                          bool pack_weights, int threads);

    static bool covers(const Dims& x, const Dims& w, const Dims& y, const Window& window);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<int> packed_inputs() const override { return packed_ ? std::vector{1} : std::vector<int>{}; }
    std::size_t packed_bytes(int input) const override;
    std::string packed_layout(int input) const override;
    void pack(int input, const void* plain, void* packed) const override;
    std::string implementation() const override { return "transposed:" + isa_; }

  private:
    // A group of filters that are computed together: one block, or fewer in the last group. If `direct_`, a group has
    // all filters of a tap of the outer axis, and `filters` counts them for each tap of the inner axis.
    struct Group {
        std::int64_t first, filters;
        std::int64_t floats;  // of their taps, a multiple of half a block
    };

    // For each column of a line, the offsets of its terms from the products of the first element in a line of x.
    struct Columns {
        std::vector<std::int64_t> offsets;
        std::vector<std::int64_t> begins;
    };

    // The terms of a unit. The vectors are reused by the next unit.
    struct Terms {
        std::vector<const float*> rows;
        Columns columns;
    };

    // A group of filters, at some positions along the outer axis of an image.
    struct Unit {
        std::int64_t group;
        std::int64_t begin, end;
        const float* image;
        const float* bias;  // of the group; null: none
        float* y;  // of the image
    };

    Group group(std::int64_t number) const;
    Columns columns(const Group& group) const;
    bool fills_vectors() const;
    void fold();
    std::int64_t taps() const { return outer_.taps * inner_.taps; }
    std::int64_t groups() const { return direct_ ? outer_.taps : divide_up(filters_, table_.block); }
    std::int64_t units() const { return images_ * line_parts_ * groups(); }
    std::size_t workers() const { return static_cast<std::size_t>(std::min<std::int64_t>(threads(), units())); }
    std::size_t weight_bytes() const;
    std::size_t kept_bytes() const;
    std::size_t bias_bytes() const {
        return folded_.together == 1 ? 0 : aligned(static_cast<std::size_t>(filters_) * sizeof(float));
    }
    void arrange(const float* w, float* to) const;
    std::vector<std::int64_t> order_of_taps(std::int64_t number) const;
    void run_direct(const float* x, const float* taps, const float* bias, float* y) const;
    void multiply(const float* image, const Group& group, const float* taps, std::int64_t begin, std::int64_t end,
                  float* kept) const;
    void compute(const Unit& unit, const float* taps, float* kept, Terms& terms) const;
    TransposedLine line_of(const Unit& unit) const;
    void add_up_lines(const Unit& unit, std::int64_t begin, std::int64_t end, const float* kept, Terms& terms) const;
    void add_up_columns(const Unit& unit, std::int64_t begin, std::int64_t end, const float* kept, Terms& terms) const;

    const TransposedTable& table_;
    std::string isa_;
    bool packed_;
    std::int64_t images_, channels_;
    std::int64_t filters_;  // filters of a folded position
    Axis outer_, inner_;
    bool direct_ = false;  // products are written to the result, since no position has several terms
    bool single_ = false;  // one spatial axis, treated as the outer one: each position is a line with one column
    std::int64_t line_floats_ = 0;  // floats of a line of the result; if `single_`, of all positions
    Folded folded_;
    Columns whole_, rest_;  // for a group with all filters; for the last group, if it has fewer
    std::int64_t lines_ = 1;  // number of lines of x whose products are kept
    std::int64_t line_parts_ = 1;
};

}  // namespace

bool TransposedConvolution::covers(const Dims& x, const Dims& w, const Dims& y, const Window& window) {
    const std::size_t axes = window.strides.size();
    if (!covers_axes(x, w, y, window, 2) || count(w) == 0 || window.groups != 1) {
        return false;
    }
    // The products of whole lines are kept.
    const std::int64_t lines = (w[2] - 1) * window.dilations[0] / window.strides[0] + 2;
    const std::int64_t width = axes == 2 ? x[3] : 1;
    return lines * width * count(Dims(w.begin() + 2, w.end())) * transposed_table().block <= kMostKeptFloats;
}

TransposedConvolution::TransposedConvolution(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                                             bool bias, bool pack_weights, int threads)
    : Kernel("TransposedConvolution", threads > 0 ? threads : default_threads()),
      table_(transposed_table()),
      isa_(isa_name()),
      packed_(pack_weights) {
    inputs_ = {{"x", x}, {"w", w}};
    outputs_ = {{"y", y}};
    if (!covers(x, w, y, window)) {
        throw Unsupported(describe() + ": not by the method transposed");
    }
    images_ = x[0];
    channels_ = x[1];
    filters_ = w[1];
    Axis* const axes[] = {&outer_, &inner_};
    for (std::size_t i = 0; i < window.strides.size(); ++i) {
        *axes[i] = spatial_axis(x, w, y, window, i, *this);
    }
    if (x[0] != y[0] || x[1] != w[0] || y[1] != w[1]) {
        throw NativeError(describe() + ": batch or channels do not fit");
    }
    // A position before `begin` has no element.
    const auto is_unit = [](const Axis& axis) {
        return axis.size == 1 && axis.positions == 1 && axis.taps == 1 && axis.begin == 0;
    };
    if (is_unit(outer_)) {
        std::swap(outer_, inner_);
    }
    single_ = is_unit(inner_);
    inputs_.push_back({"bias", {filters_}, ElementType::f32, !bias});
    line_floats_ = (single_ ? outer_ : inner_).positions * filters_;
    direct_ = !single_ && has_single_terms(outer_) && has_single_terms(inner_) && fills_vectors();
    if (!direct_) {
        fold();
    }
    for (TensorSpec* spec : {&inputs_[0], &outputs_[0]}) {
        std::rotate(spec->shape.begin() + 1, spec->shape.begin() + 2, spec->shape.end());
    }
    if (direct_) {
        return;
    }
    whole_ = columns(group(0));
    if (group(groups() - 1).filters != group(0).filters) {
        rest_ = columns(group(groups() - 1));
    }
    const std::int64_t width = std::max<std::int64_t>(inner_.size, 1);
    const std::int64_t line_floats = width * group(0).floats;
    const std::int64_t fill = divide_up(table_.count, width);
    lines_ = outer_.span() + std::max(kKeptFloats / line_floats - outer_.span(), fill);
    lines_ = std::clamp<std::int64_t>(lines_, 1, std::max<std::int64_t>(outer_.size, 1));
    if (this->threads() > 1 && images_ > 0) {
        const std::int64_t most = outer_.size / std::max(fill, kLinesPerBorder * outer_.span());
        const std::int64_t wanted = divide_up(kUnitsPerThread * this->threads(), images_ * groups());
        line_parts_ = std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(most, 1));
    }
}

// Whether the products of one tap of the outer axis fill vectors about as well as those of all taps. A few filters
// would leave most lanes empty.
bool TransposedConvolution::fills_vectors() const {
    const auto padded = [&](std::int64_t floats) { return divide_up(2 * floats, table_.block); };
    return 4 * outer_.taps * padded(inner_.taps * filters_) <= 5 * padded(taps() * filters_);
}

void TransposedConvolution::fold() {
    Axis& last = single_ ? outer_ : inner_;
    if (Folded::covers(last) && last.stride * filters_ <= table_.block) {
        folded_ = Folded(last);
        filters_ *= folded_.together;
    }
}

TransposedConvolution::Group TransposedConvolution::group(std::int64_t number) const {
    if (direct_) {
        const std::int64_t filters = inner_.taps * filters_;
        return {number * filters, filters, divide_up(2 * filters, table_.block) * (table_.block / 2)};
    }
    const std::int64_t first = number * table_.block;
    const std::int64_t filters = std::min(table_.block, filters_ - first);
    return {first, filters, divide_up(2 * taps() * filters, table_.block) * (table_.block / 2)};
}

TransposedConvolution::Columns TransposedConvolution::columns(const Group& group) const {
    Columns made;
    for (std::int64_t position = 0; position < inner_.positions; ++position) {
        made.begins.push_back(static_cast<std::int64_t>(made.offsets.size()));
        inner_.for_each_term(position, [&](std::int64_t element, std::int64_t tap) {
            made.offsets.push_back(element * group.floats + tap * group.filters);
        });
    }
    made.begins.push_back(static_cast<std::int64_t>(made.offsets.size()));
    return made;
}

std::size_t TransposedConvolution::weight_bytes() const {
    const std::int64_t floats = (groups() - 1) * group(0).floats + group(groups() - 1).floats;
    return aligned(static_cast<std::size_t>(channels_ * floats) * sizeof(float));
}

std::size_t TransposedConvolution::kept_bytes() const {
    return aligned(static_cast<std::size_t>(lines_ * inner_.size * group(0).floats) * sizeof(float));
}

// The weights, then the bias of a position, then products for each thread.
std::size_t TransposedConvolution::scratch_bytes() const {
    const std::size_t kept = direct_ ? 0 : bias_bytes() + workers() * kept_bytes();
    return (packed_ ? 0 : weight_bytes()) + kept;
}

std::size_t TransposedConvolution::packed_bytes(int input) const {
    require_packed(input);
    return weight_bytes();
}

std::string TransposedConvolution::packed_layout(int input) const {
    require_packed(input);
    return implementation() + (direct_ ? " direct " : " ") + to_string(inputs_[1].shape);
}

void TransposedConvolution::pack(int input, const void* plain, void* packed) const {
    require_packed(input);
    arrange(static_cast<const float*>(plain), static_cast<float*>(packed));
}

// For each float of a group's taps, its position in [M, taps]; -1 if there is none.
std::vector<std::int64_t> TransposedConvolution::order_of_taps(std::int64_t number) const {
    const std::int64_t taps = outer_.taps * inner_.taps * folded_.together;
    const Group g = group(number);
    std::vector<std::int64_t> from;
    const std::int64_t first_tap = direct_ ? number * inner_.taps : 0;
    const std::int64_t last_tap = direct_ ? first_tap + inner_.taps : taps;
    const std::int64_t first = direct_ ? 0 : g.first;
    const std::int64_t filters = direct_ ? filters_ : g.filters / folded_.together;
    for (std::int64_t tap = first_tap; tap < last_tap; ++tap) {
        for (std::int64_t filter = first; filter < first + filters; ++filter) {
            from.push_back(filter * taps + tap);
        }
    }
    from.resize(static_cast<std::size_t>(g.floats), -1);
    return from;
}

// Arranges w [C, M, taps]: for each group, blocks [C, block] of [taps, filters]. The last block is half as wide if the
// rest fits.
void TransposedConvolution::arrange(const float* w, float* to) const {
    for (std::int64_t number = 0; number < groups(); ++number) {
        const Group g = group(number);
        const std::vector<std::int64_t> from = order_of_taps(number);
        for (std::int64_t begin = 0; begin < g.floats; begin += table_.block) {
            const std::int64_t wide = std::min(table_.block, g.floats - begin);
            const std::int64_t* place = from.data() + begin;
            for (std::int64_t c = 0; c < channels_; ++c, to += wide) {
                const float* filters = w + c * (count(inputs_[1].shape) / channels_);
                for (std::int64_t i = 0; i < wide; ++i) {
                    to[i] = place[i] < 0 ? 0.0F : filters[place[i]];
                }
            }
        }
    }
}

// Multiplies lines of x. The products of line i are kept at place i % lines_.
void TransposedConvolution::multiply(const float* image, const Group& group, const float* taps, std::int64_t begin,
                                     std::int64_t end, float* kept) const {
    const std::int64_t line = inner_.size * channels_;
    while (begin < end) {
        const std::int64_t place = begin % lines_;
        const std::int64_t some = std::min(end - begin, lines_ - place);
        table_.multiply({image + begin * line, some * inner_.size, channels_, taps, group.floats,
                         kept + place * inner_.size * group.floats});
        begin += some;
    }
}

void TransposedConvolution::compute(const Unit& unit, const float* taps, float* kept, Terms& terms) const {
    const Group here = group(unit.group);
    std::int64_t position = unit.begin;
    std::int64_t there = 0;  // number of lines of x that have been multiplied
    while (position < unit.end) {
        if (outer_.last(position) >= there) {
            const std::int64_t first = outer_.first(position);
            const std::int64_t upto = std::min(first + lines_, outer_.last(unit.end - 1) + 1);
            multiply(unit.image, here, taps, std::max(there, first), upto, kept);
            there = upto;
        }
        const std::int64_t end = std::min(unit.end, outer_.complete(there));
        if (single_) {
            add_up_columns(unit, position, end, kept, terms);
        } else {
            add_up_lines(unit, position, end, kept, terms);
        }
        position = end;
    }
}

TransposedLine TransposedConvolution::line_of(const Unit& unit) const {
    TransposedLine line{};
    line.filters = group(unit.group).filters;
    line.bias = unit.bias;
    line.step = filters_;
    line.left_out = folded_.left_out * (filters_ / folded_.together);
    return line;
}

// With two axes, each position is a line.
void TransposedConvolution::add_up_lines(const Unit& unit, std::int64_t begin, std::int64_t end, const float* kept,
                                         Terms& terms) const {
    const Group here = group(unit.group);
    const Columns& columns = here.filters == group(0).filters ? whole_ : rest_;
    const std::int64_t pitch = inner_.size * here.floats;
    TransposedLine line = line_of(unit);
    line.offsets = columns.offsets.data();
    line.begins = columns.begins.data();
    line.columns = inner_.positions;
    line.floats = line_floats_ - here.first;
    for (std::int64_t position = begin; position < end; ++position) {
        terms.rows.clear();
        outer_.for_each_term(position, [&](std::int64_t element, std::int64_t tap) {
            terms.rows.push_back(kept + element % lines_ * pitch + tap * inner_.taps * here.filters);
        });
        line.rows = terms.rows.data();
        line.row_count = static_cast<std::int64_t>(terms.rows.size());
        line.y = unit.y + position * line_floats_ + here.first;
        table_.add_up(line);
    }
}

// With one axis, the positions are the columns of a line.
void TransposedConvolution::add_up_columns(const Unit& unit, std::int64_t begin, std::int64_t end, const float* kept,
                                           Terms& terms) const {
    const Group here = group(unit.group);
    const std::int64_t pitch = here.floats;
    const std::int64_t first = outer_.first(begin);
    terms.columns.offsets.clear();
    terms.columns.begins.clear();
    for (std::int64_t position = begin; position < end; ++position) {
        terms.columns.begins.push_back(static_cast<std::int64_t>(terms.columns.offsets.size()));
        outer_.for_each_term(position, [&](std::int64_t element, std::int64_t tap) {
            const std::int64_t place = first % lines_ + element - first;
            terms.columns.offsets.push_back((place < lines_ ? place : place - lines_) * pitch + tap * here.filters);
        });
    }
    terms.columns.begins.push_back(static_cast<std::int64_t>(terms.columns.offsets.size()));
    TransposedLine line = line_of(unit);
    line.rows = &kept;
    line.row_count = 1;
    line.offsets = terms.columns.offsets.data();
    line.begins = terms.columns.begins.data();
    line.columns = end - begin;
    const std::int64_t before = std::max<std::int64_t>(0, begin * filters_ - line.left_out);
    line.left_out = begin == 0 ? line.left_out : 0;
    line.y = unit.y + before + here.first;
    line.floats = line_floats_ - before - here.first;
    table_.add_up(line);
}

// Each line of x gives as many lines of the result as the outer axis has taps.
void TransposedConvolution::run_direct(const float* x, const float* taps, const float* bias, float* y) const {
    const Group here = group(0);
    const double products = static_cast<double>(inner_.size * channels_) * static_cast<double>(here.filters);
    const double cost = kProductNanoseconds * products + kSumNanoseconds * static_cast<double>(line_floats_);
    parallel_for(threads(), images_ * outer_.size * outer_.taps, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t line = begin; line < end; ++line) {
            float* to = y + line * line_floats_;
            table_.multiply({x + line / outer_.taps * inner_.size * channels_, inner_.size, channels_,
                             taps + line % outer_.taps * here.floats * channels_, here.filters, to});
            for (std::int64_t position = 0; position < inner_.positions && bias != nullptr; ++position) {
                float* const filters = to + position * filters_;
                for (std::int64_t filter = 0; filter < filters_; ++filter) {
                    filters[filter] += bias[filter];
                }
            }
        }
    });
}

void TransposedConvolution::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto* taps = static_cast<const float*>(inputs[1]);
    if (!packed_) {
        arrange(taps, reinterpret_cast<float*>(scratch));
        taps = reinterpret_cast<const float*>(scratch);
        scratch += weight_bytes();
    }
    const auto* bias = static_cast<const float*>(inputs[2]);
    if (direct_) {
        return run_direct(static_cast<const float*>(inputs[0]), taps, bias, static_cast<float*>(outputs[0]));
    }
    if (bias != nullptr && folded_.together > 1) {
        const std::int64_t filters = filters_ / folded_.together;
        auto* repeated = reinterpret_cast<float*>(scratch);
        for (std::int64_t i = 0; i < filters_; ++i) {
            repeated[i] = bias[i % filters];
        }
        bias = repeated;
    }
    scratch += bias_bytes();
    const auto* x = static_cast<const float*>(inputs[0]);
    const std::int64_t image_floats = count(outputs_[0].shape) / std::max<std::int64_t>(images_, 1);
    const double products = static_cast<double>(count(inputs_[0].shape)) * static_cast<double>(this->taps() * filters_);
    const double sums = static_cast<double>(count(outputs_[0].shape));
    const double cost = (kProductNanoseconds * products + kSumNanoseconds * sums) /
                        static_cast<double>(std::max<std::int64_t>(units(), 1));
    parallel_for(threads(), units(), cost, [&](std::int64_t begin, std::int64_t end) {
        auto* kept = reinterpret_cast<float*>(scratch + static_cast<std::size_t>(thread_number()) * kept_bytes());
        Terms terms;
        for (std::int64_t at = begin; at < end; ++at) {
            const std::int64_t part = at / groups() % line_parts_;
            const std::int64_t image = at / groups() / line_parts_;
            Unit unit{};
            unit.group = at % groups();
            unit.begin = outer_.positions * part / line_parts_;
            unit.end = outer_.positions * (part + 1) / line_parts_;
            unit.image = x + image * outer_.size * inner_.size * channels_;
            unit.bias = bias == nullptr ? nullptr : bias + unit.group * table_.block;
            unit.y = static_cast<float*>(outputs[0]) + image * image_floats;
            compute(unit, taps + unit.group * group(0).floats * channels_, kept, terms);
        }
    });
}

bool covers_transposed(const Dims& x, const Dims& w, const Dims& y, const Window& window) {
    return TransposedConvolution::covers(x, w, y, window);
}

std::unique_ptr<Kernel> transposed_convolution(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                                               bool bias, bool pack_weights, int threads) {
    return std::make_unique<TransposedConvolution>(x, w, y, window, bias, pack_weights, threads);
}

static const RecipeKind transposed_convolution_recipe(
    "TransposedConvolution", +[](TransposedConvolution* self, const Dims& x, const Dims& w, const Dims& y,
                                 const Window& window, bool bias, bool pack_weights, int threads) {
        new (self) TransposedConvolution(x, w, y, window, bias, pack_weights, threads);
    });

GRAPHKIT_BINDINGS(transposed_conv, "conv") {
    nb::class_<TransposedConvolution, Kernel>(m, "TransposedConvolution")
        .def("__init__", transposed_convolution_recipe.init(), "x"_a, "w"_a, "y"_a, "window"_a, nb::kw_only(),
             "bias"_a = false, "pack_weights"_a = false, "threads"_a = 0, NoGil())
        .def_static("covers", &TransposedConvolution::covers, "x"_a, "w"_a, "y"_a, "window"_a,
                    "Whether this kernel computes such a transposed convolution.");
}

}  // namespace graphkit
