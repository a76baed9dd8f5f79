// Decides when the only pending operation of an engine, and those that depend on it, are left to the thread that will
// wait for them.
//
// Waking a worker, and being woken by it, costs a thread about as much as kWorth of work. A thread that pushes an
// operation and waits for it at once is faster if it runs the operation itself. So no worker is woken for such an
// operation: it is held. Operations that are pushed soon afterwards, and cannot start before it has run, do not change
// that; any other one ends it. All pending operations depend on the held one, so every wait needs it. A worker, the
// watcher, looks for held operations from time to time, so that each of them starts. If threads do not wait soon for
// held operations, workers are woken at once for a while.
//
// The mutex of the engine guards all of it.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

namespace graphkit {

class HeldStart {
  public:
    using Clock = std::chrono::steady_clock;
    // How long the watcher sleeps between two looks. It looks less often if threads wait for nearly all held
    // operations.
    static constexpr std::chrono::milliseconds kLook{4};
    static constexpr std::chrono::milliseconds kRareLook{32};
    // An operation that was held for less than this is left to the next look, which comes after the same time.
    static constexpr std::chrono::milliseconds kPatience{1};
    // A wait that comes later, after the last push, was not worth holding the operation.
    static constexpr std::chrono::microseconds kWorth{200};
    // No worker computes during the hold, while the thread pushes. So a thread that pushes for longer, or pushes more
    // operations, ends the hold.
    static constexpr std::chrono::microseconds kMostPushing{300};
    static constexpr int kMostPushed = 4;

    bool held() const { return held_; }

    // Called for a pushed operation that is the only one. Returns whether it is held.
    bool hold() {
        idle_looks_ = 0;
        if (refusals_ > 0) {
            --refusals_;
            return false;
        }
        if (!watched_) {
            return false;
        }
        held_ = true;
        first_ = since_ = Clock::now();
        pushed_ = 1;
        return true;
    }

    // Called for a pushed operation that cannot start before the held one, if any, has run. Returns whether that one
    // is still held.
    bool hold_longer() {
        if (!held_) {
            return false;
        }
        since_ = Clock::now();
        return ++pushed_ <= kMostPushed && since_ - first_ <= kMostPushing;
    }

    // The held operation, if any, is handed to a worker, or run. Returns whether there was one.
    bool release() { return std::exchange(held_, false); }

    // A thread that waits runs the held operation.
    void awaited() {
        if (!release()) {
            return;
        }
        if (Clock::now() - since_ > kWorth) {
            count_loss();
        } else if (++score_ >= kMostScore) {
            score_ = kMostScore;
            penalty_ = kFirstPenalty;
        }
    }

    // Whether an idle worker should become the watcher.
    bool wants_watcher() const { return !watched_ && idle_looks_ < kIdleLooks; }
    void set_watched(bool on) { watched_ = on; }
    std::chrono::milliseconds next_look() const { return held_ ? kPatience : score_ == kMostScore ? kRareLook : kLook; }

    // The watcher looks. If an operation was held for too long, the watcher must run it.
    void look() {
        if (!held_) {
            ++idle_looks_;
        } else if (Clock::now() - since_ >= kPatience) {
            release();
            count_loss();
        }
    }

  private:
    static constexpr int kLoss = 4;
    static constexpr int kMostScore = 16;
    static constexpr int kFirstPenalty = 16;
    static constexpr int kMostPenalty = 1024;
    static constexpr int kIdleLooks = 12;

    // Some losses are accidents of a busy machine. If they outweigh the gains, the next operations are not held.
    void count_loss() {
        score_ -= kLoss;
        if (score_ <= 0) {
            score_ = kLoss;
            refusals_ = penalty_;
            penalty_ = std::min(2 * penalty_, kMostPenalty);
        }
    }

    bool held_ = false;
    bool watched_ = false;
    Clock::time_point first_;  // when the held operation was pushed
    Clock::time_point since_;  // when the last operation was pushed that did not end the hold
    int pushed_ = 0;  // the held operation, and those that were pushed later and did not end the hold
    int idle_looks_ = kIdleLooks;  // looks since the last operation that could have been held
    int refusals_ = 0;             // how many operations will not be held
    int penalty_ = kFirstPenalty;
    int score_ = kLoss;
};

}  // namespace graphkit
