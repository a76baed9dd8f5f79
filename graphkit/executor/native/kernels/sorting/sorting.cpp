// ArgMax and ArgMin, Hardmax, and the k largest or smallest elements along an axis.
#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/sorting/short_rows.h"
#include "kernels/sorting/sorting_table.h"
#include "primitives/float_type.h"
#include "primitives/narrow.h"
#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "runtime/operator_kernels.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// An array as [outer, size, inner] around one axis.
struct AxisGeometry {
    std::int64_t outer = 1;
    std::int64_t size = 1;
    std::int64_t inner = 1;

    AxisGeometry() = default;
    // Throws NativeError, which names the kernel, if x has no such axis.
    AxisGeometry(const Kernel& kernel, const Dims& x, std::int64_t axis);
};

// ArgMax or ArgMin: the int64 position of the extreme element; of equal ones, the first or (`last`) the last. If an
// element is NaN, its position. `y`: the shape of the result, with or without the axis.
class ArgExtreme : public Kernel {
  public:
    ArgExtreme(const Dims& x, std::int64_t axis, const Dims& y, const std::string& type, bool largest, bool last,
               int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename T>
    void run_as(const T* x, std::int64_t* y) const;

    ElementType type_;
    AxisGeometry geometry_;
    bool largest_, last_;
};

// 1 at the first maximum along an axis, else 0, in the type of x. NaN counts as the maximum.
class Hardmax : public Kernel {
  public:
    Hardmax(const Dims& x, std::int64_t axis, const std::string& type, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename T, typename Y>
    void run_as(const T* x, Y* y, Y one) const;

    ElementType type_;
    AxisGeometry geometry_;
};

// Ordered by key, then by position.
template <typename K>
struct Candidate {
    K key;
    std::int64_t position;

    bool operator<(const Candidate& other) const {
        return key < other.key || (key == other.key && position < other.position);
    }
};

template <>
struct Candidate<std::uint32_t> {
    std::uint64_t both;

    Candidate(std::uint32_t key, std::int64_t position)
        : both(std::uint64_t{key} << 32 | static_cast<std::uint64_t>(position)) {}
    bool operator<(const Candidate& other) const { return both < other.both; }
};

template <typename K>
std::int64_t position_of(const Candidate<K>& candidate) {
    return candidate.position;
}
inline std::int64_t position_of(const Candidate<std::uint32_t>& candidate) {
    return static_cast<std::int64_t>(candidate.both & 0xffffffffU);
}
template <typename K>
K key_of(const Candidate<K>& candidate) {
    return candidate.key;
}
inline std::uint32_t key_of(const Candidate<std::uint32_t>& candidate) {
    return static_cast<std::uint32_t>(candidate.both >> 32);
}

// The k first elements along an axis in descending (`largest`) or ascending order, and their positions. Equal elements
// keep their order. NaN is larger than all numbers.
class TopK : public Kernel {
  public:
    TopK(const Dims& x, std::int64_t axis, std::int64_t k, const std::string& type, bool largest, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename T>
    void run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const;
    template <typename T>
    std::int64_t insert(const T* from, Candidate<Key<T>>* candidates) const;
    template <typename T>
    void collect(const T* from, Candidate<Key<T>>* candidates, std::int64_t found, std::int64_t at) const;
    std::int64_t capacity() const;

    ElementType type_;
    AxisGeometry geometry_;
    std::int64_t k_;
    bool largest_;
};

constexpr double kElementNanoseconds = 0.2;
// If k is at most this, the k best elements are kept in order while a row is read.
constexpr std::int64_t kInserted = 32;
// Elements of a row for which searching blocks does not pay.
constexpr std::int64_t kShortRow = 16;

// Calls body.operator()<T>(), where T is the C++ type of an element.
template <typename Body>
void with_type(ElementType type, Body&& body) {
    switch (type) {
        case ElementType::i8:
            return body.template operator()<std::int8_t>();
        case ElementType::i16:
            return body.template operator()<std::int16_t>();
        case ElementType::i32:
            return body.template operator()<std::int32_t>();
        case ElementType::i64:
            return body.template operator()<std::int64_t>();
        case ElementType::u8:
        case ElementType::boolean:
            return body.template operator()<std::uint8_t>();
        case ElementType::u16:
            return body.template operator()<std::uint16_t>();
        case ElementType::u32:
            return body.template operator()<std::uint32_t>();
        case ElementType::u64:
            return body.template operator()<std::uint64_t>();
        default:
            with_float_type(type, body);
    }
}

}  // namespace

AxisGeometry::AxisGeometry(const Kernel& kernel, const Dims& x, std::int64_t axis) {
    const auto rank = static_cast<std::int64_t>(x.size());
    if (axis < -rank || axis >= rank) {
        throw NativeError(kernel.name() + ": axis " + std::to_string(axis) + " is out of range for " + to_string(x));
    }
    const auto at = x.begin() + (axis < 0 ? axis + rank : axis);
    outer = count(Dims(x.begin(), at));
    size = *at;
    inner = count(Dims(at + 1, x.end()));
}

// --- ArgMax and ArgMin ------------------------------------------------------------------------------

ArgExtreme::ArgExtreme(const Dims& x, std::int64_t axis, const Dims& y, const std::string& type, bool largest,
                       bool last, int threads)
    : Kernel(largest ? "ArgMax" : "ArgMin", threads),
      type_(element_type(type)),
      geometry_(*this, x, axis),
      largest_(largest),
      last_(last) {
    inputs_ = {{"x", x, type_}};
    outputs_ = {{"y", y, ElementType::i64}};
    const std::int64_t results = geometry_.outer * geometry_.inner;
    if (count(y) != results || (results > 0 && geometry_.size == 0)) {
        throw NativeError(describe() + ": the output does not have one position for each row, or the axis is empty");
    }
    if (geometry_.size > std::numeric_limits<std::int32_t>::max()) {
        throw Unsupported(describe() + ": positions of 2^31 and more");
    }
}

namespace {

// Bytes for the ranks of float16 or bfloat16 elements; else 0.
std::size_t rank_bytes(const TensorSpec& x) {
    return is_half(x.type) ? static_cast<std::size_t>(count(x.shape)) * sizeof(std::int16_t) : 0;
}

// Converts float16 or bfloat16 elements to integers with the same order.
template <typename T>
const std::int16_t* ranks_of(const T* x, std::int64_t size, bool largest, int threads, std::byte* scratch) {
    auto* ranks = reinterpret_cast<std::int16_t*>(scratch);
    parallel_for(
        threads, size, 0.1,
        [&](std::int64_t begin, std::int64_t end) {
            sorting_table().rank(x + begin, end - begin, largest, ranks + begin);
        },
        64);
    return ranks;
}

// If the axis is the last one, calls rows(first, last); else calls columns(outer, column, width) for tiles of adjacent
// columns.
template <typename Rows, typename Columns>
void for_each_tile(const AxisGeometry& g, int threads, Rows&& rows, Columns&& columns) {
    if (g.inner == 1) {
        const double cost = 10 + kElementNanoseconds * static_cast<double>(g.size);
        parallel_for(threads, g.outer, cost, rows);
        return;
    }
    const std::int64_t tile = std::min(kArgTile, g.inner);
    const std::int64_t tiles = (g.inner + tile - 1) / tile;
    const double cost = 10 + kElementNanoseconds * static_cast<double>(g.size * tile);
    parallel_for(threads, g.outer * tiles, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t item = begin; item < end; ++item) {
            const std::int64_t column = item % tiles * tile;
            columns(item / tiles, column, std::min(tile, g.inner - column));
        }
    });
}

}  // namespace

std::size_t ArgExtreme::scratch_bytes() const {
    return rank_bytes(inputs_[0]);
}

template <typename T>
void ArgExtreme::run_as(const T* x, std::int64_t* y) const {
    const AxisGeometry& g = geometry_;
    const ArgFunctions<T>& functions = sorting_table().of<T>().arg;
    for_each_tile(
        g, threads(),
        [&](std::int64_t begin, std::int64_t end) {
            functions.rows(x + begin * g.size, end - begin, g.size, largest_, last_, y + begin);
        },
        [&](std::int64_t outer, std::int64_t column, std::int64_t width) {
            functions.columns(x + outer * g.size * g.inner + column, g.size, g.inner, width, largest_, last_,
                              y + outer * g.inner + column);
        });
}

void ArgExtreme::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    if (geometry_.outer * geometry_.inner == 0) {
        return;
    }
    auto* y = static_cast<std::int64_t*>(outputs[0]);
    with_type(type_, [&]<typename T>() {
        const auto* x = static_cast<const T*>(inputs[0]);
        if constexpr (kIsHalf<T>) {
            run_as(ranks_of(x, count(inputs_[0].shape), largest_, threads(), scratch), y);
        } else {
            run_as(x, y);
        }
    });
}

// --- Hardmax ----------------------------------------------------------------------------------------

Hardmax::Hardmax(const Dims& x, std::int64_t axis, const std::string& type, int threads)
    : Kernel("Hardmax", threads), type_(element_type(type)), geometry_(*this, x, axis) {
    inputs_ = {{"x", x, type_}};
    outputs_ = {{"y", x, type_}};
}

std::size_t Hardmax::scratch_bytes() const {
    return rank_bytes(inputs_[0]);
}

template <typename T, typename Y>
void Hardmax::run_as(const T* x, Y* y, Y one) const {
    const AxisGeometry& g = geometry_;
    const ArgFunctions<T>& functions = sorting_table().of<T>().arg;
    for_each_tile(
        g, threads(),
        [&](std::int64_t begin, std::int64_t end) {
            std::int64_t positions[kArgTile];
            for (std::int64_t first = begin; first < end; first += kArgTile) {
                const std::int64_t rows = std::min(kArgTile, end - first);
                Y* to = y + first * g.size;
                functions.rows(x + first * g.size, rows, g.size, true, false, positions);
                std::memset(to, 0, static_cast<std::size_t>(rows * g.size) * sizeof(Y));
                for (std::int64_t i = 0; i < rows; ++i) {
                    to[i * g.size + positions[i]] = one;
                }
            }
        },
        [&](std::int64_t outer, std::int64_t column, std::int64_t width) {
            std::int64_t positions[kArgTile];
            const std::int64_t at = outer * g.size * g.inner + column;
            functions.columns(x + at, g.size, g.inner, width, true, false, positions);
            for (std::int64_t row = 0; row < g.size; ++row) {
                std::memset(y + at + row * g.inner, 0, static_cast<std::size_t>(width) * sizeof(Y));
            }
            for (std::int64_t i = 0; i < width; ++i) {
                y[at + positions[i] * g.inner + i] = one;
            }
        });
}

void Hardmax::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    if (count(inputs_[0].shape) == 0) {
        return;
    }
    with_type(type_, [&]<typename T>() {
        const auto* x = static_cast<const T*>(inputs[0]);
        auto* y = static_cast<T*>(outputs[0]);
        if constexpr (kIsHalf<T>) {
            constexpr T kOne{std::is_same_v<T, Float16> ? std::uint16_t{0x3c00} : std::uint16_t{0x3f80}};
            run_as(ranks_of(x, count(inputs_[0].shape), true, threads(), scratch), y, kOne);
        } else {
            run_as(x, y, T{1});
        }
    });
}

// --- TopK -------------------------------------------------------------------------------------------

TopK::TopK(const Dims& x, std::int64_t axis, std::int64_t k, const std::string& type, bool largest, int threads)
    : Kernel("TopK", threads), type_(element_type(type)), geometry_(*this, x, axis), k_(k), largest_(largest) {
    Dims y = x;
    y[static_cast<std::size_t>(axis < 0 ? axis + static_cast<std::int64_t>(x.size()) : axis)] = k;
    inputs_ = {{"x", x, type_}};
    outputs_ = {{"values", y, type_, true}, {"indices", y, ElementType::i64, true}};
    if (k < 0 || k > geometry_.size) {
        throw NativeError(describe() + ": k is out of range");
    }
    if (geometry_.size > std::numeric_limits<std::uint32_t>::max()) {
        throw Unsupported(describe() + ": positions of 2^32 and more");
    }
}

// Number of candidates that are collected before the k best of them are selected.
std::int64_t TopK::capacity() const {
    return std::min(geometry_.size, 2 * k_ + 16);
}

std::size_t TopK::scratch_bytes() const {
    return static_cast<std::size_t>(std::max(threads(), 1)) *
           aligned(static_cast<std::size_t>(capacity()) * sizeof(Candidate<std::uint64_t>));
}

// Reads a row and keeps the k best elements in order. Returns where it stopped: at the end of the row, or earlier, once
// the number of insertions makes `collect` faster.
template <typename T>
std::int64_t TopK::insert(const T* from, Candidate<Key<T>>* candidates) const {
    using K = Key<T>;
    const NextBlock<T> next_block = sorting_table().next_block<T>();
    const std::int64_t inner = geometry_.inner;
    const std::int64_t size = geometry_.size;
    const auto put = [&](Candidate<K> candidate, std::int64_t place) {
        for (; place > 0 && candidate < candidates[place - 1]; --place) {
            candidates[place] = candidates[place - 1];
        }
        candidates[place] = candidate;
    };
    const auto candidate_at = [&](std::int64_t i) { return Candidate<K>{rank_key(from[i * inner], largest_), i}; };
    for (std::int64_t i = 0; i < k_; ++i) {
        put(candidate_at(i), i);
    }
    if (size <= kShortRow) {
        for (std::int64_t i = k_; i < size; ++i) {
            if (const Candidate<K> candidate = candidate_at(i); candidate < candidates[k_ - 1]) {
                put(candidate, k_ - 1);
            }
        }
        return size;
    }
    K keys[kKeyBlock];
    std::int64_t at = k_;
    for (std::int64_t inserted = 0; at < size && inserted < 8 * k_; at += kKeyBlock) {
        const T worst = from[position_of(candidates[k_ - 1]) * inner];
        at = next_block(from, inner, at, size, largest_, worst, keys);
        const std::int64_t part = std::min(kKeyBlock, size - at);
        K limit = key_of(candidates[k_ - 1]);
        for (std::int64_t i = 0; i < part; ++i) {
            if (keys[i] < limit) {  // an equal key at a later position is not better
                put({keys[i], at + i}, k_ - 1);
                limit = key_of(candidates[k_ - 1]);
                ++inserted;
            }
        }
    }
    return at;
}

// Finds the k best elements of a row and sorts them. `found` candidates from positions below `at` are given. Collects
// further candidates, and selects the best of them each time when the buffer is full.
template <typename T>
void TopK::collect(const T* from, Candidate<Key<T>>* candidates, std::int64_t found, std::int64_t at) const {
    using K = Key<T>;
    const NextBlock<T> next_block = sorting_table().next_block<T>();
    const std::int64_t inner = geometry_.inner;
    const std::int64_t size = geometry_.size;
    const std::int64_t most = capacity();
    for (; found < most && at < size; ++found, ++at) {
        candidates[found] = {rank_key(from[at * inner], largest_), at};
    }
    if (at < size) {
        // Later keys must be smaller than that of the k-th best candidate.
        const auto keep_best = [&] {
            std::nth_element(candidates, candidates + k_ - 1, candidates + found);
            found = k_;
            return key_of(candidates[k_ - 1]);
        };
        K limit = keep_best();
        K keys[kKeyBlock];
        for (;; at += kKeyBlock) {
            const T worst = from[position_of(candidates[k_ - 1]) * inner];
            at = next_block(from, inner, at, size, largest_, worst, keys);
            if (at >= size) {
                break;
            }
            const std::int64_t part = std::min(kKeyBlock, size - at);
            for (std::int64_t i = 0; i < part; ++i) {
                if (keys[i] < limit) {
                    candidates[found++] = {keys[i], at + i};
                    limit = found == most ? keep_best() : limit;
                }
            }
        }
    }
    if (found > k_) {
        std::nth_element(candidates, candidates + k_ - 1, candidates + found);
    }
    std::sort(candidates, candidates + k_);
}

template <typename T>
void TopK::run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const AxisGeometry& g = geometry_;
    const auto* x = static_cast<const T*>(inputs[0]);
    auto* values = static_cast<T*>(outputs[0]);
    auto* indices = static_cast<std::int64_t*>(outputs[1]);
    const std::size_t bytes = aligned(static_cast<std::size_t>(capacity()) * sizeof(Candidate<std::uint64_t>));
    const double cost = 50 + static_cast<double>(g.size) + 20 * static_cast<double>(k_);
    if (g.inner == 1 && g.size >= 2 && g.size <= kNarrow) {
        parallel_for(threads(), g.outer, static_cast<double>(g.size), [&](std::int64_t begin, std::int64_t end) {
            with_columns(g.size, [&](auto size) {
                top_of_short_rows<decltype(size)::value>(x + begin * g.size, end - begin, k_, largest_,
                                                         values == nullptr ? nullptr : values + begin * k_,
                                                         indices == nullptr ? nullptr : indices + begin * k_);
            });
        });
        return;
    }
    parallel_for(threads(), g.outer * g.inner, cost, [&](std::int64_t begin, std::int64_t end) {
        auto* const candidates =
            reinterpret_cast<Candidate<Key<T>>*>(scratch + static_cast<std::size_t>(thread_number()) * bytes);
        for (std::int64_t row = begin; row < end; ++row) {
            const T* from = x + row / g.inner * g.size * g.inner + row % g.inner;
            const std::int64_t done = k_ <= kInserted ? insert(from, candidates) : 0;
            if (done < g.size) {
                collect(from, candidates, done == 0 ? 0 : k_, done);
            }
            const std::int64_t first = row / g.inner * k_ * g.inner + row % g.inner;
            for (std::int64_t i = 0; i < k_; ++i) {
                const std::int64_t position = position_of(candidates[i]);
                if (values != nullptr) {
                    values[first + i * g.inner] = from[position * g.inner];
                }
                if (indices != nullptr) {
                    indices[first + i * g.inner] = position;
                }
            }
        }
    });
}

void TopK::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    if (k_ == 0) {
        return;
    }
    with_type(type_, [&]<typename T>() { run_as<T>(inputs, outputs, scratch); });
}

static std::unique_ptr<Kernel> arg_extreme_of(const NodeSpec& node, bool largest) {
    const TensorSpec& x = node.input(0).tensor;
    return std::make_unique<ArgExtreme>(x.shape, node.integer("axis"), node.outputs[0].shape, name_of(x.type), largest,
                                        node.integer("select_last_index") != 0, node.threads);
}

GRAPHKIT_KERNEL_READING("", ArgMax) {
    return arg_extreme_of(node, true);
}

GRAPHKIT_KERNEL_READING("", ArgMin) {
    return arg_extreme_of(node, false);
}

GRAPHKIT_KERNEL("", Hardmax) {
    const TensorSpec& x = node.input(0).tensor;
    return std::make_unique<Hardmax>(x.shape, node.integer("axis"), name_of(x.type), node.threads);
}

GRAPHKIT_KERNEL_READING("", TopK) {
    const TensorSpec &x = node.input(0).tensor, &values = node.outputs[0];
    const std::int64_t axis = node.integer("axis");
    const std::int64_t k = values.shape.at(static_cast<std::size_t>(axis < 0 ? axis + std::ssize(values.shape) : axis));
    return std::make_unique<TopK>(x.shape, axis, k, name_of(x.type), node.integer("largest") != 0, node.threads);
}

GRAPHKIT_BINDINGS(sorting) {
    nb::class_<ArgExtreme, Kernel>(m, "ArgExtreme")
        .def(nb::init<const Dims&, std::int64_t, const Dims&, const std::string&, bool, bool, int>(), "x"_a, "axis"_a,
             "y"_a, "type"_a, "largest"_a = true, "last"_a = false, "threads"_a = 0);
    nb::class_<Hardmax, Kernel>(m, "Hardmax")
        .def(nb::init<const Dims&, std::int64_t, const std::string&, int>(), "x"_a, "axis"_a, "type"_a,
             "threads"_a = 0);
    nb::class_<TopK, Kernel>(m, "TopK").def(
        nb::init<const Dims&, std::int64_t, std::int64_t, const std::string&, bool, int>(), "x"_a, "axis"_a, "k"_a,
        "type"_a, "largest"_a = true, "threads"_a = 0);
}

}  // namespace graphkit
