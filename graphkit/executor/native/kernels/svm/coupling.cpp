// Class probabilities from the decisions of all pairs of classes; ops/ml/svm.py defines them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "runtime/operator_kernels.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

constexpr int kSweeps = 100;
constexpr float kLeast = 1e-7F;

// 1 - 1 / (1 + exp(-x)), clamped to [kLeast, 1 - kLeast]; NaN for NaN.
float probability(float x) {
    const float y = 1 / (1 + std::exp(-std::fabs(x)));
    const float p = x < 0 ? y : 1 - y;
    return p < kLeast ? kLeast : p > 1 - kLeast ? 1 - kLeast : p;
}

// The computation of one row. q: the matrix of Wu, Lin and Weng, [classes, classes]; p: the probabilities; qp: the
// product q p.
struct Coupling {
    std::int64_t classes;
    float* q;
    float* p;
    float* qp;

    // Initializes q from the probability of the first class of each pair.
    void start(const float* pair) const {
        std::fill(q, q + classes * classes, 0.0F);
        for (std::int64_t i = 0; i < classes; ++i) {
            for (std::int64_t j = i + 1; j < classes; ++j, ++pair) {
                const float first = *pair;
                const float second = 1 - first;
                q[i * classes + j] = q[j * classes + i] = -second * first;
                q[i * classes + i] += second * second;
                q[j * classes + j] += first * first;
            }
        }
        std::fill(p, p + classes, 1 / static_cast<float>(classes));
    }

    void iterate() const {
        const float limit = static_cast<float>(0.005 / static_cast<double>(classes));
        for (int sweep = 0; sweep < kSweeps; ++sweep) {
            float pqp = 0;
            for (std::int64_t i = 0; i < classes; ++i) {
                qp[i] = 0;
                for (std::int64_t j = 0; j < classes; ++j) {
                    qp[i] += q[i * classes + j] * p[j];
                }
                pqp += p[i] * qp[i];
            }
            bool moves = false;
            bool is_number = true;
            for (std::int64_t i = 0; i < classes; ++i) {
                const float change = std::fabs(qp[i] - pqp);
                moves = moves || change >= limit;
                is_number = is_number && change == change;
            }
            if (!moves || !is_number) {
                return;
            }
            for (std::int64_t i = 0; i < classes; ++i) {
                take_best(i, pqp);
            }
        }
    }

    // Sets p[i] to its best value, given the probabilities of the other classes.
    void take_best(std::int64_t i, float& pqp) const {
        const float* row = q + i * classes;
        const float change = (pqp - qp[i]) / row[i];
        const float grown = 1 + change;
        p[i] += change;
        pqp = (pqp + change * (change * row[i] + 2 * qp[i])) / grown / grown;
        for (std::int64_t j = 0; j < classes; ++j) {
            qp[j] = (qp[j] + change * row[j]) / grown;
            p[j] /= grown;
        }
    }
};

// Inputs, float32: decisions [rows, pairs], and Platt's parameters a and b [pairs].
class CoupledProbabilities final : public Kernel {
  public:
    CoupledProbabilities(std::int64_t rows, std::int64_t classes, int threads)
        : Kernel("CoupledProbabilities", threads), rows_(rows), classes_(classes), pairs_(classes * (classes - 1) / 2) {
        inputs_ = {{"decisions", {rows, pairs_}}, {"a", {pairs_}}, {"b", {pairs_}}};
        outputs_ = {{"p", {rows, classes}}};
    }

    void run(const void* const* inputs, void* const* outputs, std::byte*) const override {
        const auto* decisions = static_cast<const float*>(inputs[0]);
        const auto* a = static_cast<const float*>(inputs[1]);
        const auto* b = static_cast<const float*>(inputs[2]);
        auto* p = static_cast<float*>(outputs[0]);
        // A row needs a few sweeps of classes * classes steps.
        const double cost = 20.0 * static_cast<double>(classes_ * classes_) + 10.0 * static_cast<double>(pairs_);
        parallel_for(threads(), rows_, cost, [&](std::int64_t begin, std::int64_t end) {
            const auto pairs = static_cast<std::size_t>(pairs_);
            const auto classes = static_cast<std::size_t>(classes_);
            std::vector<float> memory(pairs + classes * classes + classes);
            float* const pair = memory.data();
            float* const q = pair + pairs;
            for (std::int64_t row = begin; row < end; ++row) {
                for (std::int64_t i = 0; i < pairs_; ++i) {
                    pair[i] = probability(decisions[row * pairs_ + i] * a[i] + b[i]);
                }
                const Coupling coupling{classes_, q, p + row * classes_, q + classes * classes};
                coupling.start(pair);
                coupling.iterate();
            }
        });
    }

  private:
    std::int64_t rows_, classes_, pairs_;
};

}  // namespace
}  // namespace graphkit

GRAPHKIT_KERNEL("ai.graphkit", CoupledProbabilities) {
    const graphkit::Dims& y = node.outputs[0].shape;
    return std::make_unique<graphkit::CoupledProbabilities>(y.at(0), y.at(1), node.threads);
}

GRAPHKIT_BINDINGS(coupling) {
    using namespace graphkit;
    nb::class_<CoupledProbabilities, Kernel>(m, "CoupledProbabilities")
        .def(nb::init<std::int64_t, std::int64_t, int>(), "rows"_a, "classes"_a, "threads"_a = 0);
}
