#include "kernels/quant/depthwise_bytes.h"

#include <algorithm>
#include <cstring>

#include "runtime/threads.h"

namespace graphkit {

DepthwiseBytes::DepthwiseBytes(IntegerOperands operands, const TensorSpec& y, const IntegerGeometry& geometry,
                               IntegerOrder order, bool pack_weights, int threads)
    : Kernel("DepthwiseBytes", threads > 0 ? threads : default_threads()),
      operands_(std::move(operands)),
      geometry_(geometry),
      order_(std::move(order)),
      functions_(byte_filter_functions()),
      dot_(has_dot_products() && functions_.dot_filter != nullptr),
      pack_weights_(pack_weights),
      channels_(geometry.groups) {
    inputs_ = operands_.specs();
    outputs_ = {y};
    padded_ = (channels_ + functions_.block - 1) / functions_.block * functions_.block;
    tap_groups_ = (geometry_.taps + kTerms - 1) / kTerms;
    order_of_.resize(static_cast<std::size_t>(padded_));
    for (std::int64_t at = 0; at < padded_; ++at) {
        const std::int64_t block = functions_.block;
        const std::int64_t place = at / block * block + byte_filter_place(at % block, block);
        order_of_[static_cast<std::size_t>(place)] = static_cast<std::int32_t>(channel_at(at));
    }
    const IntegerGeometry& g = geometry_;
    const std::int64_t reach = (g.kernel[2] - 1) * g.dilation[2];
    const auto starts_inside = [&](std::int64_t at) {
        const std::int64_t start = at * g.stride[2] - g.pad[2];
        return start >= 0 && start + reach < g.input[2];
    };
    for (; inner_begin_ < g.output[2] && !starts_inside(inner_begin_); ++inner_begin_) {
    }
    for (inner_end_ = inner_begin_; inner_end_ < g.output[2] && starts_inside(inner_end_); ++inner_end_) {
    }
    plan_ = {1, channels_, padded_, geometry_.taps, false, 1.0F};
    const auto bytes_of = [](const TensorSpec& spec) { return aligned(static_cast<std::size_t>(count(spec.shape))); };
    const auto row = static_cast<std::size_t>(channels_);
    Scratch& s = scratch_;
    s.numbers = 0;
    s.placed = plan_.bytes();
    s.padding = s.placed + plan_.bytes();
    s.x = s.padding + aligned(row);
    s.y = s.x + (order_.x ? bytes_of(operands_.spec(Part::x)) : 0);
    s.w = s.y + (order_.y ? bytes_of(y) * size_of(y.type) : 0);
    s.threads = s.w + (pack_weights_ ? 0 : packed_bytes(0));
    s.of_thread = aligned(static_cast<std::size_t>(geometry_.taps) * sizeof(void*));
    s.total = s.threads + s.of_thread * static_cast<std::size_t>(this->threads());
}

std::vector<int> DepthwiseBytes::packed_inputs() const {
    return pack_weights_ ? std::vector<int>{operands_.place(Part::w)} : std::vector<int>{};
}

// The sums of each channel's weights come first.
std::size_t DepthwiseBytes::packed_bytes(int) const {
    return aligned(static_cast<std::size_t>(padded_) * sizeof(std::int32_t)) +
           static_cast<std::size_t>(padded_ * tap_groups_ * kTerms);
}

std::string DepthwiseBytes::packed_layout(int) const {
    return "bytes of channels:" + std::to_string(functions_.block) + to_string({channels_, geometry_.taps}) +
           std::to_string(operands_.w_flip());
}

std::string DepthwiseBytes::implementation() const {
    return std::string("depthwise bytes:") + isa_name() + (dot_ ? "_vnni" : "");
}

// The channel at a position of the padded channels. If the last block has at most half of its channels, they are
// repeated in its second half.
std::int64_t DepthwiseBytes::channel_at(std::int64_t at) const {
    const std::int64_t half = functions_.block / 2;
    const std::int64_t begin = padded_ - functions_.block;
    return channels_ - begin <= half && at >= begin + half ? at - half : at;
}

void DepthwiseBytes::pack(int, const void* plain, void* packed) const {
    const auto* w = static_cast<const std::int8_t*>(plain);
    auto* sums = static_cast<std::int32_t*>(packed);
    std::memset(packed, 0, packed_bytes(0));
    auto* to = static_cast<std::int8_t*>(packed) + aligned(static_cast<std::size_t>(padded_) * sizeof(std::int32_t));
    const std::int64_t block = functions_.block;
    for (std::int64_t at = 0; at < padded_; ++at) {
        const std::int64_t c = channel_at(at);
        const std::int64_t place = byte_filter_place(at % block, block);
        for (std::int64_t t = 0; c < channels_ && t < geometry_.taps; ++t) {
            const auto value = static_cast<std::int8_t>(w[c * geometry_.taps + t] ^ operands_.w_flip());
            const std::int64_t group = at / block * tap_groups_ + t / kTerms;
            to[(group * block + place) * kTerms + t % kTerms] = value;
            sums[c] += at == c ? value : 0;
        }
    }
}

// Arranges the numbers of each channel in the order of the blocks.
void DepthwiseBytes::place_numbers(ColumnNumbers& numbers, std::byte* placed) const {
    const std::size_t part = plan_.bytes() / 4;
    const auto move = [&](auto*& from, std::byte* to) {
        using T = std::remove_reference_t<decltype(*from)>;
        if (from == nullptr) {
            return;
        }
        auto* moved = reinterpret_cast<T*>(to);
        for (std::size_t place = 0; place < order_of_.size(); ++place) {
            moved[place] = from[order_of_[place]];
        }
        from = moved;
    };
    move(numbers.offsets, placed);
    move(numbers.zeros, placed + part);
    move(numbers.factors, placed + 2 * part);
}

void DepthwiseBytes::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    if (count(outputs_[0].shape) == 0) {
        return;
    }
    const void* x = operands_.get(Part::x, inputs);
    if (order_.x) {
        order_.x->run(threads(), x, scratch + scratch_.x);
        x = scratch + scratch_.x;
    }
    const void* w = operands_.get(Part::w, inputs);
    if (!pack_weights_) {
        pack(0, w, scratch + scratch_.w);
        w = scratch + scratch_.w;
    }
    const ElementType type = outputs_[0].type;
    ColumnNumbers numbers =
        column_numbers(operands_, plan_, inputs, static_cast<const std::int32_t*>(w), type, scratch + scratch_.numbers);
    place_numbers(numbers, scratch + scratch_.placed);
    auto* padding = reinterpret_cast<std::uint8_t*>(scratch + scratch_.padding);
    std::memset(padding, numbers.x_zero, static_cast<std::size_t>(channels_));
    ByteFilterBlock block{};
    block.tap_count = geometry_.taps;
    block.channels = channels_;
    block.flip = operands_.x_flip();
    block.weights =
        static_cast<const std::int8_t*>(w) + aligned(static_cast<std::size_t>(padded_) * sizeof(std::int32_t));
    block.offsets = numbers.offsets;
    block.zeros = numbers.zeros;
    block.factors = numbers.factors;
    block.sums = type == ElementType::i32;
    block.bytes = numbers.bytes;
    block.x_step = geometry_.stride[2] * channels_;
    std::byte* y = order_.y ? scratch + scratch_.y : static_cast<std::byte*>(outputs[0]);
    const std::int64_t length = geometry_.output[2];
    const auto y_line = length * channels_ * static_cast<std::int64_t>(size_of(type));
    const double cost = 20 + 0.02 * static_cast<double>(length * padded_ * geometry_.taps) / 2;
    parallel_for(threads(), geometry_.rows / length, cost, [&](std::int64_t begin, std::int64_t end) {
        std::byte* own = scratch + scratch_.threads + scratch_.of_thread * static_cast<std::size_t>(thread_number());
        ByteFilterBlock mine = block;
        mine.taps = reinterpret_cast<const std::uint8_t**>(own);
        for (std::int64_t line = begin; line < end; ++line) {
            mine.y = y + line * y_line;
            filter_line(mine, static_cast<const std::uint8_t*>(x), padding, line,
                        reinterpret_cast<const std::uint8_t**>(own));
        }
    });
    if (order_.y) {
        order_.y->run(threads(), y, outputs[0]);
    }
}

// Computes the positions of a line. Those in the middle, whose taps are at equal distances, are computed together.
void DepthwiseBytes::filter_line(ByteFilterBlock& block, const std::uint8_t* x, const std::uint8_t* padding,
                                 std::int64_t line, const std::uint8_t** taps) const {
    const std::int64_t length = geometry_.output[2];
    auto* y = static_cast<std::byte*>(block.y);
    const std::int64_t row = channels_ * (block.sums ? 4 : 1);
    for (std::int64_t at = 0; at < length;) {
        const bool inner = at >= inner_begin_ && at < inner_end_ && lies_inside(line);
        block.positions = inner ? inner_end_ - at : 1;
        window_rows(geometry_, x, padding, line * length + at, 1, 0, 1, taps);
        block.y = y + at * row;
        (dot_ ? functions_.dot_filter : functions_.filter)(block);
        at += block.positions;
    }
}

// Whether, along the other axes, all taps of a line are inside of x.
bool DepthwiseBytes::lies_inside(std::int64_t line) const {
    const IntegerGeometry& g = geometry_;
    for (int axis = 1; axis >= 0; --axis) {
        const std::int64_t start = line % g.output[axis] * g.stride[axis] - g.pad[axis];
        if (start < 0 || start + (g.kernel[axis] - 1) * g.dilation[axis] >= g.input[axis]) {
            return false;
        }
        line /= g.output[axis];
    }
    return true;
}

}  // namespace graphkit
