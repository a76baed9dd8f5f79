// DFT: discrete Fourier transforms along an axis, of any length.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "kernels/signal/fourier_table.h"
#include "primitives/elements.h"
#include "runtime/operator_kernels.h"

namespace graphkit {
namespace {

constexpr double kPi = 3.14159265358979323846;

// exp(-2 pi i k / n).
template <typename T>
void root_of_unity(std::int64_t k, std::int64_t n, T* re, T* im) {
    // The angle is relative to the nearest eighth of a turn, whose sine and cosine are exact.
    const std::int64_t eighth = (8 * k + n / 2) / n;
    const double angle = 2 * kPi * static_cast<double>(8 * k - eighth * n) / (8 * static_cast<double>(n));
    constexpr double r = 0.70710678118654752440;
    constexpr double cosines[] = {1, r, 0, -r, -1, -r, 0, r, 1};
    constexpr double sines[] = {0, r, 1, r, 0, -r, -1, -r, 0};
    const double c = std::cos(angle), s = std::sin(angle);
    *re = static_cast<T>(cosines[eighth] * c - sines[eighth] * s);
    *im = static_cast<T>(-(sines[eighth] * c + cosines[eighth] * s));
}

// Two arrays of the same length.
template <typename T>
struct Pairs {
    std::vector<T> re, im;

    Pairs() = default;
    explicit Pairs(std::int64_t length) : re(static_cast<std::size_t>(length)), im(static_cast<std::size_t>(length)) {}
    Complex<T> view() { return {re.data(), im.data()}; }
};

// The stages of a transform whose length has only small prime factors. They transform several columns at a time.
template <typename T>
class Stages {
  public:
    // Whether this length has only small prime factors.
    static bool cover(std::int64_t length) { return !factors(length).empty(); }

    explicit Stages(std::int64_t length) {
        std::int64_t rest = length;
        for (const int radix : factors(length)) {
            Stage& stage = stages_.emplace_back();
            stage.radix = radix;
            stage.groups = rest / radix;
            stage.turns = Pairs<T>((radix - 1) * stage.groups);
            stage.roots = Pairs<T>(radix);
            for (std::int64_t k = 1; k < radix; ++k) {
                for (std::int64_t group = 0; group < stage.groups; ++group) {
                    const auto at = static_cast<std::size_t>((k - 1) * stage.groups + group);
                    root_of_unity(k * group % rest, rest, &stage.turns.re[at], &stage.turns.im[at]);
                }
            }
            for (std::int64_t k = 0; k < radix; ++k) {
                const auto at = static_cast<std::size_t>(k);
                root_of_unity(k, radix, &stage.roots.re[at], &stage.roots.im[at]);
            }
            rest /= radix;
        }
    }

    // Transforms `lanes` columns, [length, lanes]. Returns the result, which is in x or in y.
    Complex<T> run(Complex<T> x, Complex<T> y, std::int64_t lanes) const {
        std::int64_t stride = lanes;
        for (const Stage& stage : stages_) {
            const FourierStage<T> step{stage.radix,           stage.groups,          stride,
                                       stage.turns.re.data(), stage.turns.im.data(), stage.roots.re.data(),
                                       stage.roots.im.data()};
            if constexpr (std::is_same_v<T, float>) {
                fourier_table().run_f32(step, x, y);
            } else {
                fourier_table().run_f64(step, x, y);
            }
            std::swap(x, y);
            stride *= stage.radix;
        }
        return x;
    }

  private:
    struct Stage {
        int radix;
        std::int64_t groups;
        Pairs<T> turns;
        Pairs<T> roots;
    };

    // Returns the radices; empty if a prime factor is too large. The length 1 has the radix 1.
    static std::vector<int> factors(std::int64_t length) {
        std::vector<int> found;
        for (const int radix : {4, 2, 3, 5}) {
            for (; length % radix == 0; length /= radix) {
                found.push_back(radix);
            }
        }
        for (int radix = 7; radix <= kWidestRadix; radix += 2) {
            for (; length % radix == 0; length /= radix) {
                found.push_back(radix);
            }
        }
        if (length != 1) {
            return {};
        }
        if (found.empty()) {
            found.push_back(1);
        }
        return found;
    }

    std::vector<Stage> stages_;
};

template <typename T>
void multiply(Complex<T> x, const Pairs<T>& by, std::int64_t length, std::int64_t lanes) {
    const Complex<T> factors{const_cast<T*>(by.re.data()), const_cast<T*>(by.im.data())};  // only read
    if constexpr (std::is_same_v<T, float>) {
        fourier_table().multiply_f32(x, factors, length, lanes);
    } else {
        fourier_table().multiply_f64(x, factors, length, lanes);
    }
}

// Transforms of any length: by stages or, if the length has large prime factors, as a convolution of a length that has
// stages (Bluestein 1970).
template <typename T>
class Transform {
  public:
    explicit Transform(std::int64_t length)
        : length_(length),
          direct_(Stages<T>::cover(length)),
          whole_(direct_ ? length : convolved(length)),
          stages_(whole_) {
        if (direct_) {
            return;
        }
        // exp(-pi i k^2 / n); and the transform of its conjugate over the padded length, divided by that length.
        chirp_ = Pairs<T>(length);
        Pairs<double> filter(whole_), spare(whole_);
        std::int64_t square = 0;  // k^2 mod 2 n
        for (std::int64_t k = 0; k < length; ++k) {
            double re = 0, im = 0;
            root_of_unity(square, 2 * length, &re, &im);
            const auto at = static_cast<std::size_t>(k);
            chirp_.re[at] = static_cast<T>(re);
            chirp_.im[at] = static_cast<T>(im);
            for (const std::int64_t place : {k, (whole_ - k) % whole_}) {
                filter.re[static_cast<std::size_t>(place)] = re / static_cast<double>(whole_);
                filter.im[static_cast<std::size_t>(place)] = -im / static_cast<double>(whole_);
            }
            square = (square + 2 * k + 1) % (2 * length);
        }
        const Complex<double> done = Stages<double>(whole_).run(filter.view(), spare.view(), 1);
        filter_ = Pairs<T>(whole_);
        std::copy(done.re, done.re + whole_, filter_.re.begin());
        std::copy(done.im, done.im + whole_, filter_.im.begin());
    }

    // Number of rows that x and y must have.
    std::int64_t rows() const { return whole_; }

    // Transforms `lanes` columns in the first rows of x. Returns the result, which is in x or in y.
    Complex<T> run(Complex<T> x, Complex<T> y, std::int64_t lanes) const {
        if (direct_) {
            return stages_.run(x, y, lanes);
        }
        multiply(x, chirp_, length_, lanes);
        std::fill(x.re + length_ * lanes, x.re + whole_ * lanes, T{0});
        std::fill(x.im + length_ * lanes, x.im + whole_ * lanes, T{0});
        const Complex<T> spectrum = stages_.run(x, y, lanes);
        multiply(spectrum, filter_, whole_, lanes);
        const Complex<T> other = spectrum.re == x.re ? y : x;
        // If real and imaginary parts are exchanged, a transform becomes its inverse.
        const Complex<T> back = stages_.run({spectrum.im, spectrum.re}, {other.im, other.re}, lanes);
        const Complex<T> done{back.im, back.re};
        multiply(done, chirp_, length_, lanes);
        return done;
    }

    // Estimated number of operations for one column.
    double work() const {
        return (direct_ ? 1 : 2) * static_cast<double>(whole_) * std::log2(static_cast<double>(whole_) + 1);
    }

  private:
    // Returns a power of two that is large enough for the convolution of two signals.
    static std::int64_t convolved(std::int64_t length) {
        std::int64_t whole = 1;
        while (whole < 2 * length - 1) {
            whole *= 2;
        }
        return whole;
    }

    std::int64_t length_;
    bool direct_;
    std::int64_t whole_;
    Stages<T> stages_;
    Pairs<T> chirp_, filter_;
};

// x: [outer, n, inner, 1 or 2] -> y: [outer, points, inner, 2 or 1], float32 or float64, computed in Work. The operands
// dft_length and axis are not read.
template <typename T, typename Work>
class Fourier final : public Kernel {
  public:
    Fourier(const NodeSpec& node, std::size_t axis, std::int64_t length);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    void load(const T* x, std::int64_t first, std::int64_t lanes, Complex<Work> to) const;
    void save(Complex<Work> from, std::int64_t first, std::int64_t lanes, T* y) const;

    bool inverse_, onesided_;
    std::int64_t length_;
    std::int64_t outer_, taken_, points_, inner_;  // `taken_`: elements of x along the axis that are used
    std::int64_t stored_;  // elements of x along the axis
    std::int64_t parts_;  // 1: real, 2: complex
    std::int64_t lanes_;  // number of columns at a time
    Transform<Work> transform_;
};

// Largest size, in bytes, and largest number of columns that are transformed together.
constexpr std::int64_t kTogether = std::int64_t{1} << 18;
constexpr std::int64_t kMostLanes = 16;

}  // namespace

template <typename T, typename Work>
Fourier<T, Work>::Fourier(const NodeSpec& node, std::size_t axis, std::int64_t length)
    : Kernel("DFT", node.threads),
      inverse_(node.integer("inverse") != 0),
      onesided_(node.integer("onesided") != 0),
      length_(length),
      transform_(length) {
    const TensorSpec &x = node.input(0).tensor, &y = node.outputs[0];
    inputs_ = {x};
    for (std::size_t i = 1; i < node.inputs.size(); ++i) {
        inputs_.push_back(node.has_input(i) ? node.inputs[i]->tensor : TensorSpec{"absent", {}, ElementType::i64});
        inputs_.back().optional = true;
    }
    outputs_ = {y};
    const AroundAxis around(x.shape, axis);
    outer_ = around.outer;
    stored_ = around.size;
    parts_ = x.shape.back();
    inner_ = parts_ == 0 ? 0 : around.inner / parts_;
    points_ = y.shape[axis];
    taken_ = std::min(stored_, inverse_ && onesided_ ? length / 2 + 1 : length);
    const std::int64_t bytes = 4 * transform_.rows() * static_cast<std::int64_t>(sizeof(Work));
    lanes_ = std::clamp<std::int64_t>(std::min(kTogether / bytes, outer_ * inner_), 1, kMostLanes);
}

template <typename T, typename Work>
std::size_t Fourier<T, Work>::scratch_bytes() const {
    return static_cast<std::size_t>(4 * transform_.rows() * lanes_ * std::max(threads(), 1)) * sizeof(Work);
}

template <typename T, typename Work>
void Fourier<T, Work>::load(const T* x, std::int64_t first, std::int64_t lanes, Complex<Work> to) const {
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
        const std::int64_t column = first + lane;
        const T* from = x + (column / inner_ * stored_ * inner_ + column % inner_) * parts_;
        for (std::int64_t i = 0; i < taken_; ++i, from += inner_ * parts_) {
            to.re[i * lanes + lane] = from[0];
            to.im[i * lanes + lane] = parts_ == 2 ? Work{from[1]} : Work{0};
        }
    }
    const bool half = inverse_ && onesided_;
    std::fill(to.re + taken_ * lanes, to.re + length_ * lanes, Work{0});
    std::fill(to.im + taken_ * lanes, to.im + length_ * lanes, Work{0});
    if (!half) {
        return;
    }
    // The spectrum of a real signal is conjugate-symmetric; an element that is its own mirror image is real.
    for (std::int64_t i = 1; 2 * i <= length_; ++i) {
        const std::int64_t other = length_ - i;
        for (std::int64_t lane = 0; lane < lanes; ++lane) {
            to.re[other * lanes + lane] = to.re[i * lanes + lane];
            to.im[other * lanes + lane] = other == i ? Work{0} : -to.im[i * lanes + lane];
        }
    }
    std::fill(to.im, to.im + lanes, Work{0});
}

template <typename T, typename Work>
void Fourier<T, Work>::save(Complex<Work> from, std::int64_t first, std::int64_t lanes, T* y) const {
    const Work scale = inverse_ ? Work{1} / static_cast<Work>(length_) : Work{1};
    const std::int64_t parts = inverse_ && onesided_ ? 1 : 2;
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
        const std::int64_t column = first + lane;
        T* to = y + (column / inner_ * points_ * inner_ + column % inner_) * parts;
        for (std::int64_t i = 0; i < points_; ++i, to += inner_ * parts) {
            to[0] = static_cast<T>(from.re[i * lanes + lane] * scale);
            if (parts == 2) {
                to[1] = static_cast<T>(from.im[i * lanes + lane] * scale);
            }
        }
    }
}

template <typename T, typename Work>
void Fourier<T, Work>::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto* x = static_cast<const T*>(inputs[0]);
    auto* y = static_cast<T*>(outputs[0]);
    const std::int64_t columns = outer_ * inner_;
    const std::int64_t groups = (columns + lanes_ - 1) / lanes_;
    const double cost = transform_.work() * static_cast<double>(lanes_);
    parallel_for(threads(), groups, cost, [&](std::int64_t begin, std::int64_t end) {
        const std::int64_t room = transform_.rows() * lanes_;
        Work* const own = reinterpret_cast<Work*>(scratch) + 4 * room * thread_number();
        const Complex<Work> signal{own, own + room}, spare{own + 2 * room, own + 3 * room};
        for (std::int64_t group = begin; group < end; ++group) {
            const std::int64_t first = group * lanes_;
            const std::int64_t lanes = std::min(lanes_, columns - first);
            load(x, first, lanes, signal);
            if (inverse_) {  // if both parts are exchanged, a transform becomes its inverse
                const Complex<Work> done = transform_.run({signal.im, signal.re}, {spare.im, spare.re}, lanes);
                save({done.im, done.re}, first, lanes, y);
            } else {
                save(transform_.run(signal, spare, lanes), first, lanes, y);
            }
        }
    });
}

GRAPHKIT_KERNEL("", DFT) {
    const TensorSpec& x = node.input(0).tensor;
    const std::int64_t axis = node.has_input(2) ? node.elements(2).at(0) : -2;
    const std::size_t place = checked_axis(axis, x.shape.size());
    const bool half = node.integer("inverse") != 0 && node.integer("onesided") != 0;
    const std::int64_t all = half ? 2 * (x.shape[place] - 1) : x.shape[place];
    const std::int64_t length = node.has_input(1) ? node.elements(1).at(0) : all;
    if (length < 1) {
        throw NativeError("the length of a transform must be at least 1, not " + std::to_string(length));
    }
    switch (x.type) {
        case ElementType::f32:
            // Small elements of a spectrum would get the rounding errors of large ones, so it is computed in double. An
            // inverse transform to a signal has no such elements.
            if (node.integer("inverse") != 0) {
                return std::make_unique<Fourier<float, float>>(node, place, length);
            }
            return std::make_unique<Fourier<float, double>>(node, place, length);
        case ElementType::f64:
            return std::make_unique<Fourier<double, double>>(node, place, length);
        default:
            throw Unsupported(std::string("DFT of ") + name_of(x.type));
    }
}

}  // namespace graphkit
