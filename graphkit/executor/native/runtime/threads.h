// Loops shared among threads: how many threads a run may use, and how much work is worth more than one.
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

// Number of threads of kernels that do not specify one: the number of allowed cores, unless it was set (0: unset).
int default_threads();
void set_default_threads(int threads);

// During its lifetime, loops of this thread may be shared among `threads` threads (0: the default), and this thread
// uses the same rounding mode as its helpers. Inside of a chunk, the number of threads is 1. Throws NativeError if the
// system cannot start the threads.
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

// Number of threads among which this thread may share a loop; 1 outside of a Team.
int team_size();

// Starts a thread. Throws NativeError if the system cannot.
std::thread start_thread(std::function<void()> body);

// A loop with less work than kSerialNanoseconds is not shared. A chunk should have at least kChunkNanoseconds of work.
constexpr double kSerialNanoseconds = 5000;
constexpr double kChunkNanoseconds = 10000;
// Most chunks per thread. More than one, because threads do not get equal shares of the cores.
constexpr int kChunksPerThread = 4;

// Whether loops with less work are shared as well. Tests use it to check on small operands that the parts add up to the
// whole.
bool shares_all_work();
void share_all_work(bool on);

// Returns how many of `threads` threads to use for a loop that takes `nanoseconds` on one thread.
inline int threads_for(int threads, double nanoseconds) {
    if (threads <= 1) {
        return 1;
    }
    if (nanoseconds < kSerialNanoseconds) {
        return shares_all_work() ? threads : 1;
    }
    return std::min(threads, std::max(2, static_cast<int>(nanoseconds / (kSerialNanoseconds / 2))));
}

// How parallel_for divides a loop: into `chunks` parts of whole grains, for at most `threads` threads. A loop with one
// chunk is not shared.
struct LoopCut {
    int threads;
    std::int64_t chunks;
};

LoopCut cut_loop(int threads, std::int64_t items, double nanoseconds, std::int64_t grain);

// Calls body(context, chunk) for the chunks of a loop, on more than one thread. If calls throw, the first exception is
// rethrown after the loop.
void share_chunks(int threads, std::int64_t chunks, double nanoseconds, void (*body)(void* context, std::int64_t chunk),
                  void* context);

// Calls body(context, begin, end) for the parts of [0, items) into which `cut` divides it, like share_chunks.
void share_ranges(LoopCut cut, std::int64_t items, double nanoseconds, std::int64_t grain,
                  void (*body)(void* context, std::int64_t begin, std::int64_t end), void* context);

// Calls body(chunk) for chunks 0, 1, ..., on at most `threads` threads. `nanoseconds` is the cost of all chunks. In
// loops with equal numbers of chunks, a thread begins with the same chunks. An exception of the body, on any thread, is
// rethrown here.
template <typename Body>
void for_each_chunk(int threads, std::int64_t chunks, double nanoseconds, Body&& body) {
    // At most as many threads as chunks, so that thread numbers are below `chunks`: working memory may be sized by
    // chunks.
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

// Calls body(begin, end) for contiguous parts of [0, items), in parallel. `nanoseconds` is the cost of one item.
// Boundaries are multiples of `grain`. An exception of the body is rethrown here. The body is compiled twice: for a
// loop on this thread, and for the parts of a shared loop. The rest is compiled once, in threads.cpp.
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

// Like share_ranges, or one call for the whole range on this thread if the loop is not worth sharing.
void run_ranges(int threads, std::int64_t items, double nanoseconds, std::int64_t grain,
                void (*body)(void* context, std::int64_t begin, std::int64_t end), void* context);

// Like parallel_for, with a body that is compiled once. A loop in such a body may become slower, since it reads its
// captures from memory: use this for bodies that call functions to do the work.
template <typename Body>
void parallel_calls(int threads, std::int64_t items, double nanoseconds, Body&& body, std::int64_t grain = 1) {
    using Called = std::remove_reference_t<Body>;
    const auto call = [](void* context, std::int64_t begin, std::int64_t end) {
        (*static_cast<Called*>(context))(begin, end);
    };
    run_ranges(threads, items, nanoseconds, grain, call, const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace graphkit
