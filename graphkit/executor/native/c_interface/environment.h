// The environment variables of this process.
#pragma once

#include <string>

namespace graphkit {

// Returns all variables: texts NAME=VALUE, and a null pointer at the end.
char** environment();

// Returns the value of a variable; "" if it is not set, or if the process has other rights than its user (setuid).
std::string environment_text(const char* name);

}  // namespace graphkit
