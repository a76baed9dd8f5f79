// Max pooling of bytes, channels last.
#include <vector>

#include "kernels/pool/pool.h"
#include "kernels/quant/linear_table.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

Dims channels_behind(const Dims& dims) {
    Dims moved(dims);
    moved.erase(moved.begin() + 1);
    moved.push_back(dims[1]);
    return moved;
}

// y [N, positions, C] from x [N, spatial, C]; shapes are given as [N, C, ...].
class ByteMaxPool final : public Kernel {
  public:
    ByteMaxPool(const Dims& x, const Dims& y, const PoolWindow& window, ElementType type, int threads)
        : Kernel("ChannelsLastByteMaxPool", threads), channels_(x[1]), functions_(linear_functions()) {
        inputs_ = {{"x", x, type}};
        outputs_ = {{"y", y, type}};
        geometry_ = pool_geometry(*this, x, y, window);
        inputs_[0].shape = channels_behind(x);
        outputs_[0].shape = channels_behind(y);
    }

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    void row(const std::uint8_t* x, std::uint8_t* y, std::int64_t depth, std::int64_t height,
             std::vector<const std::uint8_t*>& rows) const;

    PoolGeometry geometry_;
    std::int64_t channels_;
    const LinearFunctions& functions_;
};

void ByteMaxPool::row(const std::uint8_t* x, std::uint8_t* y, std::int64_t depth, std::int64_t height,
                      std::vector<const std::uint8_t*>& rows) const {
    const PoolGeometry& g = geometry_;
    const Span& deep = g.windows[0][static_cast<std::size_t>(depth)];
    const Span& high = g.windows[1][static_cast<std::size_t>(height)];
    for (const Span& wide : g.windows[2]) {
        rows.clear();
        for (std::int64_t i = deep.first; i < deep.last; ++i) {
            const std::int64_t plane = (deep.start + i * g.dilation[0]) * g.input[1];
            for (std::int64_t j = high.first; j < high.last; ++j) {
                const std::int64_t line = (plane + high.start + j * g.dilation[1]) * g.input[2];
                for (std::int64_t k = wide.first; k < wide.last; ++k) {
                    rows.push_back(x + (line + wide.start + k * g.dilation[2]) * channels_);
                }
            }
        }
        const std::uint8_t flip = outputs_[0].type == ElementType::i8 ? 0x80 : 0;
        functions_.maximum(rows.data(), static_cast<std::int64_t>(rows.size()), channels_, flip, y);
        y += channels_;
    }
}

void ByteMaxPool::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    const PoolGeometry& g = geometry_;
    const auto* x = static_cast<const std::uint8_t*>(inputs[0]);
    auto* y = static_cast<std::uint8_t*>(outputs[0]);
    const auto heights = static_cast<std::int64_t>(g.windows[1].size());
    const auto lines = static_cast<std::int64_t>(g.windows[0].size()) * heights;
    const std::int64_t row_size = g.row() * channels_;
    const double cost = 0.02 * static_cast<double>(row_size * g.most_inside());
    parallel_for(threads(), inputs_[0].shape[0] * lines, cost, [&](std::int64_t begin, std::int64_t end) {
        std::vector<const std::uint8_t*> rows;
        rows.reserve(static_cast<std::size_t>(g.most_inside()));
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t at = i % lines;
            row(x + i / lines * g.input_size() * channels_, y + i * row_size, at / heights, at % heights, rows);
        }
    });
}

}  // namespace

std::unique_ptr<Kernel> make_byte_max_pool(const Dims& x, const Dims& y, const PoolWindow& window, ElementType type,
                                           int threads) {
    return std::make_unique<ByteMaxPool>(x, y, window, type, threads);
}

}  // namespace graphkit
