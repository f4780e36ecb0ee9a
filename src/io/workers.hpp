// A loop over tasks, by several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "safetensors/buffer.hpp"
#include "safetensors/byte_source.hpp"

namespace safetensors::io {

/// Bytes that a task copies or reads: long enough to be worth handing out, short enough to stop
/// soon and to share evenly.
inline constexpr std::size_t kTaskSize = std::size_t{4} << 20;

/// Runs task(0) ... task(count - 1), each once, in any order, on this thread and helpers when
/// `nbytes` are many. Helpers live for the call only, so fork is safe between calls. The first
/// exception of a task or of `interrupt` (called on this thread only) stops the loop and is
/// rethrown after all threads are done. `threads` is how many serve best; 0: as many as there are
/// processors.
void parallel_for(std::size_t count, std::uint64_t nbytes,
                  const std::function<void(std::size_t)>& task, const Interrupt& interrupt,
                  unsigned threads = 0);

/// parallel_for's `threads` for reading `nbytes` from a source, which is asked only when there are
/// enough for several.
[[nodiscard]] unsigned readers_of(const ByteSource& source, std::uint64_t nbytes) noexcept;

/// Calls an Interrupt, but not more often than costs nothing.
class InterruptTimer {
 public:
  explicit InterruptTimer(const Interrupt& interrupt);
  void poll();
  /// Without regard to time, for when a signal is likely the reason.
  void poll_now();

 private:
  const Interrupt& interrupt_;
  std::int64_t next_ns_;
};

}  // namespace safetensors::io
