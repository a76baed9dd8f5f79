#include "runtime/cpu_info.h"

#include <algorithm>
#include <cstdint>

#if defined(__linux__)
#include <unistd.h>
#endif

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#define GRAPHKIT_X86 1
#endif

namespace graphkit {

#ifdef GRAPHKIT_X86
namespace {

struct Registers {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
    Registers r;
    __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);  // all zeros if the processor lacks the leaf
    return r;
}

// Returns XCR0: the register states that the operating system saves. Needs OSXSAVE.
std::uint64_t enabled_states() {
    unsigned low = 0;
    unsigned high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<std::uint64_t>(high) << 32) | low;
}

}  // namespace

std::vector<std::string> cpu_features() {
    const auto bit = [](unsigned word, int position) { return ((word >> position) & 1U) != 0; };
    const Registers basic = cpuid(1, 0);
    const Registers extended = cpuid(7, 0);
    const Registers more = cpuid(7, 1);
    const std::uint64_t states = bit(basic.ecx, 27) ? enabled_states() : 0;
    const auto enabled = [&](std::uint64_t mask) { return (states & mask) == mask; };
    const bool ymm = enabled(0x6);
    const bool zmm = enabled(0xe6);
    const bool tiles = enabled(0x60000);

    const struct {
        const char* name;
        bool present;
    } table[] = {
        {"sse4_1", bit(basic.ecx, 19)},
        {"sse4_2", bit(basic.ecx, 20)},
        {"avx", ymm && bit(basic.ecx, 28)},
        {"f16c", ymm && bit(basic.ecx, 29)},
        {"fma", ymm && bit(basic.ecx, 12)},
        {"avx2", ymm && bit(extended.ebx, 5)},
        {"avx_vnni", ymm && bit(more.eax, 4)},
        {"avx512f", zmm && bit(extended.ebx, 16)},
        {"avx512dq", zmm && bit(extended.ebx, 17)},
        {"avx512bw", zmm && bit(extended.ebx, 30)},
        {"avx512vl", zmm && bit(extended.ebx, 31)},
        {"avx512_vnni", zmm && bit(extended.ecx, 11)},
        {"avx512_bf16", zmm && bit(more.eax, 5)},
        {"avx512_fp16", zmm && bit(extended.edx, 23)},
        {"amx_tile", tiles && bit(extended.edx, 24)},
        {"amx_int8", tiles && bit(extended.edx, 25)},
        {"amx_bf16", tiles && bit(extended.edx, 22)},
    };
    std::vector<std::string> found;
    for (const auto& feature : table) {
        if (feature.present) {
            found.emplace_back(feature.name);
        }
    }
    return found;
}
#else
std::vector<std::string> cpu_features() {
    return {};
}
#endif

bool has_bfloat16() {
#ifdef GRAPHKIT_ONEDNN
    const std::vector<std::string> features = cpu_features();
    return std::any_of(features.begin(), features.end(),
                       [](const std::string& name) { return name == "avx512_bf16" || name == "amx_bf16"; });
#else
    return false;
#endif
}

std::int64_t last_level_cache() {
    static const std::int64_t bytes = [] {
        std::int64_t found = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
        found = static_cast<std::int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE));
#endif
        return found > 0 ? found : std::int64_t{32} << 20;
    }();
    return bytes;
}

std::string compiler() {
#if defined(__clang__)
    return "clang " __clang_version__;
#elif defined(__GNUC__)
    return "g++ " __VERSION__;
#else
    return "unknown";
#endif
}

}  // namespace graphkit
