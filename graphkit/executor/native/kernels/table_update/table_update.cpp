// Pointwise updates of a table whose gradient is given for some rows; the other rows are updated with a gradient of
// zero.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "kernels/pointwise/pointwise.h"
#include "primitives/indices.h"
#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "runtime/recipe.h"

namespace graphkit {
namespace {

// Operands: rows [*indices, width...]; indices (int32 or int64; negative ones count from the end); then the operands of
// the update, except its first one, the gradient. The gradient is float32 [size, width...], with each of the rows added
// at its index, in their order. `tile`, a kernel with one thread, updates a fixed number of rows of the table at a
// time; `rest` updates the remaining rows, and is null if there are none. Both must outlive this kernel. Operands of
// the update are scalars, or have the table's shape. If an index is outside of the table, run throws NativeError before
// anything is written.
class TableUpdate : public Kernel {
  public:
    TableUpdate(const Pointwise& tile, const Pointwise* rest, std::int64_t size, Dims indices, ElementType index_type,
                int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<std::pair<int, int>> inplace() const override;

  private:
    // Linked lists of indices. heads: for each row of the table, the position of its first index; next: for each index,
    // the position of the next index of the same row. -1: none.
    struct Chains {
        std::int32_t* heads;
        std::int32_t* next;
    };

    template <typename Index>
    void link(const Index* indices, const Chains& chains) const;
    // Adds the gradients of some rows of the table. Returns whether there are any.
    bool add(const float* rows, const Chains& chains, std::int64_t first, std::int64_t count, float* gradient) const;
    void update(const void* const* inputs, void* const* outputs, const Chains& chains, std::byte* scratch,
                std::int64_t first, std::int64_t last) const;

    const Pointwise& tile_;
    const Pointwise* rest_;
    std::int64_t size_;  // rows of the table
    std::int64_t width_;  // elements of a row
    std::int64_t tile_rows_;
    std::int64_t taken_;  // number of indices
    std::size_t part_bytes_;  // bytes of a thread's working memory
};

constexpr std::size_t kMaxArrays = 16;
constexpr const char* kRecipeName = "TableUpdate";

// The kernels of a table's tiles.
struct Tiles {
    std::unique_ptr<Kernel> tile;
    std::unique_ptr<Kernel> rest;
};

// A TableUpdate that owns its kernels.
class OwningTableUpdate final : private Tiles, public TableUpdate {
  public:
    OwningTableUpdate(Tiles tiles, std::int64_t size, Dims indices, ElementType index_type, int threads)
        : Tiles(std::move(tiles)),
          TableUpdate(dynamic_cast<const Pointwise&>(*tile), dynamic_cast<const Pointwise*>(rest.get()), size,
                      std::move(indices), index_type, threads) {}
};

// Throws NativeError if `rest` does not compute the same as `tile` for this number of rows.
void require_alike(const Kernel& tile, const Kernel& rest, std::int64_t rows) {
    const auto is_alike = [&](const TensorSpec& a, const TensorSpec& b) {
        Dims shape = a.shape;
        if (!shape.empty()) {
            shape[0] = rows;
        }
        return shape == b.shape && a.type == b.type && a.optional == b.optional;
    };
    const auto are_alike = [&](const std::vector<TensorSpec>& a, const std::vector<TensorSpec>& b) {
        return std::equal(a.begin(), a.end(), b.begin(), b.end(), is_alike);
    };
    if (!are_alike(tile.inputs(), rest.inputs()) || !are_alike(tile.outputs(), rest.outputs())) {
        throw NativeError(rest.describe() + " is not the rest of " + tile.describe());
    }
}

std::int64_t tiles_of(std::int64_t size, std::int64_t tile_rows) {
    return (size + tile_rows - 1) / tile_rows;
}

}  // namespace

TableUpdate::TableUpdate(const Pointwise& tile, const Pointwise* rest, std::int64_t size, Dims indices,
                         ElementType index_type, int threads)
    : Kernel(tile.name(), threads),
      tile_(tile),
      rest_(rest),
      size_(size),
      width_(1),
      tile_rows_(0),
      taken_(count(indices)) {
    with_index(index_type, [](auto) {});
    const Dims& shape = tile.outputs().at(0).shape;
    if (shape.empty() || shape[0] < 1 || (rest == nullptr) != (size % shape[0] == 0)) {
        throw NativeError("the tiles of " + tile.describe() + " do not make up a table of " + std::to_string(size) +
                          " rows");
    }
    Dims table = shape;
    table[0] = size;
    if (threads < 1 || tile.inputs().empty() || tile.inputs()[0].shape != shape ||
        tile.inputs()[0].type != ElementType::f32) {
        throw NativeError(tile.describe() + " with " + std::to_string(threads) + " threads updates no table");
    }
    if (rest != nullptr) {
        require_alike(tile, *rest, size % shape[0]);
    }
    require_shape(table);
    tile_rows_ = shape[0];
    width_ = count(shape) / tile_rows_;
    Dims rows = indices;
    rows.insert(rows.end(), shape.begin() + 1, shape.end());
    require_shape(rows);
    inputs_ = {{"rows", std::move(rows)}, {"indices", std::move(indices), index_type}};
    for (std::size_t i = 1; i < tile.inputs().size(); ++i) {
        TensorSpec spec = tile.inputs()[i];
        if (!spec.shape.empty()) {
            if (spec.shape != shape) {
                throw Unsupported(tile.describe() + ": an operand that is neither a table nor a scalar");
            }
            spec.shape = table;
        }
        inputs_.push_back(std::move(spec));
    }
    for (TensorSpec spec : tile.outputs()) {
        spec.shape = table;
        outputs_.push_back(std::move(spec));
    }
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    if (size_ > kMost || taken_ > kMost || std::max(inputs_.size(), outputs_.size()) > kMaxArrays) {
        throw Unsupported(tile.describe() + ": too many rows or operands");
    }
    part_bytes_ = aligned(static_cast<std::size_t>(tile_rows_ * width_) * sizeof(float)) +
                  aligned(std::max(tile.scratch_bytes(), rest == nullptr ? 0 : rest->scratch_bytes()));
}

std::size_t TableUpdate::scratch_bytes() const {
    return aligned(static_cast<std::size_t>(size_) * sizeof(std::int32_t)) +
           aligned(static_cast<std::size_t>(taken_) * sizeof(std::int32_t)) +
           static_cast<std::size_t>(threads()) * part_bytes_;
}

std::vector<std::pair<int, int>> TableUpdate::inplace() const {
    std::vector<std::pair<int, int>> pairs;
    for (const auto& [input, output] : tile_.inplace()) {
        if (input > 0) {
            pairs.emplace_back(input + 1, output);
        }
    }
    return pairs;
}

template <typename Index>
void TableUpdate::link(const Index* indices, const Chains& chains) const {
    const double work = 1 + 2 * static_cast<double>(taken_) / static_cast<double>(std::max<std::int64_t>(size_, 1));
    parallel_for(threads(), size_, work, [&](std::int64_t begin, std::int64_t end) {
        std::fill(chains.heads + begin, chains.heads + end, -1);
        // In reverse, so that a chain begins with its first index.
        for (std::int64_t at = taken_; at-- > 0;) {
            const std::int64_t row = from_front(indices[at], size_);
            if (row >= begin && row < end) {
                chains.next[at] = chains.heads[row];
                chains.heads[row] = static_cast<std::int32_t>(at);
            }
        }
    });
}

bool TableUpdate::add(const float* rows, const Chains& chains, std::int64_t first, std::int64_t count,
                      float* gradient) const {
    bool any = false;
    for (std::int64_t row = 0; row < count; ++row) {
        for (std::int64_t at = chains.heads[first + row]; at >= 0; at = chains.next[at]) {
            any = true;
            for (std::int64_t i = 0; i < width_; ++i) {
                gradient[row * width_ + i] += rows[at * width_ + i];
            }
        }
    }
    return any;
}

void TableUpdate::update(const void* const* inputs, void* const* outputs, const Chains& chains, std::byte* scratch,
                         std::int64_t first, std::int64_t last) const {
    auto* gradient = reinterpret_cast<float*>(scratch);
    const auto elements = static_cast<std::size_t>(tile_rows_ * width_);
    std::byte* memory = scratch + aligned(elements * sizeof(float));
    std::memset(gradient, 0, elements * sizeof(float));
    std::array<const void*, kMaxArrays> sources{};
    std::array<void*, kMaxArrays> targets{};
    for (std::int64_t tile = first; tile < last; ++tile) {
        const std::int64_t row = tile * tile_rows_;
        const std::int64_t count = std::min(tile_rows_, size_ - row);
        const bool any = add(static_cast<const float*>(inputs[0]), chains, row, count, gradient);
        sources[0] = gradient;
        for (std::size_t i = 2; i < inputs_.size(); ++i) {
            const bool whole = !inputs_[i].shape.empty() && inputs[i] != nullptr;
            const auto step = whole ? row * width_ * static_cast<std::int64_t>(size_of(inputs_[i].type)) : 0;
            sources[i - 1] = static_cast<const std::byte*>(inputs[i]) + step;
        }
        for (std::size_t i = 0; i < outputs_.size(); ++i) {
            const auto step = row * width_ * static_cast<std::int64_t>(size_of(outputs_[i].type));
            targets[i] = outputs[i] == nullptr ? nullptr : static_cast<std::byte*>(outputs[i]) + step;
        }
        (count == tile_rows_ ? tile_ : *rest_).run(sources.data(), targets.data(), memory);
        if (any) {
            std::memset(gradient, 0, elements * sizeof(float));
        }
    }
}

void TableUpdate::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const Chains chains{
        reinterpret_cast<std::int32_t*>(scratch),
        reinterpret_cast<std::int32_t*>(scratch + aligned(static_cast<std::size_t>(size_) * sizeof(std::int32_t)))};
    std::byte* parts = scratch + scratch_bytes() - static_cast<std::size_t>(threads()) * part_bytes_;
    with_index(inputs_[1].type, [&](auto index) {
        const auto* indices = static_cast<const decltype(index)*>(inputs[1]);
        check_indices(*this, indices, taken_, 0, size_);
        link(indices, chains);
    });
    const std::int64_t tiles = tiles_of(size_, tile_rows_);
    const auto share = [&](std::int64_t part) { return tiles * part / threads(); };
    // Each thread updates one part, with its own memory.
    parallel_for(threads(), threads(), static_cast<double>(size_ * width_) / threads(),
                 [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t part = begin; part < end; ++part) {
                         update(inputs, outputs, chains, parts + static_cast<std::size_t>(part) * part_bytes_,
                                share(part), share(part + 1));
                     }
                 });
}

namespace {

std::unique_ptr<Kernel> make_tile(const RawBytes& recipe) {
    // Recipes of other kinds could contain recipes, to any depth.
    if (RecipeReader(recipe.data).text() != "Pointwise") {
        throw BadRecipe("the tiles of a table are not updated by a pointwise kernel");
    }
    return make_kernel(recipe.data);
}

const RecipeFunction table_update_recipe(
    kRecipeName,
    +[](RawBytes tile, std::optional<RawBytes> rest, std::int64_t size, Dims indices, const std::string& index_dtype,
        int threads) -> std::unique_ptr<Kernel> {
        Tiles tiles{make_tile(tile), rest ? make_tile(*rest) : nullptr};
        return std::make_unique<OwningTableUpdate>(std::move(tiles), size, std::move(indices),
                                                   element_type(index_dtype), threads);
    });

}  // namespace

GRAPHKIT_BINDINGS(table_update, "pointwise") {
    nb::class_<TableUpdate, Kernel>(
        m, "TableUpdate",
        "A pointwise update of a table of `size` rows, whose gradient is given for some rows. "
        "`tile` updates several rows at a time, `rest` the remaining rows.")
        .def(
            "__init__",
            [](TableUpdate* self, const Pointwise& tile, const Pointwise* rest, std::int64_t size, Dims indices,
               const std::string& index_dtype, int threads) {
                new (self) TableUpdate(tile, rest, size, indices, element_type(index_dtype), threads);
                const auto recipe = [](const Pointwise& kernel) { return RawBytes{*kernel.recipe()}; };
                if (records_recipes() && tile.recipe() != nullptr && (rest == nullptr || rest->recipe() != nullptr)) {
                    const auto last = rest == nullptr ? std::nullopt : std::optional(recipe(*rest));
                    self->set_recipe(recipe_of(kRecipeName, recipe(tile), last, size, indices, index_dtype, threads));
                }
            },
            "tile"_a, "rest"_a.none(), nb::kw_only(), "size"_a, "indices"_a, "index_dtype"_a, "threads"_a,
            nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>());
}

}  // namespace graphkit
