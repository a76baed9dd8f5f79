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

Isa best() {
#ifdef GRAPHKIT_X86_KERNELS
    const std::vector<std::string> features = cpu_features();
    const auto has_all = [&](std::initializer_list<const char*> names) {
        return std::all_of(names.begin(), names.end(), [&](const char* name) {
            return std::find(features.begin(), features.end(), name) != features.end();
        });
    };
    if (has_all({"avx2", "fma", "f16c"})) {
        return has_all({"avx512f", "avx512dq", "avx512bw", "avx512vl"}) ? Isa::avx512 : Isa::avx2;
    }
#endif
    return Isa::baseline;
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
        throw Unsupported("no vector kernels for '" + name + "' here: this processor has " +
                          kNames[static_cast<std::size_t>(offered())]);
    }
    chosen() = set;
}

}  // namespace graphkit
