# Sources that are compiled together, as one translation unit for each line: parsing headers and translating what
# templates make of them costs about as much as a source's own code. Sources that are not named here are compiled alone.
#
# Names in anonymous namespaces of one line must differ. If a new source is named here and its names clash with those of
# its neighbours, name it in another line, or rename. A change of one source compiles its whole line, which takes a few
# seconds: keep lines short. GRAPHKIT_UNITY=OFF compiles each source alone, which also finds missing includes.
set(unity_groups
    "kernels/attention/attention kernels/concat/concat kernels/conv/conv kernels/conv/conv_grad"
    "kernels/conv/conv_library kernels/conv/depthwise_copied kernels/conv/following kernels/conv/narrow_conv kernels/cumulative/cumulative"
    "kernels/conv/tiled_conv kernels/fill/fill kernels/folded_batch_norm/folded_batch_norm kernels/gather/gather kernels/guard/guard"
    "kernels/conv/transposed_conv kernels/im2col/im2col kernels/last_equal/last_equal kernels/layout/layout kernels/linalg/linear_systems"
    "kernels/conv/plane kernels/conv/shallow_conv"
    "kernels/conv/window_products kernels/loss/loss kernels/matmul/matmul kernels/matmul/packed_product kernels/matmul/blocked_product"
    "kernels/norm/batch_norm_channels_last kernels/pad/pad kernels/pointwise/epilogue kernels/pointwise/pointwise"
    "kernels/norm/norm kernels/norm/group_norm_grad kernels/pointwise/pointwise_layout kernels/pool/pool"
    "kernels/norm/norm_grad kernels/pool/lanes kernels/pool/padded kernels/pool/unpool kernels/pool/vector_pool kernels/quant/depthwise_bytes kernels/quant/integer_kernels kernels/quant/integer_operands"
    "kernels/quant/integer_product kernels/quant/linear kernels/quant/pool_bytes kernels/random/random"
    "kernels/strings/character_runs kernels/strings/ngrams kernels/strings/string_table kernels/svm/coupling"
    "kernels/reduce/reduce kernels/resize/resample kernels/resize/resize_nearest kernels/rnn/recurrent"
    "kernels/rnn/recurrent_grad kernels/rnn/recurrent_options kernels/rnn/recurrent_sharing kernels/roi/roi"
    "kernels/roi/suppression kernels/scatter/rules kernels/scatter/scatter kernels/select/compress"
    "kernels/select/nonzero kernels/select/select kernels/signal/fourier kernels/slicing/slicing"
    "kernels/softmax/softmax kernels/sorting/unique kernels/table_update/table_update kernels/trees/finish"
    "kernels/sorting/sorting kernels/trees/forest kernels/trees/trees"
    "onednn/onednn onednn/post_ops onednn/product onednn/watched_product"
    "primitives/axis_gather primitives/indices primitives/partition primitives/reduction"
    "kernels/pointwise/pointwise_steps primitives/strided_copy runtime/variable"
    "runtime/arena_layout runtime/array runtime/bindings runtime/cpu_info runtime/schedule runtime/graph_sweeps"
    "runtime/deadline runtime/engine runtime/isa runtime/kernel"
    "runtime/graph_copying runtime/graph_merging runtime/graph_planning"
    "runtime/kernel_call runtime/parts runtime/pool runtime/run_data_dependent"
    "runtime/program runtime/run_dynamic runtime/run_loop runtime/threads")

# graphkit_unity(<target> <folder>): groups the target's sources, which lie below the folder.
function(graphkit_unity target folder)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  foreach(group IN LISTS unity_groups)
    separate_arguments(names UNIX_COMMAND "${group}")
    list(GET names 0 first)
    string(REPLACE "/" "_" name ${first})
    foreach(source IN LISTS names)
      set_property(SOURCE ${folder}/${source}.cpp PROPERTY UNITY_GROUP ${name})
    endforeach()
  endforeach()
endfunction()
