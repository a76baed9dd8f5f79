// Which elements a depthwise convolution multiplies, and in which order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/conv/depthwise_table.h"
#include "kernels/pool/pool.h"

namespace graphkit {

// For each element of the output, the pairs of an input element and a filter element whose products it sums.
class DepthwisePlan {
  public:
    DepthwisePlan() = default;
    // The output elements are the windows of a convolution or, with `transposed`, the elements that windows cover.
    DepthwisePlan(const PoolGeometry& geometry, bool transposed);

    std::int64_t lines() const { return output_[0] * output_[1]; }  // lines of an image of the output
    std::int64_t input_size() const { return input_[0] * input_[1] * input_[2]; }
    std::int64_t width() const { return output_[2]; }

    // Calls body(run, first result of the run) for all runs of a line.
    template <typename Body>
    void for_each_run(std::int64_t line, std::int64_t channels, Body&& body) const;

  private:
    static constexpr std::int64_t kMostAhead = 4;

    struct Tap {
        std::int64_t from;
        std::int64_t element;
    };
    // The taps of one axis, for each position in the output.
    class Axis {
      public:
        Axis() = default;
        Axis(const PoolGeometry& geometry, int axis, bool transposed);

        std::span<const Tap> at(std::int64_t position) const {
            const auto place = static_cast<std::size_t>(position);
            return {taps_.data() + first_[place], taps_.data() + first_[place + 1]};
        }

      private:
        std::vector<Tap> taps_;
        std::vector<std::size_t> first_;
    };
    struct Run {
        std::int64_t first;  // its taps are those of the run; for each next result they are `step_` further
        std::int64_t count;
    };

    bool continues(const Run& run, std::span<const Tap> taps) const;

    Axis axes_[3];
    std::vector<Run> runs_;  // along the last axis
    std::int64_t input_[3] = {1, 1, 1};
    std::int64_t output_[3] = {1, 1, 1};
    std::int64_t kernel_[3] = {1, 1, 1};
    std::int64_t step_ = 1;
    std::int64_t out_step_ = 1;
};

template <typename Body>
void DepthwisePlan::for_each_run(std::int64_t line, std::int64_t channels, Body&& body) const {
    std::int64_t few[2][32];
    std::vector<std::int64_t> many;
    std::int64_t* offsets = few[0];
    std::int64_t* numbers = few[1];
    const std::int64_t most = kernel_[0] * kernel_[1] * kernel_[2];
    if (most > 32) {
        many.resize(static_cast<std::size_t>(2 * most));
        offsets = many.data();
        numbers = offsets + most;
    }
    const std::span<const Tap> deep = axes_[0].at(line / output_[1]);
    const std::span<const Tap> high = axes_[1].at(line % output_[1]);
    const std::span<const Tap> higher = axes_[1].at(std::min(line % output_[1] + 1, output_[1] - 1));
    const std::int64_t reached = high.empty() ? -1 : high.back().from;
    for (const Run& run : runs_) {
        const std::span<const Tap> wide = axes_[2].at(run.first);
        std::int64_t count = 0;
        std::int64_t ahead[kMostAhead];
        std::int64_t ahead_count = 0;
        for (const Tap& h : higher) {
            if (h.from > reached && ahead_count < kMostAhead && !deep.empty() && !wide.empty()) {
                const std::int64_t row = deep.back().from * input_[1] + h.from;
                ahead[ahead_count++] = (row * input_[2] + wide.front().from) * channels;
            }
        }
        for (const Tap& d : deep) {
            for (const Tap& h : high) {
                for (const Tap& w : wide) {
                    offsets[count] = ((d.from * input_[1] + h.from) * input_[2] + w.from) * channels;
                    numbers[count++] = (d.element * kernel_[1] + h.element) * kernel_[2] + w.element;
                }
            }
        }
        const DepthwiseRun made{
            offsets, numbers, count, ahead, ahead_count, run.count, step_ * channels, out_step_ * channels, channels};
        body(made, run.first * channels);
    }
}

}  // namespace graphkit
