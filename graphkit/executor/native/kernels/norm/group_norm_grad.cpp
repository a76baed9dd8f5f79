// Gradients of GroupNormalization and InstanceNormalization.
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/norm/norm.h"
#include "primitives/float_type.h"
#include "primitives/reduction_table.h"
#include "runtime/bindings.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

constexpr double kGroupElementNanoseconds = 0.5;
// With fewer groups, they are computed one after the other, and threads share the channels of each.
constexpr std::int64_t kManyGroups = 16;

// dx, dscale and dbias from dy, x and scale. Outputs may be absent. Sums over a group are sums over channels of sums
// over positions, so results do not depend on the number of threads.
class GroupNormGrad : public Kernel {
  public:
    GroupNormGrad(const Dims& x, std::int64_t groups, const std::string& type, double epsilon, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename T>
    void run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const;
    template <typename T>
    void run_group(const T* dy, const T* x, T* dx, const Wide<T>* scale, Wide<T>* const* sums, std::int64_t group,
                   int threads) const;
    template <typename T>
    void store_sum(const Wide<T>* sums, Wide<T>* total, void* to) const;

    ElementType type_;
    double epsilon_;
    std::int64_t images_, channels_, groups_, per_group_, inner_;
};

}  // namespace

GroupNormGrad::GroupNormGrad(const Dims& x, std::int64_t groups, const std::string& type, double epsilon, int threads)
    : Kernel("GroupNormGrad", threads), type_(float_type(type)), epsilon_(epsilon), groups_(groups) {
    if (x.size() < 2 || groups < 1 || x[1] % groups != 0) {
        throw NativeError(name() + ": the channels of " + to_string(x) + " cannot be divided into " +
                          std::to_string(groups) + " groups");
    }
    images_ = x[0];
    channels_ = x[1];
    per_group_ = x[1] / groups;
    inner_ = count(Dims(x.begin() + 2, x.end()));
    inputs_ = {{"dy", x, type_}, {"x", x, type_}, {"scale", {channels_}, type_}};
    outputs_ = {{"dx", x, type_, true}, {"dscale", {channels_}, type_, true}, {"db", {channels_}, type_, true}};
}

std::size_t GroupNormGrad::scratch_bytes() const {
    // scale; a total; for each channel of each image the sums of dy, of dy * (x - mean) and of (x - mean)^2.
    return static_cast<std::size_t>(channels_ * (2 + 3 * images_)) * sizeof(double);
}

// With h = (x - mean) * r: dx = r * (scale * dy - mean(scale * dy) - h * mean(scale * dy * h)).
template <typename T>
void GroupNormGrad::run_group(const T* dy, const T* x, T* dx, const Wide<T>* scale, Wide<T>* const* sums,
                              std::int64_t group, int threads) const {
    using W = Wide<T>;
    const RowFunctions<W>& functions = row_table().rows<T>();
    const std::int64_t first = group * per_group_;
    const auto elements = static_cast<double>(per_group_ * inner_);
    const W* factor = scale + first % channels_;
    const auto [totals, products, squares] = std::array<W*, 3>{sums[0] + first, sums[1] + first, sums[2] + first};
    const auto for_each_channel = [&](double passes, auto&& body) {
        const double cost = 20 + passes * 0.1 * static_cast<double>(inner_);
        parallel_for(threads, per_group_, cost, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) {
                body(i, (first + i) * inner_);
            }
        });
    };
    for_each_channel(1, [&](std::int64_t i, std::int64_t at) {
        reduction_table().reduction<T>(Reduction::sum).rows(x + at, 1, 0, inner_, nullptr, totals + i);
    });
    double sum = 0;
    for (std::int64_t i = 0; i < per_group_; ++i) {
        sum += static_cast<double>(totals[i]);
    }
    const auto mean = static_cast<W>(sum / elements);
    for_each_channel(3, [&](std::int64_t i, std::int64_t at) {
        reduction_table().reduction<T>(Reduction::sum).rows(dy + at, 1, 0, inner_, nullptr, totals + i);
        reduction_table().reduction<T>(Reduction::sum_squares_about).rows(x + at, 1, 0, inner_, &mean, squares + i);
        Block<T> wide_dy;
        Block<T> wide_x;
        double product = 0;
        for_each_block<T>(inner_, [&](std::int64_t begin, std::int64_t size) {
            product += static_cast<double>(functions.dot_about(widened(dy + at + begin, wide_dy, size),
                                                               widened(x + at + begin, wide_x, size), mean, size));
        });
        products[i] = static_cast<W>(product);
    });
    double spread = 0;
    double level = 0;
    double slope = 0;
    for (std::int64_t i = 0; i < per_group_; ++i) {
        spread += static_cast<double>(squares[i]);
        level += static_cast<double>(factor[i]) * static_cast<double>(totals[i]);
        slope += static_cast<double>(factor[i]) * static_cast<double>(products[i]);
    }
    const double r = 1 / std::sqrt(spread / elements + epsilon_);
    const auto tilt = static_cast<W>(-slope / elements * r * r * r);
    const auto shift = static_cast<W>(-level / elements * r);
    for (std::int64_t i = 0; i < per_group_; ++i) {
        products[i] *= static_cast<W>(r);
    }
    if (dx == nullptr) {
        return;
    }
    for_each_channel(1, [&](std::int64_t i, std::int64_t at) {
        const W weight = static_cast<W>(r) * factor[i];
        Block<T> wide_dy;
        Block<T> wide_x;
        for_each_block<T>(inner_, [&](std::int64_t begin, std::int64_t size) {
            W* to = target(dx + at + begin, wide_dy);
            functions.blend(widened(dy + at + begin, wide_dy, size), weight, widened(x + at + begin, wide_x, size),
                            mean, tilt, shift, to, size);
            narrowed(to, dx + at + begin, size);
        });
    });
}

// Adds the sums of each channel over all images, and writes the totals.
template <typename T>
void GroupNormGrad::store_sum(const Wide<T>* sums, Wide<T>* total, void* to) const {
    if (to == nullptr) {
        return;
    }
    for (std::int64_t channel = 0; channel < channels_; ++channel) {
        double sum = 0;
        for (std::int64_t image = 0; image < images_; ++image) {
            sum += static_cast<double>(sums[image * channels_ + channel]);
        }
        total[channel] = static_cast<Wide<T>>(sum);
    }
    store_floats(total, to, type_, channels_);
}

template <typename T>
void GroupNormGrad::run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    using W = Wide<T>;
    const auto* dy = static_cast<const T*>(inputs[0]);
    const auto* x = static_cast<const T*>(inputs[1]);
    auto* dx = static_cast<T*>(outputs[0]);
    auto* scale = reinterpret_cast<W*>(scratch);
    W* total = scale + channels_;
    const std::int64_t planes = images_ * channels_;
    W* const sums[3] = {total + channels_, total + channels_ + planes, total + channels_ + 2 * planes};
    load_floats(inputs[2], type_, scale, channels_);
    const std::int64_t groups = inner_ == 0 || channels_ == 0 ? 0 : images_ * groups_;
    if (groups == 0) {
        std::fill_n(sums[0], 2 * planes, W{0});
    }
    if (groups >= kManyGroups) {
        const double cost = 50 + kGroupElementNanoseconds * static_cast<double>(per_group_ * inner_);
        parallel_for(threads(), groups, cost, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t group = begin; group < end; ++group) {
                run_group(dy, x, dx, scale, sums, group, 1);
            }
        });
    } else {
        for (std::int64_t group = 0; group < groups; ++group) {
            run_group(dy, x, dx, scale, sums, group, threads());
        }
    }
    store_sum<T>(sums[1], total, outputs[1]);
    store_sum<T>(sums[0], total, outputs[2]);
}

void GroupNormGrad::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    with_float_type(type_, [&]<typename T>() { run_as<T>(inputs, outputs, scratch); });
}

static const RecipeConstructor<GroupNormGrad, const Dims&, std::int64_t, const std::string&, double, int>
    group_norm_grad_recipe("GroupNormGrad");

GRAPHKIT_BINDINGS(group_norm_grad) {
    nb::class_<GroupNormGrad, Kernel>(m, "GroupNormGrad")
        .def("__init__", group_norm_grad_recipe.init(), "x"_a, "groups"_a, "type"_a, "epsilon"_a, "threads"_a = 0);
}

}  // namespace graphkit
