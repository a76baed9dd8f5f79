#include "kernels/rnn/recurrent_sharing.h"

#include <algorithm>
#include <cstddef>

namespace graphkit {
namespace {

// Estimated nanoseconds of products on one core, whose right side of `bytes` bytes is read from the core's own cache
// or, if it does not fit, from the shared cache.
double product_nanoseconds(double multiplications, double bytes, std::int64_t lanes) {
    constexpr double kOwnCache = 768 << 10;
    const double rate = bytes > kOwnCache ? 60 : 90;
    return std::max(multiplications / static_cast<double>(lanes < 8 ? lanes * 2 : 48), bytes / rate);
}

constexpr double kTeamNanoseconds = 20000;  // time until helpers are awake
constexpr double kPhaseNanoseconds = 400;   // time to wait for all threads
constexpr double kStepChunkNanoseconds = 10000;  // least work for which a chunk is worth handing to another thread

}  // namespace

RecurrenceSharing share_recurrence(const RecurrenceWork& work, int threads) {
    const auto number = [](std::int64_t value) { return static_cast<double>(value); };
    const double steps = number(work.steps);
    const double batch = number(work.batch);
    // For a part with this fraction of the sequences, and of the units.
    const auto step_nanoseconds = [&](double sequences, double units) {
        const double elements = work.step_elements * units;
        return product_nanoseconds(elements * batch * sequences, 4 * elements, work.lanes);
    };
    const auto nanoseconds = [&](double sequences, double units) {
        const double elements = work.once_elements * units;
        return steps * step_nanoseconds(sequences, units) +
               product_nanoseconds(elements * steps * batch * sequences, 4 * work.once_passes * elements, work.lanes);
    };
    RecurrenceSharing sharing;
    double best = nanoseconds(1, 1);
    sharing.nanoseconds = best;
    const std::int64_t most_parts = std::min<std::int64_t>(threads, std::max(work.batch, work.groups));
    for (std::int64_t parts = 2; parts <= most_parts; ++parts) {
        const auto share = [&](std::int64_t total) { return number((total + parts - 1) / parts) / number(total); };
        if (parts <= work.batch && kTeamNanoseconds + nanoseconds(share(work.batch), 1) < best) {
            best = kTeamNanoseconds + nanoseconds(share(work.batch), 1);
            sharing.parts = static_cast<int>(parts);
            sharing.by_sequence = true;
        }
        const double waiting = kTeamNanoseconds + steps * work.phases * kPhaseNanoseconds;
        const double by_unit = parts > work.groups ? best : waiting + nanoseconds(1, share(work.groups));
        if (by_unit < best) {
            best = by_unit;
            sharing.parts = static_cast<int>(parts);
            sharing.by_sequence = false;
        }
    }
    // Chunks are smaller than one per thread while they are worth handing out, and consist of whole tiles.
    sharing.chunks = sharing.parts;
    const std::int64_t most = sharing.by_sequence ? work.batch / 6 : work.groups;
    const double phase = sharing.by_sequence ? nanoseconds(1, 1) : step_nanoseconds(1, 1);
    while (sharing.parts > 1 && 2 * sharing.chunks <= most && sharing.chunks < 4 * sharing.parts &&
           phase > 2 * sharing.chunks * kStepChunkNanoseconds) {
        sharing.chunks *= 2;
    }
    return sharing;
}

}  // namespace graphkit
