// The windows of a convolution.
#pragma once

#include "runtime/kernel.h"
#include "runtime/recipe.h"

namespace graphkit {

// ONNX's attributes, complete: one entry for each spatial dimension; dilation 1 means adjacent elements.
struct Window {
    Dims strides;
    Dims dilations;
    Dims pads_begin;
    Dims pads_end;
    std::int64_t groups = 1;
};

template <>
struct RecipeFields<Window> {
    static auto of(Window& w) { return std::tie(w.strides, w.dilations, w.pads_begin, w.pads_end, w.groups); }
    static void check(const Window& w) {
        const std::size_t axes = w.strides.size();
        if (axes > 3 || w.dilations.size() != axes || w.pads_begin.size() != axes || w.pads_end.size() != axes) {
            throw BadRecipe("a window has several numbers of axes");
        }
    }
};

}  // namespace graphkit
