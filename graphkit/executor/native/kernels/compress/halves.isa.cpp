// Gradient compression to float16 or bfloat16: elements are rounded to the nearest value, ties to even. The rounding
// error is kept in the residual, and added to the next gradient. Numbers beyond the largest finite value are sent as
// that value. Infinities and NaN are sent unchanged, and leave a residual of 0.
#include <algorithm>
#include <cstdint>

#include "runtime/isa.h"
#include "simd/half_convert.h"
#include "simd/vector.h"

namespace graphkit {

struct HalvesTable {
    // sent = round(residual + gradient); the residual becomes the rounding error.
    void (*pack_f16)(const float* gradient, float* residual, std::int64_t count, Float16* sent);
    void (*pack_bf16)(const float* gradient, float* residual, std::int64_t count, BFloat16* sent);
    void (*add_f16)(const Float16* sent, std::int64_t count, float* sum);
    void (*add_bf16)(const BFloat16* sent, std::int64_t count, float* sum);
};

GRAPHKIT_ISA_TABLE(HalvesTable, halves_table);

namespace {

using Lanes = Vector<float>;
using Bits = Vector<std::int32_t>;

// Elements that are converted together on the stack.
constexpr std::int64_t kPart = 256;

template <typename Half>
constexpr float kLargest = 0;
template <>
constexpr float kLargest<Float16> = 65504.0F;
template <>
constexpr float kLargest<BFloat16> = 0x1.fep127F;

inline Lanes where(Bits mask, Lanes x, Lanes otherwise) {
    return bit_cast<Lanes>((mask & bit_cast<Bits>(x)) | (~mask & bit_cast<Bits>(otherwise)));
}

template <typename Half>
void pack_part(const float* gradient, float* residual, Half* sent) {
    float given[kPart];
    for (std::int64_t i = 0; i < kPart; i += kLanes<float>) {
        const Lanes x = load<float>(gradient + i) + load<float>(residual + i);
        store(residual + i, x);
        const Lanes within = at_most<float>(at_least<float>(x, -kLargest<Half>), kLargest<Half>);
        store(given + i, where(x - x == Lanes{}, within, x));
    }
    narrow(given, sent, kPart);
    widen(sent, given, kPart);
    for (std::int64_t i = 0; i < kPart; i += kLanes<float>) {
        const Lanes x = load<float>(residual + i);
        store(residual + i, where(x - x == Lanes{}, x - load<float>(given + i), Lanes{}));
    }
}

template <typename Half>
void pack(const float* gradient, float* residual, std::int64_t count, Half* sent) {
    std::int64_t i = 0;
    for (; i + kPart <= count; i += kPart) {
        pack_part(gradient + i, residual + i, sent + i);
    }
    if (i < count) {
        float more[kPart] = {};
        float left[kPart] = {};
        Half halves[kPart];
        std::copy(gradient + i, gradient + count, more);
        std::copy(residual + i, residual + count, left);
        pack_part(more, left, halves);
        std::copy_n(left, count - i, residual + i);
        std::copy_n(halves, count - i, sent + i);
    }
}

template <typename Half>
void add_part(const Half* sent, float* sum) {
    float given[kPart];
    widen(sent, given, kPart);
    for (std::int64_t i = 0; i < kPart; i += kLanes<float>) {
        store(sum + i, load<float>(sum + i) + load<float>(given + i));
    }
}

template <typename Half>
void add(const Half* sent, std::int64_t count, float* sum) {
    std::int64_t i = 0;
    for (; i + kPart <= count; i += kPart) {
        add_part(sent + i, sum + i);
    }
    if (i < count) {
        Half halves[kPart] = {};
        float some[kPart] = {};
        std::copy(sent + i, sent + count, halves);
        std::copy(sum + i, sum + count, some);
        add_part(halves, some);
        std::copy_n(some, count - i, sum + i);
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(HalvesTable, halves_table) = {pack<Float16>, pack<BFloat16>, add<Float16>, add<BFloat16>};

}  // namespace graphkit

#ifdef GRAPHKIT_ONCE
#include <string>

#include "runtime/bindings.h"
#include "runtime/kernel.h"

namespace graphkit {
namespace {

// The speed of both is limited by memory, and they run while a backward pass runs: each uses one thread.
class Halves : public Kernel {
  public:
    Halves(const std::string& name, std::int64_t count, const std::string& type)
        : Kernel(name, 1), table_(halves_table()), count_(count), type_(element_type(type)) {
        if (type_ != ElementType::f16 && type_ != ElementType::bf16) {
            throw NativeError(name + ": halves are float16 or bfloat16, not " + type);
        }
    }

  protected:
    // Returns `to`, with the elements of `from`, which may be the same memory.
    float* moved(const void* from, void* to) const {
        auto* target = static_cast<float*>(to);
        if (from != to) {
            std::copy_n(static_cast<const float*>(from), count_, target);
        }
        return target;
    }

    const HalvesTable& table_;
    std::int64_t count_;
    ElementType type_;
};

// sent (bits of float16 or bfloat16) and the new residual, from gradient + residual. The residual is changed in place.
class HalvesPack final : public Halves {
  public:
    HalvesPack(std::int64_t count, const std::string& type) : Halves("HalvesPack", count, type) {
        inputs_ = {{"gradient", {count}}, {"residual", {count}}};
        outputs_ = {{"sent", {count}, ElementType::u16}, {"left", {count}}};
    }

    void run(const void* const* inputs, void* const* outputs, std::byte*) const override {
        const auto* gradient = static_cast<const float*>(inputs[0]);
        float* residual = moved(inputs[1], outputs[1]);
        if (type_ == ElementType::f16) {
            table_.pack_f16(gradient, residual, count_, static_cast<Float16*>(outputs[0]));
        } else {
            table_.pack_bf16(gradient, residual, count_, static_cast<BFloat16*>(outputs[0]));
        }
    }

    std::vector<std::pair<int, int>> inplace() const override { return {{1, 1}}; }
};

// total = sum + the values of `sent`.
class HalvesAdd final : public Halves {
  public:
    HalvesAdd(std::int64_t count, const std::string& type) : Halves("HalvesAdd", count, type) {
        inputs_ = {{"sent", {count}, ElementType::u16}, {"sum", {count}}};
        outputs_ = {{"total", {count}}};
    }

    void run(const void* const* inputs, void* const* outputs, std::byte*) const override {
        float* sum = moved(inputs[1], outputs[0]);
        if (type_ == ElementType::f16) {
            table_.add_f16(static_cast<const Float16*>(inputs[0]), count_, sum);
        } else {
            table_.add_bf16(static_cast<const BFloat16*>(inputs[0]), count_, sum);
        }
    }

    std::vector<std::pair<int, int>> inplace() const override { return {{1, 0}}; }
};

}  // namespace

GRAPHKIT_BINDINGS(halves) {
    nb::class_<HalvesPack, Kernel>(m, "HalvesPack")
        .def(nb::init<std::int64_t, const std::string&>(), "count"_a, "type"_a);
    nb::class_<HalvesAdd, Kernel>(m, "HalvesAdd")
        .def(nb::init<std::int64_t, const std::string&>(), "count"_a, "type"_a);
}

}  // namespace graphkit
#endif
