// Prepared kernels. A kernel is made once for fixed shapes, then runs on memory that the caller provides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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

// There is no native implementation for this case; the caller has another way to compute it.
struct Unsupported : NativeError {
    using NativeError::NativeError;
};

enum class ElementType : std::uint8_t { f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64, boolean };

// Converts numpy's name: "float32", "bfloat16", "bool". Throws Unsupported for any other name.
ElementType element_type(const std::string& name);
const char* name_of(ElementType type);
std::size_t size_of(ElementType type);

struct TensorSpec {
    std::string name;
    Dims shape;
    ElementType type = ElementType::f32;
    bool optional = false;  // the caller may leave it out
};

// Alignment in bytes of the arena and of working memory.
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

    // The operands that run expects, in order. Arrays are contiguous and row-major.
    const std::vector<TensorSpec>& inputs() const { return inputs_; }
    const std::vector<TensorSpec>& outputs() const { return outputs_; }

    // Bytes of working memory that run needs. The memory is uninitialized when run starts, and not kept afterwards.
    virtual std::size_t scratch_bytes() const { return 0; }

    // Computes the outputs. There is one pointer for each input and each output; null for an absent operand or an
    // unused output. `scratch` is aligned to kAlignment. Several threads may call this at once with different memory.
    // Each call uses at most threads() threads (see threads.h).
    virtual void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const = 0;

    // The positions of the inputs that must be given in the packed form that `pack` writes. If two kernels return equal
    // packed_layout strings for an input, they may share one packed copy.
    virtual std::vector<int> packed_inputs() const { return {}; }
    virtual std::size_t packed_bytes(int input) const;
    virtual std::string packed_layout(int input) const;
    virtual void pack(int input, const void* plain, void* packed) const;
    // Throws NativeError if this input is not one of packed_inputs().
    void require_packed(int input) const;

    // (input, output) pairs that may share memory: the kernel reads each element before it writes the same position.
    virtual std::vector<std::pair<int, int>> inplace() const { return {}; }

    // The name of the implementation that was chosen.
    virtual std::string implementation() const { return "graphkit"; }

    const std::string& name() const { return name_; }
    int threads() const { return threads_; }

    // One line: "MatMul(a f32[2, 3], b f32[3, 4]) -> y f32[2, 4]".
    std::string describe() const;

    // How the kernel was made, see recipe.h; null if that is not known.
    const std::string* recipe() const { return recipe_.get(); }
    void set_recipe(std::string recipe) { recipe_ = std::make_unique<const std::string>(std::move(recipe)); }

  protected:
    std::vector<TensorSpec> inputs_;
    std::vector<TensorSpec> outputs_;

  private:
    std::string name_;
    int threads_;
    std::unique_ptr<const std::string> recipe_;
};

std::string to_string(const Dims& dims);
std::string to_string(const TensorSpec& spec);
std::int64_t count(const Dims& dims);
// Returns the strides of a row-major array, in elements.
Dims row_major(const Dims& dims);

}  // namespace graphkit
