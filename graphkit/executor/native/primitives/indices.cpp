#include "primitives/indices.h"

namespace graphkit {

void require_fibres(const Kernel& kernel, const Dims& x, const Dims& indices, std::size_t axis) {
    bool fits = x.size() == indices.size();
    for (std::size_t i = 0; fits && i < x.size(); ++i) {
        fits = i == axis || indices[i] <= x[i];
    }
    if (!fits) {
        throw NativeError(kernel.describe() + ": the indices must not be larger than x except on axis " +
                          std::to_string(axis));
    }
}

IndexTuples::IndexTuples(const Kernel& kernel, const Dims& x, const Dims& indices, std::int64_t batch_dims) {
    const auto fail = [&](const char* what) { throw NativeError(kernel.describe() + ": " + what); };
    if (indices.empty() || batch_dims < 0 || batch_dims >= static_cast<std::int64_t>(indices.size())) {
        fail("the indices have too few axes");
    }
    const auto depth = static_cast<std::size_t>(indices.back());
    const auto batches = static_cast<std::size_t>(batch_dims);
    if (batches + depth > x.size()) {
        fail("the index tuples are too long: x has fewer axes");
    }
    if (!std::equal(x.begin(), x.begin() + batch_dims, indices.begin())) {
        fail("x and the indices must have equal batch axes");
    }
    const auto axis = [&](std::size_t number) { return x.begin() + static_cast<std::ptrdiff_t>(number); };
    first_axis = batches;
    sizes = Dims(axis(batches), axis(batches + depth));
    strides = row_major(sizes);
    slice = count(Dims(axis(batches + depth), x.end()));
    batch_stride = count(sizes);
    tuples = count(Dims(indices.begin(), indices.end() - 1));
    per_batch = std::max<std::int64_t>(count(Dims(indices.begin() + batch_dims, indices.end() - 1)), 1);
}

void IndexTuples::resolve(const Kernel& kernel, const std::int64_t* indices, std::int64_t* slices) const {
    const std::size_t depth = sizes.size();
    const auto step = static_cast<std::int64_t>(depth);
    FirstOf bad;
    parallel_for(kernel.threads(), tuples, static_cast<double>(depth) + 2, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
            std::int64_t at = batch_stride * (t / per_batch);
            for (std::size_t k = 0; k < depth; ++k) {
                const std::int64_t index = indices[t * step + static_cast<std::int64_t>(k)];
                if (!is_inside(index, sizes[k])) {
                    bad.found(t * step + static_cast<std::int64_t>(k));
                    break;
                }
                at += from_front(index, sizes[k]) * strides[k];
            }
            slices[t] = at;
        }
    });
    if (bad.any()) {
        const auto k = static_cast<std::size_t>(bad.first() % step);
        throw_index_error(kernel, bad.first(), indices[bad.first()], first_axis + k, sizes[k]);
    }
}

}  // namespace graphkit
