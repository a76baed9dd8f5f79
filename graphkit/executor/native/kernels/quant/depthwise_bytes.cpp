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
      dot_(has_dot_products() && functions_.dot_position != nullptr),
      pack_weights_(pack_weights),
      channels_(geometry.groups) {
    inputs_ = operands_.specs();
    outputs_ = {y};
    padded_ = (channels_ + functions_.block - 1) / functions_.block * functions_.block;
    tap_groups_ = (geometry_.taps + kTerms - 1) / kTerms;
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

// The sums of each channel come first.
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

void DepthwiseBytes::pack(int, const void* plain, void* packed) const {
    const auto* w = static_cast<const std::int8_t*>(plain);
    auto* sums = static_cast<std::int32_t*>(packed);
    std::memset(packed, 0, packed_bytes(0));
    auto* to = static_cast<std::int8_t*>(packed) + aligned(static_cast<std::size_t>(padded_) * sizeof(std::int32_t));
    const std::int64_t block = functions_.block;
    for (std::int64_t c = 0; c < channels_; ++c) {
        const std::int64_t place = byte_filter_place(c % block, block);
        for (std::int64_t t = 0; t < geometry_.taps; ++t) {
            const auto value = static_cast<std::int8_t>(w[c * geometry_.taps + t] ^ operands_.w_flip());
            const std::int64_t group = c / block * tap_groups_ + t / kTerms;
            to[(group * block + place) * kTerms + t % kTerms] = value;
            sums[c] += value;
        }
    }
}

// The numbers of each channel, in the order in which blocks have them.
void DepthwiseBytes::place_numbers(ColumnNumbers& numbers, std::byte* placed) const {
    const std::size_t part = plan_.bytes() / 4;
    const std::int64_t block = functions_.block;
    const auto move = [&](auto*& from, std::byte* to) {
        using T = std::remove_reference_t<decltype(*from)>;
        if (from == nullptr) {
            return;
        }
        auto* moved = reinterpret_cast<T*>(to);
        for (std::int64_t c = 0; c < padded_; ++c) {
            moved[c / block * block + byte_filter_place(c % block, block)] = from[c];
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
    ColumnNumbers numbers = column_numbers(operands_, plan_, inputs, static_cast<const std::int32_t*>(w), type,
                                           scratch + scratch_.numbers);
    place_numbers(numbers, scratch + scratch_.placed);
    auto* padding = reinterpret_cast<std::uint8_t*>(scratch + scratch_.padding);
    std::memset(padding, numbers.x_zero, static_cast<std::size_t>(channels_));
    ByteFilterBlock block{};
    block.tap_count = geometry_.taps;
    block.channels = channels_;
    block.flip = operands_.x_flip();
    block.weights = static_cast<const std::int8_t*>(w) + aligned(static_cast<std::size_t>(padded_) * sizeof(std::int32_t));
    block.offsets = numbers.offsets;
    block.zeros = numbers.zeros;
    block.factors = numbers.factors;
    block.sums = type == ElementType::i32;
    block.low = numbers.low;
    block.high = numbers.high;
    block.zero = numbers.y_zero;
    std::byte* y = order_.y ? scratch + scratch_.y : static_cast<std::byte*>(outputs[0]);
    const auto y_row = channels_ * static_cast<std::int64_t>(size_of(type));
    const double cost = 10 + 0.03 * static_cast<double>(padded_ * geometry_.taps);
    parallel_for(threads(), geometry_.rows, cost, [&](std::int64_t begin, std::int64_t end) {
        std::byte* own = scratch + scratch_.threads + scratch_.of_thread * static_cast<std::size_t>(thread_number());
        auto** taps = reinterpret_cast<const std::uint8_t**>(own);
        ByteFilterBlock mine = block;
        mine.taps = taps;
        for (std::int64_t at = begin; at < end; ++at) {
            window_rows(geometry_, static_cast<const std::uint8_t*>(x), padding, at, 1, 0, 1, taps);
            mine.y = y + at * y_row;
            (dot_ ? functions_.dot_position : functions_.position)(mine);
        }
    });
    if (order_.y) {
        order_.y->run(threads(), y, outputs[0]);
    }
}

}  // namespace graphkit
