// What parallel_for is asked for, by those who read and copy.
#pragma once

#include <cstddef>
#include <cstdint>

#include "safetensors/buffer.hpp"
#include "safetensors/byte_source.hpp"
#include "safetensors/parallel.hpp"

namespace safetensors::io {

/// Bytes that a task copies or reads: long enough to be worth handing out, short enough to stop
/// soon and to share evenly.
inline constexpr std::size_t kTaskSize = std::size_t{4} << 20;

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
