#include "kernels/conv/transposed_table.h"

#include "kernels/conv/tiles.h"

namespace graphkit {
namespace {

constexpr std::int64_t kChain = 128;

// Computes the last products, which do not fill vectors.
template <int Vectors>
void multiply_rest(std::int64_t count, const float* x, std::int64_t channels, const float* taps, std::int64_t rest,
                   float* products, std::int64_t step) {
    constexpr std::int64_t kPadded = Vectors * kWide;
    float part[kPartTiles * kPadded];
    multiply<Vectors>(count, x, channels, taps, channels, kChain, part);
    for (std::int64_t r = 0; r < count; ++r) {
        for (int v = 0; v < Vectors - 1; ++v) {
            store(products + r * step + v * kWide, load<float>(part + r * kPadded + v * kWide));
        }
        const std::int64_t last = (Vectors - 1) * kWide;
        store_part<float>(products + r * step + last, load<float>(part + r * kPadded + last), rest - last);
    }
}

void multiply_taps(const TransposedProduct& p) {
    const std::int64_t blocks = p.floats / kBlock;
    const std::int64_t rest = p.floats % kBlock;
    const float* last = p.taps + blocks * p.channels * kBlock;
    // The elements stay in the first-level cache while they are multiplied by one block after the other.
    const std::int64_t parts = (p.count + kPartTiles - 1) / kPartTiles;
    for (std::int64_t part = 0; part < parts; ++part) {
        const std::int64_t first = p.count * part / parts;
        const std::int64_t some = p.count * (part + 1) / parts - first;
        const float* x = p.x + first * p.channels;
        float* products = p.products + first * p.floats;
        for (std::int64_t block = 0; block < blocks; ++block) {
            multiply(some, x, p.channels, p.taps + block * p.channels * kBlock, p.channels, kChain,
                     products + block * kBlock, false, p.floats);
        }
        float* there = products + blocks * kBlock;
        if (rest == kWide) {
            multiply<1>(some, x, p.channels, last, p.channels, kChain, there, false, p.floats);
        } else if (rest > kWide) {
            multiply_rest<2>(some, x, p.channels, last, rest, there, p.floats);
        } else if (rest > 0) {
            multiply_rest<1>(some, x, p.channels, last, rest, there, p.floats);
        }
    }
}

template <int Vectors, bool Whole>
void add_up_vectors(const TransposedLine& line) {
    const std::int64_t last = Whole ? kWide : line.filters - (Vectors - 1) * kWide;
    const auto read = [last](const float* from, int v) {
        return Whole || v < Vectors - 1 ? load<float>(from + v * kWide) : load_part<float>(from + v * kWide, last, 0);
    };
    Lanes bias[Vectors] = {};
    for (int v = 0; v < Vectors && line.bias != nullptr; ++v) {
        bias[v] = read(line.bias, v);
    }
    for (std::int64_t column = 0; column < line.columns; ++column) {
        Lanes sums[Vectors];
        for (int v = 0; v < Vectors; ++v) {
            sums[v] = bias[v];
        }
        for (std::int64_t row = 0; row < line.row_count; ++row) {
            for (std::int64_t at = line.begins[column]; at < line.begins[column + 1]; ++at) {
                const float* products = line.rows[row] + line.offsets[at];
                for (int v = 0; v < Vectors; ++v) {
                    sums[v] += read(products, v);
                }
            }
        }
        const std::int64_t begin = column * line.step - line.left_out;
        const std::int64_t out = std::max<std::int64_t>(0, -begin);
        const bool inside = out == 0 && begin + line.filters <= line.floats;
        float part[kBlock];
        float* y = inside ? line.y + begin : part;
        for (int v = 0; v < Vectors - 1; ++v) {
            store(y + v * kWide, sums[v]);
        }
        store_part<float>(y + (Vectors - 1) * kWide, sums[Vectors - 1], last);
        if (!inside) {
            std::copy(part + out, part + std::min(line.filters, line.floats - begin), line.y + begin + out);
        }
    }
}

void add_up(const TransposedLine& line) {
    static_assert(kVectors == 2);
    if (line.filters > kWide) {
        line.filters == kBlock ? add_up_vectors<2, true>(line) : add_up_vectors<2, false>(line);
    } else {
        line.filters == kWide ? add_up_vectors<1, true>(line) : add_up_vectors<1, false>(line);
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(TransposedTable, transposed_table) = {kBlock, kRegisterRows, multiply_taps, add_up};

}  // namespace graphkit
