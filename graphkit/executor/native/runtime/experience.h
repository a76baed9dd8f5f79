// Statistics of one thread about its helpers. From them it decides when to wake helpers, and when to run loops alone.
#pragma once

#include <algorithm>
#include <chrono>

namespace graphkit {

class Experience {
  public:
    using Clock = std::chrono::steady_clock;

    // Helpers are woken after they slept through this much work. Waking one takes about 20 microseconds.
    static constexpr Clock::duration kWorthWaking = std::chrono::microseconds(40);

    // Whether to share the next loop with helpers, which takes `nanoseconds` on one thread.
    bool shares(double nanoseconds) const {
        return alone_for_ == Clock::duration::zero() || shares_at(Clock::now(), nanoseconds);
    }

    // The same after a late helper. A long loop alone would cost more than another late helper.
    bool shares_at(Clock::time_point now, double nanoseconds) const {
        return now >= alone_until_ || std::chrono::duration<double, std::nano>(nanoseconds) >= kLong * late_;
    }

    // Whether to wake helpers for a loop that takes `nanoseconds` on one thread.
    bool wakes(double nanoseconds) {
        const bool is_long = limit_ == kWorthWaking && std::chrono::duration<double, std::nano>(nanoseconds) >= limit_;
        if (!is_long && missed_ < limit_) {
            return false;
        }
        // The helpers that were woken last time did not come: other threads occupy their cores.
        if (woken_) {
            limit_ = std::min(2 * limit_, kMostMissed);
        }
        woken_ = true;
        missed_ = {};
        return true;
    }

    // Records a loop that took `time` and that no helper joined.
    void missed(Clock::duration time) { missed_ += time; }

    // Records a loop that at most `helpers` helpers joined; they finished `late` after the calling thread was done. A
    // helper that the system suspends within a chunk delays the loop by a whole time slice, and that is likely to
    // happen again.
    void helped(Clock::duration late, int helpers) {
        woken_ = false;
        limit_ = kWorthWaking;
        if (late >= kLate) {
            came_late(late, helpers, Clock::now());
        }
    }

    void came_late(Clock::duration late, int helpers, Clock::time_point now) {
        const bool is_new = now - alone_until_ > 2 * alone_for_;
        late_ = is_new ? late : std::max(late, late_);
        alone_for_ =
            std::min(std::max(is_new ? Clock::duration::zero() : 2 * alone_for_, 8 * late / helpers), kMostAlone);
        alone_until_ = now + alone_for_;
    }

  private:
    static constexpr Clock::duration kMostMissed = std::chrono::milliseconds(20);
    static constexpr Clock::duration kMostAlone = std::chrono::milliseconds(200);
    static constexpr Clock::duration kLate = std::chrono::microseconds(200);
    // A loop that takes this many times the delay is long.
    static constexpr int kLong = 16;

    Clock::duration missed_{0};  // work since helpers were last woken
    Clock::duration limit_ = kWorthWaking;
    bool woken_ = false;  // helpers were woken, and none has come since
    Clock::duration late_{0};  // the longest recent delay
    Clock::duration alone_for_{0};
    Clock::time_point alone_until_{};
};

}  // namespace graphkit
