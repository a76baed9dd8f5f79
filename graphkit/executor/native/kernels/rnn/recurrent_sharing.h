// How the recurrence of a recurrent layer is shared among threads.
#pragma once

#include <cstdint>

namespace graphkit {

struct RecurrenceSharing {
    int parts = 1;
    int chunks = 1;            // of each phase's work, several for each thread
    bool by_sequence = false;  // threads own sequences, not units
    double nanoseconds = 0;    // on one thread, roughly
};

struct RecurrenceWork {
    std::int64_t steps;
    std::int64_t batch;
    std::int64_t groups;   // of hidden units, in which they can be handed out
    std::int64_t lanes;
    int phases;            // of each step, between which all threads meet
    double step_elements;  // of the matrices that each step multiplies by
    double once_elements;  // of those that all steps multiply by together, in `once_passes` passes over them
    double once_passes;
};

// The fastest of all ways to share the work, by a rough model of its time.
RecurrenceSharing share_recurrence(const RecurrenceWork& work, int threads);

}  // namespace graphkit
