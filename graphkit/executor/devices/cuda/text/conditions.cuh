// Sets the value of a conditional node of a CUDA graph (CUDA 12.4). The driver provides this function, so no library is
// linked.
extern "C" __device__ void cudaGraphSetConditional(gk_u64 handle, gk_u32 value);
