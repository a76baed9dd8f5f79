#include "threads.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_max_threads() {
    return 1;
}
static void omp_set_num_threads(int) {}
#endif

namespace graphkit {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr std::size_t kSmallLoop = 16 * 1024;

struct AlignedDelete {
    void operator()(std::byte* memory) const { ::operator delete[](memory, kAlignment); }
};

std::mutex team_mutex;
std::unique_ptr<std::byte[], AlignedDelete> scratch_memory;  // guarded by team_mutex
std::size_t scratch_size = 0;                                // guarded by team_mutex

std::atomic<int> chosen_threads{0};

}  // namespace

int default_threads() {
    const int chosen = chosen_threads.load(std::memory_order_relaxed);
    return chosen > 0 ? chosen : omp_get_max_threads();
}

void set_default_threads(int threads) {
    chosen_threads.store(std::max(threads, 0), std::memory_order_relaxed);
}

Team::Team(int threads) : lock_(team_mutex), previous_(omp_get_max_threads()) {
    omp_set_num_threads(threads > 0 ? threads : default_threads());
}

Team::~Team() {
    omp_set_num_threads(previous_);
}

std::byte* Team::scratch(std::size_t bytes) {
    if (bytes > scratch_size) {
        scratch_memory.reset();  // first, so that the peak is the larger block and not the sum
        scratch_size = 0;
        scratch_memory.reset(static_cast<std::byte*>(::operator new[](bytes, kAlignment)));
        scratch_size = bytes;
    }
    return scratch_memory.get();
}

int threads_for(std::size_t operations) {
    return operations < kSmallLoop ? 1 : omp_get_max_threads();
}

}  // namespace graphkit
