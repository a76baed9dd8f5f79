#include "kernels/linalg/linear_systems.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "runtime/bindings.h"
#include "runtime/isa.h"
#include "runtime/operator_kernels.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

Dims leading(const Dims& shape) {
    return {shape.begin(), shape.end() - 2};
}

Dims broadcast(const Kernel& kernel, const Dims& a, const Dims& b) {
    Dims result(std::max(a.size(), b.size()), 1);
    for (const Dims* each : {&a, &b}) {
        for (std::size_t i = 0; i < each->size(); ++i) {
            std::int64_t& size = result[result.size() - each->size() + i];
            if (size != 1 && (*each)[i] != 1 && size != (*each)[i]) {
                throw NativeError(kernel.name() + ": batch dimensions " + to_string(a) + " and " + to_string(b) +
                                  " do not broadcast");
            }
            size = size == 1 ? (*each)[i] : size;
        }
    }
    return result;
}

// For each matrix of a batch, returns the index of the matrix of `given` that broadcasts to it.
std::vector<std::int64_t> places(const Dims& batch, const Dims& given) {
    std::vector<std::int64_t> result(static_cast<std::size_t>(count(batch)));
    for (std::size_t i = 0; i < result.size(); ++i) {
        auto rest = static_cast<std::int64_t>(i);
        std::int64_t stride = 1;
        for (std::size_t axis = 1; axis <= given.size(); ++axis) {
            const std::int64_t size = given[given.size() - axis];
            const std::int64_t at = rest % batch[batch.size() - axis];
            rest /= batch[batch.size() - axis];
            result[i] += size == 1 ? 0 : at * stride;
            stride *= size;
        }
    }
    return result;
}

}  // namespace

MatrixBatch::MatrixBatch(std::string name, const Dims& a, const Dims& b, ElementType type, int threads,
                         std::int64_t most_rows)
    : Kernel(std::move(name), threads), type_(type), table_(&factor_table()) {
    if (a.size() < 2 || b.size() < 2 || a[a.size() - 1] != a[a.size() - 2]) {
        throw NativeError(this->name() + ": expected a square matrix and a matrix, or batches of them, not " +
                          to_string(a) + " and " + to_string(b));
    }
    n_ = a.back();
    k_ = n_ == 0 ? 0 : b[b.size() - 1] * b[b.size() - 2] / n_;
    if (n_ > most_rows || n_ == 0 || (type != ElementType::f32 && type != ElementType::f64)) {
        throw Unsupported(this->name() + ": " + std::to_string(n_) + " rows of " + name_of(type));
    }
    batch_ = broadcast(*this, leading(a), leading(b));
    a_places_ = places(batch_, leading(a));
    b_places_ = places(batch_, leading(b));
}

std::size_t MatrixBatch::scratch_bytes() const {
    return static_cast<std::size_t>(std::max(threads(), 1) * n_ * (n_ + k_)) * size_of(type_);
}

template <typename T, typename Body>
void MatrixBatch::for_each_matrix(std::byte* scratch, const char* what, Body&& body) const {
    std::atomic<bool> wrong{false};
    const double cost = 20 + 0.3 * static_cast<double>(n_ * n_ * (n_ + k_));
    const auto total = static_cast<std::int64_t>(a_places_.size());
    parallel_for(threads(), total, cost, [&](std::int64_t begin, std::int64_t end) {
        T* memory = reinterpret_cast<T*>(scratch) + thread_number() * n_ * (n_ + k_);
        for (std::int64_t i = begin; i < end; ++i) {
            const auto at = static_cast<std::size_t>(i);
            if (!body(memory, a_places_[at], b_places_[at], i)) {
                wrong.store(true, std::memory_order_relaxed);
            }
        }
    });
    if (wrong.load()) {
        throw NativeError(describe() + ": " + what);
    }
}

// --- elimination ------------------------------------------------------------------------------------

Elimination::Elimination(Goal goal, const Dims& a, const Dims& b, ElementType type, int threads)
    : MatrixBatch(goal == Goal::solve     ? "Solve"
                  : goal == Goal::inverse ? "Inverse"
                  : goal == Goal::det     ? "Det"
                                          : "Slogdet",
                  a, goal == Goal::solve ? b : a, type, threads),
      goal_(goal) {
    inputs_ = {{"a", a, type}};
    Dims result(batch());
    if (goal == Goal::det || goal == Goal::slogdet) {
        outputs_ = {{goal == Goal::det ? "y" : "sign", result, type, goal == Goal::slogdet}};
        if (goal == Goal::slogdet) {
            outputs_.push_back({"logabsdet", result, type, true});
        }
        return;
    }
    if (goal == Goal::solve) {
        if (b[b.size() - 2] != n_) {
            throw NativeError(name() + ": " + to_string(b) + " does not have the rows of " + to_string(a));
        }
        inputs_.push_back({"b", b, type});
    }
    result.push_back(n_);
    result.push_back(k_);
    outputs_ = {{"x", result, type}};
}

template <typename T>
void Elimination::run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto* a = static_cast<const T*>(inputs[0]);
    const std::int64_t n = n_;
    if (goal_ == Goal::det || goal_ == Goal::slogdet) {
        auto* first = static_cast<T*>(outputs[0]);
        auto* second = goal_ == Goal::slogdet ? static_cast<T*>(outputs[1]) : nullptr;
        for_each_matrix<T>(scratch, "", [&](T* memory, std::int64_t from, std::int64_t, std::int64_t to) {
            const T* const matrix = a + from * n * n;
            const FactorFunctions<T>& f = functions<T>();
            const bool is_short = n <= f.lanes;
            if (!is_short) {
                std::copy_n(matrix, n * n, memory);
            }
            T sign =
                static_cast<T>(is_short ? f.eliminate_short(matrix, memory, n) : f.eliminate(memory, memory, n, 0));
            const std::int64_t pivot_step = is_short ? 1 : n + 1;
            const bool singular = sign == 0;
            T product = sign;
            T logarithm = singular ? -std::numeric_limits<T>::infinity() : T{0};
            for (std::int64_t i = 0; i < n && !singular; ++i) {
                const T pivot = memory[i * pivot_step];
                product *= pivot;
                logarithm += std::log(std::abs(pivot));
                sign = std::isnan(pivot) ? pivot : pivot < 0 ? -sign : sign;
            }
            if (first != nullptr) {
                first[to] = goal_ == Goal::det ? product : sign;
            }
            if (second != nullptr) {
                second[to] = logarithm;
            }
            return true;
        });
        return;
    }
    const auto* b = goal_ == Goal::solve ? static_cast<const T*>(inputs[1]) : nullptr;
    auto* y = static_cast<T*>(outputs[0]);
    const std::int64_t k = k_;
    for_each_matrix<T>(scratch, "a singular matrix",
                       [&](T* memory, std::int64_t from, std::int64_t other, std::int64_t to) {
                           T* known = memory + n * n;
                           std::copy_n(a + from * n * n, n * n, memory);
                           if (b != nullptr) {
                               std::copy_n(b + other * n * k, n * k, known);
                           } else {
                               std::fill_n(known, n * n, T{0});
                               for (std::int64_t i = 0; i < n; ++i) {
                                   known[i * n + i] = 1;
                               }
                           }
                           const FactorFunctions<T>& f = functions<T>();
                           if (f.eliminate(memory, known, n, k) == 0 || !f.substitute(memory, known, n, k, false)) {
                               return false;
                           }
                           std::copy_n(known, n * k, y + to * n * k);
                           return true;
                       });
}

void Elimination::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    type_ == ElementType::f32 ? run_as<float>(inputs, outputs, scratch) : run_as<double>(inputs, outputs, scratch);
}

Cofactors::Cofactors(const Dims& a, ElementType type, int threads)
    : MatrixBatch("Cofactor", a, a, type, threads, kMostRowsOfCofactors) {
    inputs_ = {{"a", a, type}};
    outputs_ = {{"y", a, type}};
}

template <typename T>
void Cofactors::run_as(const T* a, T* y, std::byte* scratch) const {
    const std::int64_t size = n_ * n_;
    for_each_matrix<T>(scratch, "", [&](T* memory, std::int64_t from, std::int64_t, std::int64_t to) {
        std::copy_n(a + from * size, size, memory);
        functions<T>().cofactors(memory, memory + size, y + to * size, n_);
        return true;
    });
}

void Cofactors::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    if (type_ == ElementType::f32) {
        run_as(static_cast<const float*>(inputs[0]), static_cast<float*>(outputs[0]), scratch);
    } else {
        run_as(static_cast<const double*>(inputs[0]), static_cast<double*>(outputs[0]), scratch);
    }
}

// --- symmetric and triangular -----------------------------------------------------------------------

Cholesky::Cholesky(const Dims& a, bool lower, ElementType type, int threads)
    : MatrixBatch("Potrf", a, a, type, threads), lower_(lower) {
    inputs_ = {{"a", a, type}};
    outputs_ = {{"y", a, type}};
}

template <typename T>
void Cholesky::run_as(const T* a, T* y, std::byte* scratch) const {
    const std::int64_t n = n_;
    const char* what = "a matrix that is not positive definite";
    for_each_matrix<T>(scratch, what, [&](T* u, std::int64_t from, std::int64_t, std::int64_t to) {
        const T* x = a + from * n * n;
        T* result = y + to * n * n;
        for (std::int64_t i = 0; i < n; ++i) {
            for (std::int64_t j = i; j < n; ++j) {
                u[i * n + j] = (x[i * n + j] + x[j * n + i]) / 2;
            }
        }
        if (!functions<T>().cholesky(u, n)) {
            return false;
        }
        for (std::int64_t i = 0; i < n; ++i) {
            for (std::int64_t j = 0; j < n; ++j) {
                const bool inside = lower_ ? j <= i : i <= j;
                result[i * n + j] = !inside ? T{0} : lower_ ? u[j * n + i] : u[i * n + j];
            }
        }
        return true;
    });
}

void Cholesky::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    if (type_ == ElementType::f32) {
        run_as(static_cast<const float*>(inputs[0]), static_cast<float*>(outputs[0]), scratch);
    } else {
        run_as(static_cast<const double*>(inputs[0]), static_cast<double*>(outputs[0]), scratch);
    }
}

TriangularSystem::TriangularSystem(const Dims& a, const Dims& b, bool transpose, bool rightside, bool lower,
                                   double alpha, ElementType type, int threads)
    : MatrixBatch("Trsm", a, b, type, threads),
      flipped_(transpose != rightside),
      rightside_(rightside),
      lower_(lower),
      alpha_(alpha) {
    if (b[b.size() - (rightside ? 1 : 2)] != n_) {
        throw NativeError(name() + ": " + to_string(b) + " does not fit " + to_string(a));
    }
    inputs_ = {{"a", a, type}, {"b", b, type}};
    Dims result(batch());
    result.insert(result.end(), b.end() - 2, b.end());
    outputs_ = {{"x", result, type}};
}

template <typename T>
void TriangularSystem::run_as(const T* a, const T* b, T* y, std::byte* scratch) const {
    const std::int64_t n = n_;
    const std::int64_t k = k_;
    const auto alpha = static_cast<T>(alpha_);
    const char* what = "a triangular matrix with a zero on its diagonal";
    for_each_matrix<T>(scratch, what, [&](T* factor, std::int64_t from, std::int64_t other, std::int64_t to) {
        // x op(a) = b is op(a)^T x^T = b^T.
        T* x = factor + n * n;
        const T* given = a + from * n * n;
        for (std::int64_t i = 0; i < n; ++i) {
            for (std::int64_t j = 0; j < n; ++j) {
                factor[i * n + j] = flipped_ ? given[j * n + i] : given[i * n + j];
            }
        }
        const T* known = b + other * n * k;
        for (std::int64_t i = 0; i < n; ++i) {
            for (std::int64_t j = 0; j < k; ++j) {
                x[i * k + j] = alpha * (rightside_ ? known[j * n + i] : known[i * k + j]);
            }
        }
        if (!functions<T>().substitute(factor, x, n, k, lower_ != flipped_)) {
            return false;
        }
        T* result = y + to * n * k;
        for (std::int64_t i = 0; i < n; ++i) {
            for (std::int64_t j = 0; j < k; ++j) {
                result[rightside_ ? j * n + i : i * k + j] = x[i * k + j];
            }
        }
        return true;
    });
}

void TriangularSystem::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto start = [&]<typename T>(T) {
        run_as(static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]), static_cast<T*>(outputs[0]),
               scratch);
    };
    type_ == ElementType::f32 ? start(float{}) : start(double{});
}

namespace {

Elimination::Goal goal_of(const std::string& name) {
    using Goal = Elimination::Goal;
    if (name == "solve") {
        return Goal::solve;
    }
    if (name == "inverse") {
        return Goal::inverse;
    }
    if (name == "det") {
        return Goal::det;
    }
    if (name == "slogdet") {
        return Goal::slogdet;
    }
    throw NativeError("there is no elimination called " + name);
}

}  // namespace

static std::unique_ptr<Kernel> elimination_of(const NodeSpec& node, Elimination::Goal goal) {
    const Dims& a = node.input(0).tensor.shape;
    const Dims& b = node.has_input(1) ? node.input(1).tensor.shape : a;
    return std::make_unique<Elimination>(goal, a, b, node.outputs[0].type, node.threads);
}

GRAPHKIT_KERNEL("", Det) {
    return elimination_of(node, Elimination::Goal::det);
}

GRAPHKIT_KERNEL("ai.graphkit", Slogdet) {
    return elimination_of(node, Elimination::Goal::slogdet);
}

GRAPHKIT_KERNEL("ai.graphkit", Cofactor) {
    return std::make_unique<Cofactors>(node.input(0).tensor.shape, node.outputs[0].type, node.threads);
}

GRAPHKIT_KERNEL("ai.graphkit", Inverse) {
    return elimination_of(node, Elimination::Goal::inverse);
}

GRAPHKIT_KERNEL("ai.graphkit", Solve) {
    return elimination_of(node, Elimination::Goal::solve);
}

GRAPHKIT_KERNEL("ai.graphkit", Potrf) {
    return std::make_unique<Cholesky>(node.input(0).tensor.shape, node.integer("lower") != 0, node.outputs[0].type,
                                      node.threads);
}

GRAPHKIT_KERNEL("ai.graphkit", Trsm) {
    return std::make_unique<TriangularSystem>(node.input(0).tensor.shape, node.input(1).tensor.shape,
                                              node.integer("transpose") != 0, node.integer("rightside") != 0,
                                              node.integer("lower") != 0, node.real("alpha"), node.outputs[0].type,
                                              node.threads);
}

GRAPHKIT_BINDINGS(linear_systems) {
    nb::class_<Elimination, Kernel>(m, "Elimination")
        .def(
            "__init__",
            [](Elimination* self, Text goal, const Dims& a, const std::optional<Dims>& b, Text dtype, int threads) {
                new (self) Elimination(goal_of(goal), a, b.value_or(a), element_type(dtype), threads);
            },
            "goal"_a, "a"_a, "b"_a.none(), "dtype"_a, "threads"_a = 0);
    nb::class_<Cofactors, Kernel>(m, "Cofactors")
        .def(
            "__init__",
            [](Cofactors* self, const Dims& a, Text dtype, int threads) {
                new (self) Cofactors(a, element_type(dtype), threads);
            },
            "a"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<Cholesky, Kernel>(m, "Cholesky")
        .def(
            "__init__",
            [](Cholesky* self, const Dims& a, bool lower, Text dtype, int threads) {
                new (self) Cholesky(a, lower, element_type(dtype), threads);
            },
            "a"_a, "lower"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<TriangularSystem, Kernel>(m, "TriangularSystem")
        .def(
            "__init__",
            [](TriangularSystem* self, const Dims& a, const Dims& b, bool transpose, bool rightside, bool lower,
               double alpha, Text dtype, int threads) {
                new (self) TriangularSystem(a, b, transpose, rightside, lower, alpha, element_type(dtype), threads);
            },
            "a"_a, "b"_a, nb::kw_only(), "transpose"_a, "rightside"_a, "lower"_a, "alpha"_a, "dtype"_a,
            "threads"_a = 0);
}

}  // namespace graphkit
