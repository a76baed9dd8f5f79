// Single-threaded use of the library.
#pragma once

#include <omp.h>

namespace graphkit {

// While it lives, the library makes and runs primitives for this thread alone: how its work is shared among threads is
// the business of pool.h. The library asks OpenMP how many threads there are; the thread's own setting comes back.
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
