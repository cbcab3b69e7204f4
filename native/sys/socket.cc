// Who is at the other end of a local socket, socket pairs, and the datagram to the service manager.
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "sys/call.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace sys {

static Napi::Value PeerCred(const Napi::CallbackInfo& info) {
  int fd;
  if (!read_int(info, 0, "getsockopt", &fd)) return info.Env().Undefined();
  struct ucred peer;
  socklen_t size = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return throw_errno(info.Env(), errno, "getsockopt");
  Napi::Env env = info.Env();
  Napi::Object facts = Napi::Object::New(env);
  facts.Set("pid", Napi::Number::New(env, peer.pid));
  facts.Set("uid", Napi::Number::New(env, peer.uid));
  facts.Set("gid", Napi::Number::New(env, peer.gid));
  return facts;
}

static Napi::Value PeerPidfd(const Napi::CallbackInfo& info) {
  int fd;
  if (!read_int(info, 0, "getsockopt", &fd)) return info.Env().Undefined();
  int pidfd = -1;
  socklen_t size = sizeof pidfd;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0) return Napi::Number::New(info.Env(), pidfd);
  // ENODATA, EINVAL, ESRCH: the peer's process is gone or was never known.
  if (errno == ENOPROTOOPT || errno == ENODATA || errno == ESRCH || errno == EINVAL) return info.Env().Undefined();
  return throw_errno(info.Env(), errno, "getsockopt");
}

static Napi::Value SocketPair(const Napi::CallbackInfo& info) {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
    return throw_errno(info.Env(), errno, "socketpair");
  Napi::Array pair = Napi::Array::New(info.Env(), 2);
  pair.Set(0u, fds[0]);
  pair.Set(1u, fds[1]);
  return pair;
}

static Napi::Value SdNotify(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  std::string state;
  if (!read_text(info, 0, "sendto", &state)) return env.Undefined();
  const char* address = getenv("NOTIFY_SOCKET");
  if (address == nullptr || address[0] == '\0') return Napi::Boolean::New(env, false);
  struct sockaddr_un to;
  memset(&to, 0, sizeof to);
  to.sun_family = AF_UNIX;
  size_t length = strlen(address);
  if ((address[0] != '/' && address[0] != '@') || length >= sizeof to.sun_path)
    return throw_errno(env, EINVAL, "sendto", address);
  memcpy(to.sun_path, address, length);
  if (address[0] == '@') to.sun_path[0] = '\0';
  socklen_t size = static_cast<socklen_t>(offsetof(struct sockaddr_un, sun_path) + length + (address[0] == '/' ? 1 : 0));
  int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return throw_errno(env, errno, "socket");
  ssize_t sent;
  do sent = sendto(fd, state.data(), state.size(), MSG_NOSIGNAL, reinterpret_cast<struct sockaddr*>(&to), size);
  while (sent < 0 && errno == EINTR);
  int number = errno;
  close(fd);
  if (sent < 0) return throw_errno(env, number, "sendto", address);
  return Napi::Boolean::New(env, true);
}

void init_socket(Napi::Env env, Napi::Object exports) {
  exports.Set("peerCred", Napi::Function::New<PeerCred>(env));
  exports.Set("peerPidfd", Napi::Function::New<PeerPidfd>(env));
  exports.Set("socketPair", Napi::Function::New<SocketPair>(env));
  exports.Set("sdNotify", Napi::Function::New<SdNotify>(env));
}

}  // namespace sys
