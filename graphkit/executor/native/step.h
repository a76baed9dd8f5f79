// A prepared kernel: made once for fixed shapes, then called with arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "threads.h"

namespace graphkit {

using Dims = std::vector<std::int64_t>;

// A kernel could not be made or run. The message names the operation, the shapes and the library's status.
struct NativeError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// No implementation covers this case; the caller has another way to compute it.
struct Unsupported : NativeError {
    using NativeError::NativeError;
};

enum class ElementType { f32, i64 };

struct TensorSpec {
    std::string name;
    Dims shape;
    ElementType type = ElementType::f32;
    bool optional = false;  // an output that the caller may leave out
};

// A constant operand in the layout that a step prefers. Immutable; fits every step that prefers the same layout.
class Packed {
  public:
    virtual ~Packed() = default;
    virtual std::size_t bytes() const = 0;
};

class Step {
  public:
    Step(std::string name, int threads) : name_(std::move(name)), threads_(threads) {}
    virtual ~Step() = default;
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

    // What run expects, in order. Arrays are contiguous and row-major.
    const std::vector<TensorSpec>& inputs() const { return inputs_; }
    const std::vector<TensorSpec>& outputs() const { return outputs_; }

    // One pointer for each input and output; a null output is one that nobody reads. With `packed`, the packable
    // input is not read. Steps may be called from any thread; they take the team one after the other.
    void run(std::span<const void* const> inputs, std::span<void* const> outputs, const Packed* packed);

    // The input that `pack` takes, or -1 when a packed copy would look like the array itself.
    virtual int packable() const { return -1; }
    virtual std::unique_ptr<Packed> pack(const void* array) const;

    // Which implementation was chosen.
    virtual std::string implementation() const { return "graphkit"; }

    const std::string& name() const { return name_; }
    int threads() const { return threads_; }

    // One line: "MatMul(a f32[2, 3], b f32[3, 4]) -> y f32[2, 4]".
    std::string describe() const;

  protected:
    virtual void execute(Team& team, std::span<const void* const> inputs, std::span<void* const> outputs,
                         const Packed* packed) = 0;

    std::vector<TensorSpec> inputs_;
    std::vector<TensorSpec> outputs_;

  private:
    std::string name_;
    int threads_;
};

std::string to_string(const Dims& dims);
std::string to_string(const TensorSpec& spec);
std::int64_t count(const Dims& dims);

}  // namespace graphkit
