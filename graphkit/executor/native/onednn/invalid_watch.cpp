// Each thread has a flag of its own, which only that thread can read. To ask the team afterwards takes a parallel
// region, as long as a small product, and much longer where other processes keep the team from running. So each thread
// looks when its part of the library's region is done: the functions of OpenMP that begin and end a region are defined
// here too, and the linker comes by this module first when it looks them up for the library. Where it finds them
// elsewhere first, or the library calls others, the team is asked after all.
#include "onednn/invalid_watch.h"

#include <atomic>

#include "runtime/invalid_flag.h"
#include "runtime/threads.h"

#if defined(__linux__) && defined(_OPENMP)
#define GRAPHKIT_SEES_REGIONS 1
#include <dlfcn.h>
#endif

namespace graphkit {
namespace {

std::atomic<bool> sees_regions{false};

// What a thread lets the team do.
struct Region {
    void (*body)(void*) = nullptr;
    void* data = nullptr;
    int depth = 0;  // of regions inside one another
    std::atomic<bool> invalid{false};
};
constinit thread_local Region region;

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

#ifdef GRAPHKIT_SEES_REGIONS
// On the threads of the team but the one that begins the region, which calls the body itself.
void run_body(void* begun) {
    Region& here = *static_cast<Region*>(begun);
    set_invalid(false);
    here.body(here.data);
    if (invalid_raised()) {
        here.invalid.store(true, std::memory_order_relaxed);
    }
}

// The function of OpenMP that the one of this name here stands before.
template <typename Function>
Function* following(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
#endif

}  // namespace

InvalidWatch::InvalidWatch() {
    set_invalid(false);
    region.invalid.store(false, std::memory_order_relaxed);
}

bool InvalidWatch::raised() const {
    if (invalid_raised() || region.invalid.load(std::memory_order_relaxed)) {
        return true;
    }
    return team_size() > 1 && !sees_library_regions() && team_raised_invalid();
}

bool sees_library_regions() {
    return sees_regions.load(std::memory_order_relaxed);
}

}  // namespace graphkit

#ifdef GRAPHKIT_SEES_REGIONS
extern "C" {

__attribute__((visibility("default"))) void GOMP_parallel_start(void (*body)(void*), void* data, unsigned threads) {
    using namespace graphkit;
    static const auto begin = following<void(void (*)(void*), void*, unsigned)>("GOMP_parallel_start");
    if (region.depth++ > 0) {
        begin(body, data, threads);
        return;
    }
    sees_regions.store(true, std::memory_order_relaxed);
    region.body = body;
    region.data = data;
    begin(run_body, &region, threads);
}

__attribute__((visibility("default"))) void GOMP_parallel_end() {
    static const auto end = graphkit::following<void()>("GOMP_parallel_end");
    end();
    --graphkit::region.depth;
}
}
#endif
