// Makes the kernels of pools from the descriptions of their nodes.
#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>

#include "kernels/pool/pool.h"
#include "kernels/reduce/reduce.h"
#include "runtime/operator_kernels.h"

namespace graphkit {
namespace {

// An attribute with `size` entries, by default all `value`.
Dims entries(const NodeSpec& node, const char* name, std::size_t size, std::int64_t value) {
    if (!node.has_attribute(name)) {
        return Dims(size, value);
    }
    const Dims& given = node.integers(name);
    if (given.size() != size) {
        throw NativeError(std::string(name) + ": " + std::to_string(size) + " entries are expected, not " +
                          std::to_string(given.size()));
    }
    return given;
}

// The padding with which there is one window for each multiple of the stride.
std::int64_t same_padding(std::int64_t size, std::int64_t kernel, std::int64_t stride, std::int64_t dilation) {
    if (std::max({kernel, stride, dilation}) > std::numeric_limits<std::int32_t>::max()) {
        throw Unsupported("windows of 2^31 positions and more");
    }
    const std::int64_t positions = (size + stride - 1) / stride;
    return std::max<std::int64_t>((positions - 1) * stride + (kernel - 1) * dilation + 1 - size, 0);
}

// Whether there is only one window, which covers the whole input and no padding.
bool is_whole_plane(const PoolWindow& window, const Dims& spatial, const Dims& positions) {
    const auto all = [](const Dims& list, std::int64_t value) {
        return std::all_of(list.begin(), list.end(), [=](std::int64_t entry) { return entry == value; });
    };
    return all(positions, 1) && window.kernel == spatial && all(window.dilations, 1) && all(window.pads_begin, 0) &&
           all(window.pads_end, 0);
}

std::unique_ptr<Kernel> whole_plane(const NodeSpec& node, const std::string& op) {
    const Dims &x = node.input(0).tensor.shape, &y = node.outputs[0].shape;
    Dims axes(x.size() - 2);
    std::iota(axes.begin(), axes.end(), 2);
    return make_reduce(op, x, axes, y, ElementType::f32, node.threads);
}

// The window over spatial axes of the given sizes, with the padding of auto_pad. Throws Unsupported if the kernels do
// not support the node: there are no or more than three spatial axes, or an element type is neither `type` nor int64,
// the type of indices.
PoolWindow window_of(const NodeSpec& node, const Dims& spatial, ElementType type = ElementType::f32) {
    const auto fits = [&](const TensorSpec& tensor) { return tensor.type == type || tensor.type == ElementType::i64; };
    const auto given = [&](const std::optional<NodeSpec::Input>& input) { return !input || fits(input->tensor); };
    if (spatial.empty() || spatial.size() > 3 || !std::all_of(node.inputs.begin(), node.inputs.end(), given) ||
        !std::all_of(node.outputs.begin(), node.outputs.end(), fits)) {
        throw Unsupported("pools of such types or axes have no native kernel");
    }
    const std::size_t rank = spatial.size();
    PoolWindow window{entries(node, "kernel_shape", rank, 0), entries(node, "strides", rank, 1),
                      entries(node, "dilations", rank, 1), Dims(rank, 0), Dims(rank, 0)};
    const std::string& mode = node.text("auto_pad");
    if (mode.empty() || mode == "NOTSET") {
        const Dims pads = entries(node, "pads", 2 * rank, 0);
        const auto middle = pads.begin() + static_cast<std::ptrdiff_t>(rank);
        window.pads_begin.assign(pads.begin(), middle);
        window.pads_end.assign(middle, pads.end());
    } else if (mode == "SAME_UPPER" || mode == "SAME_LOWER") {
        for (std::size_t i = 0; i < rank; ++i) {
            const std::int64_t total =
                same_padding(spatial[i], window.kernel[i], window.strides[i], window.dilations[i]);
            window.pads_begin[i] = mode == "SAME_UPPER" ? total / 2 : total - total / 2;
            window.pads_end[i] = total - window.pads_begin[i];
        }
    } else if (mode != "VALID") {
        throw NativeError("auto_pad: " + mode);
    }
    return window;
}

// Converts a shape [N, *spatial, C] to [N, C, *spatial].
Dims channels_first(const Dims& shape) {
    Dims moved(shape);
    moved.pop_back();
    moved.insert(moved.begin() + 1, shape.back());
    return moved;
}

// The sizes of all axes but the first two.
Dims spatial_axes(const Dims& shape) {
    return {shape.begin() + std::min<std::ptrdiff_t>(2, std::ssize(shape)), shape.end()};
}

}  // namespace

GRAPHKIT_KERNEL_READING("", MaxPool) {
    const Dims &x = node.input(0).tensor.shape, &y = node.outputs[0].shape;
    const ElementType type = node.input(0).tensor.type;
    if (!node.is_used(1) && (type == ElementType::f64 || type == ElementType::i8 || type == ElementType::u8)) {
        return make_plain_max_pool(x, y, window_of(node, spatial_axes(x), type), type, node.threads);
    }
    const PoolWindow window = window_of(node, spatial_axes(x));
    if (!node.is_used(1) && is_whole_plane(window, spatial_axes(x), spatial_axes(y))) {
        return whole_plane(node, "Max");
    }
    return std::make_unique<MaxPool>(x, y, window, node.integer("storage_order") != 0, node.is_used(1), node.threads);
}

GRAPHKIT_KERNEL_READING("", AveragePool) {
    const Dims &x = node.input(0).tensor.shape, &y = node.outputs[0].shape;
    const PoolWindow window = window_of(node, spatial_axes(x));
    if (is_whole_plane(window, spatial_axes(x), spatial_axes(y))) {
        return whole_plane(node, "Mean");
    }
    return std::make_unique<AveragePool>(x, y, window, node.integer("count_include_pad") != 0, node.threads);
}

GRAPHKIT_KERNEL_READING("", LpPool) {
    const Dims &x = node.input(0).tensor.shape, &y = node.outputs[0].shape;
    return std::make_unique<LpPool>(x, y, window_of(node, spatial_axes(x)), node.integer("p"), node.threads);
}

GRAPHKIT_KERNEL_READING("ai.graphkit", ChannelsLastMaxPool) {
    const Dims x = channels_first(node.input(0).tensor.shape), y = channels_first(node.outputs[0].shape);
    const ElementType type = node.outputs[0].type;
    if (type == ElementType::i8 || type == ElementType::u8) {
        return make_byte_max_pool(x, y, window_of(node, spatial_axes(x), type), type, node.threads);
    }
    return make_channels_last_pool(x, y, window_of(node, spatial_axes(x)), PoolMode::maximum, node.threads);
}

GRAPHKIT_KERNEL_READING("ai.graphkit", ChannelsLastAveragePool) {
    const Dims x = channels_first(node.input(0).tensor.shape), y = channels_first(node.outputs[0].shape);
    const PoolMode mode = node.integer("count_include_pad") != 0 ? PoolMode::mean_with_padding : PoolMode::mean;
    return make_channels_last_pool(x, y, window_of(node, spatial_axes(x)), mode, node.threads);
}

}  // namespace graphkit
