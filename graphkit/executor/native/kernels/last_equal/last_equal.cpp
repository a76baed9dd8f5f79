// LastEqual: for each index, the last position that has the same index.
#include <algorithm>
#include <bit>
#include <cstdint>

#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "runtime/recipe.h"

namespace graphkit {
namespace {

// A hash table of positions: open addressing with linear probing, at most half full.
class LastEqual final : public Kernel {
  public:
    explicit LastEqual(std::int64_t count);

    std::size_t scratch_bytes() const override { return slots_ * sizeof(std::int64_t); }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    std::int64_t count_;
    std::size_t slots_;  // a power of two
    int shift_;          // shift that converts a hash product to a slot
};

LastEqual::LastEqual(std::int64_t count)
    : Kernel("LastEqual", 1),
      count_(count),
      slots_(std::bit_ceil(std::max<std::size_t>(2 * static_cast<std::size_t>(count), 2))),
      shift_(64 - std::countr_zero(slots_)) {
    inputs_ = {{"indices", {count}, ElementType::i64}};
    outputs_ = {{"positions", {count}, ElementType::i64}};
}

void LastEqual::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    // Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, 6.4).
    constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15;
    const auto* indices = static_cast<const std::int64_t*>(inputs[0]);
    auto* positions = static_cast<std::int64_t*>(outputs[0]);
    auto* table = reinterpret_cast<std::int64_t*>(scratch);
    std::fill_n(table, slots_, -1);
    const auto slot_of = [&](std::int64_t index) {
        std::size_t slot = (static_cast<std::uint64_t>(index) * kFactor) >> shift_;
        while (table[slot] >= 0 && indices[table[slot]] != index) {
            slot = (slot + 1) & (slots_ - 1);
        }
        return slot;
    };
    for (std::int64_t i = 0; i < count_; ++i) {
        table[slot_of(indices[i])] = i;
    }
    for (std::int64_t i = 0; i < count_; ++i) {
        positions[i] = table[slot_of(indices[i])];
    }
}

}  // namespace

static const RecipeKind last_equal_recipe(
    "LastEqual", +[](LastEqual* self, std::int64_t indices) {
        require_shape({indices});
        new (self) LastEqual(indices);
    });

GRAPHKIT_BINDINGS(last_equal) {
    nb::class_<LastEqual, Kernel>(m, "LastEqual").def("__init__", last_equal_recipe.init(), "count"_a);
}

}  // namespace graphkit
