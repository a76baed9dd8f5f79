#include "c_interface/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <thread>

#include "c_interface/environment.h"

#ifdef __GLIBC__
#if __GLIBC_PREREQ(2, 34)
#define GRAPHKIT_CLOSEFROM
#endif
#endif

namespace graphkit {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTick{20};         // between two checks of whether the process has ended
constexpr milliseconds kShortTick{1};     // the same, once it has closed its output
constexpr milliseconds kLastOutput{1000};  // most time to wait for output of killed processes
constexpr double kLongest = 1e9;          // seconds, about 30 years
constexpr int kStandardSignals = 32;      // later ones are real-time signals
constexpr int kFirstFree = 3;             // the first descriptor after the standard ones

void require(int error, const char* what) {
    if (error != 0) {
        throw ChildError(std::string(what) + ": " + std::strerror(error));
    }
}

// A descriptor that is closed at the end.
class Descriptor {
  public:
    Descriptor() = default;
    ~Descriptor() { reset(); }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;

    int number() const { return number_; }
    bool is_open() const { return number_ >= 0; }
    void reset(int number = -1) {
        if (number_ >= 0) {
            close(number_);
        }
        number_ = number;
    }
    // Keeps off the numbers of the standard streams: if the application has closed these, its other threads might read
    // from a pipe of a child, or print into it.
    void leave_standard_numbers() {
        if (number_ < kFirstFree) {
            const int moved = fcntl(number_, F_DUPFD_CLOEXEC, kFirstFree);
            require(moved < 0 ? errno : 0, "a descriptor cannot be copied");
            reset(moved);
        }
    }

  private:
    int number_ = -1;
};

// A pipe from a child, whose last bytes are kept.
class Output {
  public:
    Output() {
        std::array<int, 2> ends{};
#ifdef __APPLE__
        const int failed = pipe(ends.data());
#else
        const int failed = pipe2(ends.data(), O_CLOEXEC);
#endif
        require(failed != 0 ? errno : 0, "a pipe cannot be made");
        from_.reset(ends[0]);
        to_.reset(ends[1]);
        from_.leave_standard_numbers();
        to_.leave_standard_numbers();
        fcntl(from_.number(), F_SETFD, FD_CLOEXEC);
        fcntl(to_.number(), F_SETFD, FD_CLOEXEC);
        fcntl(from_.number(), F_SETFL, O_NONBLOCK);
    }

    int writable() const { return to_.number(); }
    void close_writable() { to_.reset(); }
    int readable() const { return from_.number(); }  // -1 at the end
    std::string last() const { return text_.size() <= kMostOutput ? text_ : text_.substr(text_.size() - kMostOutput); }

    // Reads what is there without waiting.
    void read_available() {
        std::array<char, 4096> buffer{};
        while (from_.is_open()) {
            const ssize_t count = read(from_.number(), buffer.data(), buffer.size());
            if (count > 0) {
                text_.append(buffer.data(), static_cast<std::size_t>(count));
                if (text_.size() > 4 * kMostOutput) {
                    text_.erase(0, text_.size() - kMostOutput);
                }
            } else if (count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
                from_.reset();
            } else if (errno != EINTR) {
                return;
            }
        }
    }

  private:
    Descriptor from_;
    Descriptor to_;
    std::string text_;
};

// Waits until a child has written something, or for a time.
void wait_for_output(const Output& out, const Output& err, milliseconds most) {
    std::array<pollfd, 2> watched{};
    nfds_t count = 0;
    for (const Output* each : {&out, &err}) {
        if (each->readable() >= 0) {
            watched[count++] = {each->readable(), POLLIN, 0};
        }
    }
    if (count == 0) {
        std::this_thread::sleep_for(std::min(most, kShortTick));
        return;
    }
    poll(watched.data(), count, static_cast<int>(most.count()));
}

class FileActions {
  public:
    FileActions() { require(posix_spawn_file_actions_init(&actions_), "a process cannot be prepared"); }
    ~FileActions() { posix_spawn_file_actions_destroy(&actions_); }
    FileActions(const FileActions&) = delete;
    FileActions& operator=(const FileActions&) = delete;

    const posix_spawn_file_actions_t* get() const { return &actions_; }

    void connect(const Output& out, const Output& err) {
        const char* const what = "the streams of a process cannot be prepared";
        require(posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0), what);
        require(posix_spawn_file_actions_adddup2(&actions_, out.writable(), STDOUT_FILENO), what);
        require(posix_spawn_file_actions_adddup2(&actions_, err.writable(), STDERR_FILENO), what);
#ifdef GRAPHKIT_CLOSEFROM
        require(posix_spawn_file_actions_addclosefrom_np(&actions_, kFirstFree), what);
#elif !defined(__APPLE__)  // there, a flag closes them
        const long most = std::min(sysconf(_SC_OPEN_MAX), 65536L);
        for (int each = kFirstFree; each < most; ++each) {
            if (fcntl(each, F_GETFD) >= 0) {
                require(posix_spawn_file_actions_addclose(&actions_, each), what);
            }
        }
#endif
    }

  private:
    posix_spawn_file_actions_t actions_{};
};

// The child leads its own group of processes, so that all of them can be killed. Signals that the application blocks or
// ignores would be blocked or ignored in the child, too.
class Attributes {
  public:
    Attributes() {
        require(posix_spawnattr_init(&attributes_), "a process cannot be prepared");
        sigset_t none, standard;
        sigemptyset(&none);
        sigemptyset(&standard);
        for (int each = 1; each < kStandardSignals; ++each) {
            if (each != SIGKILL && each != SIGSTOP) {
                sigaddset(&standard, each);
            }
        }
        posix_spawnattr_setsigmask(&attributes_, &none);
        posix_spawnattr_setsigdefault(&attributes_, &standard);
        posix_spawnattr_setpgroup(&attributes_, 0);
        short flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP;
#ifdef __APPLE__
        flags |= POSIX_SPAWN_CLOEXEC_DEFAULT;
#endif
        posix_spawnattr_setflags(&attributes_, flags);
    }
    ~Attributes() { posix_spawnattr_destroy(&attributes_); }
    Attributes(const Attributes&) = delete;
    Attributes& operator=(const Attributes&) = delete;

    const posix_spawnattr_t* get() const { return &attributes_; }

  private:
    posix_spawnattr_t attributes_{};
};

pid_t spawn(const std::vector<std::string>& command, Output& out, Output& err) {
    FileActions actions;
    actions.connect(out, err);
    const Attributes attributes;
    std::vector<char*> arguments;
    for (const std::string& each : command) {
        arguments.push_back(const_cast<char*>(each.c_str()));
    }
    arguments.push_back(nullptr);
    pid_t process = 0;
    require(posix_spawn(&process, arguments[0], actions.get(), attributes.get(), arguments.data(), environment()),
            ("'" + command[0] + "' cannot be started").c_str());
    out.close_writable();
    err.close_writable();
    return process;
}

// Returns how the child ended; nothing if it still runs. The child stays a zombie, so that no other process gets its
// number, unless somebody else has collected it.
std::optional<ChildEnd> end_of(pid_t process) {
    siginfo_t facts{};
    int failed = 0;
    do {
        failed = waitid(P_PID, static_cast<id_t>(process), &facts, WEXITED | WNOHANG | WNOWAIT);
    } while (failed != 0 && errno == EINTR);
    ChildEnd end;
    if (failed != 0) {
        return end;  // ECHILD
    }
    if (facts.si_pid == 0) {
        return std::nullopt;
    }
    end.kind = facts.si_code == CLD_EXITED ? ChildEnd::Kind::kExited : ChildEnd::Kind::kSignalled;
    end.number = facts.si_status;
    return end;
}

// Kills a child that runs or is a zombie, which may have moved to another group, and the group that it was started in.
// If the child has been collected, its number may be that of another process or group.
void kill_group(pid_t process) {
    kill(-process, SIGKILL);
    kill(process, SIGKILL);
}

void collect(pid_t process) {
    while (waitpid(process, nullptr, 0) < 0 && errno == EINTR) {
    }
}

}  // namespace

ChildEnd run_child(const std::vector<std::string>& command, double timeout) {
    Output out, err;
    auto deadline = Clock::time_point::max();
    if (timeout > 0 && timeout < kLongest) {
        deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout));
    }
    const pid_t process = spawn(command, out, err);
    std::optional<ChildEnd> end;
    while (true) {
        out.read_available();
        err.read_available();
        end = end_of(process);
        if (end) {
            break;
        }
        const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
        if (left <= milliseconds(0)) {
            end.emplace();
            end->kind = ChildEnd::Kind::kTimeOut;
            break;
        }
        wait_for_output(out, err, std::min(left, kTick));
    }
    if (end->kind != ChildEnd::Kind::kUnknown) {
        kill_group(process);
        // Processes of the group hold the pipes until they have ended.
        const auto last = Clock::now() + kLastOutput;
        while ((out.readable() >= 0 || err.readable() >= 0) && Clock::now() < last) {
            wait_for_output(out, err, kTick);
            out.read_available();
            err.read_available();
        }
        collect(process);
    }
    out.read_available();
    err.read_available();
    end->out = out.last();
    end->err = err.last();
    return std::move(*end);
}

}  // namespace graphkit
