// Guards that take and release the GIL, for threads that may still run when the interpreter ends.
#pragma once

#include <nanobind/nanobind.h>

#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif
#ifdef __unix__
#include <unistd.h>
#endif

namespace graphkit {

// Before Python 3.14, an interpreter that is being finalized ends a thread that requests the GIL by unwinding its
// stack. Destructors would then use Python without the GIL. Instead, such a thread sleeps here until the process ends.
template <typename Body>
#ifdef __GLIBCXX__
__attribute__((no_sanitize("undefined")))  // the caught reference is null
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

// Releases the GIL during its lifetime. Construct it before locks that other threads wait for, so that these are
// released before it takes the GIL again.
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

// Holds the GIL during its lifetime. Calls into Python under it must be made within `or_sleep`, and owners of
// references must live outside of that: the interpreter may be finalized while Python code runs.
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
