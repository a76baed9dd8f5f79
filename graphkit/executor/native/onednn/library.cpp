#include "onednn/library.h"

#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <string>

#include "onednn/missing_library.h"

namespace graphkit {
namespace {

std::atomic<FindOneDnn> finder = nullptr;

void* opened() {
    // The RPATH of the extension finds the library in an ordinary environment.
    if (void* library = dlopen("libdnnl.so.3", RTLD_NOW | RTLD_LOCAL)) {
        return library;
    }
    std::string cause = dlerror();
    if (const FindOneDnn find = finder.load()) {
        const std::string path = find(cause);
        if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
            return library;
        }
        cause = dlerror();
    }
    throw MissingLibrary("oneDNN cannot be loaded: " + cause);
}

void* symbol(void* library, const char* name) {
    if (void* found = dlsym(library, name)) {
        return found;
    }
    throw MissingLibrary(std::string("oneDNN cannot be loaded: libdnnl.so.3 has no function ") + name);
}

OneDnnFunctions loaded() {
    void* library = opened();
    OneDnnFunctions functions{};
#define GRAPHKIT_FIND(name) functions.name = reinterpret_cast<decltype(functions.name)>(symbol(library, "dnnl_" #name));
    GRAPHKIT_ONEDNN_FUNCTIONS(GRAPHKIT_FIND)
#undef GRAPHKIT_FIND
    return functions;
}

}  // namespace

void find_onednn_by(FindOneDnn find) {
    finder = find;
}

const OneDnnFunctions& onednn() {
    // Without a lock: a thread that loads the library may wait for the GIL, which another caller may hold. Threads that
    // load it at the same time find the same functions.
    static std::atomic<const OneDnnFunctions*> known = nullptr;
    const OneDnnFunctions* functions = known.load(std::memory_order_acquire);
    if (functions == nullptr) {
        auto made = std::make_unique<const OneDnnFunctions>(loaded());
        if (known.compare_exchange_strong(functions, made.get(), std::memory_order_acq_rel)) {
            functions = made.release();
        }
    }
    return *functions;
}

}  // namespace graphkit
