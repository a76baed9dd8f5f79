// Chains of elementwise operations in one pass over memory.
//
// The instructions are applied to one block of the operands at a time. Intermediate results stay in registers, which
// are blocks in the first-level cache. Choosing an instruction costs time only once for a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/pointwise/broadcast_rows.h"
#include "kernels/pointwise/pointwise_layout.h"
#include "kernels/pointwise/pointwise_steps.h"
#include "kernels/pointwise/pointwise_table.h"
#include "runtime/kernel.h"

namespace graphkit {

// Instructions, and the steps that they are compiled to. Kernels for different sizes share it. Threads may use it at
// the same time.
class PointwiseCode {
  public:
    explicit PointwiseCode(PointwiseSource source);

    const PointwiseSource& source() const { return source_; }
    const PointwiseTable& table() const { return table_; }
    // The constants. Each is repeated to fill the widest vector.
    const std::vector<std::byte>& constants() const { return constants_; }
    // Computes the rows of the loops, if that is faster than blocks.
    std::optional<BroadcastRows> rows(const Loops& loops) const;
    // See make_steps. The steps depend only on how the inputs are accessed, and are cached.
    std::shared_ptr<const BlockSteps> steps(const Loops& loops, const std::vector<bool>& whole, bool stream) const;

  private:
    PointwiseSource source_;
    const PointwiseTable& table_;
    std::vector<std::byte> constants_;
    RowsFunction rows_;
    mutable std::mutex mutex_;
    mutable std::map<std::vector<std::int64_t>, std::shared_ptr<const BlockSteps>> steps_;
};

class Pointwise final : public Kernel {
  public:
    // `threads`: 0 for the default number.
    Pointwise(PointwiseSource source, int threads);
    // `shape`: of the outputs. `inputs`: shapes of the inputs that are read. The shapes in the source are not read.
    Pointwise(std::shared_ptr<const PointwiseCode> code, const Dims& shape, const std::vector<Dims>& inputs,
              int threads);

    std::size_t scratch_bytes() const override {
        return part_bytes_ > kStackBytes ? static_cast<std::size_t>(parts_) * part_bytes_ : 0;
    }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<std::pair<int, int>> inplace() const override { return steps_->inplace; }

    // Number of registers, each of which holds a block; number of elements of a block.
    int registers() const { return steps_->registers; }
    std::int64_t block() const { return block_; }

  private:
    class Walk;
    // Working memory up to this size, in bytes, is on the threads' stacks.
    static constexpr std::size_t kStackBytes = std::size_t{16} << 10;

    // Returns false if an integer was divided by zero.
    bool run_part(const void* const* inputs, void* const* outputs, std::byte* scratch, int part) const;

    explicit Pointwise(const std::shared_ptr<const PointwiseCode>& code, int threads);

    std::shared_ptr<const PointwiseCode> code_;
    Loops loops_;
    bool stream_;
    std::shared_ptr<const BlockSteps> steps_;
    std::optional<BroadcastRows> rows_;  // if present, no blocks are computed
    std::int64_t granule_ = 1;          // blocks are multiples of this many elements: whole vectors of every type
    std::int64_t block_ = 1;
    int parts_ = 1;                     // parts of the output, one for each thread
    std::size_t part_bytes_ = 0;        // bytes of working memory of a part
};

}  // namespace graphkit
