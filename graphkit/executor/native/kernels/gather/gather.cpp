#include "kernels/gather/gather.h"

namespace graphkit {
namespace {

// Calls body(T{}) for slices that are a register's worth; false for others.
template <typename Body>
bool with_small_slice(std::int64_t bytes, Body&& body) {
    if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8 && bytes != 16) {
        return false;
    }
    with_element(static_cast<std::size_t>(bytes), body);
    return true;
}

// Slice (row, column) of y = the slice of x number source(row, column). `source` holds what it needs by value: stores
// of bytes might change what it refers to, and have it read again for each of them.
template <typename Source>
void copy_slices(int threads, const std::byte* x, std::byte* y, std::int64_t rows, std::int64_t columns,
                 std::int64_t bytes, Source source) {
    const double cost = static_cast<double>(bytes) / kBytesPerNanosecond + 2;
    parallel_for(threads, rows * columns, cost, [=](std::int64_t begin, std::int64_t end) {
        const auto each = [=](auto copy_slice) {
            for (std::int64_t row = begin / columns; row * columns < end; ++row) {
                const std::int64_t first = std::max<std::int64_t>(begin - row * columns, 0);
                const std::int64_t last = std::min(columns, end - row * columns);
                for (std::int64_t column = first; column < last; ++column) {
                    copy_slice(row * columns + column, source(row, column));
                }
            }
        };
        const bool small = with_small_slice(bytes, [=](auto slice) {
            using T = decltype(slice);
            constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
            each([=](std::int64_t to, std::int64_t from) {
                store_element(y + to * kSize, load_element<T>(x + from * kSize));
            });
        });
        if (!small) {
            each([=](std::int64_t to, std::int64_t from) {
                copy_bytes(y + to * bytes, x + from * bytes, static_cast<std::size_t>(bytes));
            });
        }
    });
}

}  // namespace

Gather::Gather(Dims x, Dims indices, std::int64_t axis, ElementType type, ElementType index_type, int threads)
    : Kernel("Gather", threads), axis_(checked_axis(axis, x.size())) {
    with_index(index_type, [](auto) {});
    const auto at = static_cast<std::ptrdiff_t>(axis_);
    Dims y(x.begin(), x.begin() + at);
    y.insert(y.end(), indices.begin(), indices.end());
    y.insert(y.end(), x.begin() + at + 1, x.end());
    around_ = AroundAxis(x, axis_);
    inputs_ = {{"x", std::move(x), type}, {"indices", std::move(indices), index_type}};
    outputs_ = {{"y", std::move(y), type}};
}

void Gather::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    const auto* x = static_cast<const std::byte*>(inputs[0]);
    auto* y = static_cast<std::byte*>(outputs[0]);
    const std::int64_t bytes = around_.inner * static_cast<std::int64_t>(size_of(inputs_[0].type));
    const std::int64_t taken = count(inputs_[1].shape);
    const std::int64_t size = around_.size;
    with_index(inputs_[1].type, [&](auto index) {
        const auto* indices = static_cast<const decltype(index)*>(inputs[1]);
        check_indices(*this, indices, taken, axis_, size);
        copy_slices(threads(), x, y, around_.outer, taken, bytes, [=](std::int64_t outer, std::int64_t i) {
            return outer * size + from_front(indices[i], size);
        });
    });
}

GatherElements::GatherElements(Dims x, Dims indices, std::int64_t axis, ElementType type, ElementType index_type,
                               int threads)
    : Kernel("GatherElements", threads), axis_(checked_axis(axis, x.size())), strides_(row_major(x)) {
    with_index(index_type, [](auto) {});
    outputs_ = {{"y", indices, type}};
    inputs_ = {{"x", std::move(x), type}, {"indices", std::move(indices), index_type}};
    require_fibres(*this, inputs_[0].shape, inputs_[1].shape, axis_);
}

void GatherElements::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    const Dims& shape = inputs_[1].shape;
    const std::int64_t columns = shape.back();
    const std::int64_t total = count(shape);
    const std::int64_t size = inputs_[0].shape[axis_];
    const std::int64_t stride = strides_[axis_];
    const std::int64_t along = axis_ + 1 == shape.size() ? 0 : 1;  // what a column adds to the position in x
    if (total == 0) {
        return;
    }
    with_index(inputs_[1].type, [&](auto index) {
        const auto* indices = static_cast<const decltype(index)*>(inputs[1]);
        check_indices(*this, indices, total, axis_, size);
        with_element(size_of(inputs_[0].type), [&](auto element) {
            using T = decltype(element);
            const auto* x = static_cast<const T*>(inputs[0]);
            auto* y = static_cast<T*>(outputs[0]);
            const double cost = static_cast<double>(columns) + 5;
            parallel_for(threads(), total / columns, cost, [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t row = begin; row < end; ++row) {
                    std::int64_t base = 0;
                    std::int64_t rest = row;
                    for (std::size_t i = shape.size() - 1; i-- > 0;) {
                        base += i == axis_ ? 0 : rest % shape[i] * strides_[i];
                        rest /= shape[i];
                    }
                    const auto* chosen = indices + row * columns;
                    for (std::int64_t j = 0; j < columns; ++j) {
                        y[row * columns + j] = x[base + from_front(chosen[j], size) * stride + j * along];
                    }
                }
            });
        });
    });
}

GatherND::GatherND(Dims x, Dims indices, std::int64_t batch_dims, ElementType type, int threads)
    : Kernel("GatherND", threads) {
    inputs_ = {{"x", std::move(x), type}, {"indices", std::move(indices), ElementType::i64}};
    tuples_ = IndexTuples(*this, inputs_[0].shape, inputs_[1].shape, batch_dims);
    Dims y(inputs_[1].shape.begin(), inputs_[1].shape.end() - 1);
    const auto below = static_cast<std::ptrdiff_t>(tuples_.first_axis + tuples_.sizes.size());
    y.insert(y.end(), inputs_[0].shape.begin() + below, inputs_[0].shape.end());
    outputs_ = {{"y", std::move(y), type}};
}

std::size_t GatherND::scratch_bytes() const {
    return static_cast<std::size_t>(tuples_.tuples) * sizeof(std::int64_t);
}

void GatherND::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    auto* slices = reinterpret_cast<std::int64_t*>(scratch);
    tuples_.resolve(*this, static_cast<const std::int64_t*>(inputs[1]), slices);
    const std::int64_t bytes = tuples_.slice * static_cast<std::int64_t>(size_of(inputs_[0].type));
    copy_slices(threads(), static_cast<const std::byte*>(inputs[0]), static_cast<std::byte*>(outputs[0]),
                1, tuples_.tuples, bytes, [=](std::int64_t, std::int64_t i) { return slices[i]; });
}

ReverseSequence::ReverseSequence(Dims x, bool batch_first, ElementType type, int threads)
    : Kernel("ReverseSequence", threads), batch_first_(batch_first) {
    if (x.size() < 2) {
        throw NativeError("ReverseSequence: x has fewer than two axes");
    }
    outputs_ = {{"y", x, type}};
    inputs_ = {{"x", x, type}, {"sequence_lens", {x[batch_first ? 0 : 1]}, ElementType::i64}};
}

void ReverseSequence::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    const Dims& shape = inputs_[0].shape;
    const auto* lengths = static_cast<const std::int64_t*>(inputs[1]);
    const std::int64_t batches = shape[batch_first_ ? 0 : 1];
    const std::int64_t steps = shape[batch_first_ ? 1 : 0];
    for (std::int64_t b = 0; b < batches; ++b) {
        if (lengths[b] < 0 || lengths[b] > steps) {
            throw NativeError(describe() + ": length " + std::to_string(lengths[b]) + " of batch " +
                              std::to_string(b) + " is outside [0, " + std::to_string(steps) + "]");
        }
    }
    const std::int64_t bytes =
        count({shape.begin() + 2, shape.end()}) * static_cast<std::int64_t>(size_of(inputs_[0].type));
    const auto reversed = [=](std::int64_t step, std::int64_t batch) {
        return step < lengths[batch] ? lengths[batch] - 1 - step : step;
    };
    const auto* x = static_cast<const std::byte*>(inputs[0]);
    auto* y = static_cast<std::byte*>(outputs[0]);
    if (batch_first_) {
        copy_slices(threads(), x, y, batches, steps, bytes, [=](std::int64_t batch, std::int64_t step) {
            return batch * steps + reversed(step, batch);
        });
    } else {
        copy_slices(threads(), x, y, steps, batches, bytes, [=](std::int64_t step, std::int64_t batch) {
            return reversed(step, batch) * batches + batch;
        });
    }
}

}  // namespace graphkit
