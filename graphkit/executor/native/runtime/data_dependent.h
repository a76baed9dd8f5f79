// Kernels with data-dependent result shapes. A kernel is made once for a node, and runs on operands of any shapes.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/kernel.h"

namespace graphkit {

// An operand of one run. If the operand is absent, `data` is null.
struct Operand {
    const void* data = nullptr;
    Dims shape{};

    template <typename T>
    const T* as() const {
        return static_cast<const T*>(data);
    }
    bool is_there() const { return data != nullptr; }
    std::int64_t elements() const { return count(shape); }
};

// Provides the memory of one run of a data-dependent kernel.
class RunMemory {
  public:
    RunMemory() = default;
    RunMemory(const RunMemory&) = delete;
    RunMemory& operator=(const RunMemory&) = delete;
    virtual ~RunMemory() = default;

    // Returns memory for a result of this shape; null if the result is not used. A kernel calls this at most once in a
    // run for each result. Throws NativeError if the shape differs from the inferred one.
    virtual void* result(std::size_t output, const Dims& shape) = 0;
    // Returns working memory, aligned to kAlignment and uninitialized, valid until the run ends. A kernel calls this at
    // most once in a run.
    virtual std::byte* scratch(std::size_t bytes) = 0;
};

class DataDependentKernel {
  public:
    // `inputs` are the element types of the operands, absent ones included; `outputs` are those of the results.
    DataDependentKernel(std::string name, std::vector<ElementType> inputs, std::vector<ElementType> outputs,
                        int threads)
        : name_(std::move(name)), inputs_(std::move(inputs)), outputs_(std::move(outputs)), threads_(threads) {}
    virtual ~DataDependentKernel() = default;
    DataDependentKernel(const DataDependentKernel&) = delete;
    DataDependentKernel& operator=(const DataDependentKernel&) = delete;

    // Computes the results. Arrays are contiguous and row-major; `inputs` has one entry for each of inputs(). Throws
    // NativeError if shapes do not match, before anything is written. Safe to call from several threads at once.
    virtual void run(const std::vector<Operand>& inputs, RunMemory& memory) const = 0;

    const std::string& name() const { return name_; }
    const std::vector<ElementType>& inputs() const { return inputs_; }
    const std::vector<ElementType>& outputs() const { return outputs_; }
    int threads() const { return threads_; }

    // One line: "Compress(f32[2, 3], bool[2])".
    std::string describe(const std::vector<Operand>& inputs) const;

  private:
    std::string name_;
    std::vector<ElementType> inputs_;
    std::vector<ElementType> outputs_;
    int threads_;
};

// A step of a program that runs such a kernel. If an operand lies in a buffer, its shape is that of the buffer.
struct DataDependentStep {
    struct Input {
        int buffer = -1;  // -1: not in a buffer, the shape is always `shape`
        Dims shape{};
    };
    struct Output {
        int buffer = -1;  // -1: in planned memory, with `elements` elements
        std::int64_t elements = 0;
    };

    const DataDependentKernel* kernel = nullptr;
    std::vector<Input> inputs;
    std::vector<Output> outputs;
    std::size_t first_input = 0;  // first entries in the table of pointers
    std::size_t first_output = 0;
    // Called after the kernel with the shapes of the results, if it is set.
    std::function<void(const std::vector<Dims>& shapes)> found;
};

}  // namespace graphkit
