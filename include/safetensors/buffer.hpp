// Memory for tensor data that the library allocates itself.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "safetensors/export.hpp"

namespace safetensors {

/// Called now and then by long operations, on the thread that called them. To stop the operation,
/// throw: it is undone, and the exception passes through. May be empty.
using Interrupt = std::function<void()>;

/// Uninitialised memory, aligned to 64 bytes. Above a few megabytes it is backed by huge pages
/// where the system has them: filling it then costs half. Movable, frees its memory when destroyed.
class SAFETENSORS_API Buffer {
 public:
  Buffer() noexcept = default;
  /// Throws Error kOutOfMemory.
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

/// Asks for huge pages behind memory that was not touched yet, its whole pages only. A hint: does
/// nothing below a few megabytes or where the system has none.
SAFETENSORS_API void advise_huge_pages(std::span<std::byte> memory) noexcept;

/// One piece of a bulk copy. `to` and `from` must not overlap.
struct CopyPiece {
  std::byte* to;
  const std::byte* from;
  std::size_t nbytes;
};

/// Copies all pieces, by several threads when there is enough to copy. Throws what `interrupt`
/// throws; then some pieces are copied and some are not.
SAFETENSORS_API void copy_all(std::span<const CopyPiece> pieces, const Interrupt& interrupt = {});

}  // namespace safetensors
