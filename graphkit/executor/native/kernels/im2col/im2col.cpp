// Sliding blocks as columns of a matrix: Im2Col copies them from an image, Col2Im adds them to an image.
#include <algorithm>
#include <tuple>

#include "kernels/im2col/row_sums.h"
#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// The positions of a block along one to three axes, with leading axes of size 1 up to three.
struct BlockGeometry {
    std::int64_t image[3] = {1, 1, 1};
    std::int64_t block[3] = {1, 1, 1};
    std::int64_t positions[3] = {1, 1, 1};
    std::int64_t strides[3] = {1, 1, 1};
    std::int64_t dilations[3] = {1, 1, 1};
    std::int64_t begin[3] = {0, 0, 0};  // padding in front

    BlockGeometry() = default;
    // Each list has one entry per axis. Throws NativeError if their lengths differ, Unsupported for other ranks.
    BlockGeometry(const Kernel& kernel, const Dims& image, const Dims& block, const Dims& positions,
                  const Dims& strides, const Dims& dilations, const Dims& begin);

    std::int64_t image_size() const { return image[0] * image[1] * image[2]; }
    std::int64_t block_size() const { return block[0] * block[1] * block[2]; }
    std::int64_t count() const { return positions[0] * positions[1] * positions[2]; }
};

// x: [N, C, *image] -> y: [N, C * block, positions]. With `add`, the inverse: overlapping elements are added, and those
// in the padding are dropped. float32, float64, and integers of 32 and 64 bits, which wrap around.
class Im2Col final : public Kernel {
  public:
    Im2Col(bool add, std::int64_t batch, std::int64_t channels, const Dims& image, const Dims& block,
           const Dims& positions, const Dims& strides, const Dims& dilations, const Dims& begin, ElementType type,
           int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename T>
    void run_as(const T* from, T* to) const;
    template <typename T>
    void add_element(const T* columns, T* image, const std::int64_t (&element)[3]) const;
    template <typename T>
    void copy_element(const T* image, T* columns, const std::int64_t (&element)[3]) const;

    bool add_;
    std::int64_t planes_;
    BlockGeometry geometry_;
    // For each axis, and each element of the block along it, the range [first, last) of positions at which it is inside
    // of the image.
    std::vector<std::pair<std::int64_t, std::int64_t>> inside_[3];
    const RowSumTable& row_sums_;
};

// Calls body(row of the image or -1, row of columns) for all rows of positions, for one element of the block.
template <typename Body>
void for_each_row(const BlockGeometry& g, std::int64_t depth, std::int64_t height, Body&& body) {
    std::int64_t at = 0;
    for (std::int64_t p = 0; p < g.positions[0]; ++p) {
        const std::int64_t d = p * g.strides[0] + depth * g.dilations[0] - g.begin[0];
        for (std::int64_t q = 0; q < g.positions[1]; ++q, at += g.positions[2]) {
            const std::int64_t h = q * g.strides[1] + height * g.dilations[1] - g.begin[1];
            const bool inside = d >= 0 && d < g.image[0] && h >= 0 && h < g.image[1];
            body(inside ? (d * g.image[1] + h) * g.image[2] : -1, at);
        }
    }
}

// Returns the range [first, last) of positions along an axis at which element `number` of the block is inside of the
// image.
std::pair<std::int64_t, std::int64_t> inside(const BlockGeometry& g, int axis, std::int64_t number) {
    const std::int64_t start = number * g.dilations[axis] - g.begin[axis];
    const std::int64_t stride = g.strides[axis];
    const auto before = [&](std::int64_t limit) {  // number of positions before `limit`
        return limit <= start ? 0 : std::min(g.positions[axis], (limit - start + stride - 1) / stride);
    };
    return {before(0), std::max(before(0), before(g.image[axis]))};
}

}  // namespace

BlockGeometry::BlockGeometry(const Kernel& kernel, const Dims& given_image, const Dims& given_block,
                             const Dims& given_positions, const Dims& given_strides, const Dims& given_dilations,
                             const Dims& given_begin) {
    const std::size_t rank = given_image.size();
    if (rank < 1 || rank > 3) {
        throw Unsupported(kernel.name() + ": blocks of " + std::to_string(rank) + " axes");
    }
    const auto take = [&](const Dims& list, std::int64_t* to, std::int64_t least) {
        if (list.size() != rank) {
            throw NativeError(kernel.name() + ": " + std::to_string(rank) + " entries are expected, not " +
                              to_string(list));
        }
        for (std::size_t i = 0; i < rank; ++i) {
            if (list[i] < least) {
                throw NativeError(kernel.name() + ": " + to_string(list) + " has an entry below " +
                                  std::to_string(least));
            }
            to[3 - rank + i] = list[i];
        }
    };
    take(given_image, image, 0);
    take(given_block, block, 1);
    take(given_positions, positions, 0);
    take(given_strides, strides, 1);
    take(given_dilations, dilations, 1);
    take(given_begin, begin, 0);
}

Im2Col::Im2Col(bool add, std::int64_t batch, std::int64_t channels, const Dims& image, const Dims& block,
               const Dims& positions, const Dims& strides, const Dims& dilations, const Dims& begin, ElementType type,
               int threads)
    : Kernel(add ? "Col2Im" : "Im2Col", threads),
      add_(add),
      planes_(batch * channels),
      geometry_(*this, image, block, positions, strides, dilations, begin),
      row_sums_(row_sum_table()) {
    for (int axis = 0; axis < 3; ++axis) {
        for (std::int64_t number = 0; number < geometry_.block[axis]; ++number) {
            inside_[axis].push_back(inside(geometry_, axis, number));
        }
    }
    Dims images{batch, channels};
    images.insert(images.end(), image.begin(), image.end());
    const Dims columns{batch, channels * geometry_.block_size(), geometry_.count()};
    inputs_ = {{"x", add ? columns : images, type}};
    outputs_ = {{"y", add ? images : columns, type}};
    if (type != ElementType::f32 && type != ElementType::f64 && type != ElementType::i32 && type != ElementType::i64) {
        throw Unsupported(describe() + ": not a type of sums");
    }
}

// Adds one element of the block, at all of its positions, to an image.
template <typename T>
void Im2Col::add_element(const T* columns, T* image, const std::int64_t (&element)[3]) const {
    const BlockGeometry& g = geometry_;
    std::int64_t first[3];
    std::int64_t last[3];
    std::int64_t offset[3];
    for (int axis = 0; axis < 3; ++axis) {
        std::tie(first[axis], last[axis]) = inside_[axis][static_cast<std::size_t>(element[axis])];
        offset[axis] = element[axis] * g.dilations[axis] - g.begin[axis];
    }
    const std::int64_t width = g.image[2];
    for (std::int64_t p = first[0]; p < last[0]; ++p) {
        const std::int64_t depth = p * g.strides[0] + offset[0];
        const std::int64_t height = first[1] * g.strides[1] + offset[1];
        T* const to = image + (depth * g.image[1] + height) * width + first[2] * g.strides[2] + offset[2];
        const T* const from = columns + (p * g.positions[1] + first[1]) * g.positions[2] + first[2];
        row_sums_.of<T>()(
            {to, g.strides[1] * width, g.strides[2], from, g.positions[2], last[1] - first[1], last[2] - first[2]});
    }
}

// Copies the elements of the image at all positions of one element of the block; 0 in the padding.
template <typename T>
void Im2Col::copy_element(const T* image, T* columns, const std::int64_t (&element)[3]) const {
    const BlockGeometry& g = geometry_;
    const auto [first, last] = inside_[2][static_cast<std::size_t>(element[2])];
    const std::int64_t offset = element[2] * g.dilations[2] - g.begin[2];
    const std::int64_t stride = g.strides[2];
    for_each_row(g, element[0], element[1], [&, first = first, last = last](std::int64_t row, std::int64_t at) {
        T* const column = columns + at;
        if (row < 0) {
            std::fill_n(column, g.positions[2], T{});
            return;
        }
        std::fill_n(column, first, T{});
        if (stride == 1) {
            std::copy_n(image + row + offset + first, last - first, column + first);
        } else {
            for (std::int64_t i = first; i < last; ++i) {
                column[i] = image[row + offset + i * stride];
            }
        }
        std::fill(column + last, column + g.positions[2], T{});
    });
}

template <typename T>
void Im2Col::run_as(const T* from, T* to) const {
    const BlockGeometry& g = geometry_;
    const std::int64_t columns = g.block_size() * g.count();
    const double cost = (add_ ? 0.2 : 0.4) * static_cast<double>(columns + g.image_size());
    parallel_for(threads(), planes_, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t plane = begin; plane < end; ++plane) {
            const T* x = from + plane * (add_ ? columns : g.image_size());
            T* y = to + plane * (add_ ? g.image_size() : columns);
            if (add_) {
                std::fill_n(y, g.image_size(), T{});
            }
            std::int64_t number = 0;
            for (std::int64_t d = 0; d < g.block[0]; ++d) {
                for (std::int64_t h = 0; h < g.block[1]; ++h) {
                    for (std::int64_t w = 0; w < g.block[2]; ++w, number += g.count()) {
                        if (add_) {
                            add_element(x + number, y, {d, h, w});
                        } else {
                            copy_element(x, y + number, {d, h, w});
                        }
                    }
                }
            }
        }
    });
}

void Im2Col::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    const auto start = [&]<typename T>(T) { run_as(static_cast<const T*>(inputs[0]), static_cast<T*>(outputs[0])); };
    switch (outputs_[0].type) {
        case ElementType::f32:
            return start(float{});
        case ElementType::f64:
            return start(double{});
        case ElementType::i32:  // unsigned: sums wrap around
            return start(std::uint32_t{});
        default:
            return start(std::uint64_t{});
    }
}

static const RecipeKind im2_col_recipe(
    "Im2Col", +[](Im2Col* self, bool add, std::int64_t batch, std::int64_t channels, const Dims& image,
                  const Dims& block, const Dims& positions, const Dims& strides, const Dims& dilations,
                  const Dims& begin, const std::string& dtype, int threads) {
        new (self) Im2Col(add, batch, channels, image, block, positions, strides, dilations, begin, element_type(dtype),
                          threads);
    });

GRAPHKIT_BINDINGS(im2col) {
    nb::class_<Im2Col, Kernel>(m, "Im2Col")
        .def("__init__", im2_col_recipe.init(), nb::kw_only(), "add"_a, "batch"_a, "channels"_a, "image"_a, "block"_a,
             "positions"_a, "strides"_a, "dilations"_a, "begin"_a, "dtype"_a, "threads"_a = 0);
}

}  // namespace graphkit
