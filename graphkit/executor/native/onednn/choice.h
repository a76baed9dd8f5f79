// The one place where primitives of the library come from: none of its reference implementations is ever chosen.
#pragma once

#include <dnnl.hpp>
#include <functional>
#include <string>

namespace graphkit {

// Whether an implementation, by the library's name of it, is one for use. Its references are there to be compared with:
// they take up to ten thousand times as long as any other.
bool is_for_use(const std::string& implementation);

// Whether a convolution is copied out into columns and multiplied: the library's last resort, slow for wide kernels.
bool is_by_columns(const std::string& implementation);

// Further conditions on an implementation's name.
using Accepts = std::function<bool(const std::string&)>;
inline bool any_name(const std::string&) {
    return true;
}

// The descriptor of the library's best implementation that is for use and accepted. Throws dnnl::error of status
// unimplemented where there is none.
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
