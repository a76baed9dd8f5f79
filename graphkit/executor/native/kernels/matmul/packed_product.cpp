// float32 products with a constant matrix by graphkit's own code.
#include <array>
#include <memory>

#include "kernels/conv/tiled_conv.h"
#include "kernels/pointwise/epilogue.h"
#include "onednn/product.h"
#include "runtime/bindings.h"
#include "runtime/kernel_factory.h"
#include "runtime/recipe.h"

namespace graphkit {
namespace {

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

// Makes the kernels of products a b + bias with a constant b for all sizes. Returns null where the library is faster.
class PackedProductFactory final : public KernelFactory {
  public:
    // `vary`: kernels for other sizes will follow. `dots_from`: products with one column, whose rows have at least this
    // many elements, are computed as dot products by another kernel. 0: none are.
    PackedProductFactory(bool transposed, bool bias, Epilogue epilogue, bool vary, std::int64_t dots_from, int threads)
        : transposed_(transposed),
          epilogue_(std::move(epilogue)),
          vary_(vary),
          dots_from_(dots_from),
          threads_(threads) {
        epilogue_.bias = bias;
    }

    std::unique_ptr<Kernel> make(const Shapes& inputs, const Shapes&) const override {
        const Dims& a = present(inputs, 0);
        const Dims& b = present(inputs, 1);
        if (a.empty() || b.size() != 2 || count(b) == 0) {
            return nullptr;
        }
        const std::int64_t columns = b[transposed_ ? 0 : 1];
        const bool is_dots = dots_from_ > 0 && columns == 1 && a.back() >= dots_from_;
        if (is_dots || (epilogue_.bias && present(inputs, 2) != Dims{columns})) {
            return nullptr;
        }
        return suits(a, b, columns) ? std::make_unique<PackedProduct>(a, b, transposed_, epilogue_, threads_) : nullptr;
    }

  private:
    // With at most this many rows, a product mostly reads the matrix, which this kernel does faster: see
    // bench/results/2026-11-few-rows.md.
    static constexpr std::int64_t kFewRows = 16;
    // A product with fewer multiplications takes less time than making the library's kernel for it. For such products,
    // this kernel is up to 8% slower than the library's.
    static constexpr std::int64_t kShortProduct = std::int64_t{1} << 28;

    // On one thread, the library's kernel is always faster. But it divides a product into larger parts, and takes
    // longer to make.
    bool suits(const Dims& a, const Dims& b, std::int64_t columns) const {
        const std::int64_t rows = count(Dims(a.begin(), a.end() - 1));
        if (rows <= kFewRows || (vary_ && rows * a.back() * columns < kShortProduct)) {
            return true;
        }
        return threads_ != 1 && PackedProduct::suits(a, b, transposed_, threads_);
    }

    bool transposed_;
    Epilogue epilogue_;
    bool vary_;
    std::int64_t dots_from_;
    int threads_;
};

}  // namespace

static const RecipeKind packed_product_recipe(
    "PackedProduct",
    +[](PackedProduct* self, const Dims& a, const Dims& b, bool transposed, bool bias, Epilogue last, int threads) {
        last.bias = bias;
        new (self) PackedProduct(a, b, transposed, last, threads);
    });

static const RecipeKind packed_product_factory_recipe(
    "PackedProductFactory",
    +[](PackedProductFactory* self, bool transposed, bool bias, Epilogue last, bool vary, std::int64_t dots_from,
        int threads) { new (self) PackedProductFactory(transposed, bias, std::move(last), vary, dots_from, threads); });

GRAPHKIT_BINDINGS(packed_product, "epilogue", "sized_kernels") {
    nb::class_<PackedProduct, Kernel>(m, "PackedProduct")
        .def("__init__", packed_product_recipe.init(), "a"_a, "b"_a, nb::kw_only(), "transposed"_a = false,
             "bias"_a = false, "epilogue"_a = Epilogue{}, "threads"_a = 0, NoGil());
    nb::class_<PackedProductFactory, KernelFactory>(m, "PackedProductFactory",
                                                    "Makes PackedProducts where they are better than the library's.")
        .def("__init__", packed_product_factory_recipe.init(), nb::kw_only(), "transposed"_a, "bias"_a, "epilogue"_a,
             "vary"_a, "dots_from"_a, "threads"_a);
}

}  // namespace graphkit
