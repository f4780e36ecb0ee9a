// State that a forked process must not share with its parent.
#pragma once

#include <atomic>
#include <cstdint>

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace safetensors {

#if defined(_WIN32)
/// Windows has no fork.
[[nodiscard]] inline std::uint64_t fork_generation() noexcept { return 0; }
#else
namespace detail {
inline constinit std::atomic<std::uint64_t> forks{0};
// Registered when the library is loaded. A local static could be half made when a fork copies it.
inline const int fork_handler =
    ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
}  // namespace detail

/// Returns the number of forks between the process that loaded the library and this one. Threads,
/// locks and device memory of another generation belong to the parent: the child must not use them.
[[nodiscard]] inline std::uint64_t fork_generation() noexcept {
  (void)detail::fork_handler;
  return detail::forks.load(std::memory_order_relaxed);
}
#endif

/// One T for each process: get() makes it on first use, and a forked process gets a new T instead
/// of the copy of its parent's, whose locks may be held by threads that the child does not have.
/// For the same reason get() never waits, as the first use of a local static would.
///
/// Thread safety: all threads may call get(). Constant-initialised, for variables that are
///   constinit.
/// Lifetime: only reset() destroys the T, so that threads which still run when the process exits
///   can use it.
template <typename T>
class PerProcess {
 public:
  constexpr PerProcess() noexcept = default;
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;

  [[nodiscard]] T& get() {
    const std::uint64_t generation = fork_generation();
    Kept* found = current_.load(std::memory_order_acquire);
    if (found != nullptr && found->generation == generation) return found->value;
    auto* const fresh = new Kept{generation, found, {}};
    if (current_.compare_exchange_strong(found, fresh)) return fresh->value;
    delete fresh;  // another thread was faster
    return found->value;
  }

  /// Returns this process's T, or nullptr if get() has not made it.
  [[nodiscard]] T* find() const noexcept {
    Kept* const found = current_.load(std::memory_order_acquire);
    return found != nullptr && found->generation == fork_generation() ? &found->value : nullptr;
  }

  /// Destroys this process's T, and leaks its parent's. For destructors of owners that are not
  /// global variables.
  /// Requires: no thread uses the T.
  void reset() noexcept {
    const Kept* const found = current_.exchange(nullptr);
    if (found != nullptr && found->generation == fork_generation()) delete found;
  }

 private:
  struct Kept {
    std::uint64_t generation;
    const Kept* of_parent;  ///< keeps the parent's reachable, for leak checkers
    T value;
  };
  std::atomic<Kept*> current_{nullptr};
};

}  // namespace safetensors
