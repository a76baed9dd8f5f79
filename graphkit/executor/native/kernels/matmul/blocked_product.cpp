// Matrix products by graphkit's own code: for element types that the library does not support, for a single column, and
// for computed float32 matrices.
#include <algorithm>
#include <numeric>
#include <type_traits>

#include "kernels/matmul/blocked_product.h"
#include "kernels/matmul/products.h"
#include "primitives/strided_copy.h"
#include "runtime/bindings.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// Rows of b with at most this many columns stay in a near cache, if they are few.
constexpr std::int64_t kShallowColumns = 4096;
// If each thread has at least this many parts, it does not matter that some threads have one more.
constexpr std::int64_t kManyParts = 8;

struct BlockedOptions {
    bool transpose_a = false;  // swap the last two dimensions of an operand; no effect on vectors
    bool transpose_b = false;
    std::optional<Dims> bias;  // shape of a third input, which broadcasts to the last two dimensions of the result
    double alpha = 1;  // result = alpha * a b + beta * bias
    double beta = 1;
    ElementType type = ElementType::f32;
    std::optional<Activation> activation;  // of float32 results
};

// One operand of the product: its batch shape, and the strides of its matrices in elements.
struct BlockedOperand {
    Dims batch;
    std::int64_t rows, columns;
    std::int64_t row_step, column_step;
};

BlockedOperand blocked_operand(const Dims& shape, bool transposed, bool vector_is_row) {
    if (shape.size() == 1) {
        return vector_is_row ? BlockedOperand{{}, 1, shape[0], shape[0], 1} : BlockedOperand{{}, shape[0], 1, 1, 1};
    }
    const std::int64_t m = shape[shape.size() - 2];
    const std::int64_t n = shape[shape.size() - 1];
    Dims batch(shape.begin(), shape.end() - 2);
    if (transposed && n == 1) {
        return {batch, 1, m, m, 1};  // a contiguous row: the step leads to that of the next matrix
    }
    return transposed ? BlockedOperand{batch, n, m, 1, n} : BlockedOperand{batch, m, n, n, 1};
}

template <typename T>
void add_row(T* __restrict y, const T* __restrict x, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
        y[i] += x[i];
    }
}

// y = alpha * a b + beta * bias, like MatMul: float32, float64, and integers of 32 and 64 bits, which wrap around.
// Integer products cannot be scaled.
class BlockedMatMul final : public Kernel {
  public:
    // Throws NativeError if the shapes do not fit; Unsupported for other types, and for integers that are scaled.
    BlockedMatMul(const Dims& a, const Dims& b, const BlockedOptions& options, int threads);
    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    // A part of the result that one thread computes at a time.
    struct Part {
        std::int64_t matrix;
        std::int64_t row, rows;
        std::int64_t column, columns;
    };

    void join_batch(const Dims& batch);
    void take_bias(const BlockedOptions& options);
    void cut();
    std::int64_t parts() const { return matrices_ * row_parts_ * column_parts_; }
    std::int64_t chunks() const { return std::min<std::int64_t>(parts(), std::max(threads(), 1)); }
    Part part(std::int64_t number) const;
    // Whether results are dot products of a vector with contiguous rows of a, or with contiguous columns of b.
    bool dots_of_a() const { return columns_ == 1 && a_.column_step == 1; }
    bool dots_of_b() const { return rows_ == 1 && b_.row_step == 1; }
    template <typename Body>
    void with_type(Body&& body) const;
    template <typename T>
    void run_as(const ProductFunctions<T>& functions, const T* a, const T* b, const T* bias, T* y,
                std::byte* scratch) const;
    template <typename T>
    void multiply(const ProductFunctions<T>& functions, const Part& part, const T* a, const T* b, T* y,
                  T* scratch) const;
    template <typename T>
    void finish(const Part& part, const T* bias, T* y) const;

    ElementType type_;
    const ProductTable& table_;
    BlockedOperand a_, b_;
    double alpha_, beta_;
    std::int64_t matrices_ = 1;
    std::int64_t rows_, columns_, depth_;
    // For each matrix of the result, the offsets of its matrices in a and b.
    std::vector<std::int64_t> a_first_, b_first_;
    std::int64_t bias_row_ = 0, bias_column_ = 0;
    std::int64_t part_rows_ = 1, part_columns_ = 1;
    std::int64_t row_parts_ = 0, column_parts_ = 0;
    std::size_t part_scratch_ = 0;
    std::unique_ptr<Kernel> activation_;  // a pass over the result
};

BlockedMatMul::BlockedMatMul(const Dims& a, const Dims& b, const BlockedOptions& options, int threads)
    : Kernel("BlockedMatMul", threads > 0 ? threads : default_threads()),
      type_(options.type),
      table_(product_table()),
      alpha_(options.alpha),
      beta_(options.beta) {
    inputs_ = {{"a", a, type_}, {"b", b, type_}};
    if (a.empty() || b.empty()) {
        throw NativeError(describe() + ": an operand has no dimensions");
    }
    const bool is_float = type_ == ElementType::f32 || type_ == ElementType::f64;
    const bool is_integer = type_ == ElementType::i32 || type_ == ElementType::i64 || type_ == ElementType::u32 ||
                            type_ == ElementType::u64;
    if (options.activation && type_ != ElementType::f32) {
        throw Unsupported(describe() + ": an activation of this type");
    }
    if (!is_float && (!is_integer || alpha_ != 1 || beta_ != 1)) {
        throw Unsupported(describe() + ": no product of this type");
    }
    a_ = blocked_operand(a, options.transpose_a, true);
    b_ = blocked_operand(b, options.transpose_b, false);
    if (a_.columns != b_.rows) {
        throw NativeError(describe() + ": inner dimensions differ");
    }
    rows_ = a_.rows;
    columns_ = b_.columns;
    depth_ = a_.columns;
    const std::size_t rank = std::max(a_.batch.size(), b_.batch.size());
    a_.batch.insert(a_.batch.begin(), rank - a_.batch.size(), 1);
    b_.batch.insert(b_.batch.begin(), rank - b_.batch.size(), 1);
    Dims batch;
    for (std::size_t i = 0; i < rank; ++i) {
        if (a_.batch[i] != b_.batch[i] && a_.batch[i] != 1 && b_.batch[i] != 1) {
            throw NativeError(describe() + ": batch dimensions do not broadcast");
        }
        batch.push_back(a_.batch[i] == 1 ? b_.batch[i] : a_.batch[i]);
    }
    Dims y(batch);
    if (a.size() > 1) {
        y.push_back(rows_);
    }
    if (b.size() > 1) {
        y.push_back(columns_);
    }
    outputs_ = {{"y", y, type_}};
    join_batch(batch);
    take_bias(options);
    cut();
    if (options.activation && count(y) != 0) {
        Epilogue last;
        last.activation = options.activation;
        activation_ =
            std::make_unique<Pointwise>(last.pass({matrices_ * rows_, columns_, 1}, type_, type_), this->threads());
    }
}

void BlockedMatMul::join_batch(const Dims& batch) {
    matrices_ = count(batch);
    if (matrices_ > 1 && count(b_.batch) == 1 && a_.column_step == 1) {
        rows_ *= matrices_;  // treats the matrices of a as the rows of one
        matrices_ = 1;
    }
    if (matrices_ <= 1) {
        a_first_.assign(1, 0);
        b_first_.assign(1, 0);
        return;
    }
    const auto starts = [&](const BlockedOperand& operand) {
        std::vector<std::int64_t> found{0};
        std::int64_t step = operand.rows * operand.columns;
        for (std::size_t i = batch.size(); i-- > 0;) {
            const std::int64_t apart = operand.batch[i] == 1 ? 0 : step;
            step *= operand.batch[i];
            std::vector<std::int64_t> more;
            more.reserve(found.size() * static_cast<std::size_t>(batch[i]));
            for (std::int64_t at = 0; at < batch[i]; ++at) {
                for (const std::int64_t first : found) {
                    more.push_back(first + at * apart);
                }
            }
            found = std::move(more);
        }
        return found;
    };
    a_first_ = starts(a_);
    b_first_ = starts(b_);
}

void BlockedMatMul::take_bias(const BlockedOptions& options) {
    if (!options.bias) {
        return;
    }
    const Dims& shape = *options.bias;
    inputs_.push_back({"bias", shape, type_});
    const std::size_t rank = shape.size();
    const std::int64_t columns = rank > 0 ? shape[rank - 1] : 1;
    const std::int64_t rows = rank > 1 ? shape[rank - 2] : 1;
    if (count(shape) != rows * columns) {
        throw Unsupported(describe() + ": a bias that varies over batch dimensions");
    }
    if ((columns != 1 && columns != columns_) || (rows != 1 && rows != a_.rows)) {
        throw NativeError(describe() + ": the bias does not broadcast");
    }
    if (rows != 1 && rows_ != a_.rows) {
        throw Unsupported(describe() + ": a bias that varies over the rows of a batch");
    }
    bias_row_ = rows == 1 ? 0 : columns;
    bias_column_ = columns == 1 ? 0 : 1;
}

template <typename Body>
void BlockedMatMul::with_type(Body&& body) const {
    switch (type_) {
        case ElementType::f32:
            return body(table_.f32);
        case ElementType::f64:
            return body(table_.f64);
        case ElementType::i32:
        case ElementType::u32:
            return body(table_.i32);
        default:
            return body(table_.i64);
    }
}

void BlockedMatMul::cut() {
    with_type([&]<typename T>(const ProductFunctions<T>& functions) {
        // All parts have about the same number of panels.
        const std::int64_t panels = (columns_ + functions.panel - 1) / functions.panel;
        const bool shallow = depth_ <= kShallowDepth && b_.column_step == 1 && columns_ <= kShallowColumns;
        column_parts_ =
            shallow ? std::min<std::int64_t>(panels, 1) : (panels + functions.panels - 1) / functions.panels;
        const std::int64_t together = (panels + column_parts_ - 1) / std::max<std::int64_t>(column_parts_, 1);
        part_columns_ = together * functions.panel;
        const std::int64_t room = dots_of_a() || dots_of_b() ? 0 : functions.scratch(part_columns_, depth_);
        part_scratch_ = aligned(static_cast<std::size_t>(room) * sizeof(T));
        // If the threads cannot share the parts of columns equally, rows are divided as well, into whole tiles.
        const std::int64_t others = std::max<std::int64_t>(matrices_ * column_parts_, 1);
        const std::int64_t team = std::max(threads(), 1);
        const std::int64_t wanted = others < kManyParts * team ? team / std::gcd(team, others) : 1;
        const std::int64_t tiles = (rows_ + functions.rows - 1) / functions.rows;
        part_rows_ = std::max<std::int64_t>((tiles + wanted - 1) / wanted, 1) * functions.rows;
        row_parts_ = (rows_ + part_rows_ - 1) / part_rows_;
    });
}

// The memory of the parts is no longer used when the activation is applied.
std::size_t BlockedMatMul::scratch_bytes() const {
    const std::size_t parts = static_cast<std::size_t>(chunks()) * part_scratch_;
    return activation_ == nullptr ? parts : std::max(parts, activation_->scratch_bytes());
}

BlockedMatMul::Part BlockedMatMul::part(std::int64_t number) const {
    const std::int64_t column = number % column_parts_ * part_columns_;
    const std::int64_t rest = number / column_parts_;
    const std::int64_t row = rest % row_parts_ * part_rows_;
    return {rest / row_parts_, row, std::min(part_rows_, rows_ - row), column,
            std::min(part_columns_, columns_ - column)};
}

template <typename T>
void BlockedMatMul::multiply(const ProductFunctions<T>& functions, const Part& p, const T* a, const T* b, T* y,
                             T* scratch) const {
    if (depth_ == 0) {
        for (std::int64_t r = 0; r < p.rows; ++r) {
            std::fill_n(y + r * columns_, p.columns, T(0));
        }
        return;
    }
    if (dots_of_a()) {
        functions.dots({a, a_.row_step, b, y, p.rows, depth_});
    } else if (dots_of_b()) {
        functions.dots({b, b_.column_step, a, y, p.columns, depth_});
    } else {
        static_assert(sizeof(T) == 4 || sizeof(T) == 8);
        functions.multiply({a, a_.row_step, a_.column_step, b, b_.row_step, b_.column_step, y, columns_, p.rows,
                            p.columns, depth_, scratch, transpose_table().tile[sizeof(T) == 4 ? 2 : 3]});
    }
}

template <typename T>
void BlockedMatMul::finish(const Part& p, const T* bias, T* y) const {
    if (alpha_ == 1 && bias == nullptr) {
        return;
    }
    const auto alpha = static_cast<T>(alpha_);
    const auto beta = static_cast<T>(beta_);
    for (std::int64_t r = 0; r < p.rows; ++r) {
        T* row = y + r * columns_;
        if (alpha_ != 1) {
            for (std::int64_t c = 0; c < p.columns; ++c) {
                row[c] *= alpha;
            }
        }
        if (bias != nullptr) {
            const T* from = bias + (p.row + r) * bias_row_ + p.column * bias_column_;
            if (beta_ == 1 && bias_column_ == 1) {
                add_row(row, from, p.columns);
                continue;
            }
            for (std::int64_t c = 0; c < p.columns; ++c) {
                row[c] += beta * from[c * bias_column_];
            }
        }
    }
}

template <typename T>
void BlockedMatMul::run_as(const ProductFunctions<T>& functions, const T* a, const T* b, const T* bias, T* y,
                           std::byte* scratch) const {
    if (matrices_ == 0 || parts() == 0) {
        return;
    }
    const double cost = 0.05 * static_cast<double>(matrices_ * rows_ * columns_) * static_cast<double>(depth_ + 8);
    const std::int64_t some = chunks();
    for_each_chunk(threads_for(threads(), cost), some, cost, [&](std::int64_t chunk) {
        auto* const own = reinterpret_cast<T*>(scratch + static_cast<std::size_t>(chunk) * part_scratch_);
        for (std::int64_t number = parts() * chunk / some; number < parts() * (chunk + 1) / some; ++number) {
            const Part p = part(number);
            const auto at = static_cast<std::size_t>(p.matrix);
            T* const to = y + p.matrix * rows_ * columns_ + p.row * columns_ + p.column;
            multiply(functions, p, a + a_first_[at] + p.row * a_.row_step, b + b_first_[at] + p.column * b_.column_step,
                     to, own);
            finish(p, bias, to);
        }
    });
}

void BlockedMatMul::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    with_type([&]<typename T>(const ProductFunctions<T>& functions) {
        const void* bias = inputs_.size() > 2 ? inputs[2] : nullptr;
        run_as(functions, static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
               static_cast<const T*>(bias), static_cast<T*>(outputs[0]), scratch);
    });
    if (activation_ != nullptr) {
        const void* const operands[] = {outputs[0], nullptr, nullptr};
        activation_->run(operands, outputs, scratch);
    }
}

}  // namespace

std::unique_ptr<Kernel> blocked_product(const Dims& a, const Dims& b, const ProductOptions& options, int threads) {
    const auto& [transpose_a, transpose_b, bias, alpha, beta, type, epilogue, pack_b, deterministic] = options;
    return std::make_unique<BlockedMatMul>(
        a, b, BlockedOptions{transpose_a, transpose_b, bias, alpha, beta, type, epilogue.activation}, threads);
}

// Throws Unsupported for an epilogue with a residual or a factor.
static std::optional<Activation> activation_alone(const Epilogue& last) {
    if (last.residual != 0 || last.alpha != 1 || last.bias) {
        throw Unsupported("BlockedMatMul: an epilogue with more than an activation");
    }
    return last.activation;
}

static const RecipeKind blocked_mat_mul_recipe(
    "BlockedMatMul", +[](BlockedMatMul* self, const Dims& a, const Dims& b, bool transpose_a, bool transpose_b,
                         const std::optional<Dims>& bias, double alpha, double beta, const Epilogue& last,
                         const std::string& dtype, int threads) {
        new (self) BlockedMatMul(
            a, b, {transpose_a, transpose_b, bias, alpha, beta, element_type(dtype), activation_alone(last)}, threads);
    });

GRAPHKIT_BINDINGS(blocked_product, "epilogue") {
    nb::class_<BlockedMatMul, Kernel>(m, "BlockedMatMul")
        .def("__init__", blocked_mat_mul_recipe.init(), "a"_a, "b"_a, nb::kw_only(), "transpose_a"_a = false,
             "transpose_b"_a = false, "bias"_a = nb::none(), "alpha"_a = 1.0, "beta"_a = 1.0, "epilogue"_a = Epilogue{},
             "dtype"_a = "float32", "threads"_a = 0);
}

}  // namespace graphkit
