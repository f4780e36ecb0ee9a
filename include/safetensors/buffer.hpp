// Memory that the library allocates for tensor data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "safetensors/export.hpp"

namespace safetensors {

/// A callback that long operations call about every 20 ms, on the thread that called them. To stop
/// the operation, throw: the operation is undone and rethrows the exception. May be empty.
using Interrupt = std::function<void()>;

/// Uninitialised memory, aligned to 64 bytes; from 4 MiB on, to the 2 MiB of a huge page.
///
/// Lifetime: owns the memory and frees it when destroyed. Movable; a moved-from Buffer is empty.
class SAFETENSORS_API Buffer {
 public:
  /// Makes an empty buffer.
  Buffer() noexcept = default;
  /// Allocates `nbytes` bytes. Throws: Error kOutOfMemory.
  explicit Buffer(std::size_t nbytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Returns how many bytes of memory can be allocated without swapping, within the limits set for
/// this process; the largest number if the system does not say.
[[nodiscard]] SAFETENSORS_API std::uint64_t memory_available();

/// One piece of a bulk copy.
struct CopyPiece {
  std::byte* to;
  const std::byte* from;
  std::size_t nbytes;
};

/// Copies all pieces, with several threads if they have 8 MiB or more in all.
///
/// Requires: no destination overlaps another destination or a source.
/// Throws: what `interrupt` throws; then some pieces are copied and some are not.
SAFETENSORS_API void copy_all(std::span<const CopyPiece> pieces, const Interrupt& interrupt = {});

}  // namespace safetensors
