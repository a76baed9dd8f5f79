#include "runtime/variable.h"

namespace graphkit {

bool Variable::enter(Claim& claim) {
    if (first_ == nullptr && admit(claim)) {
        return true;
    }
    (first_ == nullptr ? first_ : last_->next) = &claim;
    last_ = &claim;
    return false;
}

void Variable::leave(bool write, std::vector<EngineOperation*>& ready) {
    if (write) {
        writing_ = false;
    } else {
        --readers_;
    }
    while (first_ != nullptr && admit(*first_)) {
        const Claim& claim = *first_;
        first_ = claim.next;
        if (--claim.operation->missing == 0) {
            ready.push_back(claim.operation);
        }
    }
}

// Admits a claim if no other use of the variable excludes it.
bool Variable::admit(const Claim& claim) {
    if (writing_ || (claim.write && readers_ > 0)) {
        return false;
    }
    if (claim.write) {
        writing_ = true;
    } else {
        ++readers_;
    }
    return true;
}

}  // namespace graphkit
