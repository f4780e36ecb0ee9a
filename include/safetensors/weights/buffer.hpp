// Bytes of a weight as a compute kernel takes them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

namespace safetensors::weights {

/// Gives memory of `nbytes` bytes (never 0), aligned to 64 bytes or more, that the processor can
/// write to; the shared pointer's deleter frees it, on whatever thread lets go last. Called by
/// several threads at once. What it throws passes through.
using Allocator = std::function<std::shared_ptr<std::byte>(std::size_t nbytes)>;

/// Immutable bytes with an owner: a share in a file's mapping, or in memory of their own. Cheap to
/// copy, thread safe, valid while any copy lives, also after its provider is gone.
class WeightBuffer {
 public:
  /// Lengths in bytes of the parts, one after another. Of a pack: packed words, scales, and biases
  /// (of the nvfp4 mode: the global scale, if there is one). Of anything else: all, 0, 0.
  using Sections = std::array<std::size_t, 3>;

  WeightBuffer() = default;
  WeightBuffer(std::span<const std::byte> bytes, Sections sections, bool is_view,
               std::shared_ptr<const void> owner)
      : bytes_(bytes), sections_(sections), is_view_(is_view), owner_(std::move(owner)) {}

  /// Aligned to 64 bytes unless is_view().
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t nbytes() const noexcept { return bytes_.size(); }
  [[nodiscard]] const Sections& sections() const noexcept { return sections_; }
  /// The bytes of one part.
  [[nodiscard]] std::span<const std::byte> section(std::size_t index) const noexcept {
    std::size_t begin = 0;
    for (std::size_t i = 0; i < index; ++i) begin += sections_[i];
    return bytes_.subspan(begin, sections_[index]);
  }
  /// Whether the bytes are the file's own pages: then they start anywhere, and end the process when
  /// touched after another process cut the file short.
  [[nodiscard]] bool is_view() const noexcept { return is_view_; }
  /// For those who hand the bytes on.
  [[nodiscard]] const std::shared_ptr<const void>& owner() const noexcept { return owner_; }

 private:
  std::span<const std::byte> bytes_;
  Sections sections_{};
  bool is_view_ = false;
  std::shared_ptr<const void> owner_;
};

using Buffer = WeightBuffer;  ///< the former name, for one version

/// What a provider's cache holds and did.
struct CacheStats {
  std::size_t entries = 0;      ///< buffers held, views included
  std::size_t bytes = 0;        ///< of buffers that are not views
  std::uint64_t hits = 0;       ///< asked for and there, or being built by another thread
  std::uint64_t misses = 0;     ///< asked for and built
  std::uint64_t evictions = 0;  ///< dropped to make room
};

}  // namespace safetensors::weights
