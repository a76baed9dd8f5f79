// Binds the sizes of a template to the shapes of inputs. Python's programs and those of files both use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/kernel_factory.h"
#include "runtime/size_table.h"

namespace graphkit {

// For each dimension of a shape, its position in the list of sizes.
using Places = std::vector<std::size_t>;
using ShapePlaces = std::vector<std::optional<Places>>;

Dims sizes_at(const Places& places, const Dims& sizes);
Shapes shapes_at(const ShapePlaces& all, const Dims& sizes);
// Writes the same to `shapes`, whose memory is used again if it held shapes of these ranks.
void write_shapes(const ShapePlaces& all, const Dims& sizes, Shapes& shapes);

// Two sizes must be equal. `node`: the name of the node that requires it.
struct EqualSizes {
    std::size_t a = 0;
    std::size_t b = 0;
    std::string node;
};

// A size must not be negative. `node`: the name of the first node whose results have the size; empty for inputs.
struct NonnegativeSize {
    std::size_t place = 0;
    std::string node;
};

// A tensor whose elements are sizes.
struct SizeElements {
    Places elements;
    ElementType type;

    std::size_t bytes() const { return elements.size() * size_of(type); }
    // Returns memory that begins with the elements. Throws BadSizes if an element does not fit its type, and
    // Unsupported unless the type is of integers.
    std::vector<std::int64_t> at(const Dims& sizes) const;
};

class SizeBinding {
  public:
    struct Parts {
        SizeTable table;
        // For each symbol of the table, an axis of an input with this size: (input, axis). Empty if some symbol has no
        // such axis.
        std::vector<std::pair<std::size_t, std::size_t>> sources;
        std::vector<Places> inputs;  // their shapes
        std::vector<EqualSizes> equal;
        std::vector<NonnegativeSize> nonnegative;  // of all nodes, in the order of the graph
    };

    // Throws NativeError for a place that is not in the table.
    explicit SizeBinding(Parts parts);

    const SizeTable& table() const { return parts_.table; }
    const std::vector<Places>& inputs() const { return parts_.inputs; }
    bool has_sources() const { return parts_.sources.size() == parts_.table.symbols(); }

    // Returns the values of the symbols in these shapes of the inputs, or no value if a shape lacks them.
    std::optional<Dims> symbols_of(const Shapes& shapes) const;
    // Returns all sizes. Throws BadSizes, which names the node if it is known.
    Dims sizes(const Dims& symbols) const;
    // Returns the first input whose shape is another one for these sizes. Absent shapes fit.
    std::optional<std::size_t> misfit(const Shapes& shapes, const Dims& sizes) const;
    // Throws BadSizes, which names the node, unless the sizes meet all conditions.
    void require_conditions(const Dims& sizes) const;

  private:
    Parts parts_;
};

// Returns the bytes of the blocks of an arena. A block's size is a position in the list of sizes; for the working
// memory of step i, it is -1 - i, and `scratch_bytes(i)` returns the bytes.
template <typename ScratchBytes>
std::vector<std::int64_t> block_bytes(const std::vector<std::int64_t>& blocks, const Dims& sizes,
                                      const ScratchBytes& scratch_bytes) {
    std::vector<std::int64_t> bytes;
    bytes.reserve(blocks.size());
    for (const std::int64_t block : blocks) {
        bytes.push_back(block >= 0 ? sizes.at(static_cast<std::size_t>(block))
                                   : static_cast<std::int64_t>(scratch_bytes(static_cast<std::size_t>(-(block + 1)))));
    }
    return bytes;
}

}  // namespace graphkit
