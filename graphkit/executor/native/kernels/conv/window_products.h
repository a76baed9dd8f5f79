// The gradient of a convolution's weights by graphkit's own code. It is used where the library has only its reference
// implementation, or copies windows to multiply them: for kernels that are wider than its code supports.
#pragma once

#include <vector>

#include "kernels/conv/window.h"
#include "kernels/conv/window_products_table.h"
#include "primitives/partition.h"
#include "runtime/kernel.h"
#include "runtime/threads.h"

namespace graphkit {

// dw [M, C / groups, kernel] and optionally dbias [M], in float32, from x [N, C, spatial] and dy [N, M, spatial], which
// are row-major in memory or, with `last`, channels-last. Sums are float32. Equal bits for any number of threads.
class WindowProducts {
  public:
    WindowProducts(const Dims& x, const Dims& dy, const Dims& dw, const Window& window, bool last, ElementType type,
                   int threads);

    // Whether this is faster than copying windows to multiply them: most columns of a line are used, and are not copied
    // here.
    static bool suits(const Dims& dw, const Window& window, bool last);

    std::size_t scratch_bytes() const;
    // `dbias` may be null.
    void run(const void* x, const void* dy, float* dw, float* dbias, std::byte* scratch) const;

  private:
    // One line of the windows, along the last axis, for some filters of a group and a part of the positions.
    struct Unit {
        std::int64_t part = 0;  // the results of all parts are added
        std::int64_t group = 0;
        std::int64_t line = 0;
        Range filters;
    };

    // Adjacent positions along the last axis of the result.
    struct Segment {
        std::int64_t image = 0;
        std::int64_t depth = 0, height = 0;
        std::int64_t begin = 0;
        std::int64_t size = 0;
    };

    Segment segment(std::int64_t number) const;
    template <typename T>
    void multiply(const Unit& unit, const T* x, const T* dy, float* sums, float* own) const;
    template <typename T>
    void copy_line(const T* row, std::int64_t step, std::int64_t first, std::int64_t positions, float* to) const;
    void collect(const float* sums, float* dw) const;
    template <typename T>
    void add_up(const T* dy, float* dbias) const;

    // Number of elements of a window in a line, and the same with padding.
    std::int64_t columns() const { return kernel_[2] * together_; }
    std::int64_t padded_columns() const;
    std::int64_t sums_size() const { return groups_ * lines_ * filters_ * padded_columns(); }  // of a part
    std::int64_t positions() const { return result_[0] * result_[1] * result_[2]; }
    std::int64_t line_floats() const;
    std::int64_t own_floats() const;

    const WindowTable& table_;
    bool last_;
    ElementType type_;
    int threads_;
    std::int64_t images_;
    std::int64_t groups_;
    std::int64_t channels_;  // of x, in a group
    std::int64_t filters_;   // in a group
    std::int64_t together_;  // adjacent channels: all of a group with the channels last, else one
    std::int64_t lines_;     // lines of a group: kernel rows, for each channel if the channels are first
    // Sizes along three axes; missing leading axes have size 1.
    std::int64_t image_[3] = {1, 1, 1};
    std::int64_t kernel_[3] = {1, 1, 1};
    std::int64_t result_[3] = {1, 1, 1};
    std::int64_t strides_[3] = {1, 1, 1};
    std::int64_t dilations_[3] = {1, 1, 1};
    std::int64_t begin_[3] = {0, 0, 0};
    std::int64_t segment_ = 1;  // positions of a whole segment
    std::int64_t segments_ = 1;  // in a row of the result
    std::vector<Range> parts_;   // ranges of the segments
    std::vector<Unit> units_;
};

}  // namespace graphkit
