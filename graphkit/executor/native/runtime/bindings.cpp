#include "runtime/bindings.h"

#include <map>

// The first address in the section graphkit_bindings, and the end of the section. The linker defines them.
extern "C" {
extern const graphkit::Bindings* const __start_graphkit_bindings;
extern const graphkit::Bindings* const __stop_graphkit_bindings;
}

namespace graphkit {
namespace {

struct Entry {
    const Bindings* bindings;
    enum class State { waiting, begun, done } state = State::waiting;
};

using Entries = std::map<std::string, Entry>;

Entries all_bindings() {
    Entries all;
    for (const Bindings* const* at = &__start_graphkit_bindings; at != &__stop_graphkit_bindings; ++at) {
        all[(*at)->name] = {*at};
    }
    return all;
}

void bind_after_needs(Entries& entries, const std::string& name, nb::module_& m) {
    const auto found = entries.find(name);
    if (found == entries.end()) {
        throw NativeError("there are no bindings named " + name);
    }
    Entry& entry = found->second;
    if (entry.state == Entry::State::begun) {
        throw NativeError("the bindings of " + name + " need themselves");
    }
    if (entry.state == Entry::State::done) {
        return;
    }
    entry.state = Entry::State::begun;
    for (const char* const needed : entry.bindings->needs) {
        if (needed != nullptr) {
            bind_after_needs(entries, needed, m);
        }
    }
    entry.bindings->bind(m);
    entry.state = Entry::State::done;
}

}  // namespace

void bind_all(nb::module_& m) {
    Entries entries = all_bindings();
    bind_after_needs(entries, "kernel_call", m);
    for (const auto& [name, entry] : entries) {
        bind_after_needs(entries, name, m);
    }
}

}  // namespace graphkit
