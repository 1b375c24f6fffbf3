// gpumem::graph: captured on a gpumem::stream, owned like one.
#include "harness.h"
#include <gpumem.hpp>
#include <utility>

static void a_graph_is_owned() {
    {
        gpumem::stream s;
        gpumem::scoped_async_buffer<unsigned char> p(1000, s);
        gpumem::graph none;
        CHECK(!none && none.get() == nullptr);
        gpumem::begin_capture(s);
        gpumem::check(gpumem_memset_async(p.data(), 5, 1000, s.get()));
        gpumem::graph g = gpumem::end_capture(s);
        CHECK(g && g.info().nodes == 1 && g.info().memory_nodes == 0);
        gpumem::graph moved(std::move(g));
        CHECK(!g && moved);
        none = std::move(moved);
        CHECK(!moved && none);
        gpumem::check(gpumem_memset_async(p.data(), 6, 1000, s.get()));
        CHECK(holds_byte(p.data(), 1000, 6, s.get()));
        none.launch(s);
        CHECK(holds_byte(p.data(), 1000, 5, s.get()));
        gpumem_sim_graph raw = none.get();
        none = gpumem::graph();
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_sim_graph_launch(raw, s.get()));
    }
    nothing_left();
}

static void failures_are_exceptions() {
    gpumem::stream s;
    gpumem_status status = GPUMEM_OK;
    try {
        gpumem::end_capture(s);
    } catch (const gpumem::error &e) {
        status = e.status();
    }
    CHECK(status == GPUMEM_ERROR_INVALID);
    gpumem::begin_capture(s, GPUMEM_SIM_CAPTURE_RELAXED);
    try {
        s.sync();
    } catch (const gpumem::error &e) {
        status = e.status();
    }
    CHECK(status == GPUMEM_ERROR_CAPTURING);
    status = GPUMEM_OK;
    try {
        gpumem::end_capture(s);
    } catch (const gpumem::error &e) {
        status = e.status();
    }
    CHECK(status == GPUMEM_ERROR_CAPTURING);
    s.sync();
    nothing_left();
}

int main() {
    RUN(a_graph_is_owned);
    RUN(failures_are_exceptions);
    return 0;
}
