#include "runtime/deadline.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string_view>
#include <utility>

#include "runtime/bindings.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// Longer than anyone waits, and within the range of the clocks (seconds).
constexpr double kLongest = 1e9;

std::chrono::duration<double> at_most_longest(double seconds) {
    return std::chrono::duration<double>(std::min(seconds, kLongest));
}

void write_all(int file, std::string_view text) {
    while (!text.empty()) {
        const ssize_t written = write(file, text.data(), text.size());
        if (written < 0 && errno != EINTR) {
            return;  // stderr cannot be written: only the exit status is left
        }
        text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
    }
}

}  // namespace

Deadline::Deadline(double seconds, double grace, std::string message, int status)
    : cancelling_(std::make_unique<Cancelling>()), process_(getpid()) {
    thread_ = start_thread([&shared = *cancelling_, seconds, grace, text = std::move(message), status] {
        {
            std::unique_lock lock(shared.mutex);
            if (shared.changed.wait_for(lock, at_most_longest(seconds), [&] { return shared.cancelled; })) {
                return;
            }
        }
        write_all(STDERR_FILENO, text);
        std::this_thread::sleep_for(at_most_longest(grace));
        _exit(status);
    });
}

Deadline::~Deadline() {
    cancel();
}

void Deadline::cancel() {
    if (!thread_.joinable()) {
        return;
    }
    if (process_ != getpid()) {
        // The child of a fork has no such thread and must not wait for it. Destroying the condition variable would
        // wait, so it is leaked.
        thread_.detach();
        static_cast<void>(cancelling_.release());
        return;
    }
    {
        const std::lock_guard lock(cancelling_->mutex);
        cancelling_->cancelled = true;
    }
    cancelling_->changed.notify_all();
    thread_.join();
}

}  // namespace graphkit

GRAPHKIT_BINDINGS(deadline) {
    using namespace graphkit;
    nb::class_<Deadline>(m, "Deadline",
                         "Writes a message to stderr and ends the process, unless it is cancelled in time.")
        .def(nb::init<double, double, std::string, int>(), "seconds"_a, "grace"_a, "message"_a, "status"_a,
             "The process ends with `status`, `grace` seconds after the message.")
        .def("cancel", &Deadline::cancel, NoGil());
}
