// What the tests of gpumem.hpp share.
#ifndef THROWS_HPP
#define THROWS_HPP

#include <gpumem.hpp>
#include <string>

// Whether a call ends with an exception of just this kind, status and text.
template <class E, class F> bool throws(F call, gpumem_status status, const char *says) {
    try {
        call();
    } catch (const E &e) {
        return e.status() == status && std::string(e.what()).find(says) != std::string::npos;
    }
    return false;
}

#endif
