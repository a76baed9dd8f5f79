// Kernels whose results have sizes that their data decides: made once for a node, for operands of any shapes.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/kernel.h"

namespace graphkit {

// An operand as a run finds it; without data, one that is absent.
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

// Where one run of such a kernel gets its memory.
class RunMemory {
  public:
    RunMemory() = default;
    RunMemory(const RunMemory&) = delete;
    RunMemory& operator=(const RunMemory&) = delete;
    virtual ~RunMemory() = default;

    // The memory of a result of this shape; null for one that nobody reads. Asked for once in a run for each result.
    // Throws NativeError for a shape that is not what was inferred.
    virtual void* result(std::size_t output, const Dims& shape) = 0;
    // Working memory, aligned to kAlignment and undefined, until the run ends. Asked for once at most.
    virtual std::byte* scratch(std::size_t bytes) = 0;
};

class DataDependentKernel {
  public:
    // `inputs` and `outputs` are the element types of the operands, the absent ones among them, and of the results.
    DataDependentKernel(std::string name, std::vector<ElementType> inputs, std::vector<ElementType> outputs,
                        int threads)
        : name_(std::move(name)), inputs_(std::move(inputs)), outputs_(std::move(outputs)), threads_(threads) {}
    virtual ~DataDependentKernel() = default;
    DataDependentKernel(const DataDependentKernel&) = delete;
    DataDependentKernel& operator=(const DataDependentKernel&) = delete;

    // Arrays are contiguous and row-major; `inputs` has one for each of inputs(). Throws NativeError for shapes that do
    // not fit each other, before anything is written. Safe to call from several threads at once.
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

// A step of a program with such a kernel. Operands in buffers have the buffers' shapes.
struct DataDependentStep {
    struct Input {
        int buffer = -1;  // -1: `shape` never changes
        Dims shape{};
    };
    struct Output {
        int buffer = -1;  // -1: as many elements as were inferred, in planned memory
        std::int64_t elements = 0;
    };

    const DataDependentKernel* kernel = nullptr;
    std::vector<Input> inputs;
    std::vector<Output> outputs;
    std::size_t first_input = 0;  // entries
    std::size_t first_output = 0;
    // Told of the shapes of the results, where somebody wants to know.
    std::function<void(const std::vector<Dims>& shapes)> found;
};

}  // namespace graphkit
