#include "kernels/conv/conv_library.h"

#include <algorithm>
#include <limits>

namespace graphkit {
namespace {

using dnnl::algorithm;
using dnnl::memory;
using dnnl::prop_kind;

// With at least this many elements along the last axis of the kernel, another order of the axes is faster than
// computing by columns.
constexpr std::int64_t kWideKernel = 12;

}  // namespace

Dims library_dilations(const Window& window) {
    Dims dilations = window.dilations;
    std::transform(dilations.begin(), dilations.end(), dilations.begin(), [](std::int64_t d) { return d - 1; });
    return dilations;
}

Dims grouped(const Dims& w, std::int64_t groups) {
    if (groups == 1) {
        return w;
    }
    Dims dims{groups, w[0] / groups};
    dims.insert(dims.end(), w.begin() + 1, w.end());
    return dims;
}

void check_shapes(const Kernel& kernel, const Dims& wide, const Dims& w, const Dims& narrow, const Window& window) {
    const auto fail = [&](const std::string& what) { throw NativeError(kernel.describe() + ": " + what); };
    const std::size_t spatial = wide.size() - 2;
    if (wide.size() < 3 || wide.size() > 5) {
        fail("one to three spatial dimensions are expected");
    }
    if (w.size() != wide.size() || narrow.size() != wide.size()) {
        fail("ranks differ");
    }
    for (const Dims* attribute : {&window.strides, &window.dilations, &window.pads_begin, &window.pads_end}) {
        if (attribute->size() != spatial) {
            fail("strides, dilations and pads need " + std::to_string(spatial) + " entries each");
        }
    }
    const std::int64_t groups = window.groups;
    if (groups < 1 || w[0] % groups != 0 || w[0] != narrow[1] || w[1] * groups != wide[1] || wide[0] != narrow[0]) {
        fail("batch or channels do not fit with " + std::to_string(groups) + " groups");
    }
    for (std::size_t i = 0; i < spatial; ++i) {
        if (window.strides[i] < 1 || window.dilations[i] < 1) {
            fail("strides and dilations must be positive");
        }
        if (window.pads_begin[i] < 0 || window.pads_end[i] < 0) {
            throw Unsupported(kernel.describe() + ": negative pads");
        }
        if (std::max({window.strides[i], window.dilations[i], window.pads_begin[i], window.pads_end[i], wide[i + 2],
                      w[i + 2], narrow[i + 2]}) > std::numeric_limits<std::int32_t>::max()) {
            throw Unsupported(kernel.describe() + ": axes or windows of 2^31 positions and more");
        }
        const std::int64_t span = (w[i + 2] - 1) * window.dilations[i] + 1;
        const std::int64_t room = wide[i + 2] + window.pads_begin[i] + window.pads_end[i] - span;
        if ((room < 0 ? 0 : room / window.strides[i] + 1) != narrow[i + 2]) {
            fail("spatial dimension " + std::to_string(i) + " does not fit the kernel, strides and pads");
        }
    }
    if (wide[1] == 0 || count(w) == 0) {
        throw Unsupported(kernel.describe() + ": an empty kernel or channel dimension");
    }
}

Dims placed(const Dims& dims, bool last) {
    return last ? channels_last(dims) : dims;
}

memory::desc data_layout(const Dims& dims, bool last, ElementType type) {
    return last ? laid_out(dims, last, type) : any(dims, type);
}

Dims by_channel(const Dims& dims, bool last) {
    const std::int64_t inside = count(dims) / (dims[0] * dims[1]);
    return last ? Dims{dims[0] * inside, dims[1], 1} : Dims{dims[0], dims[1], inside};
}

Dims with_batch(Dims dims, std::int64_t images) {
    dims[0] = images;
    return dims;
}

std::size_t image_bytes(const Dims& dims, ElementType type) {
    return static_cast<std::size_t>(count(dims) / dims[0]) * size_of(type);
}

double multiply_adds(const Dims& w, const Dims& narrow) {
    return static_cast<double>(count(narrow)) * static_cast<double>(count(w) / w[0]);
}

Piece piece_of(const Range& images, std::size_t from, std::size_t to) {
    Piece piece;
    const auto begin = static_cast<std::size_t>(images.begin);
    piece.inputs[0] = begin * from;
    piece.outputs[0] = begin * to;
    return piece;
}

dnnl::convolution_forward::primitive_desc forward_hint(const Dims& x, const Dims& w, const Dims& y,
                                                       const Window& window, bool last, ElementType type) {
    return {engine(),
            prop_kind::forward_training,
            algorithm::convolution_direct,
            data_layout(x, last, type),
            any(grouped(w, window.groups), type),
            data_layout(y, last, type),
            window.strides,
            library_dilations(window),
            window.pads_begin,
            window.pads_end};
}

void ConvolutionKernel::choose_way(bool last, std::int64_t channels, const Epilogue& epilogue,
                                   const std::function<void(const Way&)>& prepare) {
    std::vector<Way> ways;
    // bfloat16 products are summed in pairs. With an odd number of channels, the last pair contains the first channel
    // of the next element, or the same channel again, with a weight of zero. If that value is not finite, the result
    // becomes NaN. With an odd number, the implementation for windows of one element also gives wrong results for some
    // numbers of positions, such as multiples of 30.
    const bool odd = inputs_[0].type == ElementType::bf16 && channels % 2 == 1;
    const auto add = [&](const Accepts& wanted) {
        for (const bool layout : {last, !last}) {
            const Accepts accepts = [=](const std::string& name) {
                const bool pairs = name.find("brgconv") != std::string::npos || (layout && is_by_columns(name)) ||
                                   (channels == 1 && name.find("jit_bf16") != std::string::npos) ||
                                   name.find("jit_bf16_1x1") != std::string::npos;
                return wanted(name) && !(odd && pairs);
            };
            if (epilogue.applied == Applied::fused) {
                ways.push_back({layout, true, accepts});
            }
            if (!epilogue.empty()) {
                ways.push_back({layout, false, accepts});
            }
        }
    };
    if (inputs_[1].shape.back() >= kWideKernel) {
        add([](const std::string& name) { return !is_by_columns(name); });
    }
    add(any_name);
    for (const Way& way : ways) {
        if (attempt([&] { prepare(way); })) {
            return;
        }
    }
    // Parts at the borders may require another layout of the weights than those between, and no implementation may
    // accept both.
    leave_whole();
    for (std::size_t i = 0; i + 1 < ways.size(); ++i) {
        if (attempt([&] { prepare(ways[i]); })) {
            return;
        }
    }
    prepare(ways.back());
}

}  // namespace graphkit
