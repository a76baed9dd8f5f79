// Registration of the Python bindings of kernels.
//
//     GRAPHKIT_BINDINGS(pool_channels_last, "pool") {
//         nb::class_<ChannelsLastPool, Kernel>(m, "ChannelsLastPool").def(...);
//     }
//
// at the end of a source file registers its bindings under the name of the file. The names that follow are bindings
// that must come first, because this one uses their classes. The module binds Kernel first, then all others in
// alphabetical order, each after those that it needs.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <initializer_list>

#include "runtime/gil.h"
#include "runtime/kernel.h"
#include "runtime/threads.h"

namespace graphkit {

namespace nb = nanobind;
using namespace nb::literals;

using NoGil = nb::call_guard<WithoutGil>;

using OptionalDims = std::optional<Dims>;
using Text = const std::string&;

inline std::string bytes_of(const nb::bytes& value) {
    return {value.c_str(), value.size()};
}

using Bind = void (*)(nb::module_& m);

struct Bindings {
    Bindings(const char* name, std::initializer_list<const char*> needs, Bind bind);
};

// Throws NativeError if a binding needs one that is not registered, or if bindings need each other in a cycle.
void bind_all(nb::module_& m);

}  // namespace graphkit

// If two source files use the same name, linking fails.
#define GRAPHKIT_BINDINGS(name, ...)                                                   \
    static void bind_##name(::nanobind::module_& m);                                   \
    extern const ::graphkit::Bindings bindings_of_##name;                              \
    const ::graphkit::Bindings bindings_of_##name(#name, {__VA_ARGS__}, &bind_##name); \
    static void bind_##name(::nanobind::module_& m)
