// When loops are shared after delays, for tests.
#include "runtime/experience.h"

#include "runtime/bindings.h"

namespace graphkit {
namespace {

std::vector<bool> shared_after_delays(const std::vector<std::pair<double, double>>& delays, double moment,
                                      const std::vector<double>& loops) {
    const auto span = [](double seconds) {
        return std::chrono::duration_cast<Experience::Clock::duration>(std::chrono::duration<double>(seconds));
    };
    Experience experience;
    for (const auto& [at, late] : delays) {
        experience.came_late(span(late), 1, Experience::Clock::time_point(span(at)));
    }
    std::vector<bool> shared;
    for (const double seconds : loops) {
        shared.push_back(experience.shares_at(Experience::Clock::time_point(span(moment)), 1e9 * seconds));
    }
    return shared;
}

}  // namespace

GRAPHKIT_BINDINGS(experience) {
    m.def("shared_after_delays", &shared_after_delays, "delays"_a, "moment"_a, "loops"_a,
          "Return which loops are shared with a helper at a moment, after delays (moment, seconds) by it, for tests. "
          "loops: their seconds on one thread. Moments are seconds of one clock.");
}

}  // namespace graphkit
