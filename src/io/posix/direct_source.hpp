// Reading past the page cache.
#pragma once

#include <array>
#include <atomic>
#include <memory>

#include "io/file_source.hpp"
#include "io/posix/fd.hpp"

namespace safetensors::io {

/// A file read by O_DIRECT: the device fills the caller's memory where that is aligned, else slots
/// that are, from which the bytes are copied on. Short reads, and what the system refuses to read
/// so, go through the page cache.
class DirectSource final : public ByteSource {
 public:
  /// `buffered` is the same file; `direct` its second descriptor, open with O_DIRECT.
  DirectSource(std::unique_ptr<FileSource> buffered, Fd direct);
  DirectSource(const DirectSource&) = delete;
  DirectSource& operator=(const DirectSource&) = delete;
  ~DirectSource() override;

  [[nodiscard]] std::uint64_t size() const noexcept override { return buffered_->size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override;

 private:
  class Slot;
  /// Bytes that came, which may be fewer than asked for; 0 when the system refuses.
  [[nodiscard]] std::size_t read_block(std::uint64_t offset, std::span<std::byte> to) const;

  std::unique_ptr<FileSource> buffered_;
  Fd direct_;
  mutable std::atomic<bool> is_refused_{false};
  // Memory of slots that no reader holds: as many as read at once, and a few more for other
  // callers. Not behind a lock, which a fork could copy locked.
  mutable std::array<std::atomic<Buffer*>, 16> idle_{};
};

}  // namespace safetensors::io
