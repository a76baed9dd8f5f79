// Loops shared among threads: how many a run may use, and how much work deserves more than one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <type_traits>

#include "runtime/arithmetic.h"
#include "runtime/pool.h"

namespace graphkit {

// Threads of kernels that do not say how many: the cores allowed, until it is set.
int default_threads();
void set_default_threads(int threads);

// While it lives, loops of this thread may be shared among so many threads (0: the default), and it computes as its
// helpers do. NativeError where the system does not give them. Inside of a chunk of a loop there is one.
class Team {
  public:
    explicit Team(int threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

  private:
    int previous_;
    int number_;
    Arithmetic arithmetic_;
};

// Threads that a loop of this thread may be shared among; 1 outside of a Team.
int team_size();

// A new thread; NativeError when the system gives none.
std::thread start_thread(std::function<void()> body);

// Nanoseconds of work below which a loop is not shared, and those that make a chunk worth the handing out.
constexpr double kSerialNanoseconds = 5000;
constexpr double kChunkNanoseconds = 10000;
// Chunks for each thread, at most: threads do not get the same share of a core.
constexpr int kChunksPerThread = 4;

// Whether less work than that is shared as well: tests see so, on small operands, that parts make up the whole.
bool shares_all_work();
void share_all_work(bool on);

// How many of `threads` a loop deserves whose whole work takes `nanoseconds` on one thread.
inline int threads_for(int threads, double nanoseconds) {
    if (threads <= 1) {
        return 1;
    }
    if (nanoseconds < kSerialNanoseconds) {
        return shares_all_work() ? threads : 1;
    }
    return std::min(threads, std::max(2, static_cast<int>(nanoseconds / (kSerialNanoseconds / 2))));
}

// How parallel_for cuts a loop: into `chunks` parts of whole grains, for at most `threads` threads. A loop of one chunk
// is not shared.
struct LoopCut {
    int threads;
    std::int64_t chunks;
};

LoopCut cut_loop(int threads, std::int64_t items, double nanoseconds, std::int64_t grain);

// Calls body(context, chunk) for the chunks of a loop on `threads` threads, more than one. If calls throw, the first
// exception is thrown here when the loop is over.
void share_chunks(int threads, std::int64_t chunks, double nanoseconds, void (*body)(void* context, std::int64_t chunk),
                  void* context);

// Calls body(context, begin, end) for the parts of [0, items) that `cut` says, as share_chunks does.
void share_ranges(LoopCut cut, std::int64_t items, double nanoseconds, std::int64_t grain,
                  void (*body)(void* context, std::int64_t begin, std::int64_t end), void* context);

// Calls body(chunk) for chunks 0, 1, ..., on so many threads at most, `nanoseconds` being the cost of all of them. A
// thread begins with the same chunks in each loop of as many. What the body throws, on whichever thread, comes out
// here.
template <typename Body>
void for_each_chunk(int threads, std::int64_t chunks, double nanoseconds, Body&& body) {
    // Threads are numbered below the chunks, too: working memory may be for no more.
    const auto sharing = static_cast<int>(std::min<std::int64_t>(std::min(threads, team_size()), chunks));
    if (sharing > 1) {
        using Called = std::remove_reference_t<Body>;
        const auto call = [](void* context, std::int64_t chunk) { (*static_cast<Called*>(context))(chunk); };
        share_chunks(sharing, chunks, nanoseconds, call, const_cast<void*>(static_cast<const void*>(&body)));
        return;
    }
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        body(chunk);
    }
}

// Calls body(begin, end) for contiguous parts of [0, items), several at the same time; `nanoseconds` is the cost of one
// item. Boundaries are multiples of `grain`. What the body throws comes out here. A body is compiled twice, for a loop
// on this thread and for the parts of a shared one; all else is in threads.cpp, once.
template <typename Body>
void parallel_for(int threads, std::int64_t items, double nanoseconds, Body&& body, std::int64_t grain = 1) {
    const LoopCut cut = cut_loop(threads, items, nanoseconds, grain);
    if (cut.chunks > 1) {
        using Called = std::remove_reference_t<Body>;
        const auto call = [](void* context, std::int64_t begin, std::int64_t end) {
            (*static_cast<Called*>(context))(begin, end);
        };
        share_ranges(cut, items, nanoseconds, grain, call, const_cast<void*>(static_cast<const void*>(&body)));
    } else if (items > 0) {
        body(std::int64_t{0}, items);
    }
}

// share_ranges, or a call on this thread of the whole range where that is not worth sharing.
void run_ranges(int threads, std::int64_t items, double nanoseconds, std::int64_t grain,
                void (*body)(void* context, std::int64_t begin, std::int64_t end), void* context);

// parallel_for with a body that is compiled once. A loop that the body writes itself may become slower, since it reads
// what it captures from memory: for bodies that call functions to do the work.
template <typename Body>
void parallel_calls(int threads, std::int64_t items, double nanoseconds, Body&& body, std::int64_t grain = 1) {
    using Called = std::remove_reference_t<Body>;
    const auto call = [](void* context, std::int64_t begin, std::int64_t end) {
        (*static_cast<Called*>(context))(begin, end);
    };
    run_ranges(threads, items, nanoseconds, grain, call, const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace graphkit
