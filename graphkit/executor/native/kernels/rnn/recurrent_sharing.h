// How the recurrence of a recurrent layer is shared among threads.
#pragma once

#include <cstdint>

namespace graphkit {

struct RecurrenceSharing {
    int parts = 1;
    int chunks = 1;            // number of chunks of each phase's work, several per thread
    bool by_sequence = false;  // chunks are sequences, not units
    double nanoseconds = 0;    // estimated time on one thread
};

struct RecurrenceWork {
    std::int64_t steps;
    std::int64_t batch;
    std::int64_t groups;   // number of groups of hidden units that can be handed out
    std::int64_t lanes;
    int phases;            // phases per step; all threads meet after each
    double step_elements;  // elements of the matrices that each step multiplies by
    double once_elements;  // elements of the matrices in products over all steps, with `once_passes` passes over them
    double once_passes;
};

// Returns the fastest way to divide the work, by an approximate model of the time.
RecurrenceSharing share_recurrence(const RecurrenceWork& work, int threads);

}  // namespace graphkit
