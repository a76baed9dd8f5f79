// A time limit for a call that holds the GIL, so that Python cannot check the time itself.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace graphkit {

// If cancel() is not called within `seconds` seconds, writes `message` to stderr, and ends the process with `status`
// `grace` seconds later. Unflushed buffers are lost. Once the message is written, cancel() has no effect. Throws
// NativeError if the system cannot start a thread.
class Deadline {
  public:
    Deadline(double seconds, double grace, std::string message, int status);
    ~Deadline();
    Deadline(const Deadline&) = delete;
    Deadline& operator=(const Deadline&) = delete;

    void cancel();

  private:
    struct Cancelling {
        std::mutex mutex;
        std::condition_variable changed;
        bool cancelled = false;
    };

    std::unique_ptr<Cancelling> cancelling_;
    pid_t process_;
    std::thread thread_;
};

}  // namespace graphkit
