// Classification losses and their gradient.
//
// Scores are [N, C, d1, ..., dk] with the classes on axis 1, labels [N, d1, ..., dk], weights [C]. A label equal to
// `ignore_index` has weight 0; any other outside [0, C) is a NativeError when a kernel runs. Sums have constant parts.
#pragma once

#include <optional>

#include "runtime/kernel.h"
#include "kernels/softmax/softmax.h"

namespace graphkit {

enum class LossReduction : std::uint8_t { none, sum, mean };

// What the loss and its gradient share: scores as [images, classes, inner], and the weight of each label.
struct LabelGeometry {
    std::int64_t images = 1;
    std::int64_t classes = 1;
    std::int64_t inner = 1;
    ElementType label_type = ElementType::i64;
    std::optional<std::int64_t> ignore_index;
    LossReduction reduction = LossReduction::mean;

    LabelGeometry() = default;
    LabelGeometry(const Dims& scores, const std::string& label_type, const std::string& reduction,
                  std::optional<std::int64_t> ignore_index);

    std::int64_t count() const { return images * inner; }
    // safe[i] = the label, or -1 where it is ignored. Throws NativeError.
    void read_labels(const void* labels, std::int64_t* safe) const;
};

// NegativeLogLikelihoodLoss, or with `softmax` SoftmaxCrossEntropyLoss, whose second output, the log-probabilities, may
// be absent.
class ClassLoss : public Kernel {
  public:
    ClassLoss(const Dims& scores, const std::string& type, const std::string& label_type, bool weights,
              const std::string& reduction, std::optional<std::int64_t> ignore_index, bool softmax, int threads);
    ~ClassLoss() override;

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

    struct Normaliser;

  private:
    template <typename T>
    void run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const;

    ElementType type_;
    LabelGeometry geometry_;
    bool weights_, softmax_;
    Softmax log_softmax_;
    std::unique_ptr<Normaliser> normaliser_;
};

// dscores of SoftmaxCrossEntropyLoss from dloss, the log-probabilities, labels and weights; dscores may be the
// log-probabilities.
class SoftmaxCrossEntropyGrad : public Kernel {
  public:
    SoftmaxCrossEntropyGrad(const Dims& scores, const std::string& type, const std::string& label_type, bool weights,
                            const std::string& reduction, std::optional<std::int64_t> ignore_index, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<std::pair<int, int>> inplace() const override { return {{1, 0}}; }

  private:
    template <typename T>
    void run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const;

    ElementType type_;
    LabelGeometry geometry_;
};

// SoftmaxCrossEntropyLoss, whose loss is one number, and its gradient for a dloss that is known before: one pass over
// the scores, which are rows of classes. dscores may be the scores. Operands: scores, labels, dloss, weights.
class SoftmaxCrossEntropyWithGrad : public Kernel {
  public:
    SoftmaxCrossEntropyWithGrad(const Dims& scores, const std::string& type, const std::string& label_type,
                                bool weights, const std::string& reduction, std::optional<std::int64_t> ignore_index,
                                int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<std::pair<int, int>> inplace() const override { return {{0, 1}}; }

  private:
    std::size_t row_bytes() const;
    template <typename T>
    void run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const;

    ElementType type_;
    LabelGeometry geometry_;
};

}  // namespace graphkit
