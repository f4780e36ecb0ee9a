// One interposed call: records it, and makes it fail, transfer less, or kill the process.
#pragma once

#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>

#include "control.hpp"

namespace faults::preload {

inline std::atomic<bool> counting{false};
inline std::atomic<std::size_t> count{0};
inline Plan plan;
inline std::atomic<bool> began_failing{false};
inline Kind failing_kind;
inline Call calls[kMaxCalls];

[[noreturn]] inline void die() {
  ::raise(SIGKILL);
  ::_exit(1);
}

/// Returns the next definition of a function: the C library's.
template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

/// One call, and whether and how it must fail.
class Turn {
 public:
  Turn(Kind kind, int fd, const char* path, int flags = 0) {
    if (!counting.load()) return;
    const std::size_t number = count.fetch_add(1);
    if (number < kMaxCalls) {
      call_ = &calls[number];
      call_->kind = kind;
      call_->fd = fd;
      call_->flags = flags;
      call_->path[0] = '\0';
      if (path != nullptr) std::snprintf(call_->path, sizeof call_->path, "%s", path);
    }
    if ((plan.no_rename && kind == Kind::kRename) || (plan.no_copy && kind == Kind::kCopy)) {
      effect_ = Effect::kError;
      error_ = EXDEV;
    }
    if (plan.effect == Effect::kNone) return;
    const bool again = plan.onward && began_failing.load() && kind == failing_kind;
    if (number != plan.nth && !again) return;
    failing_kind = kind;
    began_failing.store(true);
    effect_ = plan.effect;
    error_ = plan.error;
  }

  /// Makes the call unless it must fail. `call` takes how many of the `size` bytes to transfer.
  template <typename Call>
  auto run(std::size_t size, const Call& call) -> decltype(call(size)) {
    switch (effect_) {
      case Effect::kError:
        errno = error_;
        return decltype(call(size))(-1L);
      case Effect::kHalf:
        return call(std::max<std::size_t>(size / 2, 1));
      case Effect::kOneByte:
        return call(std::min<std::size_t>(size, 1));
      case Effect::kNothing:
        return decltype(call(size))(0L);
      case Effect::kKillBefore:
        die();
      case Effect::kKillAfter:
        (void)call(std::max<std::size_t>(size / 2, 1));
        die();
      default:
        return call(size);
    }
  }
  template <typename Call>
  auto run(const Call& call) {
    return run(1, [&](std::size_t) { return call(); });
  }
  void opened(int fd) {
    if (call_ != nullptr) call_->fd = fd;
  }
  [[nodiscard]] bool fails() const { return effect_ == Effect::kError; }

 private:
  Call* call_ = nullptr;
  Effect effect_ = Effect::kNone;
  int error_ = 0;
};

}  // namespace faults::preload
