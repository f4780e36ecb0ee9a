// Reading past the page cache (O_DIRECT).
#pragma once

#include <array>
#include <atomic>
#include <memory>

#include "io/file_source.hpp"
#include "io/posix/fd.hpp"

namespace safetensors::io {

/// A file read with O_DIRECT, which requires positions, sizes and memory aligned to 4096 bytes:
///
///     file      |    4096    |    4096    |    4096    |
///     wanted            [..........................]       unaligned: read as three blocks
///     read      [......................................]   into a slot, then copied
///
/// The device fills the caller's memory directly where that is aligned. Short reads, and reads that
/// the system refuses to do directly, go through the page cache.
class DirectSource final : public ByteSource {
 public:
  /// Takes the file `buffered` and a second descriptor of it, open with O_DIRECT.
  DirectSource(std::unique_ptr<FileSource> buffered, Fd direct);
  DirectSource(const DirectSource&) = delete;
  DirectSource& operator=(const DirectSource&) = delete;
  ~DirectSource() override;

  [[nodiscard]] std::uint64_t size() const noexcept override { return buffered_->size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override;
  [[nodiscard]] ReadCost cost() const noexcept override;
  [[nodiscard]] int descriptor() const override { return buffered_->descriptor(); }

 private:
  class Slot;
  /// Returns how many bytes were read, which may be fewer than requested; 0 if the system refuses.
  [[nodiscard]] std::size_t read_block(std::uint64_t offset, std::span<std::byte> to) const;

  std::unique_ptr<FileSource> buffered_;
  Fd direct_;
  mutable std::atomic<bool> is_refused_{false};
  // Buffers of slots that no reader uses now. Atomic pointers, not a list with a lock, which a fork
  // could copy locked.
  mutable std::array<std::atomic<Buffer*>, 16> idle_{};
};

}  // namespace safetensors::io
