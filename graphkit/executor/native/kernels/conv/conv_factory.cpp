// Makes convolutions of channels-last images for all sizes, without Python.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "kernels/conv/depthwise.h"
#include "kernels/conv/depthwise_copied.h"
#include "kernels/conv/narrow_conv.h"
#include "kernels/conv/tiled_conv.h"
#include "runtime/bindings.h"
#include "runtime/kernel_factory.h"
#include "runtime/recipe.h"

namespace graphkit {
namespace {

// Moves the channels from the last axis to axis 1.
Dims channels_first(const Dims& shape) {
    Dims found = shape;
    std::rotate(found.begin() + 1, found.end() - 1, found.end());
    return found;
}

// Makes graphkit's own kernels of a float32 convolution whose padding does not depend on sizes. Returns null if the
// library is faster, or if the convolution is computed along other axes.
class ChannelsLastConvFactory final : public KernelFactory {
  public:
    // `depthwise`: the window, if each channel has one filter. `prefers_depthwise`: use the depthwise kernel for all
    // sizes.
    ChannelsLastConvFactory(Window window, std::optional<PoolWindow> depthwise, bool prefers_depthwise, bool bias,
                            Epilogue epilogue, bool pack_weights, bool vary, int threads)
        : window_(std::move(window)),
          depthwise_(std::move(depthwise)),
          prefers_depthwise_(prefers_depthwise),
          epilogue_(std::move(epilogue)),
          packs_(pack_weights),
          vary_(vary),
          threads_(threads) {
        epilogue_.bias = bias;
    }

    std::unique_ptr<Kernel> make(const Shapes& inputs, const Shapes& outputs) const override {
        if (present(inputs, 0).size() != 4 || present(inputs, 1).size() != 4 || present(outputs, 0).size() != 4) {
            return nullptr;
        }
        const Dims x = channels_first(present(inputs, 0));
        const Dims& w = present(inputs, 1);
        const Dims y = channels_first(present(outputs, 0));
        if (depthwise_ && (prefers_depthwise_ || CopiedDepthwise::suits_window(y, *depthwise_))) {
            return depthwise_convolution(x, y, *depthwise_, epilogue_, packs_, threads_);
        }
        if (x[2] == 1 || x[3] == 1) {
            return nullptr;
        }
        if (suits_narrow(x, w, y, window_)) {
            return narrow_convolution(x, w, y, window_, epilogue_, packs_, threads_);
        }
        const auto method = TiledConvolution::method(x, w, y, window_, packs_, false, vary_);
        if (!method) {
            return nullptr;
        }
        return std::make_unique<TiledConvolution>(x, w, y, window_, TiledOptions{*method, epilogue_, packs_, false},
                                                  threads_);
    }

  private:
    Window window_;
    std::optional<PoolWindow> depthwise_;
    bool prefers_depthwise_;
    Epilogue epilogue_;
    bool packs_;
    bool vary_;
    int threads_;
};

}  // namespace

static const RecipeKind channels_last_conv_factory_recipe(
    "ChannelsLastConvFactory",
    +[](ChannelsLastConvFactory* self, Window window, std::optional<PoolWindow> depthwise, bool prefers_depthwise,
        bool bias, Epilogue last, bool pack_weights, bool vary, int threads) {
        new (self) ChannelsLastConvFactory(std::move(window), std::move(depthwise), prefers_depthwise, bias,
                                           std::move(last), pack_weights, vary, threads);
    });

GRAPHKIT_BINDINGS(conv_factory, "conv", "pool", "epilogue", "sized_kernels") {
    nb::class_<ChannelsLastConvFactory, KernelFactory>(
        m, "ChannelsLastConvFactory",
        "Makes graphkit's own kernels of a float32 convolution of channels-last images; None where the library is "
        "faster.")
        .def("__init__", channels_last_conv_factory_recipe.init(), nb::kw_only(), "window"_a, "depthwise"_a,
             "prefers_depthwise"_a, "bias"_a, "epilogue"_a, "pack_weights"_a, "vary"_a, "threads"_a);
}

}  // namespace graphkit
