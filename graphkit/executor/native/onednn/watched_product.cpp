#include "onednn/watched_product.h"

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

#include "primitives/row_table.h"
#include "runtime/bindings.h"
#include "runtime/invalid_flag.h"

namespace graphkit {
namespace {

struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Free>;

Memory allocate(std::size_t bytes) {
    Memory memory(static_cast<std::byte*>(std::aligned_alloc(kAlignment, aligned(std::max<std::size_t>(bytes, 1)))));
    if (!memory) {
        throw std::bad_alloc();
    }
    return memory;
}

// The library computes a relu with a slope by a comparison, which keeps NaN.
bool is_relu(const Activation& activation) {
    return activation.kind == "relu" && activation.alpha == 0;
}

bool is_lossy(const Activation& activation) {
    return is_relu(activation) || activation.kind == "clip" || activation.kind == "hard_sigmoid" ||
           activation.kind == "gelu" || activation.kind == "exp";
}

// For -inf, the relu of the library's reference returns NaN, but its clip does not. If the residual is added last, such
// a NaN could not be distinguished from others: use clip instead.
Epilogue in_library(Epilogue epilogue) {
    if (epilogue.residual_last && epilogue.activation && is_relu(*epilogue.activation)) {
        epilogue.activation = Activation{"clip", 0, std::numeric_limits<float>::infinity()};
    }
    return epilogue;
}

// Implementations that do not generate code for the epilogue apply activations like the library's reference.
bool is_generated(const std::string& implementation) {
    return implementation.find("gemm") == std::string::npos && implementation.find("any") == std::string::npos;
}

bool all_finite(const void* x, const TensorSpec& spec, int threads) {
    std::atomic<bool> finite = true;
    parallel_for(
        threads, count(spec.shape), 0.05,
        [&](std::int64_t begin, std::int64_t end) {
            const bool here = spec.type == ElementType::f32
                                  ? row_table().f32.all_finite(static_cast<const float*>(x) + begin, end - begin)
                                  : row_table().finite_bf16(static_cast<const BFloat16*>(x) + begin, end - begin);
            if (!here) {
                finite = false;
            }
        },
        1024);
    return finite;
}

}  // namespace

WatchedProduct::WatchedProduct(Make make, const Epilogue& epilogue)
    : WatchedProduct(make(in_library(epilogue), false), make, epilogue) {}

WatchedProduct::WatchedProduct(std::unique_ptr<LibraryKernel> product, Make make, const Epilogue& epilogue)
    : Kernel(product->name(), product->threads()),
      make_(std::move(make)),
      epilogue_(epilogue),
      product_(std::move(product)) {
    inputs_ = product_->inputs();
    outputs_ = product_->outputs();
    if (!epilogue.activation || !product_->fuses()) {
        return;
    }
    if (epilogue.activation->kind == "sigmoid" && !is_generated(product_->implementation())) {
        epilogue_.applied = Applied::after;
        product_ = make_(epilogue_, false);
        return;
    }
    watched_ = is_lossy(*epilogue.activation);
}

void WatchedProduct::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    if (product_->wants_finite() && !all_finite(inputs[0], inputs_[0], threads())) {
        run_again(Applied::after, inputs, outputs);
        return;
    }
    if (!watched_) {
        product_->run(inputs, outputs, scratch);
        return;
    }
    // If the sum overwrites the residual, a second run only knows that the residual was finite.
    const bool overwrites = epilogue_.residual != 0 && inputs[3] == outputs[0];
    const bool fits = !overwrites || all_finite(inputs[3], inputs_[3], threads());
    if (fits) {
        set_invalid(false);
        product_->run(inputs, outputs, scratch);
        if (!invalid_raised()) {
            return;
        }
    }
    run_again(overwrites && fits ? Applied::repair : Applied::after, inputs, outputs);
}

// Allocates its working memory: this is the rare case of NaN or infinities.
void WatchedProduct::run_again(Applied applied, const void* const* inputs, void* const* outputs) const {
    Lazy& again = again_[applied == Applied::repair ? 1 : 0];
    std::call_once(again.once, [&] {
        Epilogue epilogue = epilogue_;
        if (!epilogue.empty()) {
            epilogue.applied = applied;
        }
        again.kernel = make_(epilogue, true);
    });
    std::vector<const void*> operands(inputs, inputs + inputs_.size());
    Memory weights;
    if (!product_->packed_inputs().empty()) {
        weights = allocate(static_cast<std::size_t>(count(inputs_[1].shape)) * size_of(inputs_[1].type));
        product_->unpack(1, operands[1], weights.get());
        operands[1] = weights.get();
    }
    const Memory scratch = allocate(again.kernel->scratch_bytes());
    again.kernel->run(operands.data(), outputs, scratch.get());
}

}  // namespace graphkit
