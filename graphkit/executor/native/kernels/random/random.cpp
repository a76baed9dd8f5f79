#include "kernels/random/random.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/random/source_recipe.h"
#include "primitives/elements.h"
#include "runtime/bindings.h"
#include "runtime/isa.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"
#include "simd/half_convert.h"

namespace graphkit {
namespace {

// Number of elements that are drawn at a time; their words stay in the first-level cache.
constexpr std::int64_t kChunk = 512;
constexpr std::int64_t kWordsPerBlock = 4;
// With more words, the block number would wrap around.
constexpr std::int64_t kMaxWords = std::int64_t{1} << 34;
// Counter word 1 of derived states; the streams of nodes are smaller numbers.
constexpr std::uint32_t kFoldStream = 0xffffffffU;

PhiloxState state_of(const PhiloxSource& source, const void* operand) {
    if (operand == nullptr) {
        return {source.seed, source.step, source.stream};
    }
    const auto* given = static_cast<const std::uint64_t*>(operand);
    return {given[0], given[1], source.stream};
}

void require_countable(const Kernel& kernel, std::int64_t words) {
    if (words > kMaxWords) {
        throw NativeError(kernel.describe() + ": " + std::to_string(words) +
                          " words are more than one random node can draw (2^34)");
    }
}

// Rounds to odd, so that rounding again to float16 or bfloat16 is correct.
float to_odd(double value) {
    const auto nearest = static_cast<float>(value);
    if (static_cast<double>(nearest) == value || value != value || std::isinf(nearest)) {
        return nearest;
    }
    auto bits = bit_cast<std::uint32_t>(nearest);
    if (std::abs(static_cast<double>(nearest)) > std::abs(value)) {
        --bits;
    }
    return bit_cast<float>(bits | 1U);
}

// Calls body(first element, elements, words) for all elements, in chunks; each element uses `words` words.
template <typename Body>
void draw(const Kernel& kernel, const PhiloxTable& table, const PhiloxState& state, std::int64_t elements, int words,
          double nanoseconds, Body&& body) {
    parallel_for(
        kernel.threads(), elements, nanoseconds,
        [&](std::int64_t begin, std::int64_t end) {
            alignas(kAlignment) std::uint32_t drawn[2 * kChunk + 2 * kWordsPerBlock];
            for (std::int64_t at = begin; at < end; at += kChunk) {
                const std::int64_t size = std::min(kChunk, end - at);
                table.words(state, static_cast<std::uint32_t>(at * words / kWordsPerBlock),
                            (size * words + kWordsPerBlock - 1) / kWordsPerBlock, drawn);
                body(at, size, drawn);
            }
        },
        kChunk);
}

double fraction53(const std::uint32_t* words) {
    return (static_cast<double>(words[0] >> 5) * 0x1p26 + static_cast<double>(words[1] >> 6)) * 0x1p-53;
}

template <typename T>
T half_of(double value) {
    if constexpr (std::is_same_v<T, Float16>) {
        return to_float16(to_odd(value));
    } else {
        return to_bfloat16(static_cast<float>(value));
    }
}

}  // namespace

RandomFill::RandomFill(std::string name, Law law, double first, double second, std::optional<TensorSpec> like, Dims y,
                       ElementType type, const PhiloxSource& source, int threads)
    : Kernel(std::move(name), threads),
      law_(law),
      first_(first),
      second_(second),
      source_(source),
      table_(&philox_table()) {
    if (like) {
        inputs_.push_back(std::move(*like));
    }
    inputs_.push_back({"rng", {2}, ElementType::u64, !source.has_operand});
    outputs_ = {{"y", std::move(y), type}};
    if (type != ElementType::f32 && type != ElementType::f64 && type != ElementType::f16 && type != ElementType::bf16) {
        throw Unsupported(describe() + ": not a float type");
    }
    require_countable(*this, count(outputs_[0].shape) * (type == ElementType::f64 ? 2 : 1));
}

void RandomFill::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    const PhiloxState state = state_of(source_, inputs[inputs_.size() - 1]);
    const ElementType type = outputs_[0].type;
    const std::int64_t elements = count(outputs_[0].shape);
    const bool uniform = law_ == Law::uniform;
    const double cost = uniform ? 1 : type == ElementType::f64 ? 25 : 4;
    draw(*this, *table_, state, elements, type == ElementType::f64 ? 2 : 1, cost,
         [&](std::int64_t at, std::int64_t size, const std::uint32_t* words) {
             if (uniform && type == ElementType::f32) {
                 return table_->uniform_f32(words, size, first_, second_, static_cast<float*>(outputs[0]) + at);
             }
             if (uniform && type == ElementType::f64) {
                 return table_->uniform_f64(words, size, 53, first_, second_, static_cast<double*>(outputs[0]) + at);
             }
             alignas(kAlignment) double values[kChunk + 2];
             if (uniform) {
                 table_->uniform_f64(words, size, 24, first_, second_, values);
             } else if (type != ElementType::f64) {
                 table_->normal(words, (size + 1) / 2 * 2, first_, second_, values);
             } else {
                 for (std::int64_t i = 0; i < size; i += 2) {
                     const double radius = std::sqrt(-2.0 * std::log(fraction53(words + 2 * i) + 0x1p-53));
                     const double angle = 2.0 * M_PI * fraction53(words + 2 * i + 2);
                     values[i] = first_ + second_ * (radius * std::cos(angle));
                     values[i + 1] = first_ + second_ * (radius * std::sin(angle));
                 }
             }
             with_type(type, [&](auto element) {
                 using T = decltype(element);
                 auto* y = static_cast<T*>(outputs[0]) + at;
                 for (std::int64_t i = 0; i < size; ++i) {
                     if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
                         y[i] = half_of<T>(values[i]);
                     } else {
                         y[i] = static_cast<T>(values[i]);
                     }
                 }
             });
         });
}

Bernoulli::Bernoulli(Dims x, ElementType x_type, ElementType type, const PhiloxSource& source, int threads)
    : Kernel("Bernoulli", threads), source_(source), table_(&philox_table()) {
    outputs_ = {{"y", x, type}};
    inputs_ = {{"x", std::move(x), x_type}, {"rng", {2}, ElementType::u64, !source.has_operand}};
    require_countable(*this, count(outputs_[0].shape) * (x_type == ElementType::f64 ? 2 : 1));
}

void Bernoulli::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    const PhiloxState state = state_of(source_, inputs[1]);
    const ElementType x_type = inputs_[0].type;
    const int bits = x_type == ElementType::f64 ? 53 : 24;
    draw(*this, *table_, state, count(outputs_[0].shape), bits == 53 ? 2 : 1, 2,
         [&](std::int64_t at, std::int64_t size, const std::uint32_t* words) {
             double u[kChunk];
             bool hits[kChunk];
             table_->uniform_f64(words, size, bits, 0, 1, u);
             with_type(x_type, [&](auto element) {
                 using T = decltype(element);
                 const T* x = static_cast<const T*>(inputs[0]) + at;
                 for (std::int64_t i = 0; i < size; ++i) {
                     if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
                         hits[i] = u[i] < static_cast<double>(to_float(x[i]));
                     } else {
                         hits[i] = u[i] < static_cast<double>(x[i]);
                     }
                 }
             });
             with_type(outputs_[0].type, [&](auto element) {
                 using T = decltype(element);
                 T* y = static_cast<T*>(outputs[0]) + at;
                 for (std::int64_t i = 0; i < size; ++i) {
                     if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
                         y[i] = half_of<T>(hits[i] ? 1.0 : 0.0);
                     } else {
                         y[i] = static_cast<T>(hits[i]);
                     }
                 }
             });
         });
}

Dropout::Dropout(Dims x, ElementType type, std::optional<TensorSpec> ratio, std::optional<TensorSpec> training,
                 const PhiloxSource& source, int threads)
    : Kernel("Dropout", threads), source_(source), table_(&philox_table()) {
    outputs_ = {{"y", x, type, true}, {"mask", x, ElementType::boolean, true}};
    inputs_ = {{"data", std::move(x), type},
               ratio.value_or(TensorSpec{"ratio", {}, ElementType::f32, true}),
               training.value_or(TensorSpec{"training_mode", {}, ElementType::boolean, true}),
               {"rng", {2}, ElementType::u64, !source.has_operand}};
    if (count(inputs_[1].shape) != 1 || count(inputs_[2].shape) != 1) {
        throw NativeError(describe() + ": the ratio and the mode must be scalars");
    }
    require_countable(*this, count(outputs_[0].shape));
}

void Dropout::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    const std::int64_t elements = count(outputs_[0].shape);
    auto* mask = static_cast<bool*>(outputs[1]);
    const bool training = inputs[2] != nullptr && *static_cast<const bool*>(inputs[2]);
    if (!training) {
        if (outputs[0] != nullptr && outputs[0] != inputs[0]) {
            copy(threads(), static_cast<std::byte*>(outputs[0]), static_cast<const std::byte*>(inputs[0]),
                 elements * static_cast<std::int64_t>(size_of(outputs_[0].type)));
        }
        if (mask != nullptr) {
            parallel_for(threads(), elements, 1 / kBytesPerNanosecond,
                         [&](std::int64_t begin, std::int64_t end) { std::fill(mask + begin, mask + end, true); });
        }
        return;
    }
    double ratio = 0.5;
    if (inputs[1] != nullptr) {
        with_type(inputs_[1].type, [&](auto element) {
            using T = decltype(element);
            const T given = *static_cast<const T*>(inputs[1]);
            if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
                ratio = static_cast<double>(to_float(given));
            } else {
                ratio = static_cast<double>(given);
            }
        });
    }
    if (!(ratio >= 0 && ratio <= 1)) {
        throw NativeError(describe() + ": ratio " + std::to_string(ratio) + " is outside [0, 1]");
    }
    // A uniform number is an integer below 2^24, divided by 2^24: comparing the integers is exact.
    const auto threshold = static_cast<std::uint32_t>(std::ceil(ratio * 0x1p24));
    const double scale = ratio == 1 ? 0.0 : 1.0 / (1.0 - ratio);
    draw(*this, *table_, state_of(source_, inputs[3]), elements, 1, 1.5,
         [&](std::int64_t at, std::int64_t size, const std::uint32_t* words) {
             std::uint64_t keep[kChunk];  // all bits set, or none
             for (std::int64_t i = 0; i < size; ++i) {
                 keep[i] = std::uint64_t{0} - std::uint64_t{(words[i] >> 8) >= threshold};
             }
             if (outputs[0] != nullptr) {
                 with_type(outputs_[0].type, [&](auto element) {
                     using T = decltype(element);
                     const T* x = static_cast<const T*>(inputs[0]) + at;
                     T* y = static_cast<T*>(outputs[0]) + at;
                     for (std::int64_t i = 0; i < size; ++i) {
                         if constexpr (std::is_same_v<T, Float16>) {
                             const Float16 scaled = to_float16(to_float(x[i]) * static_cast<float>(scale));
                             y[i].bits = static_cast<std::uint16_t>(scaled.bits & keep[i]);
                         } else if constexpr (std::is_same_v<T, BFloat16>) {
                             const BFloat16 scaled = to_bfloat16(to_float(x[i]) * static_cast<float>(scale));
                             y[i].bits = static_cast<std::uint16_t>(scaled.bits & keep[i]);
                         } else if constexpr (std::is_same_v<T, float>) {
                             const auto scaled = bit_cast<std::uint32_t>(x[i] * static_cast<float>(scale));
                             y[i] = bit_cast<float>(scaled & static_cast<std::uint32_t>(keep[i]));
                         } else if constexpr (std::is_same_v<T, double>) {
                             y[i] = bit_cast<double>(bit_cast<std::uint64_t>(x[i] * scale) & keep[i]);
                         }
                     }
                 });
             }
             if (mask != nullptr) {
                 for (std::int64_t i = 0; i < size; ++i) {
                     mask[at + i] = keep[i] != 0;
                 }
             }
         });
}

RngFoldIn::RngFoldIn(Dims index, ElementType index_type) : Kernel("RngFoldIn", 1), table_(&philox_table()) {
    with_index(index_type, [](auto) {});
    inputs_ = {{"rng", {2}, ElementType::u64}, {"index", std::move(index), index_type}};
    outputs_ = {{"y", {2}, ElementType::u64}};
    if (count(inputs_[1].shape) != 1) {
        throw NativeError(describe() + ": the index must be a scalar");
    }
}

void RngFoldIn::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    with_index(inputs_[1].type, [&](auto index) {
        const auto block = static_cast<std::uint32_t>(*static_cast<const decltype(index)*>(inputs[1]));
        PhiloxSource source;
        source.stream = kFoldStream;
        std::uint32_t words[kWordsPerBlock];
        table_->words(state_of(source, inputs[0]), block, 1, words);
        auto* y = static_cast<std::uint64_t*>(outputs[0]);
        y[0] = words[0] | std::uint64_t{words[1]} << 32;
        y[1] = words[2] | std::uint64_t{words[3]} << 32;
    });
}

namespace {

// The shape and element type of an operand; no value if it is absent.
using Operand = std::optional<std::pair<Dims, std::string>>;

std::optional<TensorSpec> spec_of(const char* name, const Operand& operand) {
    if (!operand) {
        return std::nullopt;
    }
    return TensorSpec{name, operand->first, element_type(operand->second)};
}

const RecipeKind random_fill_recipe(
    "RandomFill", +[](RandomFill* self, Text name, bool normal, double first, double second, const Operand& like,
                      Dims y, Text dtype, const PhiloxSource& source, int threads) {
        auto unread = spec_of("x", like);
        if (unread) {
            unread->optional = true;
        }
        new (self) RandomFill(name, normal ? RandomFill::Law::normal : RandomFill::Law::uniform, first, second,
                              std::move(unread), std::move(y), element_type(dtype), source, threads);
    });

const RecipeKind dropout_recipe(
    "Dropout", +[](Dropout* self, Dims x, Text dtype, const Operand& ratio, const Operand& training,
                   const PhiloxSource& source, int threads) {
        new (self) Dropout(std::move(x), element_type(dtype), spec_of("ratio", ratio),
                           spec_of("training_mode", training), source, threads);
    });

const RecipeKind rng_fold_in_recipe(
    "RngFoldIn", +[](RngFoldIn* self, Dims index, Text index_dtype) {
        new (self) RngFoldIn(std::move(index), element_type(index_dtype));
    });

}  // namespace

GRAPHKIT_BINDINGS(random) {
    nb::class_<PhiloxSource>(m, "PhiloxSource",
                             "The random state of a node. has_operand: (seed, step) is its last operand.")
        .def(
            "__init__",
            [](PhiloxSource* self, std::uint64_t seed, std::uint64_t step, std::uint32_t stream, bool has_operand) {
                new (self) PhiloxSource{seed, step, stream, has_operand};
            },
            "seed"_a, "step"_a, "stream"_a, "has_operand"_a);
    nb::class_<RandomFill, Kernel>(m, "RandomFill")
        .def("__init__", random_fill_recipe.init(), "name"_a, "normal"_a, "first"_a, "second"_a, "like"_a.none(), "y"_a,
             "dtype"_a, "source"_a, "threads"_a = 0);
    nb::class_<Dropout, Kernel>(m, "Dropout")
        .def("__init__", dropout_recipe.init(), "x"_a, "dtype"_a, "ratio"_a.none(), "training"_a.none(), "source"_a,
             "threads"_a = 0);
    nb::class_<RngFoldIn, Kernel>(m, "RngFoldIn")
        .def("__init__", rng_fold_in_recipe.init(), "index"_a, "index_dtype"_a);
}

}  // namespace graphkit
