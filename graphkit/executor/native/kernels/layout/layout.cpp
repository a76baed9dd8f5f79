#include "kernels/layout/layout.h"

#include <algorithm>
#include <cstring>

#include "primitives/elements.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

void require_inside(const Kernel& kernel, const Dims& sizes, const Dims& strides, std::int64_t offset,
                    std::int64_t elements) {
    if (sizes.size() != strides.size()) {
        throw NativeError(kernel.describe() + ": sizes and strides have different lengths");
    }
    if (count(sizes) == 0) {
        return;
    }
    std::int64_t lowest = offset;
    std::int64_t highest = offset;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        const std::int64_t reach = (sizes[i] - 1) * strides[i];
        (reach < 0 ? lowest : highest) += reach;
    }
    if (lowest < 0 || highest >= elements) {
        throw NativeError(kernel.describe() + ": the view leaves the array");
    }
}

}  // namespace

StridedView::StridedView(std::string name, Dims x, Dims y, const Dims& sizes, const Dims& strides, std::int64_t offset,
                         ElementType type, int threads)
    : Kernel(std::move(name), threads), offset_(offset * static_cast<std::int64_t>(size_of(type))) {
    inputs_ = {{"x", std::move(x), type}};
    outputs_ = {{"y", std::move(y), type}};
    require_inside(*this, sizes, strides, offset, count(inputs_[0].shape));
    if (count(sizes) != count(outputs_[0].shape)) {
        throw NativeError(describe() + ": the view has " + std::to_string(count(sizes)) + " elements");
    }
    copy_ = StridedCopy(sizes, strides, row_major(sizes), size_of(type));
}

void StridedView::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    copy_.run(threads(), static_cast<const std::byte*>(inputs[0]) + offset_, outputs[0]);
}

StridedPlacement::StridedPlacement(std::string name, Dims x, Dims y, const Dims& strides, std::int64_t offset,
                                   ElementType type, int threads)
    : Kernel(std::move(name), threads), offset_(offset * static_cast<std::int64_t>(size_of(type))) {
    const Dims sizes = x;
    inputs_ = {{"x", std::move(x), type}};
    outputs_ = {{"y", std::move(y), type}};
    require_inside(*this, sizes, strides, offset, count(outputs_[0].shape));
    whole_ = count(sizes) == count(outputs_[0].shape);
    copy_ = StridedCopy(sizes, row_major(sizes), strides, size_of(type));
}

void StridedPlacement::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    auto* y = static_cast<std::byte*>(outputs[0]);
    if (!whole_) {
        clear(threads(), y, count(outputs_[0].shape) * static_cast<std::int64_t>(size_of(outputs_[0].type)));
    }
    copy_.run(threads(), inputs[0], y + offset_);
}

}  // namespace graphkit
