// Memory exported by one process and imported by others, on the same device and on others.
//
//   processes
//
// Process 0 allocates on device 0, process 1 on device 1, and so on; each exports and sends the
// descriptors to all the others over Unix sockets. Each imports what it gets, once as memory of the
// exporter's device and once as memory of its own, and compares every word by kernels of its own
// device; then it writes, and the exporter compares. An exporter frees, and the imports must live
// on; a process that ends with imports mapped must not disturb the others. The parent starts no
// CUDA.
#include "common.cuh"

#include <csignal>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int rank_, ranks;
static int sockets[8][8];  // [of][to]

static void send_fd(int to, int fd) {
    char byte = 'f';
    iovec io = {&byte, 1};
    union { char buffer[CMSG_SPACE(sizeof(int))]; cmsghdr align; } control;
    std::memset(&control, 0, sizeof control);
    msghdr message = {};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    message.msg_control = control.buffer;
    message.msg_controllen = sizeof control.buffer;
    cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
    REQUIRE(sendmsg(sockets[rank_][to], &message, 0) == 1, "process %d could not send to %d", rank_, to);
}

static int receive_fd(int from) {
    char byte = 0;
    iovec io = {&byte, 1};
    union { char buffer[CMSG_SPACE(sizeof(int))]; cmsghdr align; } control;
    std::memset(&control, 0, sizeof control);
    msghdr message = {};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    message.msg_control = control.buffer;
    message.msg_controllen = sizeof control.buffer;
    REQUIRE(recvmsg(sockets[rank_][from], &message, 0) == 1, "process %d got nothing from %d", rank_, from);
    cmsghdr *c = CMSG_FIRSTHDR(&message);
    REQUIRE(c != nullptr && c->cmsg_type == SCM_RIGHTS, "process %d got no descriptor from %d", rank_, from);
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

// Nobody goes on before all have come here.
static void meet() {
    char byte = 'm';
    for (int r = 0; r < ranks; r++)
        if (r != rank_) REQUIRE(write(sockets[rank_][r], &byte, 1) == 1, "process %d is gone", r);
    for (int r = 0; r < ranks; r++)
        if (r != rank_) REQUIRE(read(sockets[rank_][r], &byte, 1) == 1, "process %d has ended", r);
}

static void run() {
    if (std::getenv("GPUMEM_BACKEND") == nullptr) setenv("GPUMEM_BACKEND", "cuda", 1);
    const int devices = devices_or_skip(ranks);
    const bool peers = all_peers(devices);
    cudaStream_t s = new_stream(rank_);
    const Reports reports(devices);
    const size_t sizes[] = {2 * MiB, 3 * MiB + 512, 70 * MiB};
    enum { SIZES = 3 };
    const auto id = [](int of, int round, int size, int writer) {
        return (u64)(1 + size + SIZES * (writer + 8 * (of + 8 * round)));
    };
    for (int round = 0; round < 3; round++) {
        void *mine[SIZES];
        for (int i = 0; i < SIZES; i++) {
            gpumem_malloc_options o;
            GPUMEM_INIT(&o);
            o.bytes = sizes[i];
            o.stream = handle(s);
            o.flags = GPUMEM_MALLOC_EXPORTABLE;
            OWN(gpumem_malloc_with(&o, &mine[i]));
            fill_on(rank_, s, mine[i], sizes[i], id(rank_, round, i, rank_));
        }
        CUDA(cudaStreamSynchronize(s));
        for (int i = 0; i < SIZES; i++)
            for (int r = 0; r < ranks; r++) {
                if (r == rank_) continue;
                int fd = -1;
                OWN(gpumem_export_fd(mine[i], &fd));
                send_fd(r, fd);
                close(fd);
            }
        // As memory of the exporter's device, where that can be reached; then as memory of this
        // one's.
        struct Import { void *p; int of, size; };
        std::vector<Import> imports;
        for (int r = 0; r < ranks; r++) {
            if (r == rank_) continue;
            for (int i = 0; i < SIZES; i++) {
                const int fd = receive_fd(r);
                for (int as : {r, rank_}) {
                    if (as == r && !peers) continue;
                    void *p = nullptr;
                    const gpumem_status status = gpumem_import_fd(fd, sizes[i], as, &p);
                    if (status != GPUMEM_OK && as == rank_) {
                        // Memory of another device as this one's: refused is an answer, wrong
                        // contents are not.
                        char text[512];
                        gpumem_last_error(text, sizeof text);
                        if (round == 0 && i == 0 && rank_ == 0) std::printf("figure import on another device: %s\n", text);
                        continue;
                    }
                    OWN(status);
                    imports.push_back({p, r, i});
                    if (as == r || peers) check_on(rank_, s, p, sizes[i], id(r, round, i, r), reports);
                }
                close(fd);
            }
        }
        CUDA(cudaStreamSynchronize(s));
        REQUIRE(imports.size() > 0, "process %d has imported nothing", rank_);
        REQUIRE(reports.wrong() == 0, "process %d sees other contents than were exported", rank_);
        meet();
        if (peers) {
            // In turn, each writes what it has imported, and the owner compares.
            for (int writer = 0; writer < ranks; writer++) {
                if (writer == rank_)
                    for (const Import &m : imports) fill_on(rank_, s, m.p, sizes[m.size], id(m.of, round, m.size, writer));
                CUDA(cudaStreamSynchronize(s));
                meet();
                if (writer != rank_)
                    for (int i = 0; i < SIZES; i++) check_on(rank_, s, mine[i], sizes[i], id(rank_, round, i, writer), reports);
                CUDA(cudaStreamSynchronize(s));
                REQUIRE(reports.wrong() == 0, "process %d does not see what process %d wrote", rank_, writer);
                meet();
            }
        }
        // The exporter frees, and fills the device with other memory; the imports keep theirs.
        for (void *p : mine) OWN(gpumem_free_async(p, handle(s)));
        CUDA(cudaStreamSynchronize(s));
        OWN(gpumem_trim(0));
        std::vector<void *> others;
        for (int i = 0; i < 20; i++) {
            void *p = nullptr;
            OWN(gpumem_malloc_async(70 * MiB, handle(s), &p));
            fill_on(rank_, s, p, 70 * MiB, 1000000 + (u64)i);
            others.push_back(p);
        }
        CUDA(cudaStreamSynchronize(s));
        meet();
        if (peers) {
            // The last that wrote to memory of process r is the highest of the others.
            for (const Import &m : imports) {
                const int last = m.of == ranks - 1 ? ranks - 2 : ranks - 1;
                check_on(rank_, s, m.p, sizes[m.size], id(m.of, round, m.size, last), reports);
            }
            CUDA(cudaStreamSynchronize(s));
            REQUIRE(reports.wrong() == 0, "process %d: an import changed when its exporter freed it", rank_);
        }
        for (void *p : others) OWN(gpumem_free_async(p, handle(s)));
        // In the last round the last process ends with its imports mapped.
        if (round < 2 || rank_ != ranks - 1)
            for (const Import &m : imports) OWN(gpumem_free_async(m.p, handle(s)));
        CUDA(cudaStreamSynchronize(s));
        OWN(gpumem_trim(0));
        OWN(gpumem_validate());
        meet();
    }
    if (rank_ != ranks - 1) {
        for (int d = 0; d < devices; d++) REQUIRE(stats_of(d).allocations == 0, "process %d: allocations are left on device %d", rank_, d);
    }
    if (rank_ == 0) std::printf("figure %d processes: exports of 2, 3 and 70 MiB imported by all others; peer access %s\n", ranks, peers ? "yes" : "no: only copies");
}

int main() {
    // The parent must not start CUDA, so the number is found out by a child.
    signal(SIGPIPE, SIG_IGN);
    const pid_t counter = fork();
    if (counter == 0) {
        int n = 0;
        if (cudaGetDeviceCount(&n) != cudaSuccess) n = 0;
        _exit(n > 4 ? 4 : n);
    }
    int how = 0;
    waitpid(counter, &how, 0);
    ranks = WIFEXITED(how) ? WEXITSTATUS(how) : 0;
    if (ranks < 2) {
        std::printf("skipped: 2 devices are needed, there are %d\n", ranks);
        return SKIPPED;
    }
    for (int a = 0; a < ranks; a++)
        for (int b = a + 1; b < ranks; b++) {
            int pair[2];
            REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "no sockets");
            sockets[a][b] = pair[0];
            sockets[b][a] = pair[1];
        }
    std::fflush(nullptr);
    std::vector<pid_t> children;
    for (int r = 0; r < ranks; r++) {
        const pid_t child = fork();
        REQUIRE(child >= 0, "no fork");
        if (child == 0) {
            rank_ = r;
            run();
            std::fflush(nullptr);
            _exit(0);
        }
        children.push_back(child);
    }
    int status = 0;
    for (int left = ranks; left > 0; left--) {
        const pid_t ended = wait(&how);
        const int code = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
        if (code != 0 && status == 0) {
            status = code;
            for (pid_t c : children)
                if (c != ended) kill(c, SIGKILL);
        }
    }
    std::printf("%s\n", status == 0 ? "PASS" : status == SKIPPED ? "skipped" : "FAIL");
    return status;
}
