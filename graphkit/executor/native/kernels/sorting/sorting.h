// Positions of extreme elements along an axis, and the k largest or smallest elements.
#pragma once

#include "runtime/kernel.h"

namespace graphkit {

// An array as [outer, size, inner] around one axis.
struct AxisGeometry {
    std::int64_t outer = 1;
    std::int64_t size = 1;
    std::int64_t inner = 1;

    AxisGeometry() = default;
    // Throws NativeError, naming the kernel, for an axis that x does not have.
    AxisGeometry(const Kernel& kernel, const Dims& x, std::int64_t axis);
};

// ArgMax or ArgMin: the int64 position of the extreme element, the first of equal ones or the last; NaN wins. `y` is
// the shape of the result, with or without the axis.
class ArgExtreme : public Kernel {
  public:
    ArgExtreme(const Dims& x, std::int64_t axis, const Dims& y, const std::string& type, bool largest, bool last,
               int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename T>
    void run_as(const T* x, std::int64_t* y) const;
    template <typename T>
    void run_halves(const T* x, std::int64_t* y, std::int16_t* ranks) const;

    ElementType type_;
    AxisGeometry geometry_;
    bool largest_, last_;
};

// The k first elements along an axis in descending (`largest`) or ascending order, and their positions; equal elements
// in the order of positions; NaN is above all numbers.
class TopK : public Kernel {
  public:
    TopK(const Dims& x, std::int64_t axis, std::int64_t k, const std::string& type, bool largest, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename T>
    void run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const;
    std::int64_t capacity() const;

    ElementType type_;
    AxisGeometry geometry_;
    std::int64_t k_;
    bool largest_;
};

}  // namespace graphkit
