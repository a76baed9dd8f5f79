// A prepared kernel: made once for fixed shapes, then run on memory that somebody else provides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

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

enum class ElementType : std::uint8_t { f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64, boolean };

// By numpy's name: "float32", "bfloat16", "bool". Throws Unsupported for any other.
ElementType element_type(const std::string& name);
const char* name_of(ElementType type);
std::size_t size_of(ElementType type);

struct TensorSpec {
    std::string name;
    Dims shape;
    ElementType type = ElementType::f32;
    bool optional = false;  // the caller may leave it out
};

// Working memory that everything in a program aligns to.
constexpr std::size_t kAlignment = 64;

inline std::size_t aligned(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

class Kernel {
  public:
    Kernel(std::string name, int threads) : name_(std::move(name)), threads_(threads) {}
    virtual ~Kernel() = default;
    Kernel(const Kernel&) = delete;
    Kernel& operator=(const Kernel&) = delete;

    // What run expects, in order. Arrays are contiguous and row-major.
    const std::vector<TensorSpec>& inputs() const { return inputs_; }
    const std::vector<TensorSpec>& outputs() const { return outputs_; }

    // Bytes of working memory that run needs. The memory is undefined when run starts and not kept after it.
    virtual std::size_t scratch_bytes() const { return 0; }

    // One pointer for each input and output; null for an operand that is absent and for an output that nobody reads.
    // `scratch` is aligned to kAlignment. Safe to call from several threads at once with different memory, on no
    // more threads than threads() each (see threads.h).
    virtual void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const = 0;

    // The inputs that have to be given in packed form, as `pack` makes it. Kernels whose layouts of an input agree have
    // equal packed_layout strings for it, and may share one packed copy.
    virtual std::vector<int> packed_inputs() const { return {}; }
    virtual std::size_t packed_bytes(int input) const;
    virtual std::string packed_layout(int input) const;
    virtual void pack(int input, const void* plain, void* packed) const;
    // Throws NativeError for an input that is not packed.
    void require_packed(int input) const;

    // (input, output) pairs that may share memory: each element is read where, and before, it is written.
    virtual std::vector<std::pair<int, int>> inplace() const { return {}; }

    // Which implementation was chosen.
    virtual std::string implementation() const { return "graphkit"; }

    const std::string& name() const { return name_; }
    int threads() const { return threads_; }

    // One line: "MatMul(a f32[2, 3], b f32[3, 4]) -> y f32[2, 4]".
    std::string describe() const;

  protected:
    std::vector<TensorSpec> inputs_;
    std::vector<TensorSpec> outputs_;

  private:
    std::string name_;
    int threads_;
};

std::string to_string(const Dims& dims);
std::string to_string(const TensorSpec& spec);
std::int64_t count(const Dims& dims);
// Elements that lie between neighbours along each axis of a row-major array.
Dims row_major(const Dims& dims);

}  // namespace graphkit
