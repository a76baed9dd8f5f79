// Maxima of windows for element types that have no vector code, without their positions.
#include <algorithm>
#include <limits>

#include "kernels/pool/plane_loops.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// y = the maximum of each window; NaN if it contains one. Windows of padding give the lowest number.
template <typename T>
class PlainMaxPool final : public Kernel {
  public:
    PlainMaxPool(const Dims& x, const Dims& y, const PoolWindow& window, ElementType type, int threads)
        : Kernel("MaxPool", threads), geometry_(pool_geometry(*this, x, y, window)) {
        inputs_ = {{"x", x, type}};
        outputs_ = {{"y", y, type}, {"indices", y, ElementType::i64, true}};
    }

    void run(const void* const* inputs, void* const* outputs, std::byte*) const override {
        const auto* x = static_cast<const T*>(inputs[0]);
        auto* y = static_cast<T*>(outputs[0]);
        const PoolGeometry& g = geometry_;
        parallel_for(threads(), g.planes, plane_cost(g), [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t plane = begin; plane < end; ++plane) {
                const T* const values = x + plane * g.input_size();
                for_each_row(g, [&](std::int64_t at, const Span& depth, const Span& height) {
                    T* const best = y + plane * g.output_size() + at;
                    std::fill_n(best, g.row(), kLowest);
                    for_each_tap(g, depth, height, [&](std::int64_t row, const Tap& tap) {
                        g.stride == 1 ? keep_greater(values + row, 1, tap, best)
                                      : keep_greater(values + row, g.stride, tap, best);
                    });
                });
            }
        });
    }

  private:
    static constexpr T kLowest =
        std::is_floating_point_v<T> ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::min();

    static inline void keep_greater(const T* values, std::int64_t stride, const Tap& tap, T* best) {
#pragma omp simd
        for (std::int64_t w = tap.first; w < tap.last; ++w) {
            const T value = values[w * stride];
            const bool stays = (value <= best[w]) | (best[w] != best[w]);
            best[w] = stays ? best[w] : value;
        }
    }

    PoolGeometry geometry_;
};

}  // namespace

std::unique_ptr<Kernel> make_plain_max_pool(const Dims& x, const Dims& y, const PoolWindow& window, ElementType type,
                                            int threads) {
    switch (type) {
        case ElementType::f64:
            return std::make_unique<PlainMaxPool<double>>(x, y, window, type, threads);
        case ElementType::i8:
            return std::make_unique<PlainMaxPool<std::int8_t>>(x, y, window, type, threads);
        case ElementType::u8:
            return std::make_unique<PlainMaxPool<std::uint8_t>>(x, y, window, type, threads);
        default:
            throw Unsupported("a pool of such elements");
    }
}

}  // namespace graphkit
