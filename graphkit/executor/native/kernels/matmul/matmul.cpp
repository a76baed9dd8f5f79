// Matrix products with the semantics of numpy.matmul.
#include <algorithm>
#include <cstring>

#include "kernels/matmul/products.h"
#include "onednn/post_ops.h"
#include "onednn/product.h"
#include "onednn/watched_product.h"
#include "runtime/bindings.h"

namespace graphkit {
namespace {

// y = a b over the last two dimensions, broadcast over the others. A vector a is a row, a vector b a column; the
// dimension that this adds is dropped from y. Throws NativeError if the shapes do not match, Unsupported for a bias
// that varies over batch dimensions.
class MatMul final : public LibraryKernel {
  public:
    MatMul(Dims a, Dims b, const ProductOptions& options, int threads);

    std::vector<std::pair<int, int>> inplace() const override { return residual_inplace(); }
    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    // Adds the bias as an input. Returns whether the library adds it to the product. If not, y is first filled with the
    // broadcast bias.
    bool take_bias(const ProductOptions& options, const Matrices& y, bool has_columns, const std::string& shapes);
    // Prepares the product. The library applies the epilogue if `fused`; else a separate pass does.
    void as_product(const Matrices& a, const Matrices& b, const Matrices& y, const ProductOptions& options,
                    const Epilogue& epilogue, bool fused);
    void spread_bias(const float* bias, const float* residual, float* y) const;

    std::size_t zeros_ = 0;  // number of zeros that replace a and b if they are empty, but the result is not
    bool prefill_ = false;   // the bias is written to y first, and the product added to it
    float residual_scale_ = 0;  // factor of a residual that is written to y with the bias
    std::int64_t rows_ = 0;  // of the bias as a matrix: its broadcast extent and steps
    std::int64_t columns_ = 0;
    std::int64_t row_step_ = 0;
    std::int64_t column_step_ = 0;
};

using dnnl::memory;

Matrices as_matrices(const Dims& shape, bool transposed, bool vector_is_row) {
    if (shape.size() == 1) {
        return vector_is_row ? Matrices{{}, 1, shape[0], false} : Matrices{{}, shape[0], 1, false};
    }
    const std::int64_t m = shape[shape.size() - 2];
    const std::int64_t n = shape[shape.size() - 1];
    return {Dims(shape.begin(), shape.end() - 2), transposed ? n : m, transposed ? m : n, transposed};
}

// Removes dimensions without changing the meaning: drops those of size 1, merges adjacent ones that broadcast alike,
// and, if b has no batch, merges the batch of a into its rows.
void simplify(Matrices& a, Matrices& b, Matrices& y) {
    Dims merged_a;
    Dims merged_b;
    Dims merged_y;
    for (std::size_t i = 0; i < y.batch.size(); ++i) {
        if (y.batch[i] == 1) {
            continue;
        }
        const bool alike = !merged_y.empty() && (merged_a.back() == merged_y.back()) == (a.batch[i] == y.batch[i]) &&
                           (merged_b.back() == merged_y.back()) == (b.batch[i] == y.batch[i]);
        if (alike) {
            merged_a.back() *= a.batch[i];
            merged_b.back() *= b.batch[i];
            merged_y.back() *= y.batch[i];
        } else {
            merged_a.push_back(a.batch[i]);
            merged_b.push_back(b.batch[i]);
            merged_y.push_back(y.batch[i]);
        }
    }
    if (merged_y.size() == 1 && merged_b[0] == 1 && !a.transposed) {
        a.rows *= merged_a[0];
        y.rows *= merged_y[0];
        merged_a = merged_b = merged_y = {};
    }
    a.batch = merged_a;
    b.batch = merged_b;
    y.batch = merged_y;
}

}  // namespace

MatMul::MatMul(Dims a_shape, Dims b_shape, const ProductOptions& options, int threads)
    : LibraryKernel("MatMul", threads, options.deterministic) {
    const std::string shapes = "MatMul of a " + to_string(a_shape) + (options.transpose_a ? " (transposed)" : "") +
                               " and b " + to_string(b_shape) + (options.transpose_b ? " (transposed)" : "");
    require_sizes(a_shape);
    require_sizes(b_shape);
    if (a_shape.empty() || b_shape.empty()) {
        throw NativeError(shapes + ": operands must have at least one dimension");
    }
    Matrices a = as_matrices(a_shape, options.transpose_a, true);
    Matrices b = as_matrices(b_shape, options.transpose_b, false);
    if (a.columns != b.rows) {
        throw NativeError(shapes + ": inner dimensions " + std::to_string(a.columns) + " and " +
                          std::to_string(b.rows) + " differ");
    }
    const std::size_t rank = std::max(a.batch.size(), b.batch.size());
    a.batch.insert(a.batch.begin(), rank - a.batch.size(), 1);
    b.batch.insert(b.batch.begin(), rank - b.batch.size(), 1);
    Matrices y{Dims(rank), a.rows, b.columns, false};
    for (std::size_t i = 0; i < rank; ++i) {
        if (a.batch[i] != b.batch[i] && a.batch[i] != 1 && b.batch[i] != 1) {
            throw NativeError(shapes + ": batch dimensions do not broadcast");
        }
        y.batch[i] = a.batch[i] == 1 ? b.batch[i] : a.batch[i];
    }
    Dims y_shape = y.batch;
    if (a_shape.size() > 1) {
        y_shape.push_back(y.rows);
    }
    if (b_shape.size() > 1) {
        y_shape.push_back(y.columns);
    }
    const ElementType type = options.type;
    inputs_ = {{"a", a_shape, type}, {"b", b_shape, type}};
    outputs_ = {{"y", y_shape, type}};

    simplify(a, b, y);
    require_sizes({y.rows, y.columns});
    require_sizes(y.batch);
    const bool library_bias = options.bias && take_bias(options, y, b_shape.size() > 1, shapes);
    if (options.epilogue.residual != 0) {
        inputs_.resize(3, {"bias", {y.columns}, type, true});
        if (!prefill_) {
            accumulate(3);
        } else if (options.epilogue.residual_last || options.beta != 1) {
            throw Unsupported(shapes + ": a residual, and a bias that the library does not add");
        } else {
            residual_scale_ = options.epilogue.residual;
        }
        inputs_.push_back({"residual", y_shape, type});
    }
    empty_ = count(y_shape) == 0;
    if (empty_) {
        return;
    }
    if (a.columns == 0) {  // an empty sum: a product of zeros has the same value
        a.columns = b.rows = 1;
        zeros_ = static_cast<std::size_t>(std::max(count(a.batch) * a.rows, count(b.batch) * b.columns));
    }

    guarded(*this, [&] {
        Epilogue epilogue = options.epilogue;
        epilogue.alpha = static_cast<float>(options.alpha);
        epilogue.bias = library_bias;
        if (prefill_) {
            epilogue.residual = static_cast<float>(options.beta);
        }
        const bool may_fuse = epilogue.applied == Applied::fused || epilogue.empty();
        if (!may_fuse || !attempt([&] { as_product(a, b, y, options, epilogue, true); })) {
            as_product(a, b, y, options, epilogue, false);
        }
    });
}

bool MatMul::take_bias(const ProductOptions& options, const Matrices& y, bool has_columns, const std::string& shapes) {
    const Dims& bias = *options.bias;
    const Dims y_shape = outputs_[0].shape;
    inputs_.push_back({"bias", bias, options.type});
    const std::int64_t last = bias.empty() ? 1 : bias.back();
    const std::int64_t before = bias.size() < 2 ? 1 : bias[bias.size() - 2];
    const bool fits_last = (last == 1 || last == y.columns) && has_columns;
    const bool fits_rows = before == 1 || (y_shape.size() == 2 && before == y_shape[0]);
    if (!fits_last || !fits_rows || count(bias) != last * before) {
        throw Unsupported(shapes + ": bias " + to_string(bias) + " is neither one row nor a matrix");
    }
    const bool library = before == 1 && last == y.columns && options.alpha == 1 && options.beta == 1;
    prefill_ = !library;
    if (prefill_ && options.type != ElementType::f32) {
        throw Unsupported(shapes + ": bias " + to_string(bias) + " in " + name_of(options.type));
    }
    rows_ = count(y.batch) * y.rows;
    columns_ = y.columns;
    row_step_ = before == 1 ? 0 : last;
    column_step_ = last == 1 ? 0 : 1;
    return library;
}

void MatMul::as_product(const Matrices& a, const Matrices& b, const Matrices& y, const ProductOptions& options,
                        const Epilogue& epilogue, bool fused) {
    const ElementType type = options.type;
    const bool has_bias = fused && epilogue.bias;
    const std::int64_t y_rows = count(y.batch) * y.rows;
    const ElementType y_type = fused ? type : apply_after(epilogue, {y_rows, y.columns, 1}, type);
    const dnnl::post_ops chain = fused ? post_ops_of(epilogue) : dnnl::post_ops();
    const double work = static_cast<double>(y_rows * y.columns) * static_cast<double>(a.columns);
    const bool may_add = type == ElementType::f32 && epilogue.empty();
    const auto pieces = cut_product(a, y, zeros_ == 0 ? pieces_for(work, operand_bytes()) : 1, may_add, options.pack_b);
    sum_partials(pieces.back().partial + 1);
    // b can be packed only if all pieces read the whole of it.
    const bool whole_b = std::all_of(pieces.begin(), pieces.end(), [&](const ProductPiece& piece) {
        return piece.columns.size == b.columns && piece.terms.size == b.rows &&
               (b.batch.empty() || piece.batch.size >= b.batch[0]);
    });
    const bool packs = options.pack_b && zeros_ == 0 && whole_b;
    memory::desc packed = b.any_layout(type);
    const auto bytes = [](std::int64_t elements, ElementType of) {
        return static_cast<std::size_t>(elements) * size_of(of);
    };
    for (const ProductPiece& piece : pieces) {
        Piece place;
        place.inputs = {bytes(a.offset(piece.batch.begin, piece.rows.begin, piece.terms.begin), type),
                        bytes(b.offset(piece.batch.begin, piece.terms.begin, piece.columns.begin), type),
                        has_bias ? bytes(piece.columns.begin, type) : 0, 0};
        place.outputs[0] = bytes(y.offset(piece.batch.begin, piece.rows.begin, piece.columns.begin), y_type);
        place.partial = piece.partial;
        add_piece(place, piece.extents(), [&] {
            const memory::desc left = a.descriptor(type, piece.batch.size, piece.rows.size, piece.terms.size);
            const memory::desc right = b.descriptor(type, piece.batch.size, piece.terms.size, piece.columns.size);
            const memory::desc result = y.descriptor(y_type, piece.batch.size, piece.rows.size, piece.columns.size);
            Dims bias_dims(y.batch.size() + 1, 1);
            bias_dims.push_back(piece.columns.size);
            const memory::desc bias = has_bias ? plain(bias_dims, type) : memory::desc();
            const auto descriptor = choose<dnnl::matmul>(any_name, engine(), left, packs ? packed : right, bias, result,
                                                         Operation::attributes(chain));
            packed = descriptor.weights_desc();
            Operation operation;
            operation.input(DNNL_ARG_SRC, 0, left, left);
            operation.input(DNNL_ARG_WEIGHTS, 1, packed, packed);
            if (has_bias) {
                operation.input(DNNL_ARG_BIAS, 2, bias, bias);
            }
            operation.output(DNNL_ARG_DST, 0, result, result);
            operation.finish(descriptor, dnnl::matmul(descriptor));
            return operation;
        });
    }
    if (packs) {
        share_weights(b.descriptor(type, b.batch.empty() ? 1 : b.batch[0], b.rows, b.columns), packed, true);
    }
}

void MatMul::spread_bias(const float* bias, const float* residual, float* y) const {
    for (std::int64_t i = 0; i < rows_; ++i) {
        for (std::int64_t j = 0; j < columns_; ++j) {
            const std::int64_t at = i * columns_ + j;
            const float value = bias[i * row_step_ + j * column_step_];
            y[at] = residual == nullptr ? value : value + residual_scale_ * residual[at];
        }
    }
}

std::size_t MatMul::scratch_bytes() const {
    return LibraryKernel::scratch_bytes() + zeros_ * sizeof(float);
}

void MatMul::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    if (!empty_ && prefill_) {
        const auto* residual = residual_scale_ == 0 ? nullptr : static_cast<const float*>(inputs[3]);
        spread_bias(static_cast<const float*>(inputs[2]), residual, static_cast<float*>(outputs[0]));
    }
    if (empty_ || zeros_ == 0) {
        LibraryKernel::run(inputs, outputs, scratch);
        return;
    }
    std::byte* zeros = scratch + LibraryKernel::scratch_bytes();
    std::memset(zeros, 0, zeros_ * sizeof(float));
    std::array<const void*, 4> operands{};
    std::copy(inputs, inputs + inputs_.size(), operands.begin());
    operands[0] = operands[1] = zeros;
    LibraryKernel::run(operands.data(), outputs, scratch);
}

static WatchedProduct::Make maker_of_product(const Dims& a, const Dims& b, const ProductOptions& given, int threads) {
    return [=](const Epilogue& end, bool again) {
        ProductOptions options = given;
        options.epilogue = end;
        options.pack_b = given.pack_b && !again;
        return std::make_unique<MatMul>(a, b, options, threads);
    };
}

std::unique_ptr<Kernel> library_product(const Dims& a, const Dims& b, const ProductOptions& options, int threads) {
    return std::make_unique<Watched<MatMul>>(maker_of_product(a, b, options, threads), options.epilogue);
}

static const RecipeKind mat_mul_recipe(
    "MatMul", +[](Watched<MatMul>* self, const Dims& a, const Dims& b, bool transpose_a, bool transpose_b,
                  const std::optional<Dims>& bias, float alpha, float beta, const Epilogue& last, bool pack_b,
                  bool deterministic, const std::string& dtype, int threads) {
        const ProductOptions options{transpose_a,         transpose_b, bias,   alpha,        beta,
                                     element_type(dtype), last,        pack_b, deterministic};
        new (self) Watched<MatMul>(maker_of_product(a, b, options, threads), last);
    });

GRAPHKIT_BINDINGS(matmul, "epilogue") {
    nb::class_<Watched<MatMul>, Kernel>(m, "MatMul")
        .def("__init__", mat_mul_recipe.init(), "a"_a, "b"_a, nb::kw_only(), "transpose_a"_a = false,
             "transpose_b"_a = false, "bias"_a = nb::none(), "alpha"_a = 1.0F, "beta"_a = 1.0F,
             "epilogue"_a = Epilogue{}, "pack_b"_a = false, "deterministic"_a = false, "dtype"_a = "float32",
             "threads"_a = 0, NoGil());
}

}  // namespace graphkit
