#include "kernels/conv/tiled_conv.h"

#include <algorithm>

#include "primitives/rounding.h"
#include "runtime/bindings.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// Costs, in units of one of the library's multiply-adds: transforming one channel or one filter of a tile, reading a
// transformed filter for a channel, and computing it.
constexpr std::int64_t kTileCost = 224;
constexpr std::int64_t kReadCost = 200;
constexpr std::int64_t kFilterCost = 290;
// For sums of at least this many products, the rounding error of the library, which sums in one chain, is noticeable.
constexpr std::int64_t kLongSum = 512;
// With at least kManyResults results, it pays to reorder the weights in every run. kFewResults fill the registers.
constexpr std::int64_t kManyResults = 512;
constexpr std::int64_t kFewResults = 14;
// With constant weights that do not fit into a near cache, and fewer results than fill the registers, the time is that
// of reading the weights: graphkit's code reads them in order. Windows of fewer results are mostly padding, and so are
// the reordered weights, if filters fill at most half of a block.
constexpr std::int64_t kCachedWeights = 1 << 19;
constexpr std::int64_t kFewestResults = 4;
// Reordering at most this many weights takes no longer than making one of the library's kernels.
constexpr std::int64_t kFewWeights = 1 << 16;
// With fewer channels, sums are so short that storing them dominates.
constexpr std::int64_t kFewChannels = 96;
constexpr double kProductNanoseconds = 0.02;
constexpr double kFilterNanoseconds = 4;
// Bytes of filters that a thread reads in a nanosecond.
constexpr double kFilterBytesPerNanosecond = 20;

const TiledTable& table_of(TiledMethod method) {
    switch (method) {
        case TiledMethod::winograd:
            return winograd_table();
        case TiledMethod::direct:
            return direct_table();
        case TiledMethod::panels:
            break;
    }
    return panels_table();
}

const char* name_of(TiledMethod method) {
    switch (method) {
        case TiledMethod::winograd:
            return "winograd";
        case TiledMethod::direct:
            return "direct";
        case TiledMethod::panels:
            break;
    }
    return "panels";
}

// A convolution over a line, treated as one over an image with one row.
struct Plane {
    Dims x, w, y;
    Window window;

    Plane(const Dims& x_shape, const Dims& w_shape, const Dims& y_shape, const Window& given)
        : x(x_shape), w(w_shape), y(y_shape), window(given) {
        if (given.strides.size() != 1 || x.size() != 3 || w.size() != 3 || y.size() != 3) {
            return;
        }
        for (Dims* shape : {&x, &w, &y}) {
            shape->insert(shape->begin() + 2, 1);
        }
        for (Dims* ones : {&window.strides, &window.dilations}) {
            ones->insert(ones->begin(), 1);
        }
        for (Dims* zeros : {&window.pads_begin, &window.pads_end}) {
            zeros->insert(zeros->begin(), 0);
        }
    }
};

// The shape of the convolution that is computed. The gradient with respect to x of a convolution with stride 1 is a
// convolution with flipped filters.
TiledShape shape_of(const Plane& p, bool transposed) {
    const auto& [x, w, y, window] = p;
    TiledShape s{x[2],
                 x[3],
                 transposed ? w[0] : w[1],
                 y[2],
                 y[3],
                 transposed ? w[1] : w[0],
                 window.pads_begin[0],
                 window.pads_begin[1],
                 {w[2], w[3]},
                 {window.strides[0], window.strides[1]},
                 {window.dilations[0], window.dilations[1]}};
    if (transposed) {
        s.pad_top = s.dilations[0] * (s.kernel[0] - 1) - s.pad_top;
        s.pad_left = s.dilations[1] * (s.kernel[1] - 1) - s.pad_left;
    }
    return s;
}

bool covers(TiledMethod method, const Plane& p, bool transposed) {
    const auto& [x, w, y, window] = p;
    const auto fits = [](const Dims& values, std::int64_t least) {
        return values.size() == 2 && std::min(values[0], values[1]) >= least;
    };
    if (x.size() != 4 || w.size() != 4 || y.size() != 4 || count(w) == 0 || window.groups != 1 ||
        !fits(window.strides, 1) || !fits(window.dilations, 1) || !fits(window.pads_begin, 0) ||
        !fits(window.pads_end, 0)) {
        return false;
    }
    const bool is_winograds = w[2] == 3 && w[3] == 3 && window.strides[0] == 1 && window.strides[1] == 1;
    const bool is_single = w[2] == 1 && w[3] == 1 && window.strides[0] == 1 && window.strides[1] == 1;
    if (method == TiledMethod::panels) {
        const auto is_zero = [](std::int64_t pad) { return pad == 0; };
        return TiledConvolution::has_panels() && is_single && std::ranges::all_of(window.pads_begin, is_zero) &&
               std::ranges::all_of(window.pads_end, is_zero);
    }
    return method == TiledMethod::winograd ? is_winograds : !transposed || is_single;
}

// Whether Winograd's algorithm is faster: the multiplications that it saves take longer than its transforms.
bool pays(const TiledShape& s, std::int64_t images, bool constant) {
    const std::int64_t block = winograd_table().block;
    const std::int64_t filters = divide_up(s.filters, block) * block;
    const std::int64_t tiles = images * winograd_table().count(s);
    const std::int64_t once = s.channels * filters * (constant ? kReadCost : kFilterCost);
    const std::int64_t each = 16 * s.channels * filters + kTileCost * (s.channels + filters);
    return once + tiles * each < images * s.out_height * s.out_width * 9 * s.channels * s.filters;
}

// Whether graphkit's code is at most slightly slower than the library's: for long sums over windows of 3 x 3, and for
// products with constant weights, which are reordered once.
bool suits(const TiledShape& s, std::int64_t images, bool constant) {
    const std::int64_t results = images * s.out_height * s.out_width;
    const bool is_long = s.kernel[0] == 3 && s.kernel[1] == 3 && s.taps() * s.channels >= kLongSum;
    const bool is_product = s.taps() == 1 && constant && s.channels >= kFewChannels;
    if (is_long && constant && results >= kFewestResults && results < kFewResults) {
        return s.taps() * s.channels * s.filters > kCachedWeights && 2 * s.filters > direct_table().block;
    }
    return TiledConvolution::fills_blocks(s.filters) &&
           (is_product || (is_long && results >= (constant ? kFewResults : kManyResults)));
}

// Whether graphkit's code takes less time than making the library's kernel, for sizes that may occur only once.
bool saves(const TiledShape& s, std::int64_t images, bool constant) {
    const std::int64_t half = direct_table().block / 2;
    const bool fills = (constant && s.taps() == 1) || 4 * s.filters >= 3 * divide_up(s.filters, half) * half;
    const std::int64_t weights = s.taps() * s.channels * s.filters;
    return fills && (constant || weights <= kFewWeights || images * s.out_height * s.out_width >= kManyResults);
}

}  // namespace

bool TiledConvolution::has_panels() {
    return panels_table().block != 0;
}

bool TiledConvolution::fills_blocks(std::int64_t filters) {
    const std::int64_t block = direct_table().block;
    return filters % block == 0 || filters > 4 * block;
}

std::optional<TiledMethod> TiledConvolution::method(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                                                    bool constant, bool transposed, bool vary) {
    const Plane plane(x, w, y, window);
    if (covers(TiledMethod::winograd, plane, transposed) && pays(shape_of(plane, transposed), y[0], constant)) {
        return TiledMethod::winograd;
    }
    if (covers(TiledMethod::direct, plane, transposed)) {
        const TiledShape s = shape_of(plane, transposed);
        if (suits(s, y[0], constant) || (vary && saves(s, y[0], constant))) {
            return TiledMethod::direct;
        }
    }
    return std::nullopt;
}

TiledConvolution::TiledConvolution(const Dims& given_x, const Dims& given_w, const Dims& given_y,
                                   const Window& given_window, const TiledOptions& options, int threads)
    : Kernel("TiledConvolution", threads > 0 ? threads : default_threads()),
      table_(table_of(options.method)),
      implementation_(std::string(name_of(options.method)) + ":" + isa_name()),
      images_(given_x.empty() ? 0 : given_x[0]),
      has_flags_(options.method != TiledMethod::panels),
      packed_(options.pack_weights),
      transposed_(options.transposed) {
    const Epilogue& epilogue = options.epilogue;
    inputs_ = {{"x", given_x}, {"w", given_w}};
    outputs_ = {{"y", given_y}};
    const Plane plane(given_x, given_w, given_y, given_window);
    const auto& [x, w, y, window] = plane;
    const bool is_single = w.size() == 4 && w[2] * w[3] == 1;
    if (epilogue.alpha != 1 || (transposed_ && !is_single && !epilogue.empty()) ||
        !covers(options.method, plane, transposed_)) {
        throw Unsupported(describe() + ": not by the method " + name_of(options.method));
    }
    shape_ = shape_of(plane, transposed_);
    const Dims& wide = transposed_ ? y : x;
    const Dims& narrow = transposed_ ? x : y;
    for (std::size_t i = 0; i < 2; ++i) {
        const std::int64_t span = (w[i + 2] - 1) * window.dilations[i] + 1;
        const std::int64_t room = wide[i + 2] + window.pads_begin[i] + window.pads_end[i] - span;
        if ((room < 0 ? 0 : room / window.strides[i] + 1) != narrow[i + 2]) {
            throw NativeError(describe() + ": spatial dimension " + std::to_string(i) + " does not fit");
        }
    }
    if (x[0] != y[0] || x[1] != shape_.channels || y[1] != shape_.filters) {
        throw NativeError(describe() + ": batch or channels do not fit");
    }
    for (TensorSpec* spec : {&inputs_[0], &outputs_[0]}) {
        std::rotate(spec->shape.begin() + 1, spec->shape.begin() + 2, spec->shape.end());
    }
    if (!transposed_ || !epilogue.empty()) {
        inputs_.push_back({"bias", {shape_.filters}, ElementType::f32, !epilogue.bias});
    }
    if (epilogue.residual != 0) {
        inputs_.push_back({"residual", outputs_[0].shape});
    }
    following_ = Following(epilogue, images_ * shape_.out_height * shape_.out_width, shape_.filters, this->threads());
    share_out();
}

// Divides the work. A part of the tiles fills the registers. Each part of the blocks prepares the same tiles again, so
// blocks are divided only if threads would be idle otherwise.
void TiledConvolution::share_out() {
    tile_parts_ = divide_up(tiles(), table_.part_tiles(shape_));
    const std::int64_t wanted = threads();
    if (tile_parts_ >= wanted) {
        tile_parts_ = std::min(tiles(), divide_up(tile_parts_, wanted) * wanted);
    } else {
        block_parts_ = std::min(blocks(), divide_up(wanted, std::max<std::int64_t>(tile_parts_, 1)));
    }
}

std::int64_t TiledConvolution::tiles() const {
    return images_ * table_.count(shape_);
}

std::size_t TiledConvolution::workers() const {
    return static_cast<std::size_t>(std::min<std::int64_t>(threads(), parts()));
}

std::size_t TiledConvolution::flag_bytes() const {
    return has_flags_ ? aligned(static_cast<std::size_t>(blocks() * shape_.chunks())) : 0;
}

std::size_t TiledConvolution::weight_bytes() const {
    return aligned(flag_bytes() + static_cast<std::size_t>(blocks() * table_.filter_floats(shape_)) * sizeof(float));
}

std::size_t TiledConvolution::part_bytes() const {
    const std::int64_t most = divide_up(tiles(), std::max<std::int64_t>(tile_parts_, 1));
    return aligned(static_cast<std::size_t>(table_.scratch_floats(shape_, most)) * sizeof(float));
}

// The weights, then the memory of a part for each thread, then the epilogue's memory.
std::size_t TiledConvolution::scratch_bytes() const {
    return (packed_ ? 0 : weight_bytes()) + workers() * part_bytes() + following_.scratch_bytes();
}

std::vector<int> TiledConvolution::packed_inputs() const {
    return packed_ ? std::vector<int>{1} : std::vector<int>{};
}

std::size_t TiledConvolution::packed_bytes(int input) const {
    require_packed(input);
    return weight_bytes();
}

std::string TiledConvolution::packed_layout(int input) const {
    require_packed(input);
    return implementation() + (transposed_ ? " transposed " : " ") + to_string(inputs_[1].shape);
}

void TiledConvolution::pack(int input, const void* plain, void* packed) const {
    require_packed(input);
    const Team team(threads());
    transform(static_cast<const float*>(plain), static_cast<std::byte*>(packed));
}

std::vector<std::pair<int, int>> TiledConvolution::inplace() const {
    return inputs_.size() > 3 ? std::vector<std::pair<int, int>>{{3, 0}} : std::vector<std::pair<int, int>>{};
}

void TiledConvolution::transform(const float* w, std::byte* to) const {
    auto* flags = reinterpret_cast<std::uint8_t*>(to);
    auto* filters = reinterpret_cast<float*>(to + flag_bytes());
    const std::int64_t taps = shape_.taps();
    const std::int64_t outer = taps * inputs_[1].shape[1];
    const std::int64_t filter_step = transposed_ ? taps : outer;
    const std::int64_t channel_step = transposed_ ? outer : taps;
    const bool by_channels = channel_step > filter_step;  // blocks are packed in the order of the weights in memory
    const double cost = kFilterNanoseconds * static_cast<double>(table_.block * kTiledChunk);
    parallel_for(threads(), blocks() * shape_.chunks(), cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t at = begin; at < end; ++at) {
            const std::int64_t block = by_channels ? at % blocks() : at / shape_.chunks();
            const std::int64_t chunk = by_channels ? at / blocks() : at % shape_.chunks();
            const std::int64_t filter = block * table_.block;
            TiledFilters part{};
            part.first_channel = chunk * kTiledChunk;
            part.channels = std::min(kTiledChunk, shape_.channels - part.first_channel);
            part.filters = std::min(table_.block, shape_.filters - filter);
            part.filter_step = filter_step;
            part.channel_step = channel_step;
            part.tap_step = transposed_ ? -1 : 1;
            part.w = w + filter * part.filter_step + part.first_channel * part.channel_step;
            if (transposed_) {
                part.w += taps - 1;  // the filters are flipped
            }
            part.to = filters + block * table_.filter_floats(shape_);
            const bool is_sound = table_.transform(shape_, part);
            if (has_flags_) {
                flags[block * shape_.chunks() + chunk] = is_sound ? 0 : 1;
            }
        }
    });
}

void TiledConvolution::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto* weights = static_cast<const std::byte*>(inputs[1]);
    if (!packed_) {
        transform(static_cast<const float*>(inputs[1]), scratch);
        weights = scratch;
        scratch += weight_bytes();
    }
    std::byte* const rest = scratch + workers() * part_bytes();
    TiledPart whole{};
    whole.shape = shape_;
    whole.x = static_cast<const float*>(inputs[0]);
    whole.unsound = reinterpret_cast<const std::uint8_t*>(weights);
    whole.filters = reinterpret_cast<const float*>(weights + flag_bytes());
    whole.y = following_.product(outputs[0], rest);
    const void* bias = inputs_.size() > 2 ? inputs[2] : nullptr;
    const void* residual = inputs_.size() > 3 ? inputs[3] : nullptr;
    whole.epilogue = following_.on_the_way(bias, residual);
    const double products =
        static_cast<double>(count(outputs_[0].shape)) * static_cast<double>(shape_.taps() * shape_.channels);
    const double share = static_cast<double>(std::max<std::int64_t>(parts(), 1));
    // With few tiles, reading the filters takes longer than the arithmetic.
    const double reads =
        static_cast<double>(weight_bytes()) * static_cast<double>(tile_parts_) / kFilterBytesPerNanosecond;
    const double cost = std::max(kProductNanoseconds * products, reads) / share;
    parallel_for(threads(), parts(), cost, [&](std::int64_t begin, std::int64_t end) {
        TiledPart part = whole;
        part.scratch = reinterpret_cast<float*>(scratch + static_cast<std::size_t>(thread_number()) * part_bytes());
        for (std::int64_t at = begin; at < end; ++at) {
            const std::int64_t i = at / block_parts_;
            const std::int64_t j = at % block_parts_;
            part.first_tile = tiles() * i / tile_parts_;
            part.tiles = tiles() * (i + 1) / tile_parts_ - part.first_tile;
            part.first_block = blocks() * j / block_parts_;
            part.end_block = blocks() * (j + 1) / block_parts_;
            table_.run(part);
        }
    });
    following_.pass(whole.y, residual, outputs[0], rest);
}

static const RecipeKind tiled_convolution_recipe(
    "TiledConvolution",
    +[](TiledConvolution* self, const Dims& x, const Dims& w, const Dims& y, const Window& window, TiledMethod method,
        bool bias, Epilogue last, bool pack_weights, bool transposed, int threads) {
        last.bias = bias;
        new (self) TiledConvolution(x, w, y, window, {method, last, pack_weights, transposed}, threads);
    });

GRAPHKIT_BINDINGS(tiled_conv, "conv", "epilogue") {
    nb::enum_<TiledMethod>(m, "TiledMethod")
        .value("winograd", TiledMethod::winograd)
        .value("direct", TiledMethod::direct)
        .value("panels", TiledMethod::panels);
    nb::class_<TiledConvolution, Kernel>(m, "TiledConvolution")
        .def("__init__", tiled_convolution_recipe.init(), "x"_a, "w"_a, "y"_a, "window"_a, "method"_a, nb::kw_only(),
             "bias"_a = false, "epilogue"_a = Epilogue{}, "pack_weights"_a = false, "transposed"_a = false,
             "threads"_a = 0, NoGil())
        .def_static(
            "method", &TiledConvolution::method, "x"_a, "w"_a, "y"_a, "window"_a, nb::kw_only(), "constant"_a,
            "transposed"_a = false, "vary"_a = false,
            "Return the method for this convolution, with `constant` weights or not. None if the library is faster and "
            "its sums are not longer chains.");
}

}  // namespace graphkit
