// gpumem/sim.hpp: CUDA graphs without a CUDA runtime, for tests and for the host device. Programs
// that have CUDA use CUDA's own graphs. gpumem.hpp has the conventions that hold for everything
// here.
#ifndef GPUMEM_SIM_HPP
#define GPUMEM_SIM_HPP

#include <gpumem/stream.hpp>
#include <gpumem/sim.h>

GPUMEM_NAMESPACE_BEGIN

// Owns a graph made by end_capture(). Launches in flight when it is destroyed still run. Move-only.
class graph
    : public detail::owned_handle<gpumem_sim_graph,
                                  detail::closed_by<gpumem_sim_graph, gpumem_sim_graph_destroy>> {
  public:
    using owned_handle::owned_handle;
    // Runs the graph's work in the order of a stream, after its earlier launches.
    void launch(stream_ref s) const { check(gpumem_sim_graph_launch(state_, s.get())); }
    gpumem_sim_graph_info info() const {
        return detail::filled<gpumem_sim_graph_info>(gpumem_sim_graph_info_get, state_);
    }
};

// Starts capturing a stream: work submitted to it from now on does not run, but becomes the graph
// that end_capture() returns.
inline void begin_capture(stream_ref s, int mode = GPUMEM_SIM_CAPTURE_THREAD_LOCAL) {
    check(gpumem_sim_capture_begin(s.get(), mode));
}
inline graph end_capture(stream_ref s) {
    gpumem_sim_graph out = nullptr;
    check(gpumem_sim_capture_end(s.get(), &out));
    return graph(out);
}

GPUMEM_NAMESPACE_END

#endif
