// Chooses the kernels of matrix products for all sizes, without Python.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "kernels/matmul/blocked_product.h"
#include "kernels/matmul/products.h"
#include "runtime/bindings.h"
#include "runtime/kernel_factory.h"
#include "runtime/recipe.h"

namespace graphkit {
namespace {

// A product with fewer multiplications takes less time than making the library's kernel for it. For such products, the
// packed kernel is up to 8% slower than the library's.
constexpr std::int64_t kShortProduct = std::int64_t{1} << 28;
// If a product has one column, and rows of at least this many elements, dot products are faster than the library.
constexpr std::int64_t kLongRowByColumn = 32;
// The same for a product with one row, if the second matrix is transposed.
constexpr std::int64_t kLongColumnByRow = 256;
// A product of one row by a matrix with at least this many columns, and at most this many elements, mostly reads the
// matrix from the caches.
constexpr std::int64_t kManyColumns = 256;
constexpr std::int64_t kCachedElements = 3 << 18;
// Rows and columns from which a product of a small depth mostly writes its result.
constexpr std::int64_t kWideResult = 64;
// Columns and depth from which, and rows up to which, graphkit's kernel multiplies computed matrices faster than the
// library on one thread: see bench/results/2026-11-training.md.
constexpr std::int64_t kBlockColumns = 512;
constexpr std::int64_t kBlockDepth = 128;
constexpr std::int64_t kBlockRows = 128;
// numpy multiplies one row of float64 by a matrix of at least this many elements faster than graphkit.
constexpr std::int64_t kLargeMatrix = 1 << 17;

// `make` returns graphkit's own kernels, `make_slowly` the library's.
class ProductFactory final : public KernelFactory {
  public:
    // `options`: its bias is not read. `has_bias`: the third operand is a bias. `vary`: kernels for other sizes will
    // follow. `fused`: the product has an epilogue, maybe an empty one.
    ProductFactory(ProductOptions options, bool has_bias, bool fused, bool vary, int threads)
        : options_(std::move(options)), has_bias_(has_bias), fused_(fused), vary_(vary), threads_(threads) {}

    std::unique_ptr<Kernel> make(const Shapes& inputs, const Shapes&) const override {
        const Dims& a = present(inputs, 0);
        const Dims& b = present(inputs, 1);
        if (a.empty() || b.empty()) {
            return nullptr;
        }
        if (!is_library()) {
            const bool is_long = options_.type == ElementType::f64 && is_long_row(a, b);
            return is_long ? nullptr : blocked_product(a, b, with_bias(inputs), threads_);
        }
        if (suits_dots(a, b) || is_shallow(a, b) || is_row_by_rows(a, b)) {
            return blocked_product(a, b, with_bias(inputs), threads_);
        }
        if (suits_blocks(a, b) && has_plain_bias(inputs)) {
            return blocked_product(a, b, with_bias(inputs), threads_);
        }
        const bool packs = packs_b() && b.size() == 2 && count(b) != 0;
        if (!packs || (has_bias_ && present(inputs, 2) != Dims{columns(b)}) || !suits(a, b)) {
            return nullptr;
        }
        Epilogue epilogue = options_.epilogue;
        epilogue.bias = has_bias_;
        return packed_product(a, b, options_.transpose_b, epilogue, threads_);
    }

    std::unique_ptr<Kernel> make_slowly(const Shapes& inputs, const Shapes&) const override {
        const Dims& a = present(inputs, 0);
        const Dims& b = present(inputs, 1);
        return is_library() ? library_product(a, b, with_bias(inputs), threads_) : nullptr;
    }

  private:
    bool is_library() const { return options_.type == ElementType::f32 || options_.type == ElementType::bf16; }

    // Deterministic results must not depend on whether the program updates the matrix: ranks that train together must
    // compute the same bits as one process that accumulates gradients.
    bool packs_b() const {
        return options_.pack_b && options_.type == ElementType::f32 && !options_.transpose_a && options_.alpha == 1 &&
               options_.beta == 1 && !options_.deterministic;
    }

    ProductOptions with_bias(const Shapes& inputs) const {
        ProductOptions options = options_;
        options.bias = has_bias_ ? std::optional(present(inputs, 2)) : std::nullopt;
        return options;
    }

    std::int64_t columns(const Dims& b) const {
        return b.size() == 1 ? 1 : b[b.size() - (options_.transpose_b ? 2 : 1)];
    }

    // Whether dot products are faster than the library: for one column, or for one row.
    bool suits_dots(const Dims& a, const Dims& b) const {
        if (options_.type != ElementType::f32 || fused_ || options_.transpose_a) {
            return false;
        }
        if (columns(b) == 1) {
            return a.back() >= kLongRowByColumn;
        }
        const bool is_row = a.size() == 1 || a[a.size() - 2] == 1;
        return is_row && options_.transpose_b && !packs_b() && a.back() >= kLongColumnByRow;
    }

    // Whether a single row is multiplied by a matrix that fits into the caches, which the library reads more slowly.
    bool is_row_by_rows(const Dims& a, const Dims& b) const {
        if (options_.type != ElementType::f32 || fused_ || options_.transpose_a || options_.transpose_b || packs_b()) {
            return false;
        }
        return b.size() == 2 && count(a) == a.back() && b[1] >= kManyColumns && count(b) <= kCachedElements;
    }

    // Whether the sums are so short that graphkit's kernel, which writes results in the order of memory, is faster.
    bool is_shallow(const Dims& a, const Dims& b) const {
        if (options_.type != ElementType::f32 || fused_ || options_.transpose_b || a.size() < 2 || b.size() < 2) {
            return false;
        }
        const std::int64_t rows = a[a.size() - (options_.transpose_a ? 1 : 2)];
        return b[b.size() - 2] <= kShallowDepth && rows >= kWideResult && b.back() >= kWideResult;
    }

    // Whether graphkit's kernel multiplies two computed matrices faster than the library, measured with AVX-512. On
    // several threads, the library is faster. Deterministic results must not depend on whether the matrix is constant,
    // as for packs_b.
    bool suits_blocks(const Dims& a, const Dims& b) const {
        const bool applies = options_.type == ElementType::f32 && options_.epilogue.residual == 0 && !options_.pack_b &&
                             !options_.deterministic && !options_.transpose_a && !options_.transpose_b &&
                             threads_ == 1 && isa() == Isa::avx512;
        if (!applies || a.size() < 2 || b.size() != 2 || b[0] < kBlockDepth || b[1] < kBlockColumns) {
            return false;
        }
        return count(Dims(a.begin(), a.end() - 1)) <= kBlockRows;
    }

    // Whether there is no bias, or one that is added to each row.
    bool has_plain_bias(const Shapes& inputs) const {
        return !has_bias_ || (options_.beta == 1 && present(inputs, 2).size() == 1);
    }

    // On one thread, the library's kernel is faster for many rows. But it divides a product into larger parts,
    // and takes longer to make.
    bool suits(const Dims& a, const Dims& b) const {
        const std::int64_t rows = count(Dims(a.begin(), a.end() - 1));
        if (rows <= few_packed_rows(b) || (vary_ && rows * a.back() * columns(b) < kShortProduct)) {
            return true;
        }
        return threads_ != 1 && suits_packed(a, b, options_.transpose_b, threads_);
    }

    bool is_long_row(const Dims& a, const Dims& b) const {
        return !options_.transpose_b && b.size() == 2 && b[1] != 1 && count(a) == b[0] && count(b) >= kLargeMatrix;
    }

    ProductOptions options_;
    bool has_bias_;
    bool fused_;
    bool vary_;
    int threads_;
};

}  // namespace

static const RecipeKind product_factory_recipe(
    "ProductFactory", +[](ProductFactory* self, bool transpose_a, bool transpose_b, bool has_bias, double alpha,
                          double beta, std::optional<Epilogue> last, bool pack_b, bool vary, const std::string& dtype,
                          bool deterministic, int threads) {
        const bool fused = last.has_value();
        ProductOptions options{transpose_a,
                               transpose_b,
                               std::nullopt,
                               alpha,
                               beta,
                               element_type(dtype),
                               std::move(last).value_or(Epilogue{}),
                               pack_b,
                               deterministic};
        new (self) ProductFactory(std::move(options), has_bias, fused, vary, threads);
    });

GRAPHKIT_BINDINGS(product_factory, "epilogue", "sized_kernels") {
    nb::class_<ProductFactory, KernelFactory>(
        m, "ProductFactory", "Chooses the kernel of a matrix product for each size: graphkit's own, or the library's.")
        .def("__init__", product_factory_recipe.init(), nb::kw_only(), "transpose_a"_a, "transpose_b"_a, "has_bias"_a,
             "alpha"_a, "beta"_a, "epilogue"_a.none(), "pack_b"_a, "vary"_a, "dtype"_a, "deterministic"_a, "threads"_a);
}

}  // namespace graphkit
