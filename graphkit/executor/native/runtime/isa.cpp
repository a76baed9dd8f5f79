#include "runtime/isa.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "runtime/cpu_info.h"
#include "runtime/kernel.h"

namespace graphkit {
namespace {

constexpr std::array<const char*, 3> kNames = {"baseline", "avx2", "avx512"};

[[maybe_unused]] bool processor_has(std::initializer_list<const char*> names) {
    const std::vector<std::string> features = cpu_features();
    return std::all_of(names.begin(), names.end(), [&](const char* name) {
        return std::find(features.begin(), features.end(), name) != features.end();
    });
}

// Returns the best instruction set that both the processor and this build support.
Isa best() {
    Isa found = Isa::baseline;
#ifdef GRAPHKIT_AVX2_KERNELS
    if (processor_has({"avx2", "fma", "f16c"})) {
        found = Isa::avx2;
    }
#endif
#ifdef GRAPHKIT_AVX512_KERNELS
    if (processor_has({"avx2", "fma", "f16c", "avx512f", "avx512dq", "avx512bw", "avx512vl"})) {
        found = Isa::avx512;
    }
#endif
    return found;
}

Isa offered() {
    static const Isa isa = best();
    return isa;
}

std::atomic<Isa>& chosen() {
    static std::atomic<Isa> isa{offered()};
    return isa;
}

}  // namespace

Isa isa() {
    return chosen().load(std::memory_order_relaxed);
}

const char* isa_name() {
    return kNames[static_cast<std::size_t>(isa())];
}

void use_isa(const std::string& name) {
    if (name.empty()) {
        chosen() = offered();
        return;
    }
    const auto found = std::find(kNames.begin(), kNames.end(), name);
    const auto set = static_cast<Isa>(found - kNames.begin());
    if (found == kNames.end() || set > offered()) {
        throw Unsupported("no vector kernels for '" + name + "' here: the best set of this processor and build is " +
                          kNames[static_cast<std::size_t>(offered())]);
    }
    chosen() = set;
}

}  // namespace graphkit
