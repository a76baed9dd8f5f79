// float32 products with a constant matrix by graphkit's own code.
#include <array>
#include <memory>

#include "kernels/conv/tiled_conv.h"
#include "kernels/matmul/products.h"
#include "onednn/product.h"
#include "runtime/bindings.h"
#include "runtime/recipe.h"

namespace graphkit {
namespace {

// With at most this many rows, a product mostly reads the matrix, which this kernel does faster than the library: see
// bench/results/2026-11-few-rows.md. With panels, this is also true for more rows, and for still more if the matrix
// does not fit into the second-level cache.
constexpr std::int64_t kFewRows = 16;
constexpr std::int64_t kFewPanelRows = 40;
constexpr std::int64_t kManyPanelRows = 256;
constexpr std::int64_t kLargeMatrix = 1 << 20;

// y = epilogue(a b + bias). a is [..., K]; b, [K, N], or [N, K] if `transposed`, comes packed; bias [N]; the residual
// is the last input. Computed as a convolution of the rows of a with 1x1 windows. Equal bits for any number of threads.
class PackedProduct final : public Kernel {
  public:
    // Throws Unsupported if b is not a matrix, and for a scaled product.
    PackedProduct(const Dims& a, const Dims& b, bool transposed, const Epilogue& epilogue, int threads);

    // Whether a has too few rows to divide the product into pieces for the library, on this number of threads.
    static bool suits(const Dims& a, const Dims& b, bool transposed, int threads);

    std::size_t scratch_bytes() const override { return rows_ == nullptr ? 0 : rows_->scratch_bytes(); }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<int> packed_inputs() const override { return rows_ == nullptr ? std::vector<int>{} : std::vector{1}; }
    std::size_t packed_bytes(int input) const override { return rows_->packed_bytes(input); }
    std::string packed_layout(int input) const override;
    void pack(int input, const void* plain, void* packed) const override { rows_->pack(input, plain, packed); }
    std::vector<std::pair<int, int>> inplace() const override;
    std::string implementation() const override { return rows_ == nullptr ? "empty" : rows_->implementation(); }

  private:
    bool transposed_;
    std::unique_ptr<TiledConvolution> rows_;  // null if y is empty
};

PackedProduct::PackedProduct(const Dims& a, const Dims& b, bool transposed, const Epilogue& epilogue, int threads)
    : Kernel("PackedProduct", threads > 0 ? threads : default_threads()), transposed_(transposed) {
    inputs_ = {{"a", a}, {"b", b}};
    const bool fits = !a.empty() && b.size() == 2 && a.back() == b[transposed ? 1 : 0] && count(b) != 0;
    if (!fits) {
        throw Unsupported(describe() + ": not a product with a matrix");
    }
    const std::int64_t depth = a.back();
    const std::int64_t columns = b[transposed ? 0 : 1];
    const std::int64_t rows = count(a) / depth;
    Dims y(a.begin(), a.end() - 1);
    y.push_back(columns);
    outputs_ = {{"y", y}};
    if (epilogue.bias || epilogue.residual != 0) {
        inputs_.push_back({"bias", {columns}, ElementType::f32, !epilogue.bias});
    }
    if (epilogue.residual != 0) {
        inputs_.push_back({"residual", y});
    }
    if (rows == 0) {
        return;
    }
    const Window window{{1, 1}, {1, 1}, {0, 0}, {0, 0}, 1};
    const TiledMethod method = TiledConvolution::has_panels() ? TiledMethod::panels : TiledMethod::direct;
    rows_ =
        std::make_unique<TiledConvolution>(Dims{1, depth, rows, 1}, Dims{b[0], b[1], 1, 1}, Dims{1, columns, rows, 1},
                                           window, TiledOptions{method, epilogue, true, !transposed}, threads);
}

std::string PackedProduct::packed_layout(int input) const {
    if (!TiledConvolution::has_panels()) {
        return rows_->packed_layout(input);
    }
    const Dims& b = inputs_[1].shape;
    return panel_layout(b[transposed_ ? 1 : 0], b[transposed_ ? 0 : 1], transposed_);
}

bool PackedProduct::suits(const Dims& a, const Dims& b, bool transposed, int threads) {
    constexpr std::int64_t kFewTerms = 32;
    constexpr std::int64_t kRowsForThread = 64;
    if (a.empty() || b.size() != 2 || std::min(b[0], b[1]) < kFewTerms) {
        return false;
    }
    return TiledConvolution::fills_blocks(b[transposed ? 0 : 1]) && count(a) < kRowsForThread * threads * a.back();
}

void PackedProduct::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    if (rows_ == nullptr) {
        return;
    }
    std::array<const void*, 4> operands{};
    std::copy(inputs, inputs + inputs_.size(), operands.begin());
    rows_->run(operands.data(), outputs, scratch);
}

std::vector<std::pair<int, int>> PackedProduct::inplace() const {
    return inputs_.size() > 3 ? std::vector<std::pair<int, int>>{{3, 0}} : std::vector<std::pair<int, int>>{};
}

}  // namespace

bool suits_packed(const Dims& a, const Dims& b, bool transposed, int threads) {
    return PackedProduct::suits(a, b, transposed, threads);
}

std::int64_t few_packed_rows(const Dims& b) {
    if (!TiledConvolution::has_panels()) {
        return kFewRows;
    }
    return count(b) < kLargeMatrix ? kFewPanelRows : kManyPanelRows;
}

std::unique_ptr<Kernel> packed_product(const Dims& a, const Dims& b, bool transposed, const Epilogue& epilogue,
                                       int threads) {
    return std::make_unique<PackedProduct>(a, b, transposed, epilogue, threads);
}

static const RecipeKind packed_product_recipe(
    "PackedProduct",
    +[](PackedProduct* self, const Dims& a, const Dims& b, bool transposed, bool bias, Epilogue last, int threads) {
        last.bias = bias;
        new (self) PackedProduct(a, b, transposed, last, threads);
    });

GRAPHKIT_BINDINGS(packed_product, "epilogue") {
    nb::class_<PackedProduct, Kernel>(m, "PackedProduct")
        .def("__init__", packed_product_recipe.init(), "a"_a, "b"_a, nb::kw_only(), "transposed"_a = false,
             "bias"_a = false, "epilogue"_a = Epilogue{}, "threads"_a = 0, NoGil());
}

}  // namespace graphkit
