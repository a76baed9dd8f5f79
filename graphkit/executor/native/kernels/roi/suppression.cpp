// NonMaxSuppression: selects the boxes of each class, best first, that do not overlap a better selected one too much.
#include <algorithm>
#include <limits>

#include "kernels/roi/suppression_table.h"
#include "kernels/sorting/key.h"
#include "kernels/sorting/radix_sort.h"
#include "runtime/bindings.h"
#include "runtime/data_dependent.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// boxes: [N, B, 4], scores: [N, C, B], float32. Operands with one element: the largest number of boxes per class
// (int64; 0 if absent), the overlap above which a box hides another (0 if absent), and the score that a box must
// exceed. Result: int64 [selected, 3], rows of (image, class, box). Boxes with equal scores keep their order; NaN is
// better than any number.
class NonMaxSuppression final : public DataDependentKernel {
  public:
    NonMaxSuppression(bool centred, int threads)
        : DataDependentKernel(
              "NonMaxSuppression",
              {ElementType::f32, ElementType::f32, ElementType::i64, ElementType::f32, ElementType::f32},
              {ElementType::i64}, threads),
          centred_(centred) {}
    void run(const std::vector<Operand>& inputs, RunMemory& memory) const override;

  private:
    struct Task;

    void find_corners(const float* boxes, std::int64_t count, float* corners) const;

    bool centred_;
};

using Scored = KeyedPlace<std::uint32_t, std::uint32_t>;

// Boxes are read in vectors of at most this many.
constexpr std::int64_t kWidest = 16;

std::int64_t whole_vectors(std::int64_t boxes) {
    return (boxes + kWidest - 1) / kWidest * kWidest;
}

}  // namespace

// The operands of a run.
struct NonMaxSuppression::Task {
    std::int64_t images, classes, boxes;
    std::int64_t most = 0;
    float overlap = 0;
    const float* least = nullptr;

    Task(const NonMaxSuppression& kernel, const std::vector<Operand>& inputs) {
        const Dims &box = inputs[0].shape, &score = inputs[1].shape;
        if (box.size() != 3 || score.size() != 3 || box[2] != 4 || score[0] != box[0] || score[2] != box[1]) {
            throw NativeError(kernel.describe(inputs) + ": expected boxes [N, B, 4] and scores [N, classes, B]");
        }
        for (std::size_t i = 2; i < inputs.size(); ++i) {
            if (inputs[i].is_there() && inputs[i].elements() == 0) {
                throw NativeError(kernel.describe(inputs) + ": operand " + std::to_string(i) + " is empty");
            }
        }
        images = box[0];
        classes = score[1];
        boxes = box[1];
        if (boxes > std::numeric_limits<std::int32_t>::max()) {
            throw NativeError(kernel.describe(inputs) + ": an image has more than 2^31 - 1 boxes");
        }
        most = inputs[2].is_there() ? std::clamp<std::int64_t>(*inputs[2].as<std::int64_t>(), 0, boxes) : 0;
        overlap = inputs[3].is_there() ? *inputs[3].as<float>() : 0;
        least = inputs[4].as<float>();
    }

    // Selects boxes of one class, best first, and writes their positions. `corners` holds y1, x1, y2, x2, area of each
    // box. Returns the number of selected boxes.
    std::int64_t select(const SuppressionTable& table, const float* corners, const float* scores, Scored* items,
                        float* rows, std::int32_t* selected) const {
        std::int64_t candidates = 0;
        for (std::int64_t i = 0; i < boxes; ++i) {
            items[candidates] = {~key_of(scores[i]), static_cast<std::uint32_t>(i)};
            candidates += least == nullptr || scores[i] > *least ? 1 : 0;
        }
        const Scored* const best = sorted_by_key(items, items + boxes, candidates);
        ChosenBoxes chosen{rows, whole_vectors(most), 0};
        for (std::int64_t i = 0; i < candidates && chosen.count < most; ++i) {
            const float* const box = corners + 5 * std::int64_t{best[i].place};
            if (table.is_hidden(chosen, box, overlap)) {
                continue;
            }
            if (chosen.count % kWidest == 0) {
                std::fill_n(rows + 4 * chosen.room + chosen.count, kWidest, std::numeric_limits<float>::quiet_NaN());
            }
            for (std::int64_t row = 0; row < 5; ++row) {
                rows[row * chosen.room + chosen.count] = box[row];
            }
            selected[chosen.count++] = static_cast<std::int32_t>(best[i].place);
        }
        return chosen.count;
    }
};

void NonMaxSuppression::find_corners(const float* boxes, std::int64_t count, float* corners) const {
    for (std::int64_t i = 0; i < count; ++i) {
        const float* box = boxes + 4 * i;
        float* to = corners + 5 * i;
        for (int axis = 0; axis < 2; ++axis) {
            const float a = box[axis];
            const float b = box[axis + 2];
            to[axis] = centred_ ? a - b / 2 : std::min(a, b);
            to[axis + 2] = centred_ ? a + b / 2 : std::max(a, b);
        }
        to[4] = (to[2] - to[0]) * (to[3] - to[1]);
    }
}

void NonMaxSuppression::run(const std::vector<Operand>& inputs, RunMemory& memory) const {
    const Task task(*this, inputs);
    const std::int64_t lists = task.images * task.classes;
    const std::int64_t all = task.images * task.boxes;
    // Memory of one thread: candidates, with spare memory for sorting, and the selected boxes.
    const std::size_t items_bytes = aligned(static_cast<std::size_t>(2 * task.boxes + 1) * sizeof(Scored));
    const std::size_t rows_bytes = aligned(static_cast<std::size_t>(5 * whole_vectors(task.most)) * sizeof(float));
    const std::size_t own_bytes = items_bytes + rows_bytes;
    const std::size_t corner_bytes = aligned(static_cast<std::size_t>(5 * all) * sizeof(float));
    const std::size_t count_bytes = aligned(static_cast<std::size_t>(lists) * sizeof(std::int64_t));
    const std::size_t selected_bytes = static_cast<std::size_t>(lists * task.most) * sizeof(std::int32_t);
    std::byte* const scratch = memory.scratch(static_cast<std::size_t>(std::max(threads(), 1)) * own_bytes +
                                              corner_bytes + count_bytes + selected_bytes);
    auto* const corners = reinterpret_cast<float*>(scratch);
    auto* const counts = reinterpret_cast<std::int64_t*>(scratch + corner_bytes);
    std::byte* const own = scratch + corner_bytes + count_bytes;
    auto* const selected =
        reinterpret_cast<std::int32_t*>(own + static_cast<std::size_t>(std::max(threads(), 1)) * own_bytes);
    find_corners(inputs[0].as<float>(), all, corners);
    const auto* const scores = inputs[1].as<float>();
    const SuppressionTable& table = suppression_table();
    parallel_for(threads(), lists, static_cast<double>(task.boxes) * 10, [&](std::int64_t begin, std::int64_t end) {
        std::byte* const mine = own + static_cast<std::size_t>(thread_number()) * own_bytes;
        auto* const items = reinterpret_cast<Scored*>(mine);
        auto* const rows = reinterpret_cast<float*>(mine + items_bytes);
        for (std::int64_t i = begin; i < end; ++i) {
            counts[i] = task.select(table, corners + i / task.classes * task.boxes * 5, scores + i * task.boxes, items,
                                    rows, selected + i * task.most);
        }
    });
    std::int64_t total = 0;
    for (std::int64_t i = 0; i < lists; ++i) {
        total += counts[i];
    }
    auto* y = static_cast<std::int64_t*>(memory.result(0, {total, 3}));
    for (std::int64_t i = 0; y != nullptr && i < lists; ++i) {
        for (std::int64_t k = 0; k < counts[i]; ++k, y += 3) {
            y[0] = i / task.classes;
            y[1] = i % task.classes;
            y[2] = selected[i * task.most + k];
        }
    }
}

GRAPHKIT_BINDINGS(suppression, "data_dependent_call") {
    nb::class_<NonMaxSuppression, DataDependentKernel>(m, "NonMaxSuppression")
        .def(nb::init<bool, int>(), "centred"_a, "threads"_a = 0);
}

}  // namespace graphkit
