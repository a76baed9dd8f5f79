// Convolution and transposed convolution: one to three spatial dimensions.
#include <algorithm>

#include "kernels/conv/conv_library.h"
#include "onednn/post_ops.h"
#include "onednn/watched_product.h"
#include "primitives/partition.h"
#include "runtime/bindings.h"

namespace graphkit {
namespace {

using dnnl::algorithm;
using dnnl::memory;
using dnnl::prop_kind;

struct ConvolutionOptions : LibraryConvolution {
    bool any_numbers = false;  // NaN and infinities of x must affect only results whose windows contain them
};

// y = epilogue(conv(x, w) + bias). x [N, C, spatial], w [M, C/groups, kernel], bias [M], y and residual [N, M,
// spatial]; shapes are given like this for any memory layout. The residual is the last input.
class Convolution final : public ConvolutionKernel {
  public:
    Convolution(Dims x, Dims w, Dims y, const Window& window, const ConvolutionOptions& options, int threads);
    std::vector<std::pair<int, int>> inplace() const override { return residual_inplace(); }
    bool wants_finite() const override { return spills_; }

  private:
    void prepare(const Dims& x, const Dims& w, const Dims& y, const Window& window, const ConvolutionOptions& options,
                 const Way& way);

    bool spills_ = false;
};

// y = epilogue(conv_transpose(x, w) + bias). x [N, C, spatial], w [C, M/groups, kernel], y [N, M, spatial].
class Deconvolution final : public ConvolutionKernel {
  public:
    Deconvolution(Dims x, Dims w, Dims y, const Window& window, const ConvolutionOptions& options, int threads);

  private:
    void prepare(const Dims& x, const Dims& w, const Dims& y, const Window& window, const ConvolutionOptions& options,
                 const Way& way);
};

// Least number of rows of the result in a part of an image.
constexpr std::int64_t kLeastRows = 2;

// The weights of a transposed convolution, [C, M/groups, kernel] in memory, described as [groups, M/groups, C/groups,
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

// Some rows of the result along the first spatial axis, the rows of x that they read, and the window of the convolution
// between them.
struct Band {
    Range y;
    Range x;
    Window window;
};

// Divides the result into at most `parts` bands. Returns a single band if another division had a band that reads only
// padding.
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

// The forward operation with x and y in the given layouts, and weights and bias in the layouts of the primitive.
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

static void require_all_sizes(const Dims& x, const Dims& w, const Dims& y) {
    for (const Dims* const shape : {&x, &w, &y}) {
        require_sizes(*shape);
    }
}

Convolution::Convolution(Dims x, Dims w, Dims y, const Window& window, const ConvolutionOptions& options, int threads)
    : ConvolutionKernel("Convolution", threads, options.deterministic) {
    const bool last = options.channels_last;
    const ElementType type = options.type;
    require_all_sizes(x, w, y);
    inputs_ = {{"x", x, type}, {"w", w, type}};
    outputs_ = {{"y", y, type}};
    check_shapes(*this, x, w, y, window);
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
    if (count(x) == 0) {
        throw Unsupported(describe() + ": an empty input and a result that is not empty");
    }
    guarded(*this, [&] {
        choose_way(last, w[1], options.epilogue, [&](const Way& way) { prepare(x, w, y, window, options, way); });
    });
}

namespace {

// bfloat16 elements in a row of an AMX tile.
constexpr std::int64_t kTileRow = 32;

// Whether elements behind a window are multiplied by zero weights, so that NaN and infinities there become NaN. With
// few channels, a row of the library's AMX tiles holds elements of whole windows, and the last row is rarely full.
bool is_in_rest_of_tile(const Dims& w, const Window& window) {
    const std::int64_t taps = count(w) / (w[0] * w[1]);
    const bool dense = std::all_of(window.dilations.begin(), window.dilations.end(), [](auto d) { return d == 1; });
    return dense && taps > 1 && w[1] < kTileRow && w[1] * taps % kTileRow != 0;
}

}  // namespace

void Convolution::prepare(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                          const ConvolutionOptions& options, const Way& way) {
    const bool last = options.channels_last;
    const ElementType type = options.type;
    const Epilogue& epilogue = options.epilogue;
    const bool adds = way.fused && epilogue.residual != 0;
    const bool biased = epilogue.bias && (way.fused || epilogue.applied == Applied::active);
    Epilogue behind = epilogue;
    behind.bias = epilogue.bias && !biased;
    const ElementType y_type = way.fused ? type : apply_after(behind, by_channel(y, last), type);
    const dnnl::post_ops chain = way.fused ? post_ops_of(epilogue) : dnnl::post_ops();
    const Dims weights = grouped(w, window.groups);
    memory::desc w_layout = any(weights, type);
    const memory::desc bias = biased ? plain({w[0]}, type) : memory::desc();
    const std::int64_t pieces = pieces_for(multiply_adds(w, y), operand_bytes());
    // With the channels last, the rows of an image are contiguous.
    const bool cuts_images = last && 2 * x[0] <= pieces;
    const auto x_row = static_cast<std::size_t>(count(x) / (x[0] * x[2])) * size_of(type);
    const auto y_row = static_cast<std::size_t>(count(y) / (y[0] * y[2])) * size_of(y_type);
    const std::vector<Band> all = bands(x, w, y, window, cuts_images ? power_of_two(pieces / x[0]) : 1);
    const bool may_spill = type == ElementType::bf16 && is_in_rest_of_tile(w, window);
    const auto spills = [=](const std::string& name) { return may_spill && name.rfind("jit:avx512_core_amx", 0) == 0; };
    const Accepts accepts = [&](const std::string& name) {
        return way.accepts(name) && !(options.any_numbers && spills(name));
    };
    spills_ = false;
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
                // If the library adds the residual, the residual must be in the layout of y.
                const memory::desc y_layout = adds ? y_given : data_layout(y_part, way.last, y_type);
                const auto descriptor = choose<dnnl::convolution_forward>(
                    accepts, engine(), prop_kind::forward_inference, algorithm::convolution_direct,
                    data_layout(x_part, way.last, type), w_layout, bias, y_layout, here.strides,
                    library_dilations(here), here.pads_begin, here.pads_end, Operation::attributes(chain));
                w_layout = descriptor.weights_desc();
                spills_ = spills_ || spills(descriptor.impl_info_str());
                return forward<dnnl::convolution_forward>(descriptor, laid_out(x_part, last, type), y_given);
            });
        }
    }
    share_weights(plain(weights, type), w_layout, options.pack_weights);
}

Deconvolution::Deconvolution(Dims x, Dims w, Dims y, const Window& window, const ConvolutionOptions& options,
                             int threads)
    : ConvolutionKernel("Deconvolution", threads, options.deterministic) {
    const bool last = options.channels_last;
    const ElementType type = options.type;
    require_all_sizes(x, w, y);
    inputs_ = {{"x", x, type}, {"w", w, type}};
    outputs_ = {{"y", y, type}};
    check_shapes(*this, y, w, x, window);
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
    // With an odd number of channels, every implementation of the library spreads infinities to other results: see
    // choose_way.
    if (type == ElementType::bf16 && x[1] / window.groups % 2 == 1) {
        throw Unsupported(describe() + ": an odd number of channels");
    }
    empty_ = count(y) == 0;
    if (empty_) {
        return;
    }
    if (count(x) == 0) {
        throw Unsupported(describe() + ": an empty input and a result that is not empty");
    }
    guarded(*this, [&] {
        choose_way(last, x[1] / window.groups, options.epilogue,
                   [&](const Way& way) { prepare(x, w, y, window, options, way); });
    });
}

void Deconvolution::prepare(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                            const ConvolutionOptions& options, const Way& way) {
    const bool last = options.channels_last;
    const ElementType type = options.type;
    const Epilogue& epilogue = options.epilogue;
    const ElementType y_type = way.fused ? type : apply_after(epilogue, by_channel(y, last), type);
    const dnnl::post_ops chain = way.fused ? post_ops_of(epilogue) : dnnl::post_ops();
    const SwappedWeights weights(w, window.groups, type);
    memory::desc w_layout = any(weights.dims, type);
    const memory::desc bias = way.fused && epilogue.bias ? plain({y[1]}, type) : memory::desc();
    const bool follows = way.fused && !epilogue.empty();
    // For a wide input, the library's strided implementation adds the bias and applies the epilogue once for each group
    // of channels and taps, instead of once.
    const Accepts accepts = [&](const std::string& name) {
        return way.accepts(name) && !(follows && name.find("brgconv_strided") != std::string::npos);
    };
    for (const Range& images : cut(x[0], pieces_for(multiply_adds(w, x), operand_bytes()))) {
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
WatchedProduct::Make maker(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                           const LibraryConvolution& given, int threads) {
    return [=](const Epilogue& end, bool again) {
        ConvolutionOptions options{given, again};
        options.epilogue = end;
        options.pack_weights = given.pack_weights && !again;
        return std::make_unique<Kind>(x, w, y, window, options, threads);
    };
}

template <typename Kind>
void build_convolution(Watched<Kind>* self, const Dims& x, const Dims& w, const Dims& y, const Window& window,
                       bool bias, Epilogue last, bool pack_weights, bool channels_last, bool deterministic,
                       const std::string& dtype, int threads) {
    last.bias = bias;
    const LibraryConvolution options{last, pack_weights, element_type(dtype), channels_last, deterministic};
    new (self) Watched<Kind>(maker<Kind>(x, w, y, window, options, threads), last);
}

const RecipeKind convolution_recipe("Convolution", &build_convolution<Convolution>);
const RecipeKind deconvolution_recipe("Deconvolution", &build_convolution<Deconvolution>);

template <typename Kind, typename Recipe>
void bind_convolution(nb::module_& m, const char* name, const Recipe& recipe) {
    nb::class_<Watched<Kind>, Kernel>(m, name).def(
        "__init__", recipe.init(), "x"_a, "w"_a, "y"_a, "window"_a, nb::kw_only(), "bias"_a = false,
        "epilogue"_a = Epilogue{}, "pack_weights"_a = false, "channels_last"_a = false, "deterministic"_a = false,
        "dtype"_a = "float32", "threads"_a = 0, NoGil());
}

}  // namespace

std::unique_ptr<Kernel> library_convolution(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                                            const LibraryConvolution& options, int threads) {
    return std::make_unique<Watched<Convolution>>(maker<Convolution>(x, w, y, window, options, threads),
                                                  options.epilogue);
}

std::unique_ptr<Kernel> library_deconvolution(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                                              const LibraryConvolution& options, int threads) {
    return std::make_unique<Watched<Deconvolution>>(maker<Deconvolution>(x, w, y, window, options, threads),
                                                    options.epilogue);
}

GRAPHKIT_BINDINGS(conv, "epilogue") {
    nb::class_<Window>(m, "Window")
        .def(nb::init<Dims, Dims, Dims, Dims, std::int64_t>(), "strides"_a, "dilations"_a, "pads_begin"_a, "pads_end"_a,
             "groups"_a = 1);
    bind_convolution<Convolution>(m, "Convolution", convolution_recipe);
    bind_convolution<Deconvolution>(m, "Deconvolution", deconvolution_recipe);
}

}  // namespace graphkit
