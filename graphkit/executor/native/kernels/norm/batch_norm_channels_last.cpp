#include "kernels/norm/batch_norm_channels_last.h"

#include <algorithm>
#include <cmath>

#include "runtime/bindings.h"
#include "runtime/isa.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

constexpr double kElementNanoseconds = 0.1;
// Number of rows that are summed in float before the sums are added in double.
constexpr std::int64_t kFloatRows = 128;
// Least elements of a part, and the largest number of parts.
constexpr std::int64_t kPartElements = 65536;
constexpr std::int64_t kMostParts = 64;
// Number of rows whose mean is the shift of the moments.
constexpr std::int64_t kShiftRows = 8;

std::int64_t padded(std::int64_t channels) {
    return (channels + 15) / 16 * 16;
}

// Calls body(first row, rows) for the blocks of a part, in reverse order if `backwards`: rows that were processed last
// are still in the cache.
template <typename Body>
void for_each_block(const NormPartition& p, std::int64_t part, bool backwards, Body&& body) {
    const std::int64_t begin = p.begin(part);
    const std::int64_t end = p.begin(part + 1);
    const std::int64_t blocks = (end - begin + kFloatRows - 1) / kFloatRows;
    for (std::int64_t i = 0; i < blocks; ++i) {
        const std::int64_t first = begin + (backwards ? blocks - 1 - i : i) * kFloatRows;
        body(first, std::min(kFloatRows, end - first));
    }
}

// Calls body(part) for all parts, shared among threads. A thread gets the same parts for any body.
template <typename Body>
void for_each_part(const NormPartition& p, int threads, bool backwards, Body&& body) {
    const double cost = kElementNanoseconds * static_cast<double>(p.rows * p.channels) / static_cast<double>(p.parts);
    parallel_for(threads, p.parts, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            body(backwards ? begin + end - 1 - i : i);
        }
    });
}

// Computes two sums over all rows for each channel. add(first row, rows, sums, others) sums a block of rows in float;
// then finish(channel, sum, other) is called.
template <typename AddBlock, typename Finish>
void sum_rows(const NormPartition& p, int threads, std::byte* scratch, AddBlock&& add, Finish&& finish) {
    const std::int64_t width = 2 * padded(p.channels);
    auto* totals = reinterpret_cast<double*>(scratch);
    auto* floats = reinterpret_cast<float*>(totals + p.parts * width);
    for_each_part(p, threads, false, [&](std::int64_t part) {
        double* total = totals + part * width;
        float* few = floats + part * width;
        std::fill_n(total, width, 0.0);
        for_each_block(p, part, false, [&](std::int64_t first, std::int64_t rows) {
            std::fill_n(few, width, 0.0F);
            add(first, rows, few, few + width / 2);
            for (std::int64_t i = 0; i < width; ++i) {
                total[i] += static_cast<double>(few[i]);
            }
        });
    });
    const double cost = 0.5 * static_cast<double>(p.parts);
    parallel_for(
        threads, p.channels, cost,
        [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t part = 1; part < p.parts; ++part) {
                for (const std::int64_t half : {std::int64_t{0}, width / 2}) {
                    for (std::int64_t c = half + begin; c < half + end; ++c) {
                        totals[c] += totals[part * width + c];
                    }
                }
            }
            for (std::int64_t c = begin; c < end; ++c) {
                finish(c, totals[c], totals[width / 2 + c]);
            }
        },
        16);
}

std::size_t vectors(std::int64_t number, std::int64_t channels) {
    return static_cast<std::size_t>(number * padded(channels)) * sizeof(float);
}

const float* at(const float* data, std::int64_t offset) {
    return data == nullptr ? nullptr : data + offset;
}

float* at(float* data, std::int64_t offset) {
    return data == nullptr ? nullptr : data + offset;
}

}  // namespace

NormPartition::NormPartition(const Dims& x) {
    channels = x.back();
    rows = count(Dims(x.begin(), x.end() - 1));
    parts = std::clamp<std::int64_t>(rows * channels / kPartElements, 1, kMostParts);
    parts = std::clamp<std::int64_t>(rows / 8, 1, parts);
}

std::size_t NormPartition::bytes() const {
    return static_cast<std::size_t>(parts * 2 * padded(channels)) * (sizeof(double) + sizeof(float));
}

ChannelsLastBatchNorm::ChannelsLastBatchNorm(Dims x, double epsilon, double momentum, float low, float high,
                                             bool residual, int threads)
    : Kernel("ChannelsLastBatchNorm", threads),
      epsilon_(epsilon),
      momentum_(momentum),
      low_(low),
      high_(high),
      functions_(batch_norm_functions()) {
    if (x.size() < 2) {
        throw NativeError(name() + ": x has no channels behind its batch axis");
    }
    partition_ = NormPartition(x);
    const Dims vector{x.back()};
    inputs_ = {{"x", x}, {"scale", vector}, {"b", vector}, {"input_mean", vector}, {"input_var", vector}};
    if (residual) {
        inputs_.push_back({"residual", x});
    }
    outputs_ = {{"y", x, ElementType::f32, true}};
    for (const char* each : {"running_mean", "running_var", "mean", "inv_std_dev"}) {
        outputs_.push_back({each, vector, ElementType::f32, true});
    }
}

std::size_t ChannelsLastBatchNorm::scratch_bytes() const {
    return partition_.bytes() + vectors(3, partition_.channels);
}

std::vector<std::pair<int, int>> ChannelsLastBatchNorm::inplace() const {
    return inputs_.size() > 5 ? std::vector<std::pair<int, int>>{{5, 0}} : std::vector<std::pair<int, int>>{};
}

void ChannelsLastBatchNorm::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const NormPartition& p = partition_;
    const std::int64_t channels = p.channels;
    const auto input = [&](std::size_t i) { return static_cast<const float*>(inputs[i]); };
    const float* x = input(0);
    const float* residual = inputs_.size() > 5 ? input(5) : nullptr;
    auto* y = static_cast<float*>(outputs[0]);
    auto* shift = reinterpret_cast<float*>(scratch + p.bytes());
    float* mean = shift + padded(channels);
    float* factor = mean + padded(channels);
    const std::int64_t sampled = std::min(kShiftRows, p.rows);
    for (std::int64_t c = 0; c < channels; ++c) {
        float total = 0;
        for (std::int64_t i = 0; i < sampled; ++i) {
            total += x[i * p.rows / sampled * channels + c];
        }
        shift[c] = sampled == 0 ? 0 : total / static_cast<float>(sampled);
    }
    const auto elements = static_cast<double>(p.rows);
    const auto running = [&](std::size_t which, std::int64_t c, double current) {
        if (outputs[which] != nullptr) {
            const double kept = static_cast<double>(input(2 + which)[c]) * momentum_;
            static_cast<float*>(outputs[which])[c] = static_cast<float>(kept + current * (1 - momentum_));
        }
    };
    sum_rows(
        p, threads(), scratch,
        [&](std::int64_t first, std::int64_t rows, float* sums, float* squares) {
            functions_.add_moments(x + first * channels, rows, channels, shift, sums, squares);
        },
        [&](std::int64_t c, double sum, double square) {
            const double off = sum / elements;
            const double centre = static_cast<double>(shift[c]) + off;
            const double spread = std::max(square / elements - off * off, 0.0);
            const double inverse = 1 / std::sqrt(spread + epsilon_);
            running(1, c, centre);
            running(2, c, spread);
            mean[c] = static_cast<float>(centre);
            factor[c] = static_cast<float>(inverse) * input(1)[c];
            for (const auto& [which, value] : {std::pair(3, centre), std::pair(4, inverse)}) {
                if (outputs[which] != nullptr) {
                    static_cast<float*>(outputs[which])[c] = static_cast<float>(value);
                }
            }
        });
    if (y == nullptr) {
        return;
    }
    for_each_part(p, threads(), true, [&](std::int64_t part) {
        for_each_block(p, part, true, [&](std::int64_t first, std::int64_t rows) {
            const std::int64_t offset = first * channels;
            functions_.normalise({x + offset, mean, factor, input(2), rows, channels}, at(residual, offset), low_,
                                 high_, y + offset);
        });
    });
}

ChannelsLastBatchNormGrad::ChannelsLastBatchNormGrad(Dims x, const NormMask& mask, bool from_y, bool addend,
                                                     int threads)
    : Kernel("ChannelsLastBatchNormGrad", threads), mask_(mask), functions_(batch_norm_functions()) {
    if (x.size() < 2) {
        throw NativeError(name() + ": x has no channels behind its batch axis");
    }
    partition_ = NormPartition(x);
    const Dims vector{x.back()};
    inputs_ = {{"dy", x}, {"x", x}, {"scale", vector}, {"b", vector}, {"mean", vector}, {"inv_std_dev", vector}};
    inputs_.push_back({"y", x, ElementType::f32, !from_y});
    inputs_.push_back({"addend", x, ElementType::f32, !addend});
    outputs_ = {{"dx", x, ElementType::f32, true},
                {"dscale", vector, ElementType::f32, true},
                {"db", vector, ElementType::f32, true},
                {"dresidual", x, ElementType::f32, true}};
}

std::size_t ChannelsLastBatchNormGrad::scratch_bytes() const {
    return partition_.bytes() + vectors(4, partition_.channels);
}

void ChannelsLastBatchNormGrad::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const NormPartition& p = partition_;
    const std::int64_t channels = p.channels;
    const auto input = [&](std::size_t i) {
        return i < inputs_.size() ? static_cast<const float*>(inputs[i]) : nullptr;
    };
    const auto output = [&](std::size_t i) { return static_cast<float*>(outputs[i]); };
    auto* factor = reinterpret_cast<float*>(scratch + p.bytes());
    float* a = factor + padded(channels);
    float* b = a + padded(channels);
    float* c = b + padded(channels);
    const float* inverse = input(5);
    for (std::int64_t i = 0; i < channels; ++i) {
        factor[i] = inverse[i] * input(2)[i];
    }
    float* g = output(3);
    const auto block_at = [&](std::int64_t first, std::int64_t rows) {
        return NormRows{input(1) + first * channels, input(4), factor, input(3), rows, channels};
    };
    const auto elements = static_cast<double>(p.rows);
    sum_rows(
        p, threads(), scratch,
        [&](std::int64_t first, std::int64_t rows, float* sums, float* dots) {
            const std::int64_t offset = first * channels;
            functions_.add_gradients(block_at(first, rows), input(0) + offset, at(input(7), offset),
                                     at(input(6), offset), mask_, at(g, offset), sums, dots);
        },
        [&](std::int64_t i, double sum, double dot) {
            const double r = static_cast<double>(inverse[i]);
            const double whole = static_cast<double>(factor[i]);
            if (outputs[1] != nullptr) {
                output(1)[i] = static_cast<float>(dot * r);
            }
            if (outputs[2] != nullptr) {
                output(2)[i] = static_cast<float>(sum);
            }
            a[i] = factor[i];
            b[i] = static_cast<float>(-whole * r * r * dot / elements);
            c[i] = static_cast<float>(-whole * sum / elements);
        });
    if (outputs[0] == nullptr) {
        return;
    }
    const float* dy = g == nullptr ? input(0) : g;
    const float* addend = g == nullptr ? input(7) : nullptr;
    const float* y = g == nullptr ? input(6) : nullptr;
    const NormMask mask = g == nullptr ? mask_ : NormMask{};
    for_each_part(p, threads(), true, [&](std::int64_t part) {
        for_each_block(p, part, true, [&](std::int64_t first, std::int64_t rows) {
            const std::int64_t offset = first * channels;
            functions_.gradient(block_at(first, rows), dy + offset, at(addend, offset), at(y, offset), mask, a, b, c,
                                output(0) + offset);
        });
    });
}

static const RecipeConstructor<ChannelsLastBatchNorm, Dims, double, double, float, float, bool, int>
    channels_last_batch_norm_recipe("ChannelsLastBatchNorm");
static const RecipeKind channels_last_batch_norm_grad_recipe(
    "ChannelsLastBatchNormGrad",
    +[](ChannelsLastBatchNormGrad* self, Dims x, std::optional<std::pair<float, float>> passed, bool from_y,
        bool addend, int threads) {
        require_shape(x);
        const NormMask mask = passed ? NormMask{true, passed->first, passed->second} : NormMask{};
        new (self) ChannelsLastBatchNormGrad(std::move(x), mask, from_y, addend, threads);
    });

GRAPHKIT_BINDINGS(batch_norm_channels_last) {
    nb::class_<ChannelsLastBatchNorm, Kernel>(m, "ChannelsLastBatchNorm")
        .def("__init__", channels_last_batch_norm_recipe.init(), "x"_a, "epsilon"_a, "momentum"_a, nb::kw_only(),
             "low"_a, "high"_a, "residual"_a = false, "threads"_a = 0);
    nb::class_<ChannelsLastBatchNormGrad, Kernel>(m, "ChannelsLastBatchNormGrad")
        .def("__init__", channels_last_batch_norm_grad_recipe.init(), "x"_a, nb::kw_only(),
             "passed"_a.none() = nb::none(), "from_y"_a = false, "addend"_a = false, "threads"_a = 0);
}

}  // namespace graphkit
