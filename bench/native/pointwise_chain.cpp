// Baselines of bench/pointwise.py: the same chain fused by hand, and plain copies.
//
// Compiled with the machine's own instruction set, by the script. The chain is
// -x + y sigmoid(gelu(x y + 1)), with the tanh formula of GELU.
#include <cstdint>

#include "simd/math.h"

namespace {

using graphkit::Vector;
constexpr std::int64_t kLanes = graphkit::kLanes<float>;
constexpr std::int64_t kAhead = 1024;  // floats that are asked for early

inline void stream(float* to, Vector<float> v) {
#if defined(__AVX512F__)
    _mm512_stream_ps(to, graphkit::bit_cast<__m512>(v));
#elif defined(__AVX2__)
    _mm256_stream_ps(to, graphkit::bit_cast<__m256>(v));
#else
    graphkit::store(to, v);
#endif
}

template <typename Function>
void share(std::int64_t size, int threads, Function function) {
#pragma omp parallel for schedule(static, 1) num_threads(threads)
    for (int part = 0; part < threads; ++part) {
        const std::int64_t vectors = size / kLanes;
        function(vectors * part / threads * kLanes, vectors * (part + 1) / threads * kLanes);
    }
}

inline Vector<float> chain(Vector<float> x, Vector<float> y) {
    const Vector<float> a = x * y + 1.0F;
    return graphkit::sigmoid<float>(graphkit::gelu_tanh<float>(a)) * y - x;
}

}  // namespace

// All pointers are aligned to 64 bytes, and sizes are multiples of 16.
extern "C" void chain_fused(const float* x, const float* y, float* z, std::int64_t size, int threads, bool streamed) {
    share(size, threads, [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; i += kLanes) {
            __builtin_prefetch(x + i + kAhead);
            __builtin_prefetch(y + i + kAhead);
            const Vector<float> v = chain(graphkit::load(x + i), graphkit::load(y + i));
            if (streamed) {
                stream(z + i, v);
            } else {
                graphkit::store(z + i, v);
            }
        }
    });
}

// The ceiling of anything that reads two arrays and writes one.
extern "C" void two_reads_one_write(const float* x, const float* y, float* z, std::int64_t size, int threads,
                                    bool streamed) {
    share(size, threads, [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; i += kLanes) {
            const Vector<float> v = graphkit::load(x + i) + graphkit::load(y + i);
            if (streamed) {
                stream(z + i, v);
            } else {
                graphkit::store(z + i, v);
            }
        }
    });
}
