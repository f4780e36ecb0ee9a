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
  /// For a source that opens its file for each read: the same bytes, with the file open for as long
  /// as the result lives. nullptr for one whose file is open anyway, which is the default.
  /// Throws Error: kIo, or kFileChanged.
  [[nodiscard]] virtual std::shared_ptr<const ByteSource> keep_open() const;
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
