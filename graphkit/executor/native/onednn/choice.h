// Chooses implementations of the library's primitives. All primitives are made here, and none uses a reference
// implementation.
#pragma once

#include <functional>
#include <string>

#include "onednn/library.h"

namespace graphkit {

// Whether an implementation with this name may be used. The library's reference implementations may not: they take up
// to ten thousand times as long as others.
bool is_for_use(const std::string& implementation);

// Whether the implementation copies the windows of a convolution into columns and multiplies them: the library's last
// resort, slow for wide kernels.
bool is_by_columns(const std::string& implementation);

// A further condition on an implementation's name.
using Accepts = std::function<bool(const std::string&)>;
inline bool any_name(const std::string&) {
    return true;
}

// Returns the descriptor of the library's first implementation that may be used and is accepted. Throws dnnl::error
// with status unimplemented if there is none.
template <typename Primitive, typename... Arguments>
typename Primitive::primitive_desc choose(const Accepts& accepts, const Arguments&... arguments) {
    typename Primitive::primitive_desc descriptor(arguments...);
    for (;;) {
        const std::string name = descriptor.impl_info_str();
        if (is_for_use(name) && accepts(name)) {
            return descriptor;
        }
        if (dnnl_primitive_desc_next_impl(descriptor.get()) != dnnl_success) {
            throw dnnl::error(dnnl_unimplemented, "there is no implementation but the reference");
        }
    }
}

}  // namespace graphkit
