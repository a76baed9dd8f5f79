// The instruction set of graphkit's own vector kernels, and the tables of functions that are compiled for each set.
//
// CMakeLists.txt compiles every *.isa.cpp once for each set; graphkit_isa_sources there describes the form of such a
// file.
#pragma once

#include <cstdint>
#include <string>

namespace graphkit {

enum class Isa : std::uint8_t { baseline, avx2, avx512 };

// Returns the set in use: the best one that the processor supports, or the one that use_isa chose. avx2 means AVX2, FMA
// and F16C; avx512 adds the F, DQ, BW and VL parts of AVX-512.
Isa isa();

const char* isa_name();

// Selects the set of the kernels that are made from now on: "baseline", "avx2", "avx512", or "" for the best one.
// Throws Unsupported if the processor lacks the set or this build has no kernels for it.
void use_isa(const std::string& name);

}  // namespace graphkit

// Declares the tables of all sets, and name(), which returns the table of the set in use.
#ifdef GRAPHKIT_AVX2_KERNELS
#define GRAPHKIT_AVX2_TABLE(name) \
    case ::graphkit::Isa::avx2:   \
        return name##_avx2;
#else
#define GRAPHKIT_AVX2_TABLE(name)
#endif
#ifdef GRAPHKIT_AVX512_KERNELS
#define GRAPHKIT_AVX512_TABLE(name) \
    case ::graphkit::Isa::avx512:   \
        return name##_avx512;
#else
#define GRAPHKIT_AVX512_TABLE(name)
#endif
#define GRAPHKIT_ISA_TABLE(Table, name) \
    extern const Table name##_baseline; \
    extern const Table name##_avx2;     \
    extern const Table name##_avx512;   \
    inline const Table& name() {        \
        switch (::graphkit::isa()) {    \
            GRAPHKIT_AVX512_TABLE(name) \
            GRAPHKIT_AVX2_TABLE(name)   \
            default:                    \
                return name##_baseline; \
        }                               \
    }                                   \
    static_assert(true)

// Defines the table of the set that this *.isa.cpp is being compiled for: GRAPHKIT_ISA_DEFINE(Table, name) = {...};
#define GRAPHKIT_ISA_DEFINE(Table, name) constinit const Table GRAPHKIT_ISA_PASTE(name, GRAPHKIT_ISA)
#define GRAPHKIT_ISA_PASTE(name, isa) GRAPHKIT_ISA_PASTE_EXPANDED(name, isa)
#define GRAPHKIT_ISA_PASTE_EXPANDED(name, isa) name##_##isa
