// Which instruction set graphkit's own vector kernels use.
//
// A family of kernels has one source, simd/<family>.h, that is compiled once for each set by simd/<family>_<isa>.cpp
// into a constinit table of functions; the family takes its table with GRAPHKIT_SELECT when a kernel is made.
#pragma once

#include <cstdint>
#include <string>

namespace graphkit {

enum class Isa : std::uint8_t { baseline, avx2, avx512 };

// The best set that the processor offers, unless use_isa said otherwise. avx2 means AVX2, FMA and F16C; avx512 the F,
// DQ, BW and VL parts besides.
Isa isa();

const char* isa_name();

// Kernels made from now on use the named set, "baseline", "avx2" or "avx512", or the best one for "". Throws Unsupported
// when the processor lacks it or this build has no kernels for it.
void use_isa(const std::string& name);

template <typename Table>
const Table& select(const Table& baseline, const Table& avx2, const Table& avx512) {
    switch (isa()) {
        case Isa::avx512:
            return avx512;
        case Isa::avx2:
            return avx2;
        case Isa::baseline:
            break;
    }
    return baseline;
}

}  // namespace graphkit

// Tables for avx2 and avx512 exist only where GRAPHKIT_X86_KERNELS is defined.
#ifdef GRAPHKIT_X86_KERNELS
#define GRAPHKIT_SELECT(baseline, avx2, avx512) ::graphkit::select(baseline, avx2, avx512)
#else
#define GRAPHKIT_SELECT(baseline, avx2, avx512) (baseline)
#endif
