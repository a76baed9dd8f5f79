// The OpenMP team, of which a process has one, and loops shared among its threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "runtime/invalid_flag.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace graphkit {

// Threads of kernels that do not say how many: what OpenMP has by default, until it is set; no more than kMostDefault.
constexpr int kMostDefault = 256;
int default_threads();
void set_default_threads(int threads);

// Threads of a parallel region that starts now.
int team_size();

// The calling thread's number in its parallel region, below the region's thread count; 0 outside.
int thread_number();

// From now on this thread works beside the one that owns the team: its parallel regions have one thread, and a Team of
// more throws NativeError.
void work_alone();

// Ownership of the team for one run: one host thread at a time starts parallel regions, because two full teams on the
// same cores slow each other down several times. Inside, regions have `threads` threads (0: the default). A team of
// one thread needs no ownership: such runs go on side by side.
class Team {
  public:
    explicit Team(int threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

  private:
    std::unique_lock<std::recursive_mutex> lock_;
    int previous_;
};

// A new thread; NativeError when the system gives none.
std::thread start_thread(std::function<void()> body);

// Calls `body`, which makes a Team of `threads`: on this thread, or on one of its own where this thread's workers were
// lost because the process is the child of a fork.
void where_team_works(int threads, const std::function<void()>& body);

// Nanoseconds of work below which starting other threads does not pay.
constexpr double kSerialNanoseconds = 5000;

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

// Calls body(number, threads) on every thread of the team. Regions always have the whole team, threads without work
// included: libgomp ends the threads that a smaller region leaves out, and makes new ones for the next larger region.
// What is invalid in there leaves no flag behind.
template <typename Body>
void on_team(Body&& body) {
#ifdef _OPENMP
#pragma omp parallel
    {
        const KeptFlag kept;
        body(omp_get_thread_num(), omp_get_num_threads());
    }
#else
    body(0, 1);
#endif
}

// Calls body(begin, end) for contiguous parts of [0, items), one for each thread; `nanoseconds` is the cost of one
// item. Boundaries are multiples of `grain`. The body must not throw.
template <typename Body>
void parallel_for(int threads, std::int64_t items, double nanoseconds, Body&& body, std::int64_t grain = 1) {
    const int wanted = threads_for(threads, static_cast<double>(items) * nanoseconds);
    const std::int64_t grains = (items + grain - 1) / grain;
    const auto parts = static_cast<int>(std::min<std::int64_t>(wanted, grains));
    if (parts <= 1) {
        if (items > 0) {
            body(std::int64_t{0}, items);
        }
        return;
    }
    on_team([&](int number, int threads_there) {
        for (int part = number; part < parts; part += threads_there) {
            const std::int64_t begin = grains * part / parts * grain;
            const std::int64_t end = std::min(items, grains * (part + 1) / parts * grain);
            if (begin < end) {
                body(begin, end);
            }
        }
    });
}

// Calls body(part, parts) once for each part, all at the same time, so that parts may wait for one another. There may
// be fewer parts than asked for. The body must not throw.
template <typename Body>
void together(int parts, Body&& body) {
    if (parts <= 1) {
        body(0, 1);
        return;
    }
    on_team([&](int number, int threads) {
        const int there = std::min(parts, threads);
        if (number < there) {
            body(number, there);
        }
    });
}

}  // namespace graphkit
