// A time by which a call must have returned that keeps Python from looking at a clock, as it holds the interpreter.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace graphkit {

// Unless it is cancelled within so many seconds, it writes `message` to the standard error and ends the process with
// `status`, `grace` seconds later: whatever is not written yet of buffers is lost. What is said is done: a message that
// is out cannot be cancelled any more. NativeError where the system gives no thread.
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
