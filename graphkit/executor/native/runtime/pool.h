// The helpers of this process: threads that take chunks of loops which other threads run.
//
// Whoever runs a loop cuts it into chunks and claims them one after the other, as do those helpers that are awake. The
// loop is over when its chunks are done, not when helpers have come: one that the system has not scheduled finds
// nothing left, and holds nobody up. A helper that finds nothing for a while sleeps, until a loop that is worth it
// wakes it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace graphkit {

// A loop of `chunks` calls of body(context, chunk), which may run at the same time, in any order. They do not throw:
// see for_each_chunk.
struct SharedLoop {
    void (*body)(void* context, std::int64_t chunk);
    void* context;
    std::int64_t chunks;
    double nanoseconds;  // of all chunks together on one thread, roughly
    int threads;         // how many may take part, the calling one included

    template <typename Body>
    static SharedLoop of(int threads, std::int64_t chunks, double nanoseconds, Body& body) {
        const auto call = [](void* context, std::int64_t chunk) noexcept { (*static_cast<Body*>(context))(chunk); };
        return {call, const_cast<void*>(static_cast<const void*>(std::addressof(body))), chunks, nanoseconds, threads};
    }
};

// Runs the loop on the calling thread and on helpers; returns when all of it is done and can be seen. Loops inside of
// chunks are not shared.
void run_shared(const SharedLoop& loop);

// Starts helpers until there are so many. Throws NativeError where the system gives fewer.
void start_helpers(int helpers);

// Helpers that are started from now on stay on one of these cores each: helper number n on core n, counted from 0 and
// round again, so that the first is left to who runs loops. None: where the system puts them.
void pin_helpers(std::vector<int> cores);

// This thread will share no loop for a while: others may have the helpers.
void leave_helpers();

// 0 on the thread that runs a loop, and the number of a helper, from 1, in the chunks that it took: below the loop's
// `threads`.
int thread_number();

// Makes that another number, and returns what it was: a run inside of a chunk is alone on its thread, number 0.
int exchange_thread_number(int number);

// Whether this thread is inside of a chunk.
bool in_chunk();

}  // namespace graphkit
