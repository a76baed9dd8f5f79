#include "c_interface/environment.h"

#include <unistd.h>

#include <cstdlib>
#ifdef __APPLE__
#include <crt_externs.h>
#else
extern char** environ;
#endif

namespace graphkit {

char** environment() {
#ifdef __APPLE__
    return *_NSGetEnviron();
#else
    return environ;
#endif
}

std::string environment_text(const char* name) {
#ifdef __GLIBC__
    const char* const text = secure_getenv(name);
#else
    const char* const text = issetugid() != 0 ? nullptr : std::getenv(name);
#endif
    return text == nullptr ? "" : text;
}

}  // namespace graphkit
