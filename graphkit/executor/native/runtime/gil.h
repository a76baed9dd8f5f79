// The interpreter's lock, for threads that may still be at work when the interpreter ends.
#pragma once

#include <nanobind/nanobind.h>

#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif
#ifdef __unix__
#include <unistd.h>
#endif

namespace graphkit {

// An interpreter that is being finalized ends threads which ask for the GIL by unwinding their stacks (before 3.14).
// Destructors would then use Python without it: such a thread sleeps instead, until the process ends.
template <typename Body>
#ifdef __GLIBCXX__
__attribute__((no_sanitize("undefined")))  // the reference that is caught refers to nothing
#endif
void or_sleep(Body&& body) {
#ifdef __GLIBCXX__
    try {
        body();
    } catch (const abi::__forced_unwind&) {
        for (;;) {
            pause();
        }
    }
#else
    body();
#endif
}

// Without the GIL as long as it lives. To be made before what other threads may wait for, which is then let go first.
class WithoutGil {
  public:
    WithoutGil() : state_(PyEval_SaveThread()) {}
    ~WithoutGil() {
        or_sleep([this] { PyEval_RestoreThread(state_); });
    }
    WithoutGil(const WithoutGil&) = delete;
    WithoutGil& operator=(const WithoutGil&) = delete;

  private:
    PyThreadState* state_;
};

// With the GIL as long as it lives. What calls Python under it does so in `or_sleep`, and what owns references lives
// outside of that: Python code may be what the interpreter ends.
class WithGil {
  public:
    WithGil() {
        or_sleep([this] { state_ = PyGILState_Ensure(); });
    }
    ~WithGil() { PyGILState_Release(state_); }
    WithGil(const WithGil&) = delete;
    WithGil& operator=(const WithGil&) = delete;

  private:
    PyGILState_STATE state_{};
};

}  // namespace graphkit
