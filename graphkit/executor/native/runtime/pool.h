// The pool of helpers of this process: threads that take chunks of loops which other threads run.
//
// The thread that runs a loop divides it into chunks and claims them one after the other; so do helpers that are awake.
// The loop ends when all chunks are done, not when all helpers have come: a helper that the system schedules late finds
// nothing left, and delays no other thread. A helper that finds no work for a while sleeps until a loop that is long
// enough wakes it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace graphkit {

// A loop of `chunks` calls of body(context, chunk), which may run in parallel and in any order. They must not throw:
// see for_each_chunk.
struct SharedLoop {
    void (*body)(void* context, std::int64_t chunk);
    void* context;
    std::int64_t chunks;
    double nanoseconds;  // estimated time of all chunks on one thread
    int threads;  // how many may take part, the calling one included

    template <typename Body>
    static SharedLoop of(int threads, std::int64_t chunks, double nanoseconds, Body& body) {
        const auto call = [](void* context, std::int64_t chunk) noexcept { (*static_cast<Body*>(context))(chunk); };
        return {call, const_cast<void*>(static_cast<const void*>(std::addressof(body))), chunks, nanoseconds, threads};
    }
};

// Runs the loop on the calling thread and on helpers. Returns when all chunks are done and their results are visible. A
// loop inside of a chunk is not shared.
void run_shared(const SharedLoop& loop);

// Starts helpers until there are `helpers` of them. Throws NativeError if the system allows fewer.
void start_helpers(int helpers);

// Pins each helper that is started from now on to one of these cores: helper n to cores[n % size]. Helpers are numbered
// from 1, so the first core is left to the thread that runs loops. An empty list: the system places them.
void pin_helpers(std::vector<int> cores);

// Returns this thread's slot, because it will share no loop for a while. Other threads can then use the helpers.
void leave_helpers();

// Inside of a chunk: 0 on the thread that runs the loop, the number of the helper (from 1) on a helper. Always below
// the loop's `threads`.
int thread_number();

// Sets the thread number and returns the old one. A run inside of a chunk is alone on its thread, so its number is 0.
int exchange_thread_number(int number);

// Whether this thread is inside of a chunk.
bool in_chunk();

}  // namespace graphkit
