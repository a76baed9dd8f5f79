// Weighted sums along axes: Resize by interpolation, the gradients of Resize and of Pad.
#pragma once

#include <optional>

#include "runtime/isa.h"
#include "runtime/kernel.h"

namespace graphkit {

// Weighted sums of a few rows, and of a few elements of one row. There is one table for each instruction set.
struct ResampleTable {
    // y[j] = sum over t of weights[t] * rows[t][j], j < size.
    template <typename T>
    using Rows = void (*)(const T* const* rows, const T* weights, int taps, T* y, std::int64_t size);
    // y[i] = sum over t of weights[t * size + i] * x[sources[t * size + i]], i < size.
    template <typename T>
    using Row = void (*)(const T* x, const std::int32_t* sources, const T* weights, int taps, T* y, std::int64_t size);

    // Like Row, if the sources of every `lanes` adjacent elements are within 2 * lanes elements of x. This window
    // begins at starts[i / lanes], and is kept in registers. `places` are the sources relative to its begin. If lanes
    // is 0, the function is not available.
    using Windowed = void (*)(const float* x, const std::int32_t* starts, const std::int32_t* places,
                              const float* weights, int taps, float* y, std::int64_t size);

    Rows<float> rows_f32;
    Row<float> row_f32;
    Rows<double> rows_f64;
    Row<double> row_f64;
    int lanes;
    Windowed windowed_f32;
};

GRAPHKIT_ISA_TABLE(ResampleTable, resample_table);

// One axis: output element i is the sum of weights[k] * input element sources[k] for starts[i] <= k < starts[i + 1].
// Elements marked in `outside` (empty: none) become the fill value instead.
struct AxisTaps {
    std::int64_t axis = 0;
    std::vector<std::int64_t> starts;   // [resized + 1]
    std::vector<std::int32_t> sources;
    std::vector<double> weights;
    std::vector<std::uint8_t> outside;  // [resized]

    std::int64_t resized() const { return static_cast<std::int64_t>(starts.size()) - 1; }
};

// Weighted sums along several axes, one after the other. float64 and integers of 32 and 64 bits are computed in double,
// other types in float. Integer results are rounded to nearest even, or truncated if not `round`, and saturate.
class Resample final : public Kernel {
  public:
    Resample(std::string name, Dims x, std::vector<AxisTaps> axes, double fill, bool round, ElementType type,
             int threads);

    std::size_t scratch_bytes() const override { return static_cast<std::size_t>(slots_) * slot_bytes_; }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    // Weights in the type of the computation: one of the two lists is used.
    struct Weights {
        std::vector<float> f32;
        std::vector<double> f64;

        template <typename C>
        const C* data() const;
    };

    // A pass over a plane, seen as [outer, size, inner]. If rows of `inner` elements are long, all of `rows` are sums
    // of such rows. If they are short, rows of resized * inner elements are summed element by element: `sources` and
    // `weights` have the same number of taps for each element; `rows` has the further taps of the few elements that
    // have more.
    struct Pass {
        std::int64_t outer = 1;
        std::int64_t size = 1;
        std::int64_t inner = 1;
        std::int64_t resized = 1;
        bool within_rows = false;
        int taps = 0;
        std::vector<std::int32_t> sources;  // [taps][resized * inner]
        Weights weights;                    // [taps][resized * inner]
        std::vector<std::int32_t> starts;   // of the windows, if all sources are inside of windows
        std::vector<std::int32_t> places;
        std::vector<std::int64_t> empty;    // elements without taps: 0, even if x contains NaN

        std::vector<std::int64_t> rows;        // output rows, ascending
        std::vector<std::int64_t> row_starts;  // [rows + 1], into the next two
        std::vector<std::int32_t> row_sources;
        Weights row_weights;
    };
    struct Outside {
        std::int64_t outer;
        std::int64_t inner;
        std::vector<std::uint8_t> mask;
    };

    Weights converted(std::vector<double> weights) const;
    void set_rows(Pass& pass, const AxisTaps& axis, std::int64_t skipped) const;
    void set_elements(Pass& pass, const AxisTaps& axis) const;
    void find_windows(Pass& pass) const;
    template <typename C>
    void run_in(const void* x, void* y, std::byte* scratch) const;
    template <typename C, typename T>
    void run_plane(int threads, const T* x, T* y, C* first, C* second) const;
    template <typename C>
    void run_pass(int threads, const Pass& pass, const C* x, C* y) const;
    template <typename C>
    void run_elements(int threads, const Pass& pass, const C* x, C* y) const;
    template <typename C>
    void sum_elements(const Pass& pass, const C* x, const C* weights, C* y) const;
    static void sum_rest(const Pass& pass, const float* x, const float* weights, float* y, std::int64_t first);
    template <typename C>
    void fill_outside(C* y) const;

    std::vector<Pass> passes_;
    std::vector<Outside> outside_;
    double fill_;
    bool round_;
    bool in_double_;
    std::int64_t planes_ = 1;
    std::int64_t plane_in_ = 1;   // elements
    std::int64_t plane_out_ = 1;
    std::int64_t buffer_ = 0;     // elements of each of two buffers
    int slots_ = 1;               // number of planes that are computed at the same time
    std::size_t slot_bytes_ = 0;
    const ResampleTable* table_;
};

}  // namespace graphkit
