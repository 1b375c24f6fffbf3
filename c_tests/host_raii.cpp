// gpumem.hpp's pinned host memory: one piece, many pieces, containers; and disks.
#include "host.h"
#include "throws.hpp"
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

static void buffers_end_with_their_scopes() {
    static_assert(!std::is_copy_constructible<gpumem::host_buffer<int>>::value, "move-only");
    static_assert(std::is_nothrow_move_constructible<gpumem::host_buffer<int>>::value, "noexcept");
    gpumem::host_buffer<int> outer, none(0);
    CHECK(!outer && !none && none.size() == 0 && none.begin() == none.end());
    {
        gpumem::host_buffer<int> a(1000), b(64), moved(std::move(b));
        CHECK(a && a.size() == 1000 && a.size_bytes() == 4000 && !b && b.size() == 0 && usage().used == 4096 + 256);
        std::iota(a.begin(), a.end(), 0);
        CHECK(a[999] == 999 && std::accumulate(a.begin(), a.end(), 0) == 999 * 500);
        outer = std::move(a);
        CHECK(!a && outer[999] == 999);
        outer = std::move(moved); // frees the one before
        CHECK(outer.size() == 64 && usage().used == 256);
        gpumem::host_buffer<char> other(1);
        CHECK(usage().used == 512);
        try {
            gpumem::host_buffer<double> inside(1 << 16, static_cast<std::int32_t>(node));
            CHECK(usage().used == 512 + 8 * BLOCK);
            throw std::runtime_error("in the middle");
        } catch (const std::runtime_error &) {
            CHECK(usage().used == 512);
        }
    }
    CHECK(usage().used == 256);
    int *raw = outer.release();
    CHECK(!outer && usage().used == 256);
    OK(gpumem_host_free(raw));
    outer.reset();
    CHECK(usage().used == 0);
    CHECK(throws<gpumem::bad_alloc>([] { gpumem::host_buffer<char> b(LIMIT + 1); }, GPUMEM_ERROR_OUT_OF_MEMORY, "8.00 MiB"));
    CHECK(throws<gpumem::bad_alloc>([] { gpumem::host_buffer<int> b(SIZE_MAX / 2); }, GPUMEM_ERROR_OUT_OF_MEMORY, "exceed"));
    CHECK(throws<gpumem::error>([] { gpumem::host_buffer<int> b(1, 9999); }, GPUMEM_ERROR_INVALID, "node 9999"));
}

static void containers_live_in_pinned_memory() {
    struct alignas(512) wide {
        char byte;
    };
    using floats = std::vector<float, gpumem::host_allocator<float>>;
    gpumem::stream s;
    {
        floats in, out(50000);
        for (int i = 0; i < 50000; i++) in.push_back(static_cast<float>(i) * 0.5f);
        CHECK(usage().used >= 2 * 50000 * sizeof(float));
        gpumem::scoped_async_buffer<float> device(in.size(), s);
        gpumem::check(gpumem_memcpy_async(device.data(), in.data(), device.size_bytes(), s.get()));
        gpumem::check(gpumem_memcpy_async(out.data(), device.data(), device.size_bytes(), s.get()));
        s.sync();
        CHECK(in == out);
        floats copied(in), moved(std::move(out));
        CHECK(copied == moved && in.get_allocator() == gpumem::host_allocator<int>(static_cast<std::int32_t>(node)));
        std::vector<wide, gpumem::host_allocator<wide>> few(3);
        CHECK(reinterpret_cast<std::uintptr_t>(few.data()) % 512 == 0);
    }
    CHECK(usage().used == 0);
    gpumem::host_allocator<float> alloc;
    CHECK(throws<gpumem::error>([] { gpumem::host_allocator<int>(9999).allocate(1); }, GPUMEM_ERROR_INVALID, "9999"));
    float *p = alloc.allocate(0);
    CHECK(p != nullptr);
    alloc.deallocate(p, 0);
    bool refused = false;
    try {
        alloc.allocate(SIZE_MAX / 2);
    } catch (const std::bad_array_new_length &) {
        refused = true;
    }
    CHECK(refused && usage().used == 0);
}

static void pieces_are_a_range() {
    static_assert(!std::is_copy_constructible<gpumem::host_blocks>::value, "move-only");
    static_assert(std::is_nothrow_move_assignable<gpumem::host_blocks>::value, "noexcept");
    const std::size_t bytes = 40 * BLOCK + 17; // more than two chunks
    gpumem::stream s;
    gpumem::host_blocks outer;
    CHECK(!outer && outer.size() == 0 && outer.begin() == outer.end());
    {
        gpumem::host_blocks a(bytes);
        CHECK(a && a.size() >= 3 && a.size_bytes() == bytes && usage().used == 41 * BLOCK);
        gpumem::scoped_async_buffer<std::byte> device(bytes, s);
        std::size_t at = 0;
        unsigned seed = 0;
        for (const gpumem::host_piece &piece : a) {
            paint(piece.data, piece.bytes, seed++);
            gpumem::check(gpumem_memcpy_async(device.data() + at, piece.data, piece.bytes, s.get()));
            at += piece.bytes;
        }
        CHECK(at == bytes && seed == a.size());
        s.sync();
        at = 0;
        for (std::size_t i = 0; i < a.size(); i++) {
            CHECK(holds(device.data() + at, a[i].bytes, static_cast<unsigned>(i), s.get()));
            at += a[i].bytes;
        }
        outer = std::move(a);
        CHECK(!a && a.size() == 0 && outer.size_bytes() == bytes && painted(outer[0].data, outer[0].bytes, 0));
    }
    CHECK(usage().used == 41 * BLOCK);
    outer = gpumem::host_blocks(100, static_cast<std::int32_t>(node)); // frees the one before
    CHECK(outer.size() == 1 && outer[0].bytes == 100 && usage().used == 4096);
    outer.reset();
    CHECK(usage().used == 0);
    CHECK(throws<gpumem::bad_alloc>([] { gpumem::host_blocks b(LIMIT + 1); }, GPUMEM_ERROR_OUT_OF_MEMORY, "8.00 MiB"));
    CHECK(throws<gpumem::error>([] { gpumem::host_blocks b(0); }, GPUMEM_ERROR_INVALID, "0 bytes"));
}

static void pieces_are_drawn_from_reservations() {
    gpumem::reservation r = gpumem::reserve(gpumem::space::host(node), MIB), gpu = gpumem::reserve(MIB);
    {
        gpumem::host_blocks a(MIB, r);
        CHECK(r.info().drawn == MIB && usage().unreserved == 0 && usage().promised == MIB);
        CHECK(throws<gpumem::bad_alloc>([&] { gpumem::host_blocks b(1, r); }, GPUMEM_ERROR_OUT_OF_MEMORY, "reservation"));
        CHECK(throws<gpumem::error>([&] { gpumem::host_blocks b(1, gpu); }, GPUMEM_ERROR_INVALID, "GPU 0"));
    }
    {
        gpumem::reservation_attachment here(r);
        gpumem::host_buffer<char> b(BLOCK);
        CHECK(r.info().drawn == BLOCK);
    }
    CHECK(r.info().drawn == 0 && usage().used == 0);
    r.release();
    CHECK(throws<gpumem::error>([&] { gpumem::host_blocks b(1, r); }, GPUMEM_ERROR_INVALID, "reservation holds nothing"));
    CHECK(usage().used == 0);
}

static void folders_become_spaces() {
    char folder[] = "/tmp/gpumem-raii-XXXXXX";
    CHECK(mkdtemp(folder) != nullptr);
    gpumem::space a = gpumem::space::add_disk(folder, 64 * MIB);
    CHECK(a == gpumem::space::disk(0) && a.stats().capacity == 64 * MIB);
    CHECK(throws<gpumem::error>([&] { gpumem::space::add_disk(folder); }, GPUMEM_ERROR_INVALID, "already"));
    CHECK(throws<gpumem::error>([&] { gpumem::space::add_disk(std::string(folder) + '\0'); }, GPUMEM_ERROR_INVALID, "the path has a NUL"));
    CHECK(throws<gpumem::error>([] { gpumem::space::add_disk("/nowhere"); }, GPUMEM_ERROR_IO, "/nowhere"));
    CHECK(rmdir(folder) == 0); // nothing has been written there
}

int main() {
    small_blocks();
    start();
    RUN(buffers_end_with_their_scopes);
    RUN(containers_live_in_pinned_memory);
    RUN(pieces_are_a_range);
    RUN(pieces_are_drawn_from_reservations);
    RUN(folders_become_spaces);
    nothing_left();
    return 0;
}
