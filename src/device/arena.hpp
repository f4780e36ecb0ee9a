// One block of staging memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "device/context.hpp"
#include "safetensors/buffer.hpp"

namespace safetensors::device {

/// Host memory that a device copies from, pinned if the driver can. Move-only.
///
/// Pages that were pinned in place are withheld from forked processes. Otherwise a write by either
/// process would give it a new copy of the page, and the device might keep reading the other one.
class Arena {
 public:
  enum class Kind : std::uint8_t {
    kRegistered,  ///< a Buffer, pinned in place
    kAllocated,   ///< pinned memory that the driver allocated
    kPageable,  ///< a Buffer that is not pinned: the driver first copies from it to its own memory
  };

  /// Makes an empty arena.
  Arena() noexcept = default;
  /// Allocates memory, pinned if `is_pinned` and the driver can.
  ///
  /// Requires: the context is current.
  /// Throws: Error kOutOfMemory.
  Arena(Context& context, std::size_t nbytes, bool is_pinned);
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena() { (void)free(); }

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, nbytes_}; }
  [[nodiscard]] std::size_t size() const noexcept { return nbytes_; }
  [[nodiscard]] bool is_pinned() const noexcept { return kind_ != Kind::kPageable; }
  /// Returns whether the memory can be used with a driver.
  [[nodiscard]] bool is_of(const CudaDriver& driver) const noexcept {
    return context_ != nullptr && &context_->driver() == &driver;
  }
  /// Returns whether this process allocated the memory. A forked child must only leak() it.
  [[nodiscard]] bool is_own() const noexcept { return context_ == nullptr || context_->is_own(); }

  /// Unpins and frees the memory, also while a graph is being captured. Returns false if the memory
  /// may still be pinned and was leaked instead.
  bool free() noexcept;
  /// Leaves the memory allocated, as a device may still read from it.
  void leak() noexcept;

 private:
  /// Allocated separately, so that leak() needs no allocation.
  struct Memory {
    Buffer buffer;
    Memory* next = nullptr;  // in the list of leaked memory
  };

  void allocate();
  [[nodiscard]] bool unpin() const noexcept;
  [[nodiscard]] std::span<std::byte> pages() const noexcept;

  Context* context_ = nullptr;
  std::unique_ptr<Memory> memory_;  // nullptr if the driver allocated it
  std::byte* data_ = nullptr;
  std::size_t nbytes_ = 0;
  Kind kind_ = Kind::kPageable;
};

}  // namespace safetensors::device
