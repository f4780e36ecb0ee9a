// Positioned reading, the alternative to mapping a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "safetensors/buffer.hpp"
#include "safetensors/export.hpp"

namespace safetensors {

/// Bytes that can be read at any position. Implementations are immutable and thread safe.
class SAFETENSORS_API ByteSource {
 public:
  virtual ~ByteSource();
  /// Size when it was opened, in bytes.
  [[nodiscard]] virtual std::uint64_t size() const noexcept = 0;
  /// Fills `to` from `offset` on, whole or not at all as far as the caller can tell.
  /// Throws Error: kIo, or kFileChanged when the source ends before `to` is full.
  virtual void read_at(std::uint64_t offset, std::span<std::byte> to) const = 0;
  /// How many reads at once serve it best; 0: as many as there are processors. Asked before each
  /// bulk read: it may depend on what the system has in memory by then.
  [[nodiscard]] virtual unsigned concurrency() const noexcept;
  /// All bytes, for a source that has them in memory: readers then use them in place, without
  /// copies. Empty by default: readers call read_at().
  /// Requires: size() bytes, valid and unchanged for as long as the source lives.
  [[nodiscard]] virtual std::span<const std::byte> memory() const noexcept;
  /// For a source that opens its file for each read: the same bytes, with the file open for as long
  /// as the result lives. nullptr for one whose file is open anyway, which is the default.
  /// Throws Error: kIo, or kFileChanged.
  [[nodiscard]] virtual std::shared_ptr<const ByteSource> keep_open() const;
};

/// Bytes in memory, such as a file that a program has received or embeds.
class SAFETENSORS_API MemorySource final : public ByteSource {
 public:
  /// Requires: `bytes` do not change while they are in use.
  /// Lifetime: the source shares `owner`, and so do a SafeOpen on it and its views. Without an
  ///   owner, the caller keeps the bytes valid for as long as any of these lives.
  explicit MemorySource(std::span<const std::byte> bytes,
                        std::shared_ptr<const void> owner = nullptr) noexcept;
  ~MemorySource() override;

  [[nodiscard]] std::uint64_t size() const noexcept override { return bytes_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override;
  [[nodiscard]] std::span<const std::byte> memory() const noexcept override { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> owner_;
};

/// One piece of a bulk read.
struct ReadPiece {
  std::uint64_t offset;     ///< in the source
  std::span<std::byte> to;  ///< filled whole
};

/// Reads all pieces, by several threads when there is enough to read; neighbours in the source
/// are read together. Throws what read_at throws: then the contents of `to` are unspecified.
SAFETENSORS_API void read_all(const ByteSource& source, std::span<const ReadPiece> pieces,
                              const Interrupt& interrupt = {});

}  // namespace safetensors
