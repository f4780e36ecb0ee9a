// The bytes of a weight, in the form that compute kernels read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

namespace safetensors::weights {

/// Allocates `nbytes` bytes (never 0) that the processor can write to, aligned to 64 bytes or more.
/// The pointer's deleter frees them, on the thread that releases the last reference. Exceptions
/// propagate to the caller of the provider.
///
/// Thread safety: several threads call it at once.
using Allocator = std::function<std::shared_ptr<std::byte>(std::size_t nbytes)>;

/// Immutable bytes that share ownership of their memory: the mapping of a file, or an allocated
/// block.
///
///     bytes()   | section(0)   | section(1)   | section(2)   | section(3) ...
///     a pack    | packed words | scales       | biases       | (empty)
///     nvfp4     | packed words | scales       | global scale, if there is one
///     a scheme  | part 0       | part 1       | part 2 ... in the order of parts()
///     others    | all bytes    | (empty)      | (empty)      | (empty)
///
/// Thread safety: immutable. Cheap to copy.
/// Lifetime: the bytes are valid while any copy exists, also after the provider is destroyed.
class WeightBuffer {
 public:
  static constexpr std::size_t kSections = 6;
  /// Lengths of the sections in bytes; 0 for those that a tensor lacks.
  using Sections = std::array<std::size_t, kSections>;

  WeightBuffer() = default;
  WeightBuffer(std::span<const std::byte> bytes, Sections sections, bool is_view,
               std::shared_ptr<const void> owner)
      : bytes_(bytes), sections_(sections), is_view_(is_view), owner_(std::move(owner)) {}

  /// Returns all bytes, aligned to 64 bytes unless is_view().
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t nbytes() const noexcept { return bytes_.size(); }
  [[nodiscard]] const Sections& sections() const noexcept { return sections_; }
  /// Returns the bytes of one section.
  ///
  /// Requires: index < kSections.
  [[nodiscard]] std::span<const std::byte> section(std::size_t index) const noexcept {
    std::size_t begin = 0;
    for (std::size_t i = 0; i < index; ++i) begin += sections_[i];
    return bytes_.subspan(begin, sections_[index]);
  }
  /// Returns whether the bytes are pages of the mapped file. Such bytes may start at any address,
  /// and reading them after another process truncated the file ends this process (SIGBUS).
  [[nodiscard]] bool is_view() const noexcept { return is_view_; }
  /// Returns what keeps the bytes alive, for callers that pass the bytes on.
  [[nodiscard]] const std::shared_ptr<const void>& owner() const noexcept { return owner_; }

 private:
  std::span<const std::byte> bytes_;
  Sections sections_{};
  bool is_view_ = false;
  std::shared_ptr<const void> owner_;
};

/// The old name of WeightBuffer. Will be removed in the next version.
using Buffer [[deprecated("use WeightBuffer")]] = WeightBuffer;

/// Statistics of a provider's cache.
struct CacheStats {
  std::size_t entries = 0;  ///< buffers in the cache, views included
  std::size_t bytes = 0;    ///< size of the buffers that are not views
  /// Requests for a buffer that was cached, or that another thread was building.
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;     ///< requests that built a buffer
  std::uint64_t evictions = 0;  ///< buffers removed because of cache_bytes
};

}  // namespace safetensors::weights
