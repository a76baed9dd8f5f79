// The gradients of a convolution with respect to its data and its weights.
#include <algorithm>
#include <limits>
#include <optional>

#include "kernels/conv/conv_library.h"
#include "kernels/conv/window_products.h"
#include "onednn/product.h"
#include "runtime/bindings.h"
#include "runtime/recipe.h"

namespace graphkit {
namespace {

using dnnl::algorithm;
using dnnl::memory;

constexpr auto kF32 = ElementType::f32;

// Parts of the filters in the gradient of weights: multiples of kFilterGrain (whole vectors), and at least
// kLeastFilters, so that the arithmetic outweighs what a part reads.
constexpr std::int64_t kFilterGrain = 16;
constexpr std::int64_t kLeastFilters = 32;
// Channels in the library's widest float32 vector.
constexpr std::int64_t kVectorChannels = 16;

struct GradientOptions {
    bool pack_weights = false;  // w is constant: it comes packed in oneDNN's layout
    bool channels_last = false;  // x, dx and dy are [N, spatial, C] in memory
    ElementType type = ElementType::f32;  // of x, w, dy and dx: f32 or bf16
    bool deterministic = false;  // equal bits for any number of threads
};

// dx from dy and w: the gradient of Convolution with respect to x.
class ConvolutionBackwardData final : public ConvolutionKernel {
  public:
    ConvolutionBackwardData(Dims dy, Dims w, Dims dx, const Window& window, const GradientOptions& options,
                            int threads);

  private:
    void prepare(const Dims& dy, const Dims& w, const Dims& dx, const Window& window, const GradientOptions& options,
                 const Way& way);
};

// dw, and optionally the gradient of the bias, from x and dy. The results are float32 for operands of any type.
class ConvolutionBackwardWeights final : public ConvolutionKernel {
  public:
    ConvolutionBackwardWeights(Dims x, Dims dy, Dims dw, const Window& window, bool bias,
                               const GradientOptions& options, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::string implementation() const override;

  private:
    void as_product(std::int64_t positions, const Dims& dw, ElementType type);
    void as_convolution(const Dims& x, const Dims& dy, const Dims& dw, const Window& window, bool last,
                        ElementType type);

    std::optional<WindowProducts> products_;
};

// With at least this many channels on both sides, a matrix product is at least as fast as the library's gradient.
constexpr std::int64_t kProductChannels = 64;

// Whether each window is a single element, and each element of the input has one.
bool is_pointwise(const Dims& w, const Window& window) {
    const auto all = [](const Dims& values, std::int64_t value) {
        return std::all_of(values.begin(), values.end(), [=](std::int64_t v) { return v == value; });
    };
    return window.groups == 1 && all(Dims(w.begin() + 2, w.end()), 1) && all(window.strides, 1) &&
           all(window.pads_begin, 0) && all(window.pads_end, 0);
}

// The number of parts into which the gradient of weights divides the batch (their results are added), and the filters.
struct WeightCuts {
    std::int64_t images = 1;
    std::int64_t filters = 1;
};

// Returns the division with the least memory traffic: each partial result has the size of dw; each part of the filters
// copies its part of dy and reads all of x.
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

ConvolutionBackwardData::ConvolutionBackwardData(Dims dy, Dims w, Dims dx, const Window& window,
                                                 const GradientOptions& options, int threads)
    : ConvolutionKernel("ConvolutionBackwardData", threads, options.deterministic) {
    const bool last = options.channels_last;
    const ElementType type = options.type;
    inputs_ = {{"dy", dy, type}, {"w", w, type}};
    outputs_ = {{"dx", dx, type}};
    check_shapes(*this, dx, w, dy, window);
    inputs_[0].shape = placed(dy, last);
    outputs_[0].shape = placed(dx, last);
    empty_ = count(dy) == 0 || count(dx) == 0;
    if (empty_) {
        return;
    }
    guarded(*this, [&] {
        choose_way(last, w[0] / window.groups, {}, [&](const Way& way) { prepare(dy, w, dx, window, options, way); });
    });
}

void ConvolutionBackwardData::prepare(const Dims& dy, const Dims& w, const Dims& dx, const Window& window,
                                      const GradientOptions& options, const Way& way) {
    const bool last = options.channels_last;
    const ElementType type = options.type;
    const Dims weights = grouped(w, window.groups);
    memory::desc w_layout = any(weights, type);
    for (const Range& images : cut(dx[0], pieces_for(multiply_adds(w, dy), operand_bytes()))) {
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

ConvolutionBackwardWeights::ConvolutionBackwardWeights(Dims x, Dims dy, Dims dw, const Window& window, bool bias,
                                                       const GradientOptions& options, int threads)
    : ConvolutionKernel("ConvolutionBackwardWeights", threads, options.deterministic) {
    const bool last = options.channels_last;
    const ElementType type = options.type;
    inputs_ = {{"x", x, type}, {"dy", dy, type}};
    outputs_ = {{"dw", dw}};
    check_shapes(*this, x, dw, dy, window);
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

// Computes dw as dy^T x over all positions. The product has the plain layout of the weights.
void ConvolutionBackwardWeights::as_product(std::int64_t positions, const Dims& dw, ElementType type) {
    const Matrices left{{}, dw[0], positions, true};
    const Matrices right{{}, positions, dw[1], false};
    const Matrices product{{}, dw[0], dw[1], false};
    const double work = static_cast<double>(positions) * static_cast<double>(count(dw));
    const auto pieces = cut_product(left, product, pieces_for(work, operand_bytes()), true);
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
    // With the channels last, the library's bfloat16 gradients of dilated windows read wrong elements.
    const bool misreads = last && type == ElementType::bf16 &&
                          std::any_of(window.dilations.begin(), window.dilations.end(), [](auto d) { return d > 1; });
    // With fewer channels than a vector has lanes, the library's gradients of strided 1x1 windows write beyond their
    // working memory.
    const bool overruns = last && dw[1] < kVectorChannels &&
                          std::all_of(
                              dw.begin() + 2, dw.end(), [](auto k) { return k == 1; }) &&
                          std::any_of(window.strides.begin(), window.strides.end(), [](auto step) { return step > 1; });
    const Accepts accepts = [&](const std::string& name) {
        return !(suits && is_by_columns(name)) && !(misreads && name.find("jit_bf16") != std::string::npos) &&
               !(overruns && name.find("1x1") != std::string::npos);
    };
    const WeightCuts cuts = cut_weights(x, dy, dw, window.groups, pieces_for(multiply_adds(dw, dy), operand_bytes()));
    const auto image_ranges = cut(x[0], cuts.images);
    sum_partials(image_ranges.size());
    // Bytes from filter to filter in dy and in dw.
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
                    any(weights, kF32), bias_layout, data_layout(dy_part, last, type), window.strides,
                    library_dilations(window), window.pads_begin, window.pads_end,
                    forward_hint(x_part, dw_part, dy_part, window, last, type), Operation::attributes());
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

namespace {

GradientOptions options_of(bool pack_weights, bool channels_last, bool deterministic, const std::string& dtype) {
    const ElementType type = element_type(dtype);
    if (type != ElementType::f32 && type != ElementType::bf16) {
        throw Unsupported("gradients of convolutions of " + dtype);
    }
    return {pack_weights, channels_last, type, deterministic};
}

void require_operands(const Dims& x, const Dims& w, const Dims& y) {
    for (const Dims* shape : {&x, &w, &y}) {
        require_shape(*shape);
    }
}

const RecipeKind backward_data_recipe(
    "ConvolutionBackwardData",
    +[](ConvolutionBackwardData* self, Dims dy, Dims w, Dims dx, const Window& window, bool pack_weights,
        bool channels_last, bool deterministic, const std::string& dtype, int threads) {
        require_operands(dx, w, dy);
        const GradientOptions options = options_of(pack_weights, channels_last, deterministic, dtype);
        new (self) ConvolutionBackwardData(std::move(dy), std::move(w), std::move(dx), window, options, threads);
    });

const RecipeKind backward_weights_recipe(
    "ConvolutionBackwardWeights",
    +[](ConvolutionBackwardWeights* self, Dims x, Dims dy, Dims dw, const Window& window, bool bias, bool channels_last,
        bool deterministic, const std::string& dtype, int threads) {
        require_operands(x, dw, dy);
        const GradientOptions options = options_of(false, channels_last, deterministic, dtype);
        new (self)
            ConvolutionBackwardWeights(std::move(x), std::move(dy), std::move(dw), window, bias, options, threads);
    });

}  // namespace

GRAPHKIT_BINDINGS(conv_grad, "conv") {
    nb::class_<ConvolutionBackwardData, Kernel>(m, "ConvolutionBackwardData")
        .def("__init__", backward_data_recipe.init(), "dy"_a, "w"_a, "dx"_a, "window"_a, nb::kw_only(),
             "pack_weights"_a = false, "channels_last"_a = false, "deterministic"_a = false, "dtype"_a = "float32",
             "threads"_a = 0, NoGil());
    nb::class_<ConvolutionBackwardWeights, Kernel>(m, "ConvolutionBackwardWeights")
        .def("__init__", backward_weights_recipe.init(), "x"_a, "dy"_a, "dw"_a, "window"_a, nb::kw_only(),
             "bias"_a = false, "channels_last"_a = false, "deterministic"_a = false, "dtype"_a = "float32",
             "threads"_a = 0, NoGil());
}

}  // namespace graphkit
