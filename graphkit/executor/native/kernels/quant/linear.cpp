// Quantisation, dequantisation, and elementwise operators on quantised numbers.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/quant/linear_table.h"
#include "primitives/elements.h"
#include "runtime/operator_kernels.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

std::int32_t number(const void* from, ElementType type, std::int64_t at) {
    std::int32_t value = 0;
    with_type(type, [&](auto element) {
        using T = decltype(element);
        if constexpr (std::is_integral_v<T>) {
            value = static_cast<std::int32_t>(static_cast<const T*>(from)[at]);
        }
    });
    return value;
}

// The scale and zero point of each element.
struct Lines {
    std::int64_t lines = 1;    // number of contiguous lines of `length` elements
    std::int64_t length = 0;
    bool each = false;         // each element of a line has its own parameters
    std::int64_t repeat = 1;   // number of consecutive lines with the same parameters
    std::int64_t period = 1;   // number of groups of `repeat` lines after which the parameters repeat
    std::int64_t step = 0;     // parameters from group to group
    // Blocks along a line: number of elements that share a parameter; 0 if there are no blocks.
    std::int64_t block = 0;
};

Lines lines_of(const Dims& x, const Dims& parameter, std::int64_t axis, std::int64_t block) {
    if (count(parameter) == 1 && parameter.size() < 2) {
        return {1, count(x)};
    }
    const AroundAxis around(x, checked_axis(axis, x.size()));
    if (block == 0) {
        return around.inner == 1 ? Lines{around.outer, around.size, true}
                                 : Lines{around.outer * around.size, around.inner, false, 1, around.size, 1};
    }
    const std::int64_t blocks = (around.size + block - 1) / block;
    if (around.inner == 1) {
        return {around.outer, around.size, false, 1, around.outer, blocks, block};
    }
    // The lines of a block share their parameters; the last block of an axis may be shorter.
    return {around.outer * around.size, around.inner, true, block, around.size, around.inner, -1};
}

// QuantizeLinear and DequantizeLinear.
class Linear final : public Kernel {
  public:
    Linear(const char* name, bool quantises, const NodeSpec& node);

    std::size_t scratch_bytes() const override { return aligned(static_cast<std::size_t>(parameters_) * 4); }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    void part(const std::byte* x, std::int64_t count, const LinearRow& row, std::byte* y) const;
    LinearRow row_of(std::int64_t line, const float* scales, const std::int32_t* zeros) const;

    bool quantises_;
    Lines lines_;
    std::int64_t axis_size_ = 1;
    std::int64_t parameters_;
    int type_;
    const LinearFunctions& functions_;
};

Linear::Linear(const char* name, bool quantises, const NodeSpec& node)
    : Kernel(name, node.threads), quantises_(quantises), functions_(linear_functions()) {
    for (const auto& input : node.inputs) {
        inputs_.push_back(input ? input->tensor : TensorSpec{"absent", {}, ElementType::f32, true});
    }
    outputs_ = {node.outputs[0]};
    const TensorSpec &x = inputs_[0], &scale = inputs_[1];
    type_ = linear_type(quantises ? outputs_[0].type : x.type);
    const ElementType real = quantises ? x.type : outputs_[0].type;
    const bool fits = type_ >= 0 && real == ElementType::f32 && scale.type == ElementType::f32;
    if (!fits || (quantises && functions_.quantise[type_] == nullptr)) {
        throw Unsupported(describe() + ": no kernel for these types");
    }
    const std::int64_t axis = node.integer("axis");
    lines_ = lines_of(x.shape, scale.shape, axis, node.integer("block_size"));
    if (!x.shape.empty() && lines_.block < 0) {
        axis_size_ = x.shape[checked_axis(axis, x.shape.size())];
    }
    parameters_ = count(scale.shape);
}

void Linear::part(const std::byte* x, std::int64_t count, const LinearRow& row, std::byte* y) const {
    if (quantises_) {
        functions_.quantise[type_](reinterpret_cast<const float*>(x), count, row, y);
    } else {
        functions_.dequantise[type_](x, count, row, reinterpret_cast<float*>(y));
    }
}

LinearRow Linear::row_of(std::int64_t line, const float* scales, const std::int32_t* zeros) const {
    std::int64_t at = 0;
    if (lines_.block < 0) {
        const std::int64_t blocks = (axis_size_ + lines_.repeat - 1) / lines_.repeat;
        at = (line / axis_size_ * blocks + line % axis_size_ / lines_.repeat) * lines_.step;
    } else {
        at = line % lines_.period * lines_.step;
    }
    return {scales + at, zeros + at, lines_.each};
}

void Linear::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto* x = static_cast<const std::byte*>(inputs[0]);
    const auto* scales = static_cast<const float*>(inputs[1]);
    auto* y = static_cast<std::byte*>(outputs[0]);
    auto* zeros = reinterpret_cast<std::int32_t*>(scratch);
    const bool given = inputs_.size() > 2 && inputs[2] != nullptr && !inputs_[2].optional;
    for (std::int64_t i = 0; i < parameters_; ++i) {
        zeros[i] = given ? number(inputs[2], inputs_[2].type, i) : 0;
    }
    const auto from = static_cast<std::int64_t>(size_of(inputs_[0].type));
    const auto to = static_cast<std::int64_t>(size_of(outputs_[0].type));
    constexpr double kCost = 0.15;  // estimated nanoseconds for an element
    if (lines_.lines == 1 && !lines_.each && lines_.block == 0) {
        parallel_for(
            threads(), lines_.length, kCost,
            [&](std::int64_t begin, std::int64_t end) {
                part(x + begin * from, end - begin, {scales, zeros, false}, y + begin * to);
            },
            kAlignment);
        return;
    }
    parallel_for(threads(), lines_.lines, 5 + kCost * static_cast<double>(lines_.length),
                 [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t line = begin; line < end; ++line) {
                         LinearRow row = row_of(line, scales, zeros);
                         const std::int64_t step =
                             lines_.block > 0 ? lines_.block : std::max<std::int64_t>(lines_.length, 1);
                         for (std::int64_t i = 0; i < lines_.length; i += step) {
                             const std::int64_t at = line * lines_.length + i;
                             part(x + at * from, std::min(step, lines_.length - i), row, y + at * to);
                             ++row.scales;
                             ++row.zeros;
                         }
                     }
                 });
}

bool is_set(const NodeSpec& node, const std::string& name) {
    const auto found = node.attributes->find(name);
    return found != node.attributes->end() && found->second.has_value();
}

// DynamicQuantizeLinear: y, its scale and its zero point. Any of these may be absent.
class DynamicQuantize final : public Kernel {
  public:
    explicit DynamicQuantize(const NodeSpec& node) : Kernel("DynamicQuantizeLinear", node.threads) {
        inputs_ = {node.input(0).tensor};
        outputs_ = node.outputs;
        for (TensorSpec& output : outputs_) {
            output.optional = true;
        }
        if (inputs_[0].type != ElementType::f32) {
            throw Unsupported(describe() + ": no kernel for this type");
        }
    }

    std::size_t scratch_bytes() const override { return aligned(static_cast<std::size_t>(count(inputs_[0].shape))); }

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override {
        auto* y = static_cast<std::uint8_t*>(outputs[0]);
        const auto* x = static_cast<const float*>(inputs[0]);
        y = y != nullptr ? y : reinterpret_cast<std::uint8_t*>(scratch);
        const FoundRange found = quantise_by_range(threads(), x, count(inputs_[0].shape), y);
        if (outputs[1] != nullptr) {
            *static_cast<float*>(outputs[1]) = found.scale;
        }
        if (outputs[2] != nullptr) {
            *static_cast<std::uint8_t*>(outputs[2]) = found.zero;
        }
    }
};

// QLinearAdd and QLinearMul.
class QuantisedBinary final : public Kernel {
  public:
    QuantisedBinary(const char* name, bool adds, const NodeSpec& node);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<std::pair<int, int>> inplace() const override { return {{0, 0}, {3, 0}}; }

  private:
    void lay_out();
    BinaryRow row_of(const void* const* inputs) const;

    bool adds_;
    // Axes are merged where possible; the last one is a row.
    Dims sizes_, of_a_, of_b_;
    const LinearFunctions& functions_;
};

QuantisedBinary::QuantisedBinary(const char* name, bool adds, const NodeSpec& node)
    : Kernel(name, node.threads), adds_(adds), functions_(linear_functions()) {
    for (std::size_t i = 0; i < 8; ++i) {
        inputs_.push_back(node.input(i).tensor);
    }
    outputs_ = {node.outputs[0]};
    const ElementType type = outputs_[0].type;
    if ((type != ElementType::u8 && type != ElementType::i8) || inputs_[0].type != type || inputs_[3].type != type) {
        throw Unsupported(describe() + ": no kernel for these types");
    }
    lay_out();
}

void QuantisedBinary::lay_out() {
    const Dims& y = outputs_[0].shape;
    const auto strides = [&](const Dims& shape) {
        const std::size_t ahead = y.size() - shape.size();
        const Dims own = row_major(shape);
        Dims all(y.size(), 0);
        for (std::size_t axis = 0; axis < shape.size(); ++axis) {
            all[ahead + axis] = shape[axis] == 1 ? 0 : own[axis];
        }
        return all;
    };
    const Dims a = strides(inputs_[0].shape), b = strides(inputs_[3].shape);
    for (std::size_t axis = 0; axis < y.size(); ++axis) {
        if (y[axis] == 1) {
            continue;
        }
        // An axis is merged with the next one if both operands are contiguous, or broadcast, along both.
        const bool joins = !sizes_.empty() && of_a_.back() == a[axis] * y[axis] && of_b_.back() == b[axis] * y[axis];
        if (joins) {
            sizes_.back() *= y[axis];
            of_a_.back() = a[axis];
            of_b_.back() = b[axis];
        } else {
            sizes_.push_back(y[axis]);
            of_a_.push_back(a[axis]);
            of_b_.push_back(b[axis]);
        }
    }
    if (sizes_.empty()) {
        sizes_ = of_a_ = of_b_ = {1};
    }
}

BinaryRow QuantisedBinary::row_of(const void* const* inputs) const {
    const ElementType type = outputs_[0].type;
    const auto scale = [&](int at) { return *static_cast<const float*>(inputs[at]); };
    const auto zero = [&](int at) { return number(inputs[at], type, 0); };
    BinaryRow row{};
    row.flip = type == ElementType::i8 ? 0x80 : 0;
    if (adds_) {
        row.a_factor = scale(1) / scale(6);
        row.b_factor = scale(4) / scale(6);
        const float of_b = row.b_factor * static_cast<float>(zero(5));
        row.fixed = static_cast<float>(zero(7)) - std::fma(row.a_factor, static_cast<float>(zero(2)), of_b);
    } else {
        const float factor = scale(1) * scale(4);
        row.a_factor = factor / scale(6);
        row.a_zero = zero(2);
        row.b_zero = zero(5);
        row.fixed = static_cast<float>(zero(7));
    }
    row.a_single = of_a_.back() == 0;
    row.b_single = of_b_.back() == 0;
    return row;
}

void QuantisedBinary::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    if (count(outputs_[0].shape) == 0) {
        return;
    }
    const BinaryRow row = row_of(inputs);
    const auto* a = static_cast<const std::uint8_t*>(inputs[0]);
    const auto* b = static_cast<const std::uint8_t*>(inputs[3]);
    auto* y = static_cast<std::uint8_t*>(outputs[0]);
    const auto compute = adds_ ? functions_.add : functions_.multiply;
    constexpr double kCost = 0.1;
    const std::int64_t length = sizes_.back();
    if (sizes_.size() == 1) {
        parallel_for(
            threads(), length, kCost,
            [&](std::int64_t begin, std::int64_t end) {
                compute(a + begin * of_a_[0], b + begin * of_b_[0], end - begin, row, y + begin);
            },
            kAlignment);
        return;
    }
    const std::int64_t rows = count(sizes_) / length;
    parallel_for(threads(), rows, 5 + kCost * static_cast<double>(length), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            std::int64_t rest = i, at_a = 0, at_b = 0;
            for (std::size_t axis = sizes_.size() - 1; axis-- > 0;) {
                at_a += rest % sizes_[axis] * of_a_[axis];
                at_b += rest % sizes_[axis] * of_b_[axis];
                rest /= sizes_[axis];
            }
            compute(a + at_a, b + at_b, length, row, y + i * length);
        }
    });
}

// The mean over all positions of [N, C, positions] or, with `last`, of [N, positions, C].
class QuantisedMean final : public Kernel {
  public:
    QuantisedMean(const char* name, bool last, const NodeSpec& node)
        : Kernel(name, node.threads), last_(last), functions_(linear_functions()) {
        for (std::size_t i = 0; i < 5; ++i) {
            inputs_.push_back(node.input(i).tensor);
        }
        outputs_ = {node.outputs[0]};
        const Dims& x = inputs_[0].shape;
        channels_ = last ? x.back() : x[1];
        positions_ = count(Dims(x.begin() + (last ? 1 : 2), x.end() - (last ? 1 : 0)));
    }

    std::size_t scratch_bytes() const override {
        return aligned(static_cast<std::size_t>(inputs_[0].shape[0] * channels_) * sizeof(std::int32_t));
    }

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    void add_up(const std::uint8_t* x, std::uint8_t flip, std::int32_t offset, std::int32_t* sums) const;

    bool last_;
    std::int64_t channels_;
    std::int64_t positions_;
    const LinearFunctions& functions_;
};

void QuantisedMean::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const ElementType type = outputs_[0].type;
    const std::int64_t images = inputs_[0].shape[0];
    const std::uint8_t flip = type == ElementType::i8 ? 0x80 : 0;
    const float pixels = *static_cast<const float*>(inputs[3]) * static_cast<float>(positions_);
    const float factor = *static_cast<const float*>(inputs[1]) / pixels;
    const std::int32_t zero = number(inputs[4], type, 0);
    const auto low = static_cast<float>((flip != 0 ? -128 : 0) - zero);
    const auto high = static_cast<float>((flip != 0 ? 127 : 255) - zero);
    const auto offset = static_cast<std::int32_t>(static_cast<std::uint32_t>(number(inputs[2], type, 0)) *
                                                  static_cast<std::uint32_t>(-positions_));
    auto* sums = reinterpret_cast<std::int32_t*>(scratch);
    const double cost = 0.1 * static_cast<double>(channels_ * positions_);
    parallel_for(threads(), images, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const auto* x = static_cast<const std::uint8_t*>(inputs[0]) + i * channels_ * positions_;
            auto* y = static_cast<std::uint8_t*>(outputs[0]) + i * channels_;
            add_up(x, flip, offset, sums + i * channels_);
            functions_.requantise(sums + i * channels_, channels_, factor, low, high, zero, y);
        }
    });
}

void QuantisedMean::add_up(const std::uint8_t* x, std::uint8_t flip, std::int32_t offset, std::int32_t* sums) const {
    std::fill_n(sums, channels_, offset);
    for (std::int64_t p = 0; last_ && p < positions_; ++p) {
        functions_.add_bytes(x + p * channels_, channels_, flip, sums);
    }
    for (std::int64_t c = 0; !last_ && c < channels_; ++c) {
        const std::uint8_t* row = x + c * positions_;
        std::uint32_t sum = 0;
        for (std::int64_t p = 0; p < positions_; ++p) {
            sum += static_cast<std::uint32_t>(flip != 0 ? static_cast<std::int32_t>(static_cast<std::int8_t>(row[p]))
                                                        : static_cast<std::int32_t>(row[p]));
        }
        sums[c] = static_cast<std::int32_t>(static_cast<std::uint32_t>(sums[c]) + sum);
    }
}

// y = table[x - the smallest number of x's type].
class TableLookup final : public Kernel {
  public:
    explicit TableLookup(const NodeSpec& node) : Kernel("TableLookup", node.threads) {
        inputs_ = {node.input(0).tensor, node.input(1).tensor};
        outputs_ = {node.outputs[0]};
        const ElementType x = inputs_[0].type;
        if (count(inputs_[1].shape) != 256 || (x != ElementType::u8 && x != ElementType::i8)) {
            throw Unsupported(describe() + ": no table of bytes");
        }
    }

    void run(const void* const* inputs, void* const* outputs, std::byte*) const override {
        const std::uint8_t flip = inputs_[0].type == ElementType::i8 ? 0x80 : 0;
        const auto* x = static_cast<const std::uint8_t*>(inputs[0]);
        with_element(size_of(outputs_[0].type), [&](auto element) {
            using T = decltype(element);
            // A local copy: the compiler then knows that stores to y do not change the table.
            T table[256];
            std::memcpy(table, inputs[1], sizeof table);
            auto* y = static_cast<std::byte*>(outputs[0]);
            parallel_for(
                threads(), count(inputs_[0].shape), 0.4,
                [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t i = begin; i < end; ++i) {
                        store_element(y + i * static_cast<std::int64_t>(sizeof(T)), table[x[i] ^ flip]);
                    }
                },
                kAlignment);
        });
    }
    std::vector<std::pair<int, int>> inplace() const override { return {{0, 0}}; }
};

}  // namespace

FoundRange quantise_by_range(int threads, const float* x, std::int64_t count, std::uint8_t* y) {
    const LinearFunctions& functions = linear_functions();
    constexpr std::int64_t kPart = 4096;
    constexpr std::int64_t kParts = 64;
    // The number of parts depends on the size only. The minimum and maximum do not depend on the order.
    const std::int64_t parts = std::min(kParts, (count + kPart - 1) / kPart);
    float lows[kParts] = {}, highs[kParts] = {};
    parallel_for(threads, parts,
                 0.06 * static_cast<double>(count) / static_cast<double>(std::max<std::int64_t>(parts, 1)),
                 [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t p = begin; p < end; ++p) {
                         const std::int64_t first = count * p / parts;
                         functions.range(x + first, count * (p + 1) / parts - first, lows[p], highs[p]);
                     }
                 });
    const float low = *std::min_element(lows, lows + kParts);
    const float high = *std::max_element(highs, highs + kParts);
    const float scale = low == high ? 1.0F : (high - low) / 255.0F;
    const float exact = -low / scale;
    // For an infinite range, `exact` is NaN, and the zero point is 255.
    const float zero = std::isnan(exact) ? 255.0F : std::nearbyint(std::clamp(exact, 0.0F, 255.0F));
    const auto whole = static_cast<std::int32_t>(zero);
    parallel_for(
        threads, count, 0.15,
        [&](std::int64_t begin, std::int64_t end) {
            functions.quantise[0](x + begin, end - begin, {&scale, &whole, false}, y + begin);
        },
        kAlignment);
    return {scale, static_cast<std::uint8_t>(whole)};
}

GRAPHKIT_KERNEL("", QuantizeLinear) {
    if (is_set(node, "precision") && node.text("precision") != "float32") {
        throw Unsupported("QuantizeLinear of this precision");
    }
    return std::make_unique<Linear>("QuantizeLinear", true, node);
}

GRAPHKIT_KERNEL("", DequantizeLinear) {
    return std::make_unique<Linear>("DequantizeLinear", false, node);
}

GRAPHKIT_KERNEL("", DynamicQuantizeLinear) {
    return std::make_unique<DynamicQuantize>(node);
}

GRAPHKIT_KERNEL("ai.graphkit", QLinearAdd) {
    return std::make_unique<QuantisedBinary>("QLinearAdd", true, node);
}

GRAPHKIT_KERNEL("ai.graphkit", QLinearMul) {
    return std::make_unique<QuantisedBinary>("QLinearMul", false, node);
}

GRAPHKIT_KERNEL("ai.graphkit", QLinearGlobalAveragePool) {
    return std::make_unique<QuantisedMean>("QLinearGlobalAveragePool", false, node);
}

GRAPHKIT_KERNEL("ai.graphkit", ChannelsLastQLinearGlobalAveragePool) {
    return std::make_unique<QuantisedMean>("ChannelsLastQLinearGlobalAveragePool", true, node);
}

GRAPHKIT_KERNEL("ai.graphkit", TableLookup) {
    return std::make_unique<TableLookup>(node);
}

}  // namespace graphkit
