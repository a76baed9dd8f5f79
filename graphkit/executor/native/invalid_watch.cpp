// The processor keeps a flag for each thread, which only that thread can read, and a region of its own to ask the team
// costs as much as a small product; much more where other processes keep the team's threads from running. So the
// library's regions end with the question: the functions by which it starts and ends them are defined here, before
// OpenMP's own in the order in which the linker looks them up for this module and what it is linked to. Where that order
// is another one, or the library was compiled to call other functions, the team is asked after all.
#include "invalid_watch.h"

#include <atomic>

#include "invalid_flag.h"
#include "threads.h"

namespace graphkit {
namespace {

// A region of the library has been seen here.
std::atomic<bool> sees_regions{false};

struct Region {
    void (*body)(void*) = nullptr;
    void* data = nullptr;
    int depth = 0;  // of regions inside one another, on the thread that starts them
    std::atomic<bool> invalid{false};
};
thread_local Region region;

#if defined(__linux__) && defined(_OPENMP)
// On each thread but the one that starts the region, which runs the body itself.
void run_body(void* started) {
    Region& here = *static_cast<Region*>(started);
    set_invalid(false);
    here.body(here.data);
    if (invalid_raised()) {
        here.invalid.store(true, std::memory_order_relaxed);
    }
}
#endif

bool team_raised_invalid() {
    std::atomic<bool> raised = false;
#ifdef _OPENMP
#pragma omp parallel
    if (invalid_raised()) {
        raised.store(true, std::memory_order_relaxed);
        set_invalid(false);
    }
#endif
    return raised;
}

}  // namespace

InvalidWatch::InvalidWatch() {
    set_invalid(false);
    region.invalid.store(false, std::memory_order_relaxed);
}

bool InvalidWatch::raised() const {
    if (invalid_raised() || region.invalid.load(std::memory_order_relaxed)) {
        return true;
    }
    return team_size() > 1 && !sees_regions.load(std::memory_order_relaxed) && team_raised_invalid();
}

}  // namespace graphkit

#if defined(__linux__) && defined(_OPENMP)
#include <dlfcn.h>

namespace graphkit {
namespace {

template <typename Function>
Function* next_in_order(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace
}  // namespace graphkit

extern "C" {
__attribute__((visibility("default"))) void GOMP_parallel_start(void (*body)(void*), void* data, unsigned threads);
__attribute__((visibility("default"))) void GOMP_parallel_end();

void GOMP_parallel_start(void (*body)(void*), void* data, unsigned threads) {
    using namespace graphkit;
    static const auto next = next_in_order<void(void (*)(void*), void*, unsigned)>("GOMP_parallel_start");
    if (region.depth++ > 0) {
        next(body, data, threads);
        return;
    }
    sees_regions.store(true, std::memory_order_relaxed);
    region.body = body;
    region.data = data;
    next(run_body, &region, threads);
}

void GOMP_parallel_end() {
    static const auto next = graphkit::next_in_order<void()>("GOMP_parallel_end");
    next();
    --graphkit::region.depth;
}
}
#endif
