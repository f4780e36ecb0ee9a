// Finds out whether another program uses a file, and makes those wait that open it.
#pragma once

#include <string_view>
#include <utility>

namespace safetensors::io {

/// A write lease of an open file: until the object is destroyed, another process that opens the
/// file waits. Linux grants it only if nobody else has the file open or mapped. After 45 seconds
/// (/proc/sys/fs/lease-break-time) it breaks the lease: see is_held().
class Lease {
 public:
  /// Tries to take the lease. The caller keeps the descriptor open while the object lives.
  ///
  /// Refused also where the system grants one although the file is mapped: on overlayfs, whose
  /// mappings belong to the file of a layer.
  explicit Lease(int descriptor) noexcept;
  Lease(Lease&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), refusal_(other.refusal_) {}
  Lease& operator=(Lease&&) = delete;
  ~Lease();

  /// Returns why there is no lease; an empty text if it was granted.
  [[nodiscard]] std::string_view refusal() const noexcept { return refusal_; }
  /// Returns whether the lease still holds.
  [[nodiscard]] bool is_held() const noexcept;

 private:
  int descriptor_;
  std::string_view refusal_;
};

}  // namespace safetensors::io
