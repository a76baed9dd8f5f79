#include "runtime/kernel.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

namespace graphkit {
namespace {

struct ElementInfo {
    const char* name;
    const char* short_name;
    std::size_t size;
};

constexpr std::array<ElementInfo, 13> kElements{{{"float32", "f32", 4},
                                                 {"float64", "f64", 8},
                                                 {"float16", "f16", 2},
                                                 {"bfloat16", "bf16", 2},
                                                 {"int8", "i8", 1},
                                                 {"int16", "i16", 2},
                                                 {"int32", "i32", 4},
                                                 {"int64", "i64", 8},
                                                 {"uint8", "u8", 1},
                                                 {"uint16", "u16", 2},
                                                 {"uint32", "u32", 4},
                                                 {"uint64", "u64", 8},
                                                 {"bool", "bool", 1}}};

const ElementInfo& info(ElementType type) {
    return kElements[static_cast<std::size_t>(type)];
}

}  // namespace

ElementType element_type(const std::string& name) {
    for (std::size_t i = 0; i < kElements.size(); ++i) {
        if (name == kElements[i].name) {
            return static_cast<ElementType>(i);
        }
    }
    throw Unsupported("elements of type " + name + " have no native kernels");
}

const char* name_of(ElementType type) {
    return info(type).name;
}

std::size_t size_of(ElementType type) {
    return info(type).size;
}

std::size_t Kernel::packed_bytes(int input) const {
    require_packed(input);
    return 0;
}

std::string Kernel::packed_layout(int input) const {
    require_packed(input);
    return {};
}

void Kernel::pack(int input, const void*, void*) const {
    require_packed(input);
}

void Kernel::require_packed(int input) const {
    const std::vector<int> packed = packed_inputs();
    if (std::find(packed.begin(), packed.end(), input) == packed.end()) {
        throw NativeError(describe() + ": input " + std::to_string(input) + " is not packed");
    }
}

std::string Kernel::describe() const {
    std::string text = name_ + "(";
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
        text += (i == 0 ? "" : ", ") + to_string(inputs_[i]);
    }
    text += ") -> ";
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
        text += (i == 0 ? "" : ", ") + to_string(outputs_[i]);
    }
    return text;
}

std::string to_string(const Dims& dims) {
    std::string text = "[";
    for (std::size_t i = 0; i < dims.size(); ++i) {
        text += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
    }
    return text + "]";
}

std::string to_string(const TensorSpec& spec) {
    return spec.name + " " + info(spec.type).short_name + to_string(spec.shape);
}

std::int64_t count(const Dims& dims) {
    return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

Dims row_major(const Dims& dims) {
    Dims strides(dims.size());
    std::int64_t step = 1;
    for (std::size_t i = dims.size(); i-- > 0;) {
        strides[i] = step;
        step *= dims[i];
    }
    return strides;
}

}  // namespace graphkit
