// The OpenMP team and the scratch memory, of which a process has one each.
#pragma once

#include <cstddef>
#include <mutex>

namespace graphkit {

// Threads of steps that do not say how many: the cores allowed, until it is set.
int default_threads();
void set_default_threads(int threads);

// Ownership of the team for one operation: one host thread at a time starts parallel regions, because two full teams
// on the same cores slow each other down several times. Inside, regions have `threads` threads (0: the default).
class Team {
  public:
    explicit Team(int threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    // Memory shared by all steps, aligned to 64 bytes; valid and undefined until the team is given back. Grows to the
    // largest request and stays. Throws std::bad_alloc.
    std::byte* scratch(std::size_t bytes);

  private:
    std::unique_lock<std::mutex> lock_;
    int previous_;
};

// How many threads a loop deserves: one below about 5 microseconds of work, for which starting others does not pay.
int threads_for(std::size_t operations);

}  // namespace graphkit
