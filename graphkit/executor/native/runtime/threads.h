// Loops shared among threads: how many a run may use, and how much work deserves more than one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>

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

// What the chunks of a loop throw: the first of it comes out when the loop is over.
class LoopFailure {
  public:
    // For the handler of an exception.
    void keep() noexcept {
        if (!kept_.test_and_set()) {
            exception_ = std::current_exception();
        }
    }
    void rethrow() const {
        if (exception_) {
            std::rethrow_exception(exception_);
        }
    }

  private:
    std::atomic_flag kept_;
    std::exception_ptr exception_;
};

// Calls body(chunk) for chunks 0, 1, ..., on so many threads at most, `nanoseconds` being the cost of all of them. A
// thread begins with the same chunks in each loop of as many. What the body throws, on whichever thread, comes out
// here.
template <typename Body>
void for_each_chunk(int threads, std::int64_t chunks, double nanoseconds, Body&& body) {
    // Threads are numbered below the chunks, too: working memory may be for no more.
    const auto sharing = static_cast<int>(std::min<std::int64_t>(std::min(threads, team_size()), chunks));
    if (sharing > 1) {
        LoopFailure failure;
        const auto guarded = [&](std::int64_t chunk) noexcept {
            try {
                body(chunk);
            } catch (...) {
                failure.keep();
            }
        };
        run_shared(SharedLoop::of(sharing, chunks, nanoseconds, guarded));
        failure.rethrow();
        return;
    }
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        body(chunk);
    }
}

// Calls body(begin, end) for contiguous parts of [0, items), several at the same time; `nanoseconds` is the cost of one
// item. Boundaries are multiples of `grain`. What the body throws comes out here.
template <typename Body>
void parallel_for(int threads, std::int64_t items, double nanoseconds, Body&& body, std::int64_t grain = 1) {
    const double work = static_cast<double>(items) * nanoseconds;
    const int wanted = threads_for(std::min(threads, team_size()), work);
    const std::int64_t grains = (items + grain - 1) / grain;
    if (wanted <= 1 || grains <= 1) {
        if (items > 0) {
            body(std::int64_t{0}, items);
        }
        return;
    }
    const std::int64_t most = std::int64_t{kChunksPerThread} * wanted;
    const auto worth = static_cast<std::int64_t>(std::min(work / kChunkNanoseconds, static_cast<double>(most)));
    const std::int64_t chunks = std::min(grains, shares_all_work() ? most : std::max<std::int64_t>(worth, wanted));
    for_each_chunk(wanted, chunks, work, [&](std::int64_t chunk) {
        const std::int64_t begin = grains * chunk / chunks * grain;
        const std::int64_t end = std::min(items, grains * (chunk + 1) / chunks * grain);
        if (begin < end) {
            body(begin, end);
        }
    });
}

}  // namespace graphkit
