// Sets the value of a conditional node of a graph (CUDA 12.4). The driver knows it, as it knows printf's part: it is in no
// library.
extern "C" __device__ void cudaGraphSetConditional(gk_u64 handle, gk_u32 value);
