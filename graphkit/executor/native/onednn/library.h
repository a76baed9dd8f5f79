// oneDNN's C++ interface, and the library itself, which is loaded when one of its functions is first called.
//
// The dynamic linker needs several milliseconds for the library, and many networks use none of its primitives. So the
// extension is not linked with it: the macros below replace each C function that the extension or dnnl.hpp calls by a
// pointer to it. If a function is missing here, the extension cannot be imported, because a symbol is undefined.
#pragma once

#include <dnnl.h>
#include <dnnl_debug.h>

#include <string>

#define GRAPHKIT_ONEDNN_FUNCTIONS(APPLY)                      \
    APPLY(convolution_backward_data_primitive_desc_create)    \
    APPLY(convolution_backward_weights_primitive_desc_create) \
    APPLY(convolution_forward_primitive_desc_create)          \
    APPLY(deconvolution_forward_primitive_desc_create)        \
    APPLY(engine_create)                                      \
    APPLY(engine_destroy)                                     \
    APPLY(get_effective_cpu_isa)                              \
    APPLY(matmul_primitive_desc_create)                       \
    APPLY(memory_create_v2)                                   \
    APPLY(memory_desc_clone)                                  \
    APPLY(memory_desc_create_with_strides)                    \
    APPLY(memory_desc_create_with_tag)                        \
    APPLY(memory_desc_destroy)                                \
    APPLY(memory_desc_equal)                                  \
    APPLY(memory_desc_get_size_v2)                            \
    APPLY(memory_desc_query)                                  \
    APPLY(memory_desc_query_v2)                               \
    APPLY(memory_destroy)                                     \
    APPLY(memory_get_engine)                                  \
    APPLY(memory_get_memory_desc)                             \
    APPLY(memory_set_data_handle_v2)                          \
    APPLY(post_ops_append_eltwise)                            \
    APPLY(post_ops_append_sum)                                \
    APPLY(post_ops_create)                                    \
    APPLY(post_ops_destroy)                                   \
    APPLY(primitive_attr_create)                              \
    APPLY(primitive_attr_destroy)                             \
    APPLY(primitive_attr_set_post_ops)                        \
    APPLY(primitive_attr_set_scratchpad_mode)                 \
    APPLY(primitive_create)                                   \
    APPLY(primitive_desc_destroy)                             \
    APPLY(primitive_desc_next_impl)                           \
    APPLY(primitive_desc_query)                               \
    APPLY(primitive_desc_query_md)                            \
    APPLY(primitive_destroy)                                  \
    APPLY(primitive_execute)                                  \
    APPLY(reorder_primitive_desc_create)                      \
    APPLY(status2str)                                         \
    APPLY(stream_create)                                      \
    APPLY(stream_destroy)                                     \
    APPLY(version)

namespace graphkit {

struct OneDnnFunctions {
#define GRAPHKIT_DECLARE(name) decltype(&::dnnl_##name) name;
    GRAPHKIT_ONEDNN_FUNCTIONS(GRAPHKIT_DECLARE)
#undef GRAPHKIT_DECLARE
};

// Returns oneDNN's functions. The first call loads the library. Throws NativeError, or what the finder throws.
const OneDnnFunctions& onednn();

// Sets the function that returns the path of the library if the RPATH does not lead to it. cause: why it does not.
using FindOneDnn = std::string (*)(const std::string& cause);
void find_onednn_by(FindOneDnn find);

}  // namespace graphkit

#define dnnl_convolution_backward_data_primitive_desc_create \
    (::graphkit::onednn().convolution_backward_data_primitive_desc_create)
#define dnnl_convolution_backward_weights_primitive_desc_create \
    (::graphkit::onednn().convolution_backward_weights_primitive_desc_create)
#define dnnl_convolution_forward_primitive_desc_create (::graphkit::onednn().convolution_forward_primitive_desc_create)
#define dnnl_deconvolution_forward_primitive_desc_create \
    (::graphkit::onednn().deconvolution_forward_primitive_desc_create)
#define dnnl_engine_create (::graphkit::onednn().engine_create)
#define dnnl_engine_destroy (::graphkit::onednn().engine_destroy)
#define dnnl_get_effective_cpu_isa (::graphkit::onednn().get_effective_cpu_isa)
#define dnnl_matmul_primitive_desc_create (::graphkit::onednn().matmul_primitive_desc_create)
#define dnnl_memory_create_v2 (::graphkit::onednn().memory_create_v2)
#define dnnl_memory_desc_clone (::graphkit::onednn().memory_desc_clone)
#define dnnl_memory_desc_create_with_strides (::graphkit::onednn().memory_desc_create_with_strides)
#define dnnl_memory_desc_create_with_tag (::graphkit::onednn().memory_desc_create_with_tag)
#define dnnl_memory_desc_destroy (::graphkit::onednn().memory_desc_destroy)
#define dnnl_memory_desc_equal (::graphkit::onednn().memory_desc_equal)
#define dnnl_memory_desc_get_size_v2 (::graphkit::onednn().memory_desc_get_size_v2)
#define dnnl_memory_desc_query (::graphkit::onednn().memory_desc_query)
#define dnnl_memory_desc_query_v2 (::graphkit::onednn().memory_desc_query_v2)
#define dnnl_memory_destroy (::graphkit::onednn().memory_destroy)
#define dnnl_memory_get_engine (::graphkit::onednn().memory_get_engine)
#define dnnl_memory_get_memory_desc (::graphkit::onednn().memory_get_memory_desc)
#define dnnl_memory_set_data_handle_v2 (::graphkit::onednn().memory_set_data_handle_v2)
#define dnnl_post_ops_append_eltwise (::graphkit::onednn().post_ops_append_eltwise)
#define dnnl_post_ops_append_sum (::graphkit::onednn().post_ops_append_sum)
#define dnnl_post_ops_create (::graphkit::onednn().post_ops_create)
#define dnnl_post_ops_destroy (::graphkit::onednn().post_ops_destroy)
#define dnnl_primitive_attr_create (::graphkit::onednn().primitive_attr_create)
#define dnnl_primitive_attr_destroy (::graphkit::onednn().primitive_attr_destroy)
#define dnnl_primitive_attr_set_post_ops (::graphkit::onednn().primitive_attr_set_post_ops)
#define dnnl_primitive_attr_set_scratchpad_mode (::graphkit::onednn().primitive_attr_set_scratchpad_mode)
#define dnnl_primitive_create (::graphkit::onednn().primitive_create)
#define dnnl_primitive_desc_destroy (::graphkit::onednn().primitive_desc_destroy)
#define dnnl_primitive_desc_next_impl (::graphkit::onednn().primitive_desc_next_impl)
#define dnnl_primitive_desc_query (::graphkit::onednn().primitive_desc_query)
#define dnnl_primitive_desc_query_md (::graphkit::onednn().primitive_desc_query_md)
#define dnnl_primitive_destroy (::graphkit::onednn().primitive_destroy)
#define dnnl_primitive_execute (::graphkit::onednn().primitive_execute)
#define dnnl_reorder_primitive_desc_create (::graphkit::onednn().reorder_primitive_desc_create)
#define dnnl_status2str (::graphkit::onednn().status2str)
#define dnnl_stream_create (::graphkit::onednn().stream_create)
#define dnnl_stream_destroy (::graphkit::onednn().stream_destroy)
#define dnnl_version (::graphkit::onednn().version)

#include <dnnl.hpp>  // after the macros
