#include "runtime/bindings.h"

#include <map>

namespace graphkit {
namespace {

struct Entry {
    std::vector<std::string> needs;
    Bind bind;
    enum class State { waiting, begun, done } state = State::waiting;
};

std::map<std::string, Entry>& entries() {
    static std::map<std::string, Entry> all;  // filled by static initializers, in any order
    return all;
}

void bind_after_needs(const std::string& name, nb::module_& m) {
    const auto found = entries().find(name);
    if (found == entries().end()) {
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
    for (const std::string& needed : entry.needs) {
        bind_after_needs(needed, m);
    }
    entry.bind(m);
    entry.state = Entry::State::done;
}

}  // namespace

Bindings::Bindings(const char* name, std::initializer_list<const char*> needs, Bind bind) {
    entries()[name] = {.needs = {needs.begin(), needs.end()}, .bind = bind};
}

void bind_all(nb::module_& m) {
    bind_after_needs("kernel_call", m);
    for (const auto& [name, entry] : entries()) {
        bind_after_needs(name, m);
    }
}

}  // namespace graphkit
