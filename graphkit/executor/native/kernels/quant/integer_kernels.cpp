// The geometry of integer products and convolutions, and their bindings.
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>

#include "kernels/quant/depthwise_bytes.h"
#include "kernels/quant/integer_product.h"
#include "runtime/bindings.h"
#include "runtime/recipe.h"

namespace graphkit {
namespace {

TensorSpec result(const Dims& shape, const std::string& type) {
    return {"y", shape, element_type(type)};
}

Dims operand_shape(const std::vector<NamedOperand>& operands, const std::string& part) {
    for (const NamedOperand& operand : operands) {
        if (operand && std::get<0>(*operand) == part) {
            return std::get<1>(*operand);
        }
    }
    throw NativeError("an integer product without its operand " + part);
}

// The shape of a matrix product, as in numpy: [..., rows, terms] and [..., terms, columns]. A vector is a row on the
// left and a column on the right.
class ProductShape {
  public:
    ProductShape(Dims a, Dims b, bool transpose_a, bool transpose_b) {
        if (a.empty() || b.empty()) {
            throw Unsupported("a product of scalars");
        }
        if (a.size() == 1) {
            a.insert(a.begin(), 1);
        }
        if (b.size() == 1) {
            b.push_back(1);
        }
        rows_ = a[a.size() - (transpose_a ? 1 : 2)];
        terms_ = a[a.size() - (transpose_a ? 2 : 1)];
        columns_ = b[b.size() - (transpose_b ? 2 : 1)];
        if (b[b.size() - (transpose_b ? 1 : 2)] != terms_) {
            throw NativeError("a product of " + to_string(a) + " and " + to_string(b) + ": sizes do not fit");
        }
        a_batch_ = Dims(a.begin(), a.end() - 2);
        b_batch_ = Dims(b.begin(), b.end() - 2);
        transposes_a_ = transpose_a;
        transposes_b_ = transpose_b;
    }

    std::int64_t columns() const { return columns_; }

    // Throws NativeError if the product of matrices of these shapes is not an array of this shape.
    void require_result(const Dims& y) const {
        Dims batch(std::max(a_batch_.size(), b_batch_.size()), 1);
        for (const Dims* const from : {&a_batch_, &b_batch_}) {
            const std::size_t missing = batch.size() - from->size();
            for (std::size_t i = 0; i < from->size(); ++i) {
                std::int64_t& size = batch[missing + i];
                if (size != 1 && (*from)[i] != 1 && (*from)[i] != size) {
                    throw NativeError("a product of stacks " + to_string(a_batch_) + " and " + to_string(b_batch_));
                }
                size = size == 1 ? (*from)[i] : size;
            }
        }
        if (count(batch) * rows_ * columns_ != count(y)) {
            throw NativeError("a product does not have the shape " + to_string(y));
        }
    }

    IntegerGeometry geometry() const {
        IntegerGeometry g;
        g.terms = terms_;
        g.columns = columns_;
        g.w_term = transposes_b_ ? 1 : columns_;
        g.w_column = transposes_b_ ? terms_ : 1;
        g.w_group = terms_ * columns_;
        g.x_stride = terms_;
        g.y_stride = columns_;
        g.shared = true;
        if (count(b_batch_) == 1) {
            g.rows = rows_ * count(a_batch_);
            g.x_begin = g.y_begin = {0};
            g.w_matrix = {0};
            return g;
        }
        g.groups = count(b_batch_);
        g.rows = rows_;
        place_matrices(g);
        return g;
    }

    IntegerOrder order() const {
        IntegerOrder made;
        if (transposes_a_) {
            made.x.emplace(Dims{rows_, terms_}, Dims{1, rows_}, Dims{terms_, 1}, std::size_t{1});
        }
        return made;
    }

  private:
    void place_matrices(IntegerGeometry& g) const {
        const std::size_t rank = std::max(a_batch_.size(), b_batch_.size());
        const auto padded = [&](const Dims& dims) {
            Dims all(rank - dims.size(), 1);
            all.insert(all.end(), dims.begin(), dims.end());
            return all;
        };
        const Dims a = padded(a_batch_), b = padded(b_batch_);
        Dims batch(rank);
        for (std::size_t i = 0; i < rank; ++i) {
            batch[i] = a[i] == 1 ? b[i] : a[i];
        }
        const auto index = [&](const Dims& of, std::int64_t matrix) {
            std::int64_t at = 0, step = 1;
            for (std::size_t i = rank; i-- > 0;) {
                at += of[i] == 1 ? 0 : matrix % batch[i] * step;
                step *= of[i];
                matrix /= batch[i];
            }
            return at;
        };
        for (std::int64_t matrix = 0; matrix < count(batch); ++matrix) {
            g.x_begin.push_back(index(a, matrix) * rows_ * terms_);
            g.y_begin.push_back(matrix * rows_ * columns_);
            g.w_matrix.push_back(index(b, matrix));
        }
    }

    std::int64_t rows_, terms_, columns_;
    Dims a_batch_, b_batch_;
    bool transposes_a_, transposes_b_;
};

// Copies one to three values to the last of three axes.
void put_axes(const Dims& values, std::int64_t (&to)[3]) {
    const std::size_t missing = 3 - values.size();
    for (std::size_t i = 0; i < values.size(); ++i) {
        to[missing + i] = values[i];
    }
}

struct WindowDims {
    Dims strides, dilations, pads_begin;
    std::int64_t groups;
};

// Sets strides and dilations that have no effect to 1. Throws Unsupported if the position of a tap may exceed int64, or
// if the tables of positions would be large: a file may describe any window.
void bound_windows(IntegerGeometry& g) {
    constexpr std::int64_t kMost = std::int64_t{1} << 31, kMostTaps = std::int64_t{1} << 20;
    if (g.taps > kMostTaps) {
        throw Unsupported("an integer convolution with windows of " + std::to_string(g.taps) + " elements");
    }
    for (int axis = 0; axis < 3; ++axis) {
        g.stride[axis] = g.output[axis] > 1 ? g.stride[axis] : 1;
        g.dilation[axis] = g.kernel[axis] > 1 ? g.dilation[axis] : 1;
        if (g.stride[axis] > kMost || g.dilation[axis] > kMost || g.pad[axis] > kMost || g.pad[axis] < -kMost) {
            throw Unsupported("an integer convolution with windows that large");
        }
    }
}

// w: [M, C / groups, *kernel]; x and y with the channels first or (`last`) last.
IntegerGeometry convolution_geometry(Dims x, const Dims& w, Dims y, const WindowDims& window, bool last) {
    const std::size_t axes = w.size() - 2;
    if (w.size() < 3 || axes > 3 || x.size() != w.size() || y.size() != w.size()) {
        throw Unsupported("an integer convolution of " + std::to_string(w.size()) + " axes");
    }
    for (const Dims* const values : {&window.strides, &window.dilations, &window.pads_begin}) {
        if (values->size() != axes) {
            throw NativeError("an integer convolution of " + std::to_string(axes) + " axes with a window " +
                              to_string(*values));
        }
    }
    if (last) {
        std::rotate(x.begin() + 1, x.end() - 1, x.end());
        std::rotate(y.begin() + 1, y.end() - 1, y.end());
    }
    IntegerGeometry g;
    g.windows = true;
    g.groups = window.groups;
    g.terms = w[1];
    g.columns = w[0] / std::max<std::int64_t>(window.groups, 1);
    const Dims kernel(w.begin() + 2, w.end());
    g.taps = count(kernel);
    if (x[0] != y[0]) {
        throw NativeError("an integer convolution of " + std::to_string(x[0]) + " images to " + std::to_string(y[0]));
    }
    if (g.terms * g.groups != x[1] || g.columns * g.groups != w[0] || y[1] != w[0] || g.taps == 0) {
        throw Unsupported("an integer convolution of channels that do not fit");
    }
    g.w_tap = 1;
    g.w_term = g.taps;
    g.w_column = g.taps * g.terms;
    g.w_group = g.w_column * g.columns;
    g.x_stride = x[1];
    g.y_stride = y[1];
    put_axes(Dims(x.begin() + 2, x.end()), g.input);
    put_axes(Dims(y.begin() + 2, y.end()), g.output);
    put_axes(kernel, g.kernel);
    put_axes(window.strides, g.stride);
    put_axes(window.dilations, g.dilation);
    put_axes(window.pads_begin, g.pad);
    bound_windows(g);
    g.rows = x[0] * g.output[0] * g.output[1] * g.output[2];
    for (std::int64_t i = 0; i < g.kernel[0]; ++i) {
        for (std::int64_t j = 0; j < g.kernel[1]; ++j) {
            const std::int64_t line = (i * g.dilation[0] * g.input[1] + j * g.dilation[1]) * g.input[2] * g.x_stride;
            g.line_offsets.push_back(line);
            for (std::int64_t k = 0; k < g.kernel[2]; ++k) {
                g.tap_offsets.push_back(line + k * g.dilation[2] * g.x_stride);
            }
        }
    }
    bool plain = g.taps == 1;
    for (int axis = 0; axis < 3; ++axis) {
        plain &= g.stride[axis] == 1 && g.pad[axis] == 0 && g.output[axis] == g.input[axis];
    }
    if (plain) {
        // Windows with one element are rows.
        g.windows = false;
        for (std::int64_t group = 0; group < g.groups; ++group) {
            g.x_begin.push_back(group * g.terms);
            g.y_begin.push_back(group * g.columns);
            g.w_matrix.push_back(group);
        }
    }
    return g;
}

IntegerOrder convolution_order(const Dims& x, const Dims& y, std::size_t y_bytes, bool last) {
    IntegerOrder made;
    if (!last && count(y) != 0) {
        const std::int64_t in = count(x) / std::max<std::int64_t>(x[0] * x[1], 1), out = count(y) / (y[0] * y[1]);
        made.x.emplace(Dims{x[0], in, x[1]}, Dims{x[1] * in, 1, in}, Dims{in * x[1], x[1], 1}, std::size_t{1});
        made.y.emplace(Dims{y[0], y[1], out}, Dims{y[1] * out, 1, y[1]}, Dims{out * y[1], out, 1}, y_bytes);
    }
    return made;
}

// Makes the kernel of a convolution; depthwise convolutions have their own.
std::unique_ptr<Kernel> convolution(const std::vector<NamedOperand>& operands, const Dims& y, const std::string& type,
                                    const WindowDims& window, bool last, bool pack_weights, int threads) {
    const Dims x = operand_shape(operands, "x"), w = operand_shape(operands, "w");
    IntegerGeometry geometry = convolution_geometry(x, w, y, window, last);
    const TensorSpec made = result(y, type);
    IntegerOperands parts(operands, w[0]);
    IntegerOrder order = convolution_order(x, y, size_of(made.type), last);
    if (geometry.terms == 1 && geometry.columns == 1 && geometry.groups > 1) {
        return std::make_unique<DepthwiseBytes>(std::move(parts), made, geometry, std::move(order), pack_weights,
                                                threads);
    }
    return std::make_unique<IntegerProduct>("IntegerConvolution", std::move(parts), made, std::move(geometry),
                                            std::move(order), 1.0F, pack_weights, threads);
}

}  // namespace

static const RecipeKind integer_product_recipe(
    "IntegerProduct",
    +[](IntegerProduct* self, const std::vector<NamedOperand>& operands, const Dims& y, const std::string& type,
        bool transpose_a, bool transpose_b, float alpha, bool pack_weights, int threads) {
        const ProductShape shape(operand_shape(operands, "x"), operand_shape(operands, "w"), transpose_a, transpose_b);
        shape.require_result(y);
        new (self) IntegerProduct("IntegerProduct", IntegerOperands(operands, shape.columns()), result(y, type),
                                  shape.geometry(), shape.order(), alpha, pack_weights, threads);
    });

static const RecipeFunction integer_convolution_recipe(
    "integer_convolution", +[](const std::vector<NamedOperand>& operands, const Dims& y, const std::string& type,
                               const Dims& strides, const Dims& dilations, const Dims& pads_begin, std::int64_t groups,
                               bool channels_last, bool pack_weights, int threads) {
        return convolution(operands, y, type, {strides, dilations, pads_begin, groups}, channels_last, pack_weights,
                           threads);
    });

GRAPHKIT_BINDINGS(integer_kernels) {
    nb::class_<IntegerProduct, Kernel>(m, "IntegerProduct")
        .def("__init__", integer_product_recipe.init(), "operands"_a, "y"_a, "type"_a, nb::kw_only(),
             "transpose_a"_a = false, "transpose_b"_a = false, "alpha"_a = 1.0F, "pack_weights"_a = false,
             "threads"_a = 0, NoGil());
    m.def("integer_convolution", integer_convolution_recipe.call(), "operands"_a, "y"_a, "type"_a, "strides"_a,
          "dilations"_a, "pads_begin"_a, "groups"_a, nb::kw_only(), "channels_last"_a = false, "pack_weights"_a = false,
          "threads"_a = 0, NoGil());
}

}  // namespace graphkit
