#include "kernels/conv/conv.h"

#include <algorithm>
#include <limits>

#include "onednn/product.h"
#include "onednn/watched_product.h"
#include "runtime/bindings.h"

namespace graphkit {
namespace {

using dnnl::algorithm;
using dnnl::memory;
using dnnl::prop_kind;

constexpr auto kF32 = ElementType::f32;

// Filters of a piece of the gradient of weights: whole vectors, and enough for what it reads.
constexpr std::int64_t kFilterGrain = 16;
constexpr std::int64_t kLeastFilters = 32;
// Channels in the library's widest vectors of float32.
constexpr std::int64_t kVectorChannels = 16;
// From so many elements of the last axis on, another order of the axes is better than columns.
constexpr std::int64_t kWideKernel = 12;
// Rows of the result in a piece of an image.
constexpr std::int64_t kLeastRows = 2;

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

// The shape of an array of [N, C, spatial].
Dims placed(const Dims& dims, bool last) {
    return last ? channels_last(dims) : dims;
}

// Data [N, C, spatial] with the channels last, or as the library likes them best.
memory::desc data_layout(const Dims& dims, bool last, ElementType type) {
    return last ? laid_out(dims, last, type) : any(dims, type);
}

// A result [N, C, spatial] as [outer, channels, inner].
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

// A piece of some images, of which `from` and `to` have so many bytes each.
Piece piece_of(const Range& images, std::size_t from, std::size_t to) {
    Piece piece;
    const auto begin = static_cast<std::size_t>(images.begin);
    piece.inputs[0] = begin * from;
    piece.outputs[0] = begin * to;
    return piece;
}

// Rows of the first spatial axis of a convolution's result, the rows of x that they are computed from, and the window
// that does so.
struct Band {
    Range y;
    Range x;
    Window window;
};

// The result in at most `parts` bands; in one where a band would read nothing but padding.
std::vector<Band> bands(const Dims& x, const Dims& w, const Dims& y, const Window& window, std::int64_t parts) {
    std::vector<Band> made;
    for (const Range& rows : cut(y[2], numbers_of_parts(y[2], kLeastRows, parts).back())) {
        const std::int64_t begin = rows.begin * window.strides[0] - window.pads_begin[0];
        const std::int64_t span = (w[2] - 1) * window.dilations[0] + 1;
        const std::int64_t end = begin + (rows.size - 1) * window.strides[0] + span;
        const std::int64_t first = std::max<std::int64_t>(begin, 0);
        const Range read{first, std::min(end, x[2]) - first};
        if (read.size <= 0) {
            return {{{0, y[2]}, {0, x[2]}, window}};
        }
        Band band{rows, read, window};
        band.window.pads_begin[0] = first - begin;
        band.window.pads_end[0] = std::max<std::int64_t>(end - x[2], 0);
        made.push_back(band);
    }
    return made.size() > 1 ? made : std::vector<Band>{{{0, y[2]}, {0, x[2]}, window}};
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

// x and y lie as given, weights and bias as the primitive wants them.
template <typename Primitive>
Operation forward(const typename Primitive::primitive_desc& descriptor, const memory::desc& x, const memory::desc& y) {
    Operation operation;
    operation.input(DNNL_ARG_SRC, 0, x, descriptor.src_desc());
    operation.input(DNNL_ARG_WEIGHTS, 1, descriptor.weights_desc(), descriptor.weights_desc());
    if (!descriptor.bias_desc().is_zero()) {
        operation.input(DNNL_ARG_BIAS, 2, descriptor.bias_desc(), descriptor.bias_desc());
    }
    operation.output(DNNL_ARG_DST, 0, y, descriptor.dst_desc());
    operation.finish(descriptor, Primitive(descriptor));
    return operation;
}

}  // namespace

void ConvolutionKernel::choose_way(bool last, const Epilogue& epilogue,
                                   const std::function<void(const Way&)>& prepare) {
    std::vector<Way> ways;
    const auto add = [&](const Accepts& accepts) {
        for (const bool layout : {last, !last}) {
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
    for (std::size_t i = 0; i + 1 < ways.size(); ++i) {
        if (attempt([&] { prepare(ways[i]); })) {
            return;
        }
    }
    prepare(ways.back());
}

Convolution::Convolution(Dims x, Dims w, Dims y, const Window& window, const ConvolutionOptions& options, int threads)
    : ConvolutionKernel("Convolution", threads, options.deterministic) {
    const bool last = options.channels_last;
    const ElementType type = options.type;
    inputs_ = {{"x", x, type}, {"w", w, type}};
    outputs_ = {{"y", y, type}};
    check(*this, x, w, y, window);
    inputs_[0].shape = placed(x, last);
    outputs_[0].shape = placed(y, last);
    inputs_.push_back({"bias", {w[0]}, type, !options.epilogue.bias});
    if (options.epilogue.residual != 0) {
        accumulate(3);
        inputs_.push_back({"residual", outputs_[0].shape, type});
    }
    empty_ = count(y) == 0;
    if (empty_) {
        return;
    }
    guarded(*this, [&] {
        choose_way(last, options.epilogue, [&](const Way& way) { prepare(x, w, y, window, options, way); });
    });
}

void Convolution::prepare(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                          const ConvolutionOptions& options, const Way& way) {
    const bool last = options.channels_last;
    const ElementType type = options.type;
    const Epilogue& epilogue = options.epilogue;
    const bool adds = way.fused && epilogue.residual != 0;
    const ElementType y_type = way.fused ? type : apply_after(epilogue, by_channel(y, last), type);
    const dnnl::post_ops chain = way.fused ? epilogue.post_ops() : dnnl::post_ops();
    const Dims weights = grouped(w, window.groups);
    memory::desc w_layout = any(weights, type);
    const memory::desc bias = way.fused && epilogue.bias ? plain({w[0]}, type) : memory::desc();
    const std::int64_t pieces = pieces_for(multiply_adds(w, y));
    // With the channels last, rows of one image lie together.
    const bool cuts_images = last && 2 * x[0] <= pieces;
    const auto x_row = static_cast<std::size_t>(count(x) / (x[0] * x[2])) * size_of(type);
    const auto y_row = static_cast<std::size_t>(count(y) / (y[0] * y[2])) * size_of(y_type);
    const std::vector<Band> all = bands(x, w, y, window, cuts_images ? power_of_two(pieces / x[0]) : 1);
    for (const Range& images : cut(x[0], pieces)) {
        for (const Band& band : all) {
            Piece piece = piece_of(images, image_bytes(x, type), image_bytes(y, y_type));
            piece.inputs[0] += static_cast<std::size_t>(band.x.begin) * x_row;
            piece.outputs[0] += static_cast<std::size_t>(band.y.begin) * y_row;
            Dims x_part = with_batch(x, images.size);
            Dims y_part = with_batch(y, images.size);
            x_part[2] = band.x.size;
            y_part[2] = band.y.size;
            const Window& here = band.window;
            add_piece(piece, {images.size, band.x.size, band.y.size, here.pads_begin[0]}, [&] {
                const memory::desc y_given = laid_out(y_part, last, y_type);
                // A sum with the residual needs it where it lies.
                const memory::desc y_layout = adds ? y_given : data_layout(y_part, way.last, y_type);
                const auto descriptor = choose<dnnl::convolution_forward>(
                    way.accepts, engine(), prop_kind::forward_inference, algorithm::convolution_direct,
                    data_layout(x_part, way.last, type), w_layout, bias, y_layout, here.strides,
                    library_dilations(here), here.pads_begin, here.pads_end, Operation::attributes(chain));
                w_layout = descriptor.weights_desc();
                return forward<dnnl::convolution_forward>(descriptor, laid_out(x_part, last, type), y_given);
            });
        }
    }
    share_weights(plain(weights, type), w_layout, options.pack_weights);
}

ConvolutionBackwardData::ConvolutionBackwardData(Dims dy, Dims w, Dims dx, const Window& window,
                                                 const GradientOptions& options, int threads)
    : ConvolutionKernel("ConvolutionBackwardData", threads, options.deterministic) {
    const bool last = options.channels_last;
    const ElementType type = options.type;
    inputs_ = {{"dy", dy, type}, {"w", w, type}};
    outputs_ = {{"dx", dx, type}};
    check(*this, dx, w, dy, window);
    inputs_[0].shape = placed(dy, last);
    outputs_[0].shape = placed(dx, last);
    empty_ = count(dy) == 0 || count(dx) == 0;
    if (empty_) {
        return;
    }
    guarded(*this, [&] { choose_way(last, {}, [&](const Way& way) { prepare(dy, w, dx, window, options, way); }); });
}

void ConvolutionBackwardData::prepare(const Dims& dy, const Dims& w, const Dims& dx, const Window& window,
                                      const GradientOptions& options, const Way& way) {
    const bool last = options.channels_last;
    const ElementType type = options.type;
    const Dims weights = grouped(w, window.groups);
    memory::desc w_layout = any(weights, type);
    for (const Range& images : cut(dx[0], pieces_for(multiply_adds(w, dy)))) {
        const Dims dy_part = with_batch(dy, images.size);
        const Dims dx_part = with_batch(dx, images.size);
        add_piece(piece_of(images, image_bytes(dy, type), image_bytes(dx, type)), {images.size}, [&] {
            const auto descriptor = choose<dnnl::convolution_backward_data>(
                way.accepts, engine(), algorithm::convolution_direct, data_layout(dx_part, way.last, type), w_layout,
                data_layout(dy_part, way.last, type), window.strides, library_dilations(window), window.pads_begin,
                window.pads_end, forward_hint(dx_part, w, dy_part, window, way.last, type), Operation::attributes());
            w_layout = descriptor.weights_desc();
            Operation operation;
            operation.input(DNNL_ARG_DIFF_DST, 0, laid_out(dy_part, last, type), descriptor.diff_dst_desc());
            operation.input(DNNL_ARG_WEIGHTS, 1, w_layout, w_layout);
            operation.output(DNNL_ARG_DIFF_SRC, 0, laid_out(dx_part, last, type), descriptor.diff_src_desc());
            operation.finish(descriptor, dnnl::convolution_backward_data(descriptor));
            return operation;
        });
    }
    share_weights(plain(weights, type), w_layout, options.pack_weights);
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

// In how many parts the gradient of weights cuts the batch, whose results are added, and the filters.
struct WeightCuts {
    std::int64_t images = 1;
    std::int64_t filters = 1;
};

// The cuts that read and write least: partial results have the size of dw each, a part of the filters copies its part
// of dy and reads all of x.
WeightCuts cut_weights(const Dims& x, const Dims& dy, const Dims& dw, std::int64_t groups, std::int64_t pieces) {
    WeightCuts best;
    std::int64_t most = 0;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const std::int64_t filters : numbers_of_parts(groups == 1 ? dw[0] : 1, kLeastFilters, pieces)) {
        const std::int64_t images = std::min(x[0], pieces / filters);
        const std::int64_t results = (images > 1 ? 3 * images : 1) * count(dw);
        const std::int64_t traffic = results + (filters > 1 ? 2 : 1) * count(dy) + 2 * filters * count(x);
        const std::int64_t made = images * filters;
        if (made > most || (made == most && traffic < least)) {
            most = made;
            least = traffic;
            best = {images, filters};
        }
    }
    return best;
}

}  // namespace

ConvolutionBackwardWeights::ConvolutionBackwardWeights(Dims x, Dims dy, Dims dw, const Window& window, bool bias,
                                                       const GradientOptions& options, int threads)
    : ConvolutionKernel("ConvolutionBackwardWeights", threads, options.deterministic) {
    const bool last = options.channels_last;
    const ElementType type = options.type;
    inputs_ = {{"x", x, type}, {"dy", dy, type}};
    outputs_ = {{"dw", dw}};
    check(*this, x, dw, dy, window);
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
        guarded(*this, [&] { as_product(count(x) / x[1], dw, type); });
    } else {
        guarded(*this, [&] {
            if (!attempt([&] { as_convolution(x, dy, dw, window, last, type); })) {
                products_.emplace(x, dy, dw, window, last, type, this->threads());
            }
        });
    }
}

std::size_t ConvolutionBackwardWeights::scratch_bytes() const {
    return products_ ? products_->scratch_bytes() : LibraryKernel::scratch_bytes();
}

void ConvolutionBackwardWeights::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    if (!products_) {
        LibraryKernel::run(inputs, outputs, scratch);
        return;
    }
    guarded(*this, [&] {
        products_->run(inputs[0], inputs[1], static_cast<float*>(outputs[0]),
                       outputs_.size() > 1 ? static_cast<float*>(outputs[1]) : nullptr, scratch);
    });
}

std::string ConvolutionBackwardWeights::implementation() const {
    return products_ ? std::string("windows:") + isa_name() : LibraryKernel::implementation();
}

// dy^T x over all positions. The product comes out in the plain order of the weights.
void ConvolutionBackwardWeights::as_product(std::int64_t positions, const Dims& dw, ElementType type) {
    const Matrices left{{}, dw[0], positions, true};
    const Matrices right{{}, positions, dw[1], false};
    const Matrices product{{}, dw[0], dw[1], false};
    const double work = static_cast<double>(positions) * static_cast<double>(count(dw));
    const auto pieces = cut_product(left, product, pieces_for(work), true);
    sum_partials(pieces.back().partial + 1);
    for (const ProductPiece& piece : pieces) {
        const auto bytes = [](std::int64_t elements, ElementType of) {
            return static_cast<std::size_t>(elements) * size_of(of);
        };
        Piece place;
        place.inputs = {bytes(right.offset(0, piece.terms.begin, piece.columns.begin), type),
                        bytes(left.offset(0, piece.rows.begin, piece.terms.begin), type), 0, 0};
        place.outputs[0] = bytes(product.offset(0, piece.rows.begin, piece.columns.begin), kF32);
        place.partial = piece.partial;
        add_piece(place, piece.extents(), [&] {
            const memory::desc a = left.descriptor(type, 1, piece.rows.size, piece.terms.size);
            const memory::desc b = right.descriptor(type, 1, piece.terms.size, piece.columns.size);
            const memory::desc y = product.descriptor(kF32, 1, piece.rows.size, piece.columns.size);
            const auto descriptor = choose<dnnl::matmul>(any_name, engine(), a, b, y, Operation::attributes());
            Operation operation;
            operation.input(DNNL_ARG_SRC, 1, a, a);
            operation.input(DNNL_ARG_WEIGHTS, 0, b, b);
            operation.output(DNNL_ARG_DST, 0, y, y);
            operation.finish(descriptor, dnnl::matmul(descriptor));
            return operation;
        });
    }
}

void ConvolutionBackwardWeights::as_convolution(const Dims& x, const Dims& dy, const Dims& dw, const Window& window,
                                                bool last, ElementType type) {
    const bool bias = outputs_.size() > 1;
    const bool suits = WindowProducts::suits(dw, window, last);
    // With the channels last, the library's gradients of dilated windows in bfloat16 read beside them.
    const bool misreads = last && type == ElementType::bf16 &&
                          std::any_of(window.dilations.begin(), window.dilations.end(), [](auto d) { return d > 1; });
    // Of fewer channels than a vector has, its gradients of strided single elements write beyond their working memory.
    const bool overruns = last && dw[1] < kVectorChannels &&
                          std::all_of(dw.begin() + 2, dw.end(), [](auto k) { return k == 1; }) &&
                          std::any_of(window.strides.begin(), window.strides.end(), [](auto step) { return step > 1; });
    const Accepts accepts = [&](const std::string& name) {
        return !(suits && is_by_columns(name)) && !(misreads && name.find("jit_bf16") != std::string::npos) &&
               !(overruns && name.find("1x1") != std::string::npos);
    };
    const WeightCuts cuts = cut_weights(x, dy, dw, window.groups, pieces_for(multiply_adds(dw, dy)));
    const auto image_ranges = cut(x[0], cuts.images);
    sum_partials(image_ranges.size());
    // Between filters in dy and in dw.
    const std::size_t dy_step = size_of(type) * (last ? 1 : static_cast<std::size_t>(count(dy) / (dy[0] * dy[1])));
    const std::size_t dw_step = size_of(kF32) * static_cast<std::size_t>(count(dw) / dw[0]);
    for (std::size_t i = 0; i < image_ranges.size(); ++i) {
        const Range images = image_ranges[i];
        for (const Range& filters : cut(dw[0], cuts.filters, kFilterGrain)) {
            const auto first = static_cast<std::size_t>(filters.begin);
            Piece piece = piece_of(images, image_bytes(x, type), 0);
            piece.inputs[1] = static_cast<std::size_t>(images.begin) * image_bytes(dy, type) + first * dy_step;
            piece.outputs = {first * dw_step, first * size_of(kF32)};
            piece.partial = i;
            const Dims x_part = with_batch(x, images.size);
            Dims dy_part = with_batch(dy, images.size);
            Dims dw_part = dw;
            dy_part[1] = dw_part[0] = filters.size;
            add_piece(piece, {images.size, filters.size}, [&] {
                const Dims weights = grouped(dw_part, window.groups);
                const memory::desc bias_layout = bias ? plain({filters.size}, kF32) : memory::desc();
                const memory::desc dy_given(dy_part, library_type(type), laid_out(dy, last, type).get_strides());
                const auto descriptor = choose<dnnl::convolution_backward_weights>(
                    accepts, engine(), algorithm::convolution_direct, data_layout(x_part, last, type),
                    any(weights, kF32),
                    bias_layout, data_layout(dy_part, last, type), window.strides, library_dilations(window),
                    window.pads_begin, window.pads_end, forward_hint(x_part, dw_part, dy_part, window, last, type),
                    Operation::attributes());
                Operation operation;
                operation.input(DNNL_ARG_SRC, 0, laid_out(x_part, last, type), descriptor.src_desc());
                operation.input(DNNL_ARG_DIFF_DST, 1, dy_given, descriptor.diff_dst_desc());
                operation.output(DNNL_ARG_DIFF_WEIGHTS, 0, plain(weights, kF32), descriptor.diff_weights_desc());
                if (bias) {
                    operation.output(DNNL_ARG_DIFF_BIAS, 1, bias_layout, descriptor.diff_bias_desc());
                }
                operation.finish(descriptor, dnnl::convolution_backward_weights(descriptor));
                return operation;
            });
        }
    }
}

Deconvolution::Deconvolution(Dims x, Dims w, Dims y, const Window& window, const ConvolutionOptions& options,
                             int threads)
    : ConvolutionKernel("Deconvolution", threads, options.deterministic) {
    const bool last = options.channels_last;
    const ElementType type = options.type;
    inputs_ = {{"x", x, type}, {"w", w, type}};
    outputs_ = {{"y", y, type}};
    check(*this, y, w, x, window);
    inputs_[0].shape = placed(x, last);
    outputs_[0].shape = placed(y, last);
    if (options.epilogue.bias) {
        inputs_.push_back({"bias", {y[1]}, type});
    }
    if (options.epilogue.residual != 0) {
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
        choose_way(last, options.epilogue, [&](const Way& way) { prepare(x, w, y, window, options, way); });
    });
}

void Deconvolution::prepare(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                            const ConvolutionOptions& options, const Way& way) {
    const bool last = options.channels_last;
    const ElementType type = options.type;
    const Epilogue& epilogue = options.epilogue;
    const ElementType y_type = way.fused ? type : apply_after(epilogue, by_channel(y, last), type);
    const dnnl::post_ops chain = way.fused ? epilogue.post_ops() : dnnl::post_ops();
    const SwappedWeights weights(w, window.groups, type);
    memory::desc w_layout = any(weights.dims, type);
    const memory::desc bias = way.fused && epilogue.bias ? plain({y[1]}, type) : memory::desc();
    const bool follows = way.fused && !epilogue.empty();
    // The library's strided implementation adds the bias and applies the rest once for each group of a wide input's
    // channels and taps.
    const Accepts accepts = [&](const std::string& name) {
        return way.accepts(name) && !(follows && name.find("brgconv_strided") != std::string::npos);
    };
    for (const Range& images : cut(x[0], pieces_for(multiply_adds(w, x)))) {
        const Dims x_part = with_batch(x, images.size);
        const Dims y_part = with_batch(y, images.size);
        add_piece(piece_of(images, image_bytes(x, type), image_bytes(y, y_type)), {images.size}, [&] {
            const auto descriptor = choose<dnnl::deconvolution_forward>(
                accepts, engine(), prop_kind::forward_inference, algorithm::deconvolution_direct,
                data_layout(x_part, way.last, type), w_layout, bias, data_layout(y_part, way.last, y_type),
                window.strides, library_dilations(window), window.pads_begin, window.pads_end,
                Operation::attributes(chain));
            w_layout = descriptor.weights_desc();
            return forward<dnnl::deconvolution_forward>(descriptor, laid_out(x_part, last, type),
                                                        laid_out(y_part, last, y_type));
        });
    }
    share_weights(weights.given, w_layout, options.pack_weights);
}

namespace {

template <typename Kind>
void bind_convolution(nb::module_& m, const char* name) {
    nb::class_<Watched<Kind>, Kernel>(m, name).def(
        "__init__",
        [](Watched<Kind>* self, const Dims& x, const Dims& w, const Dims& y, const Window& window, bool bias,
           Epilogue last, bool pack_weights, bool channels_last, bool deterministic, const std::string& dtype,
           int threads) {
            const ElementType type = element_type(dtype);
            last.bias = bias;
            const auto make = [=](const Epilogue& end, bool may_pack) {
                const ConvolutionOptions options{end, pack_weights && may_pack, type, channels_last, deterministic};
                return std::make_unique<Kind>(x, w, y, window, options, threads);
            };
            new (self) Watched<Kind>(make, last);
        },
        "x"_a, "w"_a, "y"_a, "window"_a, nb::kw_only(), "bias"_a = false, "epilogue"_a = Epilogue{},
        "pack_weights"_a = false, "channels_last"_a = false, "deterministic"_a = false, "dtype"_a = "float32",
        "threads"_a = 0, NoGil());
}

}  // namespace

GRAPHKIT_BINDINGS(conv, "epilogue") {
    nb::class_<Window>(m, "Window")
        .def(nb::init<Dims, Dims, Dims, Dims, std::int64_t>(), "strides"_a, "dilations"_a, "pads_begin"_a, "pads_end"_a,
             "groups"_a = 1);
    bind_convolution<Convolution>(m, "Convolution");
    bind_convolution<Deconvolution>(m, "Deconvolution");
    nb::class_<ConvolutionBackwardData, Kernel>(m, "ConvolutionBackwardData")
        .def(
            "__init__",
            [](ConvolutionBackwardData* self, Dims dy, Dims w, Dims dx, const Window& window, bool pack_weights,
               bool channels_last, bool deterministic, const std::string& dtype, int threads) {
                const GradientOptions options{pack_weights, channels_last, element_type(dtype), deterministic};
                new (self)
                    ConvolutionBackwardData(std::move(dy), std::move(w), std::move(dx), window, options, threads);
            },
            "dy"_a, "w"_a, "dx"_a, "window"_a, nb::kw_only(), "pack_weights"_a = false, "channels_last"_a = false,
            "deterministic"_a = false, "dtype"_a = "float32", "threads"_a = 0, NoGil());
    nb::class_<ConvolutionBackwardWeights, Kernel>(m, "ConvolutionBackwardWeights")
        .def(
            "__init__",
            [](ConvolutionBackwardWeights* self, Dims x, Dims dy, Dims dw, const Window& window, bool bias,
               bool channels_last, bool deterministic, const std::string& dtype, int threads) {
                const GradientOptions options{false, channels_last, element_type(dtype), deterministic};
                new (self) ConvolutionBackwardWeights(std::move(x), std::move(dy), std::move(dw), window, bias, options,
                                                      threads);
            },
            "x"_a, "dy"_a, "dw"_a, "window"_a, nb::kw_only(), "bias"_a = false, "channels_last"_a = false,
            "deterministic"_a = false, "dtype"_a = "float32", "threads"_a = 0, NoGil());
}

}  // namespace graphkit
