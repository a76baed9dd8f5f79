// Whether the library computed something invalid (see invalid_flag.h), on any thread of the team.
#pragma once

namespace graphkit {

// Watches what this thread computes from now on, and what the library does in the parallel regions that it starts.
// Regions of `on_team` leave no flags behind.
class InvalidWatch {
  public:
    InvalidWatch();
    bool raised() const;
};

// Whether a region of the library has been watched in this process. Where it has not, the team has to be asked.
bool sees_library_regions();

}  // namespace graphkit
