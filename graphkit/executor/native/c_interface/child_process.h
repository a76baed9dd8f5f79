// A program that runs as a separate process, without a shell.
#pragma once

#include <string>
#include <vector>

#include "runtime/kernel.h"

namespace graphkit {

// A program cannot be started.
struct ChildError : NativeError {
    using NativeError::NativeError;
};

// How a process ended, and the last bytes of what it printed.
struct ChildEnd {
    enum class Kind {
        kExited,     // `number` is the exit code
        kSignalled,  // `number` is the signal
        kTimeOut,    // it was killed after the time limit
        kUnknown,    // the application ignores SIGCHLD, or its handler collected the process
    };
    Kind kind = Kind::kUnknown;
    int number = 0;
    std::string out;
    std::string err;
};

// The most bytes of `out` and of `err`.
constexpr std::size_t kMostOutput = 4096;

// Runs command[0], which is a path, and waits for its end. Its standard input is empty. It gets no other descriptors of
// this process, and its signals have their default handlers. After `timeout` seconds (0: any time), it is killed with
// all processes that it started. Threads may call this at the same time. Throws ChildError.
ChildEnd run_child(const std::vector<std::string>& command, double timeout);

}  // namespace graphkit
