// The handle of the C interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "safetensors/header.hpp"
#include "safetensors/safe_open.hpp"
#include "safetensors/safetensors.h"

/// A file on disk, a file in memory, or a header alone. Immutable.
struct safetensors_file {
 public:
  explicit safetensors_file(safetensors::SafeOpen open);
  /// `data` is null for a header alone.
  safetensors_file(safetensors::Header header, std::span<const std::byte> data);
  safetensors_file(const safetensors_file&) = delete;
  safetensors_file& operator=(const safetensors_file&) = delete;
  ~safetensors_file() = default;

  [[nodiscard]] const safetensors::Header& header() const noexcept { return *header_; }
  /// The bytes from `begin` to `end` of the data section when they are in memory, else null.
  /// Throws Error kInvalidArgument when the file has no such bytes.
  [[nodiscard]] std::span<const std::byte> in_memory(std::uint64_t begin, std::uint64_t end) const;
  /// The file on disk; nullptr when there is none.
  [[nodiscard]] const safetensors::SafeOpen* on_disk() const noexcept {
    return open_ ? &*open_ : nullptr;
  }
  /// Whether tensors have bytes at all.
  [[nodiscard]] bool has_data() const noexcept { return open_ || data_.data() != nullptr; }

 private:
  std::optional<safetensors::SafeOpen> open_;
  std::optional<safetensors::Header> own_header_;  // without open_, which has its own
  const safetensors::Header* header_;
  std::span<const std::byte> data_;  // null when it is not in memory
  std::uint64_t data_nbytes_;
};

namespace safetensors::c {

/// An entry of `file`, or what a caller made of one: its offsets may be anything.
/// Throws Error kInvalidArgument: NULL, or no dtype.
[[nodiscard]] TensorInfo info_of(const safetensors_tensor* tensor);

}  // namespace safetensors::c
