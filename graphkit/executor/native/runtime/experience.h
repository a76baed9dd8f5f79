// What a thread has seen of its helpers, and what it concludes: when to wake them, and when to go on without them.
#pragma once

#include <algorithm>
#include <chrono>

namespace graphkit {

class Experience {
  public:
    using Clock = std::chrono::steady_clock;

    // How much work helpers may sleep through before they are woken: waking one takes about 20 microseconds.
    static constexpr Clock::duration kWorthWaking = std::chrono::microseconds(40);

    // Whether to share a loop now.
    bool shares() const { return alone_for_ == Clock::duration::zero() || Clock::now() >= alone_until_; }

    // Whether to wake helpers for a loop that takes about so long on one thread.
    bool wakes(double nanoseconds) {
        const bool is_long = limit_ == kWorthWaking && std::chrono::duration<double, std::nano>(nanoseconds) >= limit_;
        if (!is_long && missed_ < limit_) {
            return false;
        }
        // Those who were woken the last time have not come: others have their cores.
        if (woken_) {
            limit_ = std::min(2 * limit_, kMostMissed);
        }
        woken_ = true;
        missed_ = {};
        return true;
    }

    // Nobody helped with a loop that took so long.
    void missed(Clock::duration time) { missed_ += time; }

    // Helpers took part, `helpers` at most, and were so late when all else was done. A helper that was stopped in the
    // middle of a chunk holds up the loop for the system's whole slice: where that happens, it happens again.
    void helped(Clock::duration late, int helpers) {
        woken_ = false;
        limit_ = kWorthWaking;
        if (late < kLate) {
            return;
        }
        const Clock::time_point now = Clock::now();
        const bool is_new = now - alone_until_ > 2 * alone_for_;
        alone_for_ =
            std::min(std::max(is_new ? Clock::duration::zero() : 2 * alone_for_, 8 * late / helpers), kMostAlone);
        alone_until_ = now + alone_for_;
    }

  private:
    static constexpr Clock::duration kMostMissed = std::chrono::milliseconds(20);
    static constexpr Clock::duration kMostAlone = std::chrono::milliseconds(200);
    static constexpr Clock::duration kLate = std::chrono::microseconds(200);

    Clock::duration missed_{0};  // since helpers were woken
    Clock::duration limit_ = kWorthWaking;
    bool woken_ = false;  // and none has come since
    Clock::duration alone_for_{0};
    Clock::time_point alone_until_{};
};

}  // namespace graphkit
