// Products with a constant matrix by our own code, float32.
#include <array>
#include <memory>

#include "kernels/conv/tiled_conv.h"
#include "kernels/pointwise/epilogue.h"
#include "runtime/bindings.h"

namespace graphkit {
namespace {

// y = epilogue(a b + bias): a [..., K]; b [K, N], or [N, K] when `transposed`, comes packed; bias [N]; the residual is
// the last input. A convolution of the rows of a with windows of one element. The same bits for any number of threads.
class PackedProduct final : public Kernel {
  public:
    // Throws Unsupported for a b that is no matrix, and for a scaled product.
    PackedProduct(const Dims& a, const Dims& b, bool transposed, const Epilogue& epilogue, int threads);

    // Whether a has too few rows to be cut into pieces for the library, on so many threads.
    static bool suits(const Dims& a, const Dims& b, bool transposed, int threads);

    std::size_t scratch_bytes() const override { return rows_ == nullptr ? 0 : rows_->scratch_bytes(); }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<int> packed_inputs() const override { return rows_ == nullptr ? std::vector<int>{} : std::vector{1}; }
    std::size_t packed_bytes(int input) const override { return rows_->packed_bytes(input); }
    std::string packed_layout(int input) const override { return rows_->packed_layout(input); }
    void pack(int input, const void* plain, void* packed) const override { rows_->pack(input, plain, packed); }
    std::vector<std::pair<int, int>> inplace() const override;
    std::string implementation() const override { return rows_ == nullptr ? "empty" : rows_->implementation(); }

  private:
    std::unique_ptr<TiledConvolution> rows_;  // none where y has no elements
};

PackedProduct::PackedProduct(const Dims& a, const Dims& b, bool transposed, const Epilogue& epilogue, int threads)
    : Kernel("PackedProduct", threads > 0 ? threads : default_threads()) {
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
    rows_ = std::make_unique<TiledConvolution>(Dims{1, depth, rows, 1}, Dims{b[0], b[1], 1, 1},
                                               Dims{1, columns, rows, 1}, window,
                                               TiledOptions{TiledMethod::direct, epilogue, true, !transposed}, threads);
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

GRAPHKIT_BINDINGS(packed_product, "epilogue") {
    nb::class_<PackedProduct, Kernel>(m, "PackedProduct")
        .def(
            "__init__",
            [](PackedProduct* self, const Dims& a, const Dims& b, bool transposed, bool bias, Epilogue last,
               int threads) {
                last.bias = bias;
                new (self) PackedProduct(a, b, transposed, last, threads);
            },
            "a"_a, "b"_a, nb::kw_only(), "transposed"_a = false, "bias"_a = false, "epilogue"_a = Epilogue{},
            "threads"_a = 0, NoGil())
        .def_static("suits", &PackedProduct::suits, "a"_a, "b"_a, nb::kw_only(), "transposed"_a = false, "threads"_a,
                    "Whether it is faster than the library, with a constant b and several threads.");
}

}  // namespace graphkit
