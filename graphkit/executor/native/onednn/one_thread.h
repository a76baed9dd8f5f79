// Single-threaded use of the library.
#pragma once

#include <omp.h>

namespace graphkit {

// During its lifetime, the library makes and runs primitives on this thread only: pool.h shares the work among threads.
// The library asks OpenMP for the number of threads; the destructor restores this thread's setting.
class OneThread {
  public:
    OneThread() : before_(omp_get_max_threads()) { set(1); }
    ~OneThread() { set(before_); }
    OneThread(const OneThread&) = delete;
    OneThread& operator=(const OneThread&) = delete;

  private:
    void set(int threads) const {
        if (before_ != 1) {
            omp_set_num_threads(threads);
        }
    }

    int before_;
};

}  // namespace graphkit
