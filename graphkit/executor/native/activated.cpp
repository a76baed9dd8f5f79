#include "activated.h"

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>

#include "float_type.h"
#include "invalid_flag.h"

namespace graphkit {
namespace {

// Results of at most so many elements are activated by our own code at once: asking all threads takes longer.
constexpr std::int64_t kFewElements = 8192;
// Nanoseconds to activate an element where that needs a function of the C library.
constexpr double kFunctionNanoseconds = 8;

// Elements that are converted together on the stack.
constexpr std::int64_t kBlock = 1024;

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

// The library's relu with a slope is a comparison: it loses nothing.
bool is_bound(const Activation& activation) {
    return activation.kind == "clip" || activation.kind == "hard_sigmoid" ||
           (activation.kind == "relu" && activation.alpha == 0);
}

bool is_lossy(const Activation& activation) {
    return is_bound(activation) || activation.kind == "gelu" || activation.kind == "exp";
}

// Behind a sum that comes last it cannot be told what the library's reference made of -inf: its relu makes NaN of it,
// its clip does not.
Epilogue in_library(Epilogue epilogue) {
    if (epilogue.residual_last && epilogue.activation && epilogue.activation->kind == "relu" &&
        epilogue.activation->alpha == 0) {
        epilogue.activation = Activation{"clip", 0, std::numeric_limits<float>::infinity()};
    }
    return epilogue;
}

// Implementations without generated code behind the product apply activations as the library's reference does.
bool is_generated(const std::string& implementation) {
    return implementation.find("gemm") == std::string::npos && implementation.find("any") == std::string::npos;
}

// Calls body(f) with the function of one element. NaN stays; of two zeros a bound is taken, as the library does, so that
// the bits do not depend on who activates.
template <typename Body>
void with_function(const Activation& activation, Body&& body) {
    const float alpha = activation.alpha;
    const float beta = activation.beta;
    const auto clip = [](float x, float low, float high) {
        const float raised = x > low || x != x ? x : low;
        return raised < high || raised != raised ? raised : high;
    };
    if (activation.kind == "relu") {
        body([](float x) { return x > 0 || x != x ? x : 0.0F; });
    } else if (activation.kind == "clip") {
        body([=](float x) { return clip(x, alpha, beta); });
    } else if (activation.kind == "hard_sigmoid") {
        body([=](float x) { return clip(alpha * x + beta, 0.0F, 1.0F); });
    } else if (activation.kind == "sigmoid") {
        body([](float x) { return 1 / (1 + std::exp(-x)); });
    } else if (activation.kind == "exp") {
        body([](float x) { return std::exp(x); });
    } else if (activation.kind == "gelu") {
        body([](float x) { return static_cast<float>(x * 0.5 * (1 + std::erf(x * 0x1.6a09e667f3bcdp-1))); });
    } else {
        throw NativeError("the activation '" + activation.kind + "' is the library's alone");
    }
}

template <typename F>
void activate_floats(F f, bool last, const float* x, const float* residual, float* y, std::int64_t size) {
    if (residual == nullptr) {
        for (std::int64_t i = 0; i < size; ++i) {
            y[i] = f(x[i]);
        }
    } else {
        for (std::int64_t i = 0; i < size; ++i) {
            y[i] = last ? f(x[i]) + residual[i] : f(x[i] + residual[i]);
        }
    }
}

// What the library made of y, mended: NaN of the product shows, any other stands for a sum that is infinite, because the
// residual is finite.
template <typename F>
void mend(F f, const float* product, float* y, std::int64_t size) {
    for (std::int64_t i = 0; i < size; ++i) {
        const float p = product[i];
        if (p != p) {
            y[i] = p;
        } else if (y[i] != y[i]) {
            y[i] = f(std::copysign(std::numeric_limits<float>::infinity(), p));
        }
    }
}

// Calls body(floats of each array..., size) for blocks of arrays of either type; the last one is written.
template <typename Body>
void in_floats(ElementType type, const void* a, const void* b, void* y, std::int64_t size, Body&& body) {
    if (type == ElementType::f32) {
        body(static_cast<const float*>(a), static_cast<const float*>(b), static_cast<float*>(y), size);
        return;
    }
    float left[kBlock];
    float right[kBlock];
    float result[kBlock];
    for (std::int64_t at = 0; at < size; at += kBlock) {
        const std::int64_t part = std::min(kBlock, size - at);
        const auto* from = static_cast<const BFloat16*>(a) + at;
        row_table().widen(from, left, part);
        if (b != nullptr) {
            row_table().widen(static_cast<const BFloat16*>(b) + at, right, part);
        }
        auto* to = static_cast<BFloat16*>(y) + at;
        row_table().widen(to, result, part);
        body(static_cast<const float*>(left), b == nullptr ? nullptr : static_cast<const float*>(right),
             static_cast<float*>(result), part);
        row_table().narrow(result, to, part);
    }
}

// The parts of an array for each thread.
template <typename Body>
void in_parts(ElementType type, std::int64_t size, int threads, double nanoseconds, Body&& body) {
    const auto element = static_cast<std::int64_t>(size_of(type));
    parallel_for(threads, size, nanoseconds, [&](std::int64_t begin, std::int64_t end) {
        body(static_cast<std::size_t>(begin * element), end - begin);
    }, kBlock);
}

const std::byte* moved(const void* array, std::size_t bytes) {
    return array == nullptr ? nullptr : static_cast<const std::byte*>(array) + bytes;
}

bool all_finite(const void* x, ElementType type, std::int64_t size, int threads) {
    std::atomic<bool> finite = true;
    parallel_for(threads, size, 0.05, [&](std::int64_t begin, std::int64_t end) {
        const bool here = type == ElementType::f32
                              ? row_table().f32.all_finite(static_cast<const float*>(x) + begin, end - begin)
                              : row_table().finite_bf16(static_cast<const BFloat16*>(x) + begin, end - begin);
        if (!here) {
            finite = false;
        }
    }, kBlock);
    return finite;
}

}  // namespace

void activate(const Epilogue& epilogue, ElementType type, const void* x, const void* residual, void* y,
              std::int64_t size, int threads) {
    const double nanoseconds = is_bound(*epilogue.activation) ? 0.1 : kFunctionNanoseconds;
    in_parts(type, size, threads, nanoseconds, [&](std::size_t at, std::int64_t part) {
        in_floats(type, moved(x, at), moved(residual, at), static_cast<std::byte*>(y) + at, part,
                  [&](const float* from, const float* added, float* to, std::int64_t here) {
                      with_function(*epilogue.activation, [&](auto f) {
                          activate_floats(f, epilogue.residual_last, from, added, to, here);
                      });
                  });
    });
}

Activated::Activated(Make make, const Epilogue& epilogue)
    : Activated(make(in_library(epilogue)), make, epilogue) {}

Activated::Activated(std::unique_ptr<LibraryKernel> product, Make make, const Epilogue& epilogue)
    : Kernel(product->name(), product->threads()), make_(std::move(make)), epilogue_(epilogue),
      product_(std::move(product)) {
    inputs_ = product_->inputs();
    outputs_ = product_->outputs();
    way_ = way_for(*product_);
    if (way_ == Way::after) {
        Epilogue before;
        before.residual = epilogue.residual && !epilogue.residual_last;
        product_ = make_(before);
    }
}

Activated::Way Activated::way_for(const LibraryKernel& product) const {
    if (!epilogue_.activation || size() == 0) {
        return Way::library;
    }
    const Activation& activation = *epilogue_.activation;
    if (activation.kind == "sigmoid" && !is_generated(product.implementation())) {
        return Way::after;
    }
    if (!is_lossy(activation)) {
        return Way::library;
    }
    // Which of two zeros a bound is may differ between both: where bits count, the number of threads must not choose.
    const bool pays = threads() > 1 || product.deterministic();
    return is_bound(activation) && pays && size() <= kFewElements ? Way::after : Way::watched;
}

bool Activated::sums_itself() const {
    return way_ == Way::after && epilogue_.residual && epilogue_.residual_last;
}

std::size_t Activated::scratch_bytes() const {
    return aligned(product_->scratch_bytes()) + (sums_itself() ? aligned(bytes()) : 0);
}

std::vector<std::pair<int, int>> Activated::inplace() const {
    return sums_itself() ? std::vector<std::pair<int, int>>{{3, 0}} : product_->inplace();
}

const LibraryKernel& Activated::plain() const {
    std::call_once(once_, [&] { plain_ = make_({}); });
    return *plain_;
}

// The product alone, with memory of its own: this is not the way of numbers.
void Activated::run_plain(const void* const* inputs, void* product) const {
    const LibraryKernel& kernel = plain();
    std::vector<const void*> operands(inputs, inputs + kernel.inputs().size());
    const bool given_packed = !product_->packed_inputs().empty();
    const bool wants_packed = !kernel.packed_inputs().empty();
    Memory plain_weights;
    Memory packed_weights;
    if (given_packed && !(wants_packed && kernel.packed_layout(1) == product_->packed_layout(1))) {
        plain_weights = allocate(static_cast<std::size_t>(count(inputs_[1].shape)) * size_of(inputs_[1].type));
        product_->unpack(1, operands[1], plain_weights.get());
        operands[1] = plain_weights.get();
    }
    if (wants_packed && (!given_packed || plain_weights)) {
        packed_weights = allocate(kernel.packed_bytes(1));
        kernel.pack(1, operands[1], packed_weights.get());
        operands[1] = packed_weights.get();
    }
    const Memory scratch = allocate(kernel.scratch_bytes());
    kernel.run(operands.data(), &product, scratch.get());
}

void Activated::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    if (way_ == Way::watched) {
        run_watched(inputs, outputs, scratch);
        return;
    }
    // A residual that comes last may lie where the result shall: the product goes elsewhere.
    void* product = sums_itself() ? scratch + aligned(product_->scratch_bytes()) : outputs[0];
    product_->run(inputs, &product, scratch);
    if (way_ == Way::after) {
        const void* residual = sums_itself() ? inputs[3] : nullptr;
        activate(epilogue_, outputs_[0].type, product, residual, outputs[0], size(), threads());
    }
}

void Activated::run_watched(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const ElementType type = outputs_[0].type;
    const void* residual = epilogue_.residual ? inputs[3] : nullptr;
    // Where the sum takes the residual's place, it is known afterwards only that it was finite.
    const bool overwrites = residual != nullptr && residual == outputs[0];
    const bool fits = !overwrites || all_finite(residual, type, size(), threads());
    if (fits) {
        set_invalid(false);
        product_->run(inputs, outputs, scratch);
        if (!team_raised_invalid()) {
            return;
        }
    }
    const Memory product = allocate(bytes());
    run_plain(inputs, product.get());
    if (!overwrites || !fits) {
        activate(epilogue_, type, product.get(), residual, outputs[0], size(), threads());
        return;
    }
    in_parts(type, size(), threads(), kFunctionNanoseconds, [&](std::size_t at, std::int64_t part) {
        in_floats(type, product.get() + at, nullptr, static_cast<std::byte*>(outputs[0]) + at, part,
                  [&](const float* from, const float*, float* to, std::int64_t here) {
                      with_function(*epilogue_.activation, [&](auto f) { mend(f, from, to, here); });
                  });
    });
}

}  // namespace graphkit
