#include "convolution.h"

#include <algorithm>

namespace graphkit {
namespace {

using dnnl::algorithm;
using dnnl::memory;
using dnnl::prop_kind;

constexpr auto kF32 = ElementType::f32;

Dims library_dilations(const Window& window) {
    Dims dilations = window.dilations;
    std::transform(dilations.begin(), dilations.end(), dilations.begin(), [](std::int64_t d) { return d - 1; });
    return dilations;
}

// Dimensions of the weights as the library counts them: with a leading group dimension when there are groups.
Dims grouped(const Dims& w, std::int64_t groups) {
    if (groups == 1) {
        return w;
    }
    Dims dims{groups, w[0] / groups};
    dims.insert(dims.end(), w.begin() + 1, w.end());
    return dims;
}

// The weights of a transposed convolution, [C, M/groups, kernel] in memory, seen as [groups, M/groups, C/groups,
// kernel].
struct SwappedWeights {
    Dims dims;
    memory::desc given;

    SwappedWeights(const Dims& w, std::int64_t groups, ElementType type) {
        const std::int64_t kernel = count(Dims(w.begin() + 2, w.end()));
        dims = {w[1], w[0] / groups};
        Dims strides{kernel, w[1] * kernel};
        if (groups != 1) {
            dims.insert(dims.begin(), groups);
            strides.insert(strides.begin(), w[0] / groups * w[1] * kernel);
        }
        std::int64_t step = kernel;
        for (std::size_t i = 2; i < w.size(); ++i) {
            step /= w[i];
            dims.push_back(w[i]);
            strides.push_back(step);
        }
        given = memory::desc(dims, library_type(type), strides);
    }
};

// Checks everything that the library would not, or would report without saying where. `wide` and `narrow` are the
// data on the two sides: the input and the output of a convolution, the output and the input of a transposed one.
void check(const Kernel& kernel, const Dims& wide, const Dims& w, const Dims& narrow, const Window& window) {
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
        const std::int64_t span = (w[i + 2] - 1) * window.dilations[i] + 1;
        const std::int64_t room = wide[i + 2] + window.pads_begin[i] + window.pads_end[i] - span;
        if (room < 0 || room / window.strides[i] + 1 != narrow[i + 2]) {
            fail("spatial dimension " + std::to_string(i) + " does not fit the kernel, strides and pads");
        }
    }
    if (wide[1] == 0 || count(w) == 0) {
        throw Unsupported(kernel.describe() + ": an empty kernel or channel dimension");
    }
}

void add_weights(Operation& operation, bool packed, const memory::desc& given, const memory::desc& wanted) {
    if (packed) {
        operation.packed_input(DNNL_ARG_WEIGHTS, 1, given, wanted);
    } else {
        operation.input(DNNL_ARG_WEIGHTS, 1, given, wanted);
    }
}

// The shape of an array of [N, C, spatial].
Dims placed(const Dims& dims, bool last) {
    return last ? channels_last(dims) : dims;
}

// Data [N, C, spatial] as a gradient takes them: with the channels last, or as it likes them best.
memory::desc data_layout(const Dims& dims, bool last) {
    return last ? laid_out(dims, last, kF32) : any(dims, kF32);
}

dnnl::convolution_forward::primitive_desc forward_hint(const Dims& x, const Dims& w, const Dims& y,
                                                       const Window& window, bool last) {
    return {engine(),
            prop_kind::forward_training,
            algorithm::convolution_direct,
            data_layout(x, last),
            any(grouped(w, window.groups), kF32),
            data_layout(y, last),
            window.strides,
            library_dilations(window),
            window.pads_begin,
            window.pads_end};
}

}  // namespace

Convolution::Convolution(Dims x, Dims w, Dims y, const Window& window, const ConvolutionOptions& options, int threads)
    : LibraryKernel("Convolution", threads) {
    const bool last = options.channels_last;
    const ElementType type = options.type;
    inputs_ = {{"x", x, type}, {"w", w, type}};
    outputs_ = {{"y", y, type}};
    check(*this, x, w, y, window);
    inputs_[0].shape = last ? channels_last(x) : x;
    outputs_[0].shape = last ? channels_last(y) : y;
    inputs_.push_back({"bias", {w[0]}, type, !options.bias});
    if (options.epilogue.residual) {
        operation_.accumulate(3);
        inputs_.push_back({"residual", outputs_[0].shape, type});
    }
    empty_ = count(y) == 0;
    if (empty_) {
        return;
    }
    guarded(*this, [&] {
        Team team(threads);
        dnnl::post_ops chain;
        append(chain, options.epilogue);
        const Dims weights = grouped(w, window.groups);
        const memory::desc bias = options.bias ? plain({w[0]}, type) : memory::desc();
        const memory::desc x_layout = last ? laid_out(x, last, type) : any(x, type);
        const memory::desc y_layout = last || options.epilogue.residual ? laid_out(y, last, type) : any(y, type);
        const dnnl::convolution_forward::primitive_desc descriptor(
            engine(), prop_kind::forward_inference, algorithm::convolution_direct, x_layout, any(weights, type), bias,
            y_layout, window.strides, library_dilations(window), window.pads_begin, window.pads_end,
            Operation::attributes(chain));
        operation_.input(DNNL_ARG_SRC, 0, laid_out(x, last, type), descriptor.src_desc());
        add_weights(operation_, options.pack_weights, plain(weights, type), descriptor.weights_desc());
        if (options.bias) {
            operation_.input(DNNL_ARG_BIAS, 2, bias, descriptor.bias_desc());
        }
        operation_.output(DNNL_ARG_DST, 0, laid_out(y, last, type), descriptor.dst_desc());
        operation_.finish(descriptor, dnnl::convolution_forward(descriptor));
    });
}

ConvolutionBackwardData::ConvolutionBackwardData(Dims dy, Dims w, Dims dx, const Window& window, bool pack_weights,
                                                 bool channels_last, int threads)
    : LibraryKernel("ConvolutionBackwardData", threads) {
    inputs_ = {{"dy", dy}, {"w", w}};
    outputs_ = {{"dx", dx}};
    check(*this, dx, w, dy, window);
    const bool last = channels_last;
    inputs_[0].shape = placed(dy, last);
    outputs_[0].shape = placed(dx, last);
    empty_ = count(dy) == 0 || count(dx) == 0;
    if (empty_) {
        return;
    }
    guarded(*this, [&] {
        Team team(threads);
        const Dims weights = grouped(w, window.groups);
        const dnnl::convolution_backward_data::primitive_desc descriptor(
            engine(), algorithm::convolution_direct, data_layout(dx, last), any(weights, kF32),
            data_layout(dy, last), window.strides, library_dilations(window), window.pads_begin, window.pads_end,
            forward_hint(dx, w, dy, window, last),
            Operation::attributes());
        operation_.input(DNNL_ARG_DIFF_DST, 0, laid_out(dy, last, kF32), descriptor.diff_dst_desc());
        add_weights(operation_, pack_weights, plain(weights, kF32), descriptor.weights_desc());
        operation_.output(DNNL_ARG_DIFF_SRC, 0, laid_out(dx, last, kF32), descriptor.diff_src_desc());
        operation_.finish(descriptor, dnnl::convolution_backward_data(descriptor));
    });
}

namespace {

// From so many channels on, on both sides, a product of matrices is at least as fast as the convolution's gradient.
constexpr std::int64_t kProductChannels = 64;

// Whether windows are single elements, one for each of the input.
bool is_pointwise(const Dims& w, const Window& window) {
    const auto all = [](const Dims& values, std::int64_t value) {
        return std::all_of(values.begin(), values.end(), [=](std::int64_t v) { return v == value; });
    };
    return window.groups == 1 && all(Dims(w.begin() + 2, w.end()), 1) && all(window.strides, 1) &&
           all(window.pads_begin, 0) && all(window.pads_end, 0);
}

}  // namespace

ConvolutionBackwardWeights::ConvolutionBackwardWeights(Dims x, Dims dy, Dims dw, const Window& window, bool bias,
                                                       bool channels_last, int threads)
    : LibraryKernel("ConvolutionBackwardWeights", threads) {
    inputs_ = {{"x", x}, {"dy", dy}};
    outputs_ = {{"dw", dw}};
    check(*this, x, dw, dy, window);
    const bool last = channels_last;
    inputs_[0].shape = placed(x, last);
    inputs_[1].shape = placed(dy, last);
    if (bias) {
        outputs_.push_back({"dbias", {dw[0]}});
    }
    empty_ = count(dy) == 0 || count(x) == 0;
    if (empty_) {
        return;
    }
    if (last && !bias && is_pointwise(dw, window) && std::min(dw[0], dw[1]) >= kProductChannels) {
        // dy^T x over all positions. The product comes out in the plain order of the weights.
        guarded(*this, [&] {
            Team team(threads);
            const std::int64_t rows = count(x) / x[1];
            const memory::desc left({dw[0], rows}, memory::data_type::f32, Dims{1, dw[0]});
            const memory::desc right = plain({rows, dw[1]}, kF32);
            const memory::desc product = plain({dw[0], dw[1]}, kF32);
            const dnnl::matmul::primitive_desc descriptor(engine(), left, right, product, Operation::attributes());
            operation_.input(DNNL_ARG_SRC, 1, left, left);
            operation_.input(DNNL_ARG_WEIGHTS, 0, right, right);
            operation_.output(DNNL_ARG_DST, 0, product, product);
            operation_.finish(descriptor, dnnl::matmul(descriptor));
        });
        return;
    }
    guarded(*this, [&] {
        Team team(threads);
        const Dims weights = grouped(dw, window.groups);
        const memory::desc bias_layout = bias ? plain({dw[0]}, kF32) : memory::desc();
        const dnnl::convolution_backward_weights::primitive_desc descriptor(
            engine(), algorithm::convolution_direct, data_layout(x, last), any(weights, kF32),
            bias_layout, data_layout(dy, last), window.strides, library_dilations(window), window.pads_begin,
            window.pads_end, forward_hint(x, dw, dy, window, last),
            Operation::attributes());
        operation_.input(DNNL_ARG_SRC, 0, laid_out(x, last, kF32), descriptor.src_desc());
        operation_.input(DNNL_ARG_DIFF_DST, 1, laid_out(dy, last, kF32), descriptor.diff_dst_desc());
        operation_.output(DNNL_ARG_DIFF_WEIGHTS, 0, plain(weights, kF32), descriptor.diff_weights_desc());
        if (bias) {
            operation_.output(DNNL_ARG_DIFF_BIAS, 1, bias_layout, descriptor.diff_bias_desc());
        }
        operation_.finish(descriptor, dnnl::convolution_backward_weights(descriptor));
    });
}

Deconvolution::Deconvolution(Dims x, Dims w, Dims y, const Window& window, const ConvolutionOptions& options,
                             int threads)
    : LibraryKernel("Deconvolution", threads) {
    const bool last = options.channels_last;
    const ElementType type = options.type;
    inputs_ = {{"x", x, type}, {"w", w, type}};
    outputs_ = {{"y", y, type}};
    check(*this, y, w, x, window);
    inputs_[0].shape = last ? channels_last(x) : x;
    outputs_[0].shape = last ? channels_last(y) : y;
    if (options.bias) {
        inputs_.push_back({"bias", {y[1]}, type});
    }
    if (options.epilogue.residual) {
        throw Unsupported(describe() + ": a residual");
    }
    if (count(x) == 0 && count(y) != 0) {
        throw Unsupported(describe() + ": an empty input and a result that is not empty");
    }
    empty_ = count(y) == 0;
    if (empty_) {
        return;
    }
    guarded(*this, [&] {
        Team team(threads);
        dnnl::post_ops chain;
        append(chain, options.epilogue);
        const SwappedWeights weights(w, window.groups, type);
        const memory::desc bias = options.bias ? plain({y[1]}, type) : memory::desc();
        const dnnl::deconvolution_forward::primitive_desc descriptor(
            engine(), prop_kind::forward_inference, algorithm::deconvolution_direct, last ? laid_out(x, last, type) : any(x, type),
            any(weights.dims, type), bias, last ? laid_out(y, last, type) : any(y, type), window.strides, library_dilations(window), window.pads_begin, window.pads_end,
            Operation::attributes(chain));
        operation_.input(DNNL_ARG_SRC, 0, laid_out(x, last, type), descriptor.src_desc());
        add_weights(operation_, options.pack_weights, weights.given, descriptor.weights_desc());
        if (options.bias) {
            operation_.input(DNNL_ARG_BIAS, 2, bias, descriptor.bias_desc());
        }
        operation_.output(DNNL_ARG_DST, 0, laid_out(y, last, type), descriptor.dst_desc());
        operation_.finish(descriptor, dnnl::deconvolution_forward(descriptor));
    });
}

}  // namespace graphkit
