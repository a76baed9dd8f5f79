// Runs a batch of any size with the programs of a file, each of which computes a certain number of rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "c_interface/program_part.h"

namespace graphkit {

class SavedProgram;

// The axis of each input and output that has the rows of a batch; -1: none. The writer has proved that each row of the
// outputs depends only on the same row of the inputs.
struct BatchAxes {
    std::vector<std::int64_t> inputs;
    std::vector<std::int64_t> outputs;
};

template <>
struct RecipeFields<BatchAxes> {
    static auto of(BatchAxes& a) { return std::tie(a.inputs, a.outputs); }
};

// Arrays with certain shapes: their sizes, or null for a scalar.
using ShapeList = const std::int64_t* const*;

class BatchPrograms {
  public:
    using Programs = std::vector<std::unique_ptr<SavedProgram>>;

    // How a program is used: `number` runs. In the last run, only `last` rows are those of the batch.
    struct Runs {
        std::size_t program;
        std::int64_t rows;  // of the program
        std::int64_t number;
        std::int64_t last;
    };
    struct Plan {
        std::int64_t rows = 0;
        std::size_t alike = 0;  // a program whose shapes differ only in the number of rows
        std::vector<Runs> runs;
    };

    // `programs` must outlive the object. Throws NativeError if the axes do not fit all programs.
    BatchPrograms(BatchAxes axes, const Programs& programs);

    const BatchAxes& axes() const { return axes_; }

    // Returns how a batch is divided; nothing if no program has these sizes in the other axes. Throws
    // std::invalid_argument if inputs have different numbers of rows.
    std::optional<Plan> plan(ShapeList inputs) const;

    // There is one pointer for each input and each output; null for an unused output. Throws LimitReached.
    void run(const Plan& plan, const void* const* inputs, void* const* outputs, const RunLimits& limits) const;

  private:
    // Programs whose shapes differ only in the number of rows, those with most rows first.
    using Group = std::vector<Runs>;

    std::int64_t rows_of(std::size_t program) const;
    std::int64_t common_rows(ShapeList inputs) const;
    bool is_alike(std::size_t program, ShapeList inputs) const;
    void check_axes() const;
    void check_group(const Group& group) const;
    void add(std::size_t program);
    void run_rows(std::size_t program, std::int64_t first, std::int64_t rows, const void* const* inputs,
                  void* const* outputs, const RunLimits& limits) const;

    BatchAxes axes_;
    const Programs& programs_;
    std::vector<Group> groups_;
};

}  // namespace graphkit
