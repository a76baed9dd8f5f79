// Runs kernels on the processor: a launch is a loop over blocks, and a block is a loop over threads. Threads that wait
// for each other are fibers. If a result depends on the order of the threads, the kernel lacks a barrier.
#include "host_threads.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

HostIndex threadIdx, blockIdx, blockDim, gridDim;

namespace {

const unsigned kStackBytes = 1 << 16;

struct Fiber {
    ucontext_t beginning;
    jmp_buf place;  // where it continues
    bool has_begun;
    HostState state;
    unsigned next;  // which of its two slots the thread used last
};

// Fibers are kept from launch to launch: making one asks the operating system, and a jump does not.
Fiber* fibers = nullptr;
unsigned char* stacks = nullptr;
unsigned fiber_count = 0;
HostSlot* exchanged[2] = {nullptr, nullptr};
jmp_buf scheduler;
HostBody current_body;
void** current_arguments;

// Runs one thread after the other, each in the same fiber for its place in the block.
void run_threads() {
    for (;;) {
        current_body(current_arguments);
        host_wait(HOST_DONE);
    }
}

void resume(Fiber& fiber) {
    if (_setjmp(scheduler) != 0) {
        return;
    }
    if (fiber.has_begun) {
        _longjmp(fiber.place, 1);
    }
    fiber.has_begun = true;
    setcontext(&fiber.beginning);
}

void make_fibers(unsigned threads) {
    free(fibers);
    free(stacks);
    fibers = static_cast<Fiber*>(calloc(threads, sizeof(Fiber)));
    stacks = static_cast<unsigned char*>(malloc(static_cast<size_t>(threads) * kStackBytes));
    for (HostSlot*& slots : exchanged) {
        free(slots);
        slots = static_cast<HostSlot*>(calloc(threads, sizeof(HostSlot)));
    }
    if (fibers == nullptr || stacks == nullptr || exchanged[0] == nullptr || exchanged[1] == nullptr) {
        abort();
    }
    for (unsigned i = 0; i < threads; ++i) {
        getcontext(&fibers[i].beginning);
        fibers[i].beginning.uc_stack.ss_sp = stacks + static_cast<size_t>(i) * kStackBytes;
        fibers[i].beginning.uc_stack.ss_size = kStackBytes;
        makecontext(&fibers[i].beginning, run_threads, 0);
    }
    fiber_count = threads;
}

// Runs the threads of a warp until each is done or waits for its block. Returns false if threads wait for others of the
// warp that never come.
bool run_warp(unsigned first, unsigned lanes, int order) {
    for (;;) {
        unsigned waiting = 0;
        for (unsigned i = 0; i < lanes; ++i) {
            const unsigned thread = first + (order == 0 ? i : lanes - 1 - i);
            if (fibers[thread].state == HOST_READY) {
                threadIdx = {thread, 0, 0};
                resume(fibers[thread]);
            }
            waiting += fibers[thread].state == HOST_AT_WARP;
        }
        if (waiting != kHostWarp) {
            return waiting == 0;
        }
        for (unsigned i = first; i < first + lanes; ++i) {
            fibers[i].state = HOST_READY;
        }
    }
}

// Runs the threads of a block until each is done or waits for its block.
bool run_warps(unsigned threads, int order) {
    const unsigned warps = (threads + kHostWarp - 1) / kHostWarp;
    for (unsigned i = 0; i < warps; ++i) {
        const unsigned first = (order == 0 ? i : warps - 1 - i) * kHostWarp;
        if (!run_warp(first, threads - first < kHostWarp ? threads - first : kHostWarp, order)) {
            return false;
        }
    }
    return true;
}

// Returns false if threads wait for others that never come.
bool run_block(unsigned threads, int order) {
    if (threads > fiber_count) {
        make_fibers(threads);
    }
    for (unsigned i = 0; i < threads; ++i) {
        fibers[i].state = HOST_READY;
    }
    while (run_warps(threads, order)) {
        unsigned done = 0;
        for (unsigned i = 0; i < threads; ++i) {
            done += fibers[i].state == HOST_DONE;
        }
        if (done == threads) {
            return true;
        }
        if (done != 0) {
            break;
        }
        for (unsigned i = 0; i < threads; ++i) {
            fibers[i].state = HOST_READY;
        }
    }
    // Some threads never end. The next launch makes new fibers.
    fiber_count = 0;
    return false;
}

}  // namespace

void host_wait(HostState state) {
    Fiber& self = fibers[threadIdx.x];
    self.state = state;
    if (_setjmp(self.place) == 0) {
        _longjmp(scheduler, 1);
    }
}

const HostSlot* host_exchange(const void* given, unsigned bytes) {
    Fiber& self = fibers[threadIdx.x];
    // A thread writes its other slot next time. By then all threads of the warp have read this one.
    self.next = 1 - self.next;
    HostSlot* slots = exchanged[self.next] + threadIdx.x / kHostWarp * kHostWarp;
    memcpy(slots[threadIdx.x % kHostWarp].bytes, given, bytes);
    host_wait(HOST_AT_WARP);
    return slots;
}

void host_multiply_halves(float* d, const float* values) {
    const unsigned lane = threadIdx.x % kHostWarp;
    const HostSlot* slots = host_exchange(values, 12 * sizeof(float));
    for (unsigned i = 0; i < 4; ++i) {
        const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        const HostSlot *of_row = slots + row % 8 * 4, *of_column = slots + column * 4;
        for (unsigned k = 0; k < 16; ++k) {
            const unsigned pair = k % 8 / 2;
            d[i] += of_row[pair].floats[(row / 8 + k / 8 * 2) * 2 + k % 2] *
                    of_column[pair].floats[8 + k / 8 * 2 + k % 2];
        }
    }
}

void host_multiply_floats(float* d, const float* values) {
    const unsigned lane = threadIdx.x % kHostWarp;
    const HostSlot* slots = host_exchange(values, 6 * sizeof(float));
    for (unsigned i = 0; i < 4; ++i) {
        const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        const HostSlot *of_row = slots + row % 8 * 4, *of_column = slots + column * 4;
        for (unsigned k = 0; k < 8; ++k) {
            d[i] += of_row[k / 2].floats[row / 8 + k % 2 * 2] * of_column[k / 2].floats[4 + k % 2];
        }
    }
}

int host_launch(unsigned blocks, unsigned threads, int order, bool waits, HostBody body, void** arguments) {
    gridDim = {blocks, 1, 1};
    blockDim = {threads, 1, 1};
    current_body = body;
    current_arguments = arguments;
    for (unsigned block = 0; block < blocks; ++block) {
        blockIdx = {block, 0, 0};
        if (waits) {
            if (!run_block(threads, order)) {
                return 1;
            }
            continue;
        }
        for (unsigned thread = 0; thread < threads; ++thread) {
            threadIdx = {thread, 0, 0};
            body(arguments);
        }
    }
    return 0;
}
