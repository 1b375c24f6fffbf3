// gpumem/capture.hpp: memory for CUDA graphs.
// gpumem.hpp has the conventions that hold for everything here.
#ifndef GPUMEM_CAPTURE_HPP
#define GPUMEM_CAPTURE_HPP

#include <gpumem/stream.hpp>

GPUMEM_NAMESPACE_BEGIN

// Memory for CUDA graphs: a stream allocates from it between construction and end(). The destructor
// releases this object's one reference; destroy it once no graph that uses the memory will be
// launched again. Before end() the destructor aborts the capture, so an exception leaves nothing
// behind. Move-only.
//
// A unique_buffer or async_buffer may outlive the capture in which it was filled: after an abort it
// owns memory that is gone, and frees nothing. What frees by address (memory_resource, allocator)
// must not outlive an aborted capture: it would free what lives there by then.
class capture {
  public:
    explicit capture(stream_ref s) : capture(s, nullptr) {}
    capture(stream_ref s, const gpumem_capture_options &options) : capture(s, &options) {}

    gpumem_capture get() const noexcept { return open_ ? open_.get() : ended_.get(); }
    explicit operator bool() const noexcept { return get() != nullptr; }
    // Makes the stream's allocations ordinary again. Calling it again does nothing.
    void end() {
        check(gpumem_capture_end(get()));
        if (open_) {
            ended_ = ended(open_.release());
        }
    }
    // Begins another capture in the same memory, for a graph that never runs at the same time as
    // this one's.
    capture share(stream_ref s) const {
        auto options = detail::sized<gpumem_capture_options>();
        options.share = detail::given(*this, "capture");
        return capture(s, options);
    }
    gpumem_capture_stats stats() const {
        return detail::filled<gpumem_capture_stats>(gpumem_capture_stats_get, get());
    }
    // Does now what the destructor does.
    void reset() noexcept { capture gone(std::move(*this)); }
    void swap(capture &other) noexcept {
        open_.swap(other.open_);
        ended_.swap(other.ended_);
    }

  private:
    using open = detail::owned_handle<gpumem_capture,
                                      detail::closed_by<gpumem_capture, gpumem_capture_abort>>;
    using ended = detail::owned_handle<gpumem_capture,
                                       detail::closed_by<gpumem_capture, gpumem_capture_release>>;

    capture(stream_ref s, const gpumem_capture_options *options) {
        gpumem_capture out = nullptr;
        check(gpumem_capture_begin(s.get(), options, &out));
        open_ = open(out);
    }
    // At most one of them is set.
    open open_;
    ended ended_;
};

GPUMEM_NAMESPACE_END

#endif
