// Pinned memory between files and devices, kept from load to load: to pin memory is slow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "device/context.hpp"
#include "safetensors/buffer.hpp"

namespace safetensors::device {

/// A block of staging memory. Move-only; it goes back by give_arena, or is lost for good when it is
/// leaked, which is what happens to memory that a device may still read from.
///
/// Forked processes have no copy of registered memory. A copy would be made page by page when
/// either process writes, and the device would keep the pages that are the other's from then on.
class Arena {
 public:
  enum class Kind : std::uint8_t {
    kRegistered,  ///< memory of ours, pinned
    kAllocated,   ///< the driver's own
    kPageable,    ///< the driver copies from it by memory of its own: slower, and right
  };

  Arena() noexcept = default;
  /// Pinned as far as the driver can, or not at all. ScopedContext. Throws Error kOutOfMemory.
  Arena(Context& context, std::size_t nbytes, bool is_pinned);
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena() { (void)free(); }

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, nbytes_}; }
  [[nodiscard]] std::size_t size() const noexcept { return nbytes_; }
  [[nodiscard]] Kind kind() const noexcept { return kind_; }
  [[nodiscard]] const CudaDriver* driver() const noexcept {
    return context_ == nullptr ? nullptr : &context_->driver();
  }
  /// Frees the memory, which may happen while a graph is captured. False when the driver could not
  /// unpin it, or a parent process pinned it: then it is leaked.
  bool free() noexcept;
  /// Forgets the memory without freeing it.
  void leak() noexcept;

 private:
  [[nodiscard]] bool unpin() const noexcept;
  void allocate();
  /// The whole pages that memory of ours lies in.
  [[nodiscard]] std::span<std::byte> pages() const noexcept;

  Context* context_ = nullptr;
  /// Memory of ours; in a block that can be put aside when it must not be freed.
  struct Memory {
    Buffer buffer;
    Memory* next = nullptr;
  };
  std::unique_ptr<Memory> memory_;  // none when it is the driver's
  std::byte* data_ = nullptr;
  std::size_t nbytes_ = 0;
  Kind kind_ = Kind::kPageable;
};

/// Pinned memory of `nbytes`, from what is kept if possible. None is added beyond `most_nbytes` for
/// the whole process (the load's own LoadConfig::staging_nbytes: to ask for the process's settings
/// takes a lock, which a fork meanwhile would copy): then an arena of no size. ScopedContext.
[[nodiscard]] Arena take_arena(Context& context, std::size_t nbytes, std::size_t most_nbytes);
/// Keeps it for the next load; frees it when it is pageable.
void give_arena(Arena arena) noexcept;
/// The arena is lost: it no longer counts.
void lose_arena(Arena arena) noexcept;

}  // namespace safetensors::device
