// Unique: the different elements of an array, or its different slices along an axis.
#include <algorithm>
#include <limits>
#include <optional>

#include "kernels/sorting/key.h"
#include "kernels/sorting/radix_sort.h"
#include "primitives/elements.h"
#include "runtime/bindings.h"
#include "runtime/data_dependent.h"

namespace graphkit {
namespace {

// x -> y, and int64 vectors: where each first occurs, which of them stands at each place, how often it does. In order,
// or as they first occur. Zeros are equal. One NaN stands for all of them, but slices with NaN differ from all slices.
class Unique final : public DataDependentKernel {
  public:
    Unique(ElementType x, std::optional<std::int64_t> axis, bool sorted, int threads)
        : DataDependentKernel("Unique", {x}, {x, ElementType::i64, ElementType::i64, ElementType::i64}, threads),
          axis_(axis),
          sorted_(sorted) {}
    void run(const std::vector<Operand>& inputs, RunMemory& memory) const override;

  private:
    template <typename T, typename Place>
    void run_as(const Operand& x, RunMemory& memory) const;

    std::optional<std::int64_t> axis_;
    bool sorted_;
};

// Parts of one piece of working memory, counted first and handed out then.
class Parts {
  public:
    explicit Parts(std::byte* memory) : at_(memory) {}
    template <typename T>
    T* take(std::int64_t length) {
        auto* const part = reinterpret_cast<T*>(at_);
        at_ += bytes<T>(length);
        return part;
    }
    template <typename T>
    static std::size_t bytes(std::int64_t length) {
        return aligned(static_cast<std::size_t>(length) * sizeof(T));
    }

  private:
    std::byte* at_;
};

// Which of the different ones stands at each place, and where each begins; their number.
template <typename Place>
struct Groups {
    Place* of;      // [size]
    Place* first;   // [number]
    Place* counts;  // [number]
    Place number = 0;

    void begin(Place place) {
        first[number] = place;
        counts[number] = 0;
        ++number;
    }
    void add(Place place) {
        of[place] = number - 1;
        ++counts[number - 1];
    }
};

template <typename T, typename Place>
void group_elements(const T* x, std::int64_t size, KeyedPlace<Key<T>, Place>* items, KeyedPlace<Key<T>, Place>* spare,
                    Groups<Place>& groups) {
    for (std::int64_t i = 0; i < size; ++i) {
        items[i] = {key_of(x[i]), static_cast<Place>(i)};
    }
    const auto* const sorted = sorted_by_key(items, spare, size);
    for (std::int64_t i = 0; i < size; ++i) {
        if (i == 0 || sorted[i].key != sorted[i - 1].key) {
            groups.begin(sorted[i].place);
        }
        groups.add(sorted[i].place);
    }
}

// The slices along an axis as rows of keys.
template <typename T, typename Place>
void group_slices(const T* x, const AroundAxis& around, Key<T>* rows, Place* order, Groups<Place>& groups) {
    const std::int64_t width = around.outer * around.inner;
    for (std::int64_t outer = 0; outer < around.outer; ++outer) {
        for (std::int64_t i = 0; i < around.size; ++i) {
            for (std::int64_t inner = 0; inner < around.inner; ++inner) {
                rows[i * width + outer * around.inner + inner] =
                    key_of(x[(outer * around.size + i) * around.inner + inner]);
            }
        }
    }
    for (std::int64_t i = 0; i < around.size; ++i) {
        order[i] = static_cast<Place>(i);
    }
    const auto row = [&](Place place) { return rows + static_cast<std::int64_t>(place) * width; };
    std::sort(order, order + around.size, [&](Place a, Place b) {
        const auto [at, other] = std::mismatch(row(a), row(a) + width, row(b));
        return at != row(a) + width ? *at < *other : a < b;
    });
    const auto has_nan = [&](Place place) {
        return !std::is_integral_v<T> &&
               std::find(row(place), row(place) + width, static_cast<Key<T>>(-1)) != row(place) + width;
    };
    for (std::int64_t i = 0; i < around.size; ++i) {
        if (i == 0 || !std::equal(row(order[i]), row(order[i]) + width, row(order[i - 1])) || has_nan(order[i])) {
            groups.begin(order[i]);
        }
        groups.add(order[i]);
    }
}

// The numbers of the groups in the order of their first places.
template <typename Place>
void number_by_first(const Groups<Place>& groups, std::int64_t size, Place* ranks) {
    Place next = 0;
    for (std::int64_t i = 0; i < size; ++i) {
        const Place group = groups.of[i];
        if (groups.first[group] == static_cast<Place>(i)) {
            ranks[group] = next++;
        }
    }
}

}  // namespace

template <typename T, typename Place>
void Unique::run_as(const Operand& x, RunMemory& memory) const {
    using Item = KeyedPlace<Key<T>, Place>;
    // Vectors have no slices but elements.
    const bool whole = !axis_ || x.shape.size() == 1;
    Dims shape = axis_ ? x.shape : Dims{x.elements()};
    const std::size_t axis = checked_axis(axis_.value_or(0), shape.size());
    const AroundAxis around(shape, axis);
    const std::int64_t size = around.size;
    const std::size_t sorting =
        whole ? 2 * Parts::bytes<Item>(size) : Parts::bytes<Key<T>>(x.elements()) + Parts::bytes<Place>(size);
    Parts parts(memory.scratch(sorting + 4 * Parts::bytes<Place>(size)));
    Groups<Place> groups{parts.take<Place>(size), parts.take<Place>(size), parts.take<Place>(size)};
    Place* const ranks = parts.take<Place>(size);
    if (whole) {
        Item* const items = parts.take<Item>(size);
        group_elements(x.as<T>(), size, items, parts.take<Item>(size), groups);
    } else {
        auto* const rows = parts.take<Key<T>>(x.elements());
        group_slices(x.as<T>(), around, rows, parts.take<Place>(size), groups);
    }
    if (sorted_) {
        for (Place group = 0; group < groups.number; ++group) {
            ranks[group] = group;
        }
    } else {
        number_by_first(groups, size, ranks);
    }
    const auto number = static_cast<std::int64_t>(groups.number);
    shape[axis] = number;
    auto* const y = static_cast<std::byte*>(memory.result(0, shape));
    auto* const first = static_cast<std::int64_t*>(memory.result(1, {number}));
    auto* const inverse = static_cast<std::int64_t*>(memory.result(2, {size}));
    auto* const counts = static_cast<std::int64_t*>(memory.result(3, {number}));
    const auto slice = static_cast<std::size_t>(around.inner) * sizeof(T);
    for (Place group = 0; group < groups.number; ++group) {
        const auto rank = static_cast<std::int64_t>(ranks[group]);
        const auto place = static_cast<std::int64_t>(groups.first[group]);
        if (first != nullptr) {
            first[rank] = place;
        }
        if (counts != nullptr) {
            counts[rank] = static_cast<std::int64_t>(groups.counts[group]);
        }
        for (std::int64_t outer = 0; y != nullptr && outer < around.outer; ++outer) {
            copy_bytes(
                y + (outer * number + rank) * static_cast<std::int64_t>(slice),
                static_cast<const std::byte*>(x.data) + (outer * size + place) * static_cast<std::int64_t>(slice),
                slice);
        }
    }
    for (std::int64_t i = 0; inverse != nullptr && i < size; ++i) {
        inverse[i] = static_cast<std::int64_t>(ranks[groups.of[i]]);
    }
}

void Unique::run(const std::vector<Operand>& inputs, RunMemory& memory) const {
    const Operand& x = inputs[0];
    std::int64_t longest = x.elements();
    for (const std::int64_t size : x.shape) {  // an axis may be longer where another is empty
        longest = std::max(longest, size);
    }
    with_type(this->inputs()[0], [&](auto element) {
        using T = decltype(element);
        if (longest <= std::numeric_limits<std::int32_t>::max()) {
            run_as<T, std::uint32_t>(x, memory);
        } else {
            run_as<T, std::uint64_t>(x, memory);
        }
    });
}

GRAPHKIT_BINDINGS(unique, "data_dependent_call") {
    nb::class_<Unique, DataDependentKernel>(m, "Unique")
        .def(
            "__init__",
            [](Unique* self, Text dtype, std::optional<std::int64_t> axis, bool sorted, int threads) {
                new (self) Unique(element_type(dtype), axis, sorted, threads);
            },
            "dtype"_a, "axis"_a.none(), "sorted"_a, "threads"_a = 0);
}

}  // namespace graphkit
