// What families of kernels add to the Python module, and how they say so.
//
//     GRAPHKIT_BINDINGS(pool_channels_last, "pool") {
//         nb::class_<ChannelsLastPool, Kernel>(m, "ChannelsLastPool").def(...);
//     }
//
// at the end of a source registers what it binds, by the name of that source; the names that follow are those whose
// classes it mentions. The module binds them all, in alphabetical order but for that. Kernel comes before everything.
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

// Throws NativeError when bindings need some that nobody registered, or each other.
void bind_all(nb::module_& m);

}  // namespace graphkit

// Two sources that register one name do not link.
#define GRAPHKIT_BINDINGS(name, ...)                                                   \
    static void bind_##name(::nanobind::module_& m);                                   \
    extern const ::graphkit::Bindings bindings_of_##name;                              \
    const ::graphkit::Bindings bindings_of_##name(#name, {__VA_ARGS__}, &bind_##name); \
    static void bind_##name(::nanobind::module_& m)
