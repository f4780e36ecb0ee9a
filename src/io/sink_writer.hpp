// Writing pieces to a sink with few calls.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>

#include "io/parallel.hpp"
#include "safetensors/buffer.hpp"
#include "safetensors/byte_sink.hpp"

namespace safetensors::io {

/// Called with the bytes written and the size of the file.
using WriteProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// Writes pieces to a sink: gathers small ones that are adjacent in the file, divides large ones,
/// polls the interrupt, and reports the progress.
class SinkWriter {
 public:
  SinkWriter(ByteSink& sink, std::uint64_t total_nbytes, const Interrupt& interrupt,
             const WriteProgress& progress);

  /// Sets the size of the file, for the progress.
  void set_total(std::uint64_t nbytes) noexcept { total_ = nbytes; }
  /// Returns whether gather() takes a piece of this size.
  [[nodiscard]] static bool is_small(std::size_t nbytes) noexcept;
  /// Copies a small piece, to be written with its neighbours.
  /// Thread safety: one call of gather() or flush() at a time.
  void gather(std::uint64_t offset, std::span<const std::byte> piece);
  /// Writes a piece at once.
  /// Thread safety: several threads may call it at once if the sink seeks.
  void write_now(std::uint64_t offset, std::span<const std::byte> piece);
  /// Copies a part of a source, without bringing it into memory if the sink can do that.
  /// Thread safety: as write_now().
  void copy(const ByteSource& source, std::uint64_t begin, std::uint64_t nbytes,
            std::uint64_t offset);
  /// Writes what gather() has copied.
  void flush();
  /// Overwrites bytes that were written or gathered before: after all others, unless they are still
  /// gathered. Reports no progress.
  void patch(std::uint64_t offset, std::span<const std::byte> bytes);

 private:
  void write_all(std::uint64_t offset, std::span<const std::byte> piece, bool reports);
  void report(std::uint64_t nbytes);

  ByteSink& sink_;
  std::atomic<std::uint64_t> total_;
  std::mutex progress_mutex_;
  std::uint64_t done_ = 0;
  const WriteProgress& progress_;
  InterruptTimer timer_;
  Buffer gathered_;
  std::size_t used_ = 0;
  std::uint64_t begin_ = 0;  // offset of the gathered bytes
};

}  // namespace safetensors::io
