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

#include <cstddef>

#include "runtime/gil.h"
#include "runtime/kernel.h"
#include "runtime/raw_bytes.h"
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

// The bindings of one source file. It is a constant: no code runs when the library is loaded, so that a linker can
// leave out all bindings, and with them everything that uses Python.
struct Bindings {
    static constexpr std::size_t kMostNeeds = 6;

    const char* name;
    const char* needs[kMostNeeds];  // null after the last one
    Bind bind;
};

// Throws NativeError if a binding needs one that is not registered, or if bindings need each other in a cycle.
void bind_all(nb::module_& m);

}  // namespace graphkit

namespace nanobind::detail {

template <>
struct type_caster<graphkit::RawBytes> {
    NB_TYPE_CASTER(graphkit::RawBytes, const_name("bytes"))

    bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
        if (!PyBytes_Check(source.ptr())) {
            return false;
        }
        value.data.assign(PyBytes_AS_STRING(source.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(source.ptr())));
        return true;
    }

    static handle from_cpp(const graphkit::RawBytes& bytes, rv_policy, cleanup_list*) noexcept {
        return PyBytes_FromStringAndSize(bytes.data.data(), static_cast<Py_ssize_t>(bytes.data.size()));
    }
};

}  // namespace nanobind::detail

// If two source files use the same name, linking fails. The linker collects the addresses of all bindings in the
// section graphkit_bindings.
#define GRAPHKIT_BINDINGS(name_, ...)                                                                               \
    static void bind_##name_(::nanobind::module_& m);                                                               \
    extern const ::graphkit::Bindings bindings_of_##name_;                                                          \
    constinit const ::graphkit::Bindings bindings_of_##name_{                                                       \
        .name = #name_, .needs = {__VA_ARGS__}, .bind = &bind_##name_};                                             \
    [[maybe_unused, gnu::used,                                                                                      \
      gnu::section("graphkit_bindings")]] static const ::graphkit::Bindings* const pointer_to_bindings_of_##name_ = \
        &bindings_of_##name_;                                                                                       \
    static void bind_##name_(::nanobind::module_& m)
