// Handles of memory for other processes. A handle names the process and the segment. Who opens it
// connects to that process, at an abstract Unix socket that a thread serves since the first handle,
// and gets the segment's file descriptor, if both are of the same user.
#pragma once

#include <c10/util/Exception.h>

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>

namespace gpumem_torch {

struct Handle {
  char magic[8];
  int32_t pid;
  int32_t device;
  // Chosen by the exporting process: two containers may have the same numbers.
  uint64_t nonce;
  uint64_t segment;
  uint64_t bytes;
  char rest[24];

  std::string text() const {
    return {reinterpret_cast<const char*>(this), sizeof *this};
  }
};
static_assert(sizeof(Handle) == 64, "as large as the driver's");
constexpr char kMagic[8] = {'g', 'p', 'u', 'm', 'e', 'm', 't', '\x01'};

inline socklen_t socket_name(sockaddr_un& to, int32_t pid, uint64_t nonce) {
  std::memset(&to, 0, sizeof to);
  to.sun_family = AF_UNIX;
  const int n = std::snprintf(to.sun_path + 1, sizeof to.sun_path - 1, "gpumem-torch-%d-%016" PRIx64, pid, nonce);
  return socklen_t(offsetof(sockaddr_un, sun_path) + 1 + n);
}

inline bool same_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

// A call that a signal does not end.
template <typename Call>
ssize_t retried(Call call) {
  ssize_t done;
  do done = call();
  while (done < 0 && errno == EINTR);
  return done;
}

// A byte that says whether there is a descriptor, and the descriptor.
inline void send_fd(int to, int fd) {
  char byte = fd >= 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = room;
    message.msg_controllen = sizeof room;
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  (void)retried([&] { return sendmsg(to, &message, MSG_NOSIGNAL); });
}

inline int receive_fd(int from) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof room;
  if (retried([&] { return recvmsg(from, &message, MSG_CMSG_CLOEXEC); }) != 1 || byte == 0) return -1;
  const cmsghdr* c = CMSG_FIRSTHDR(&message);
  if (c == nullptr || c->cmsg_type != SCM_RIGHTS) return -1;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(c), sizeof fd);
  return fd;
}

// A peer that says nothing must not hold anybody up.
inline void limit_wait(int fd) {
  timeval limit{10, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

// Serves descriptors for as long as the process lives.
class Server {
 public:
  uint64_t nonce = 0;

  // `descriptor` gives that of a segment, which is closed when it has been sent; -1 for none.
  explicit Server(std::function<int(uint64_t)> descriptor) {
    std::random_device random;
    nonce = uint64_t(random()) << 32 | random();
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un name;
    const socklen_t size = socket_name(name, getpid(), nonce);
    TORCH_CHECK(fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&name), size) == 0 && listen(fd, 64) == 0,
                "sharing CUDA memory: no Unix socket: ", std::strerror(errno));
    std::thread([fd, descriptor = std::move(descriptor)] {
      for (;;) {
        const int peer = accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
        if (peer < 0) {
          // Without descriptors or memory now, there may be some later.
          if (errno != EINTR && errno != ECONNABORTED) std::this_thread::sleep_for(std::chrono::milliseconds(10));
          continue;
        }
        limit_wait(peer);
        uint64_t segment = 0;
        if (same_user(peer) && retried([&] { return recv(peer, &segment, sizeof segment, MSG_WAITALL); }) == sizeof segment) {
          const int out = descriptor(segment);
          send_fd(peer, out);
          if (out >= 0) close(out);
        }
        close(peer);
      }
    }).detach();
  }
};

// The descriptor of what a handle names, which the caller closes.
inline int fetch(const Handle& h) {
  const int peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un name;
  const socklen_t size = socket_name(name, h.pid, h.nonce);
  int fd = -1;
  const auto ask = [&] { return send(peer, &h.segment, sizeof h.segment, MSG_NOSIGNAL); };
  if (peer >= 0 && retried([&] { return connect(peer, reinterpret_cast<sockaddr*>(&name), size); }) == 0 && same_user(peer) &&
      retried(ask) == ssize_t(sizeof h.segment)) {
    limit_wait(peer);
    fd = receive_fd(peer);
  }
  if (peer >= 0) close(peer);
  TORCH_CHECK(fd >= 0, "the process ", h.pid, " does not give CUDA memory that it shared: it has ended, or freed the memory, or is another "
              "user's");
  return fd;
}

}  // namespace gpumem_torch
