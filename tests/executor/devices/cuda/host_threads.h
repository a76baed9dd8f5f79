// How a kernel's threads run on the processor. host_threads.cpp defines these names once for all kernels of a process,
// which runs one kernel at a time.
#pragma once

struct HostIndex {
    unsigned x, y, z;
};

enum HostState { HOST_READY, HOST_AT_BLOCK, HOST_AT_WARP, HOST_DONE };

const unsigned kHostWarp = 32;

union HostSlot {
    unsigned char bytes[48];
    float floats[12];
};

extern "C" {
extern HostIndex threadIdx, blockIdx, blockDim, gridDim;

// A kernel that is called with the addresses of its arguments.
typedef void (*HostBody)(void** arguments);

// Stops the current thread until the others of its block or of its warp are there too.
void host_wait(HostState state);

// Gives up to 48 bytes to the other threads of the current thread's warp and waits until all have done so. Returns what
// each of them has given, which stays there until the next exchange but one.
const HostSlot* host_exchange(const void* given, unsigned bytes);

// The sum of products of a warp's matrices is added to d. values: the thread's elements of a, then those of b.
void host_multiply_halves(float* d, const float* values);
void host_multiply_floats(float* d, const float* values);

// Runs all blocks. Returns 0, or 1 if threads wait for others that never come.
// order: 1 runs the threads of a block in reverse order. waits: whether threads may wait for each other.
int host_launch(unsigned blocks, unsigned threads, int order, bool waits, HostBody body, void** arguments);
}
