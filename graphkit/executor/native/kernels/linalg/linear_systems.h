// Linear algebra on batches of small matrices, float32 and float64. One thread computes a whole matrix.
#pragma once

#include <type_traits>

#include "runtime/isa.h"
#include "runtime/kernel.h"

namespace graphkit {

// Largest number of rows that these kernels accept. For larger matrices, libraries with blocked algorithms are faster.
constexpr std::int64_t kMostRows = 128;
// The same limit for cofactors, which other libraries compute from singular values.
constexpr std::int64_t kMostRowsOfCofactors = 1024;

// Functions on one row-major matrix; there is one table for each instruction set.
template <typename T>
struct FactorFunctions {
    std::int64_t lanes;  // elements of a vector
    // Writes the pivots of a [n, n], n <= lanes, in order. Returns the sign of the permutation of rows; 0 if a column
    // has no pivot.
    int (*eliminate_short)(const T* a, T* pivots, std::int64_t n);
    // Makes a [n, n] upper triangular, and applies the same row operations to b [n, k]. Returns the sign of the
    // permutation of rows. If a column has no pivot, stops and returns 0.
    int (*eliminate)(T* a, T* b, std::int64_t n, std::int64_t k);
    // Replaces b [n, k] by the solution x of a x = b, where a [n, n] is triangular. Returns false if a pivot is 0.
    bool (*substitute)(const T* a, T* b, std::int64_t n, std::int64_t k, bool lower);
    // Replaces the upper triangle of a by u with a = u^T u. Returns whether a is positive definite.
    bool (*cholesky)(T* a, std::int64_t n);
    // Writes the cofactors of a [n, n], n <= kMostRowsOfCofactors, to y. Overwrites a and b [n, n].
    void (*cofactors)(T* a, T* b, T* y, std::int64_t n);
};

struct FactorTable {
    FactorFunctions<float> f32;
    FactorFunctions<double> f64;
};

GRAPHKIT_ISA_TABLE(FactorTable, factor_table);

// Base of kernels on [..., n, n] (and [..., n, k]) operands, whose batches broadcast to the batch of the result.
class MatrixBatch : public Kernel {
  public:
    std::size_t scratch_bytes() const override;

  protected:
    MatrixBatch(std::string name, const Dims& a, const Dims& b, ElementType type, int threads,
                std::int64_t most_rows = kMostRows);

    // Calls body(memory for n * (n + k) elements, index of a's matrix, index of b's matrix, index of the result's
    // matrix) for each matrix of the result. If body returns false for one of them, throws NativeError with the text
    // `what`.
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
    std::vector<std::int64_t> a_places_;  // for each matrix of the result, the indices of its matrices in a and b
    std::vector<std::int64_t> b_places_;
};

// Gaussian elimination with partial pivoting: solve (a, b -> x), inverse (a -> x), det (a -> determinants), slogdet (a
// -> signs, logarithms of absolute values).
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

// The matrix of cofactors. It is det(a) * a^-T if a is invertible; the algorithm never divides by zero if it is not.
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

// Solves op(a) x = alpha b, or x op(a) = alpha b. a is triangular; only one triangle is read.
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
