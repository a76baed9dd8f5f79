// Unique: the distinct elements of an array, or its distinct slices along an axis.
#include <algorithm>
#include <limits>
#include <optional>
#include <type_traits>

#include "kernels/sorting/key.h"
#include "kernels/sorting/radix_sort.h"
#include "primitives/elements.h"
#include "runtime/bindings.h"
#include "runtime/data_dependent.h"

namespace graphkit {
namespace {

// x -> y, and three int64 vectors: the first position of each element of y, for each element of x its position in y,
// and the number of occurrences. y is sorted, or in the order of first occurrence. Both zeros are equal. All NaN
// elements are equal, but a slice that contains NaN differs from all other slices.
class Unique final : public DataDependentKernel {
  public:
    Unique(ElementType x, std::optional<std::int64_t> axis, bool sorted, int threads)
        : DataDependentKernel("Unique", {x}, {x, ElementType::i64, ElementType::i64, ElementType::i64}, threads),
          axis_(axis),
          sorted_(sorted) {}
    void run(const std::vector<Operand>& inputs, RunMemory& memory) const override;

  private:
    template <typename K, typename Place>
    void run_as(const Operand& x, RunMemory& memory) const;

    std::optional<std::int64_t> axis_;
    bool sorted_;
};

// Divides working memory into parts. It is used twice: to compute the size, and to assign the parts.
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

// Groups of equal elements or slices.
template <typename Place>
struct Groups {
    Place* of;      // [size]: group at each place
    Place* first;   // [number]: first place of each group
    Place* counts;  // [number]: places of each group
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

// Access to elements by their keys, independent of their type.
struct Keys {
    ElementType type;
    const void* x;

    bool has_nan() const {
        return type == ElementType::f32 || type == ElementType::f64 || type == ElementType::f16 ||
               type == ElementType::bf16;
    }

    // items[i] = the key of x[i], and i.
    template <typename K, typename Place>
    void number(std::int64_t length, KeyedPlace<K, Place>* items) const {
        with_type(type, [&](auto element) {
            using T = decltype(element);
            if constexpr (std::is_same_v<Key<T>, K>) {
                const T* from = static_cast<const T*>(x);
                for (std::int64_t i = 0; i < length; ++i) {
                    items[i] = {key_of(from[i]), static_cast<Place>(i)};
                }
            }
        });
    }

    // keys[i * step] = the key of x[at + i].
    template <typename K>
    void read(std::int64_t at, std::int64_t length, K* keys, std::int64_t step) const {
        with_type(type, [&](auto element) {
            using T = decltype(element);
            if constexpr (std::is_same_v<Key<T>, K>) {
                const T* from = static_cast<const T*>(x) + at;
                for (std::int64_t i = 0; i < length; ++i) {
                    keys[i * step] = key_of(from[i]);
                }
            }
        });
    }
};

template <typename K, typename Place>
void group_elements(const Keys& x, std::int64_t size, KeyedPlace<K, Place>* items, KeyedPlace<K, Place>* spare,
                    Groups<Place>& groups) {
    x.number(size, items);
    const auto* const sorted = sorted_by_key(items, spare, size);
    for (std::int64_t i = 0; i < size; ++i) {
        if (i == 0 || sorted[i].key != sorted[i - 1].key) {
            groups.begin(sorted[i].place);
        }
        groups.add(sorted[i].place);
    }
}

// Groups the slices along an axis, as rows of keys.
template <typename K, typename Place>
void group_slices(const Keys& x, const AroundAxis& around, K* rows, Place* order, Groups<Place>& groups) {
    const std::int64_t width = around.outer * around.inner;
    for (std::int64_t outer = 0; outer < around.outer; ++outer) {
        if (around.inner == 1) {
            x.read(outer * around.size, around.size, rows + outer, width);
            continue;
        }
        for (std::int64_t i = 0; i < around.size; ++i) {
            x.read((outer * around.size + i) * around.inner, around.inner, rows + i * width + outer * around.inner, 1);
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
    const bool may_have_nan = x.has_nan();
    const auto has_nan = [&](Place place) {
        return may_have_nan && std::find(row(place), row(place) + width, static_cast<K>(-1)) != row(place) + width;
    };
    for (std::int64_t i = 0; i < around.size; ++i) {
        if (i == 0 || !std::equal(row(order[i]), row(order[i]) + width, row(order[i - 1])) || has_nan(order[i])) {
            groups.begin(order[i]);
        }
        groups.add(order[i]);
    }
}

// Numbers the groups in the order of their first places.
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

template <typename K, typename Place>
void Unique::run_as(const Operand& x, RunMemory& memory) const {
    using Item = KeyedPlace<K, Place>;
    const Keys elements{this->inputs()[0], x.data};
    // The slices of a vector are its elements.
    const bool whole = !axis_ || x.shape.size() == 1;
    Dims shape = axis_ ? x.shape : Dims{x.elements()};
    const std::size_t axis = checked_axis(axis_.value_or(0), shape.size());
    const AroundAxis around(shape, axis);
    const std::int64_t size = around.size;
    const std::size_t sorting =
        whole ? 2 * Parts::bytes<Item>(size) : Parts::bytes<K>(x.elements()) + Parts::bytes<Place>(size);
    Parts parts(memory.scratch(sorting + 4 * Parts::bytes<Place>(size)));
    Groups<Place> groups{parts.take<Place>(size), parts.take<Place>(size), parts.take<Place>(size)};
    Place* const ranks = parts.take<Place>(size);
    if (whole) {
        Item* const items = parts.take<Item>(size);
        group_elements(elements, size, items, parts.take<Item>(size), groups);
    } else {
        auto* const rows = parts.take<K>(x.elements());
        group_slices(elements, around, rows, parts.take<Place>(size), groups);
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
    const auto slice = static_cast<std::size_t>(around.inner) * sizeof(K);
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
    with_element(size_of(this->inputs()[0]), [&](auto key) {
        using K = decltype(key);
        if constexpr (std::is_integral_v<K>) {  // no element has 16 bytes
            if (longest <= std::numeric_limits<std::int32_t>::max()) {
                run_as<K, std::uint32_t>(x, memory);
            } else {
                run_as<K, std::uint64_t>(x, memory);
            }
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
