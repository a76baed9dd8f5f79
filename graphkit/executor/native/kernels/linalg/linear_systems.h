// Linear algebra of batches of small matrices, float32 and float64: one matrix is treated by one thread.
#pragma once

#include <type_traits>

#include "runtime/isa.h"
#include "runtime/kernel.h"

namespace graphkit {

// The largest matrices that these kernels take; libraries with blocked algorithms are faster for larger ones.
constexpr std::int64_t kMostRows = 128;
// The same for cofactors, which need singular values in other libraries.
constexpr std::int64_t kMostRowsOfCofactors = 1024;

// On one matrix, row-major; one table of functions for each instruction set.
template <typename T>
struct FactorFunctions {
    // Makes a [n, n] upper triangular, and does to the rows of b [n, k] what it does to those of a. Returns the sign of
    // the permutation of rows, or 0 where a column has no pivot, and stops there.
    int (*eliminate)(T* a, T* b, std::int64_t n, std::int64_t k);
    // The x of a x = b in place of b [n, k]; of a [n, n] one triangle is read. Returns whether no pivot is 0.
    bool (*substitute)(const T* a, T* b, std::int64_t n, std::int64_t k, bool lower);
    // The upper u of a = u^T u in place of a's upper triangle. Returns whether a is positive definite.
    bool (*cholesky)(T* a, std::int64_t n);
    // The matrix of cofactors of a [n, n] in y, n <= kMostRowsOfCofactors; a and b [n, n] are overwritten.
    void (*cofactors)(T* a, T* b, T* y, std::int64_t n);
};

struct FactorTable {
    FactorFunctions<float> f32;
    FactorFunctions<double> f64;
};

GRAPHKIT_ISA_TABLE(FactorTable, factor_table);

// [..., n, n] (and [..., n, k]), whose batches broadcast to that of the result.
class MatrixBatch : public Kernel {
  public:
    std::size_t scratch_bytes() const override;

  protected:
    MatrixBatch(std::string name, const Dims& a, const Dims& b, ElementType type, int threads,
                std::int64_t most_rows = kMostRows);

    // Calls body(memory for n * (n + k) elements, matrix of a, matrix of b, number of the result's matrix) for each
    // matrix of the result. It returns whether the matrix was as it has to be; throws NativeError with `what` if not.
    template <typename T, typename Body>
    void for_each_matrix(std::byte* scratch, const char* what, Body&& body) const;
    const Dims& batch() const { return batch_; }
    template <typename T>
    const FactorFunctions<T>& functions() const {
        if constexpr (std::is_same_v<T, float>) {
            return table_->f32;
        } else {
            return table_->f64;
        }
    }

    ElementType type_;
    std::int64_t n_;
    std::int64_t k_;

  private:
    const FactorTable* table_;
    Dims batch_;
    std::vector<std::int64_t> a_places_;  // the matrix of a, and of b, for each of the result
    std::vector<std::int64_t> b_places_;
};

// By elimination with the largest pivot of each column: solve (a, b -> x), inverse (a -> x), det (a -> numbers),
// slogdet (a -> signs, logarithms of absolute values).
class Elimination final : public MatrixBatch {
  public:
    enum class Goal : std::uint8_t { solve, inverse, det, slogdet };

    Elimination(Goal goal, const Dims& a, const Dims& b, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename T>
    void run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const;

    Goal goal_;
};

// The matrix of cofactors: det(a) * a^-T if a has an inverse, and without dividing by what is 0 if it has none.
class Cofactors final : public MatrixBatch {
  public:
    Cofactors(const Dims& a, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename T>
    void run_as(const T* a, T* y, std::byte* scratch) const;
};

// The Cholesky factor of the symmetric part of a: l with a = l l^T, or u with a = u^T u.
class Cholesky final : public MatrixBatch {
  public:
    Cholesky(const Dims& a, bool lower, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename T>
    void run_as(const T* a, T* y, std::byte* scratch) const;

    bool lower_;
};

// The x of op(a) x = alpha b, or of x op(a) = alpha b; a triangular, of which one triangle is read.
class TriangularSystem final : public MatrixBatch {
  public:
    TriangularSystem(const Dims& a, const Dims& b, bool transpose, bool rightside, bool lower, double alpha,
                     ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename T>
    void run_as(const T* a, const T* b, T* y, std::byte* scratch) const;

    bool flipped_, rightside_, lower_;
    double alpha_;
};

}  // namespace graphkit
