// Makes the kernels of convolutions for all sizes, without Python: graphkit's own, or the library's.
#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "kernels/conv/conv_library.h"
#include "kernels/conv/depthwise.h"
#include "kernels/conv/depthwise_copied.h"
#include "kernels/conv/narrow_conv.h"
#include "kernels/conv/plane.h"
#include "kernels/conv/tiled_conv.h"
#include "kernels/conv/transposed_conv.h"
#include "runtime/bindings.h"
#include "runtime/kernel_factory.h"
#include "runtime/recipe.h"

namespace graphkit {
namespace {

// If an image or a kernel has more columns than this, the library takes seconds to prepare a transposed convolution.
constexpr std::int64_t kWidest = 1 << 14;
constexpr std::int64_t kMostStep = std::int64_t{1} << 46;  // of strides and dilations

// A convolution with its channels at axis 1: x [N, C, spatial], w [M, C / groups, kernel], y [N, M, spatial]. If it is
// transposed, w is [C, M / groups, kernel].
struct Problem {
    Dims x, w, y;
    const Window* given;           // it outlives this object
    std::optional<Window> changed; // instead of `given`

    const Window& window() const { return changed ? *changed : *given; }
    Window& change() {
        if (!changed) {
            changed = *given;
        }
        return *changed;
    }

    std::array<Dims*, 3> shapes() { return {&x, &w, &y}; }

    // Orders the spatial axes.
    void reorder(const std::vector<std::size_t>& order) {
        for (Dims* const shape : shapes()) {
            const Dims old = *shape;
            for (std::size_t i = 0; i < order.size(); ++i) {
                (*shape)[2 + i] = old[2 + order[i]];
            }
        }
        Window& window = change();
        for (Dims* const side : {&window.strides, &window.dilations, &window.pads_begin, &window.pads_end}) {
            const Dims old = *side;
            for (std::size_t i = 0; i < order.size(); ++i) {
                (*side)[i] = old[order[i]];
            }
        }
    }

    // Adds a spatial axis of size 1 before this one.
    void insert_axis(std::size_t axis) {
        const auto at = static_cast<std::ptrdiff_t>(axis);
        for (Dims* const shape : shapes()) {
            shape->insert(shape->begin() + 2 + at, 1);
        }
        Window& window = change();
        for (Dims* const ones : {&window.strides, &window.dilations}) {
            ones->insert(ones->begin() + at, 1);
        }
        for (Dims* const zeros : {&window.pads_begin, &window.pads_end}) {
            zeros->insert(zeros->begin() + at, 0);
        }
    }

    // Moves axes of size 1 before the other spatial axes. This moves no elements in memory. It makes the last axis,
    // along which kernels compute, as long as possible.
    void put_units_first() {
        if (std::find(x.begin() + 2, x.end(), 1) == x.end()) {
            return;
        }
        std::vector<std::size_t> order(x.size() - 2);
        std::iota(order.begin(), order.end(), 0);
        std::stable_partition(order.begin(), order.end(), [&](std::size_t axis) {
            return x[2 + axis] == 1 && w[2 + axis] == 1 && y[2 + axis] == 1;
        });
        reorder(order);
    }

    // Makes a single row a single column.
    void put_columns_first() {
        if (x.size() == 3) {
            insert_axis(1);
            return;
        }
        std::vector<std::size_t> order(x.size() - 2);
        std::iota(order.begin(), order.end(), 0);
        std::rotate(order.begin(), order.end() - 1, order.end());
        reorder(order);
    }

    // Whether each channel has one filter.
    bool is_depthwise() const { return window().groups == x[1] && x[1] == w[0]; }
};

// How the padding of a window follows from sizes.
enum class AutoPad { none, same_upper, same_lower };

// The kernel of a float32 convolution in the standard order of axes: the library's, or one for few channels, for one
// filter for each channel, or for transposed convolutions.
enum class Standard { library, shallow, planes, scattered };

// The window of the kernel with one filter for each channel; no value if a pad is negative.
std::optional<PoolWindow> depthwise_window(const Dims& kernel, const Window& window) {
    const auto fits = [](const Dims& pads) {
        return std::all_of(pads.begin(), pads.end(), [](std::int64_t pad) { return pad >= 0; });
    };
    const auto& [strides, dilations, begin, end, groups] = window;
    return fits(begin) && fits(end) ? std::optional(PoolWindow{kernel, strides, dilations, begin, end}) : std::nullopt;
}

struct ConvolutionTraits {
    Dims kernel;  // of the weights, if it does not depend on sizes
    Window window;  // an end is negative if the last rows of a transposed result are in no window
    AutoPad auto_pad = AutoPad::none;  // else the pads of the window are ignored
    bool transposed = false;
    bool channels_last = false;
    Standard standard = Standard::library;
    bool prefers_depthwise = false;  // use the kernel with one filter for each channel for all sizes
    bool scatters = false;  // prefer graphkit's kernel of transposed convolutions
    Epilogue epilogue;
    bool pack_weights = false;
    bool vary = false;  // kernels for other sizes will follow
    ElementType type = ElementType::f32;
    bool deterministic = false;
    int threads = 1;
};

void require_strides(const Window& window) {
    for (const Dims* const steps : {&window.strides, &window.dilations}) {
        if (std::any_of(steps->begin(), steps->end(), [](std::int64_t step) { return step < 1 || step > kMostStep; })) {
            throw NativeError("a stride or a dilation of a convolution is out of range");
        }
    }
}

// Sets the padding with which there are ceil(size / stride) windows.
void pad_same(Problem& problem, bool upper) {
    Window& window = problem.change();
    for (std::size_t i = 0; i < window.strides.size(); ++i) {
        const std::int64_t size = problem.x[2 + i];
        const std::int64_t stride = window.strides[i];
        std::int64_t span = 0;
        if (__builtin_mul_overflow(problem.w[2 + i] - 1, window.dilations[i], &span)) {
            throw NativeError("the window of a convolution is too large");
        }
        const std::int64_t reach = size == 0 ? -stride : (size - 1) / stride * stride;
        const std::int64_t total = std::max<std::int64_t>(span - (size - reach - 1), 0);
        window.pads_begin[i] = upper ? total / 2 : total - total / 2;
        window.pads_end[i] = total - window.pads_begin[i];
    }
}

// Chooses the kernel of a convolution for each size. `make` returns graphkit's own kernels, `make_slowly` the
// library's.
class ConvolutionFactory final : public KernelFactory {
  public:
    explicit ConvolutionFactory(ConvolutionTraits traits) : traits_(std::move(traits)) {
        require_strides(traits_.window);
        if (traits_.type != ElementType::f32 && traits_.type != ElementType::bf16) {
            throw NativeError("convolutions are not computed in this type");
        }
        if (traits_.auto_pad == AutoPad::none && traits_.kernel.size() == traits_.window.strides.size()) {
            depthwise_ = depthwise_window(traits_.kernel, traits_.window);
        }
    }

    std::unique_ptr<Kernel> make(const Shapes& inputs, const Shapes& outputs) const override {
        std::optional<Problem> problem = given(inputs, outputs);
        if (!problem) {
            return nullptr;
        }
        if (auto made = depthwise(*problem)) {
            return made;
        }
        if (!normalised(*problem)) {
            return nullptr;
        }
        const Dims &x = problem->x, &w = problem->w, &y = problem->y;
        const Window& window = problem->window();
        const bool ours = traits_.channels_last && traits_.type == ElementType::f32;
        if (ours) {
            return traits_.transposed ? transposed(*problem) : tiled(*problem);
        }
        switch (traits_.standard) {
            case Standard::scattered:
                return covers_transposed_planes(x, w, y, window)
                           ? transposed_planes(x, w, y, window, traits_.epilogue.bias, traits_.pack_weights,
                                               traits_.threads)
                           : nullptr;
            case Standard::shallow:
                return shallow_convolution(x, w, y, window, traits_.epilogue, traits_.pack_weights, traits_.threads);
            case Standard::planes:
                return depthwise_planes(x, w, y, window, traits_.epilogue, traits_.pack_weights, traits_.threads);
            case Standard::library:
                break;
        }
        return nullptr;
    }

    std::unique_ptr<Kernel> make_slowly(const Shapes& inputs, const Shapes& outputs) const override {
        std::optional<Problem> problem = given(inputs, outputs);
        if (!problem || !normalised(*problem)) {
            return nullptr;
        }
        const Dims &x = problem->x, &w = problem->w, &y = problem->y;
        const Window& window = problem->window();
        LibraryConvolution options{traits_.epilogue, traits_.pack_weights, traits_.type, traits_.channels_last,
                                   traits_.deterministic};
        if (traits_.transposed) {
            return library_deconvolution(x, w, y, window, options, traits_.threads);
        }
        if (traits_.type == ElementType::f32) {
            options.epilogue = options.epilogue.for_results(count(y));
        }
        return library_convolution(x, w, y, window, options, traits_.threads);
    }

  private:
    // Returns the convolution of these shapes; no value if their ranks do not fit the window.
    std::optional<Problem> given(const Shapes& inputs, const Shapes& outputs) const {
        const Dims& x = present(inputs, 0);
        const Dims& w = present(inputs, 1);
        const Dims& y = present(outputs, 0);
        const std::size_t rank = traits_.window.strides.size() + 2;
        if (rank < 3 || x.size() != rank || w.size() != rank || y.size() != rank) {
            return std::nullopt;
        }
        Problem problem{x, w, y, &traits_.window, std::nullopt};
        if (traits_.channels_last) {
            std::rotate(problem.x.begin() + 1, problem.x.end() - 1, problem.x.end());
            std::rotate(problem.y.begin() + 1, problem.y.end() - 1, problem.y.end());
        }
        if (traits_.auto_pad != AutoPad::none) {
            pad_same(problem, traits_.auto_pad == AutoPad::same_upper);
        }
        return problem;
    }

    // Changes the convolution to an equal one that kernels compute faster. Returns whether kernels support it.
    bool normalised(Problem& problem) const {
        // In a transposed convolution, `end` is negative if the last rows of the output are in no window. If these are
        // fewer than a stride, the number of windows is the same without them, because it is rounded down.
        for (std::size_t i = 0; i < problem.window().strides.size(); ++i) {
            const std::int64_t end = problem.window().pads_end[i];
            if (end <= -problem.window().strides[i]) {
                return false;
            }
            if (end < 0) {
                problem.change().pads_end[i] = 0;
            }
        }
        if (problem.x.size() == 3 && problem.is_depthwise() && !traits_.transposed) {
            problem.insert_axis(0);  // the library has fast code for two axes, but not for one
        } else {
            problem.put_units_first();
        }
        if (traits_.transposed && std::max(problem.x.back(), problem.w.back()) > kWidest) {
            // The library's preparation takes time for each column, but not for rows.
            const Dims& x = problem.x;
            if (std::any_of(x.begin() + 2, x.end() - 1, [](std::int64_t size) { return size > 1; })) {
                return false;
            }
            problem.put_columns_first();
        }
        return true;
    }

    std::unique_ptr<Kernel> depthwise(const Problem& problem) const {
        const bool covered = traits_.channels_last && traits_.type == ElementType::f32 && !traits_.transposed &&
                             traits_.epilogue.residual == 0;
        if (!covered || !problem.is_depthwise()) {
            return nullptr;
        }
        const Dims& w = problem.w;
        const bool known = depthwise_ && std::equal(w.begin() + 2, w.end(), traits_.kernel.begin());
        const auto own = known ? std::nullopt : depthwise_window(Dims(w.begin() + 2, w.end()), problem.window());
        const PoolWindow* const window = known ? &*depthwise_ : own ? &*own : nullptr;
        if (window == nullptr || !(traits_.prefers_depthwise || CopiedDepthwise::suits_window(problem.y, *window))) {
            return nullptr;
        }
        return depthwise_convolution(problem.x, problem.y, *window, traits_.epilogue, traits_.pack_weights,
                                     traits_.threads);
    }

    std::unique_ptr<Kernel> tiled(const Problem& problem) const {
        const Dims &x = problem.x, &w = problem.w, &y = problem.y;
        const Window& window = problem.window();
        if (suits_narrow(x, w, y, window, traits_.vary)) {
            return narrow_convolution(x, w, y, window, traits_.epilogue, traits_.pack_weights, traits_.threads);
        }
        const auto method = TiledConvolution::method(x, w, y, window, traits_.pack_weights, false, traits_.vary);
        if (!method) {
            return nullptr;
        }
        const TiledOptions options{*method, traits_.epilogue, traits_.pack_weights, false};
        return std::make_unique<TiledConvolution>(x, w, y, window, options, traits_.threads);
    }

    // If all strides are 1, the library's kernel is faster, except for the cases of `scatters`.
    std::unique_ptr<Kernel> transposed(const Problem& problem) const {
        const Dims &x = problem.x, &w = problem.w, &y = problem.y;
        const Window& window = problem.window();
        const auto& strides = window.strides;
        const bool prefers = traits_.vary || traits_.scatters || *std::max_element(strides.begin(), strides.end()) > 1;
        if (!prefers || !covers_transposed(x, w, y, window)) {
            return nullptr;
        }
        return transposed_convolution(x, w, y, window, traits_.epilogue.bias, traits_.pack_weights, traits_.threads);
    }

    ConvolutionTraits traits_;
    std::optional<PoolWindow> depthwise_;  // if it does not depend on sizes
};

}  // namespace

template <>
struct RecipeLast<AutoPad> {
    static constexpr auto value = AutoPad::same_lower;
};

template <>
struct RecipeLast<Standard> {
    static constexpr auto value = Standard::scattered;
};

static const RecipeKind convolution_factory_recipe(
    "ConvolutionFactory",
    +[](ConvolutionFactory* self, Dims kernel, Window window, AutoPad auto_pad, bool transposed, bool channels_last,
        Standard standard, bool prefers_depthwise, bool scatters, bool bias, Epilogue last, bool pack_weights,
        bool vary, const std::string& dtype, bool deterministic, int threads) {
        last.bias = bias;
        new (self) ConvolutionFactory({std::move(kernel), std::move(window), auto_pad, transposed, channels_last,
                                       standard, prefers_depthwise, scatters, std::move(last), pack_weights, vary,
                                       element_type(dtype), deterministic, threads});
    });

GRAPHKIT_BINDINGS(conv_factory, "conv", "pool", "epilogue", "sized_kernels") {
    nb::enum_<AutoPad>(m, "AutoPad")
        .value("none", AutoPad::none)
        .value("same_upper", AutoPad::same_upper)
        .value("same_lower", AutoPad::same_lower);
    nb::enum_<Standard>(m, "StandardConvolution")
        .value("library", Standard::library)
        .value("shallow", Standard::shallow)
        .value("planes", Standard::planes)
        .value("scattered", Standard::scattered);
    nb::class_<ConvolutionFactory, KernelFactory>(
        m, "ConvolutionFactory", "Chooses the kernel of a convolution for each size: graphkit's own, or the library's.")
        .def("__init__", convolution_factory_recipe.init(), nb::kw_only(), "kernel"_a, "window"_a, "auto_pad"_a,
             "transposed"_a, "channels_last"_a, "standard"_a, "prefers_depthwise"_a, "scatters"_a, "bias"_a,
             "epilogue"_a, "pack_weights"_a, "vary"_a, "dtype"_a, "deterministic"_a, "threads"_a);
}

}  // namespace graphkit
