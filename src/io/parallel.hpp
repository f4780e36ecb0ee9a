// Helpers for callers of parallel_for.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "safetensors/buffer.hpp"
#include "safetensors/byte_source.hpp"
#include "safetensors/parallel.hpp"

namespace safetensors::io {

/// Bytes that a task copies or reads: large enough that the overhead of a task does not matter,
/// small enough that threads finish at the same time and an interrupt is seen soon.
inline constexpr std::size_t kTaskSize = std::size_t{4} << 20;

/// Returns parallel_for's `threads` for reading `nbytes` from a source. Calls source.concurrency(),
/// which may be a system call, only if there is enough to read for several threads.
[[nodiscard]] unsigned readers_of(const ByteSource& source, std::uint64_t nbytes) noexcept;

/// Threads that are joined by the destructor, also if an exception passes.
class Threads {
 public:
  Threads() = default;
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads();
  /// Starts up to `count` threads; fewer, or none, if the system has no more. Called once.
  ///
  /// Requires: `work` throws nothing.
  void start(std::size_t count, const std::function<void()>& work);

 private:
  std::vector<std::thread> threads_;
};

/// Calls an Interrupt at most every 20 ms, so that polling costs nothing.
/// Thread safety: several threads may share one.
class InterruptTimer {
 public:
  explicit InterruptTimer(const Interrupt& interrupt);
  /// Calls the interrupt if 20 ms have passed since the last call.
  void poll();
  /// Calls the interrupt now, for example after a system call that a signal may have interrupted.
  void poll_now();

 private:
  const Interrupt& interrupt_;
  std::atomic<std::int64_t> next_ns_;
};

}  // namespace safetensors::io
