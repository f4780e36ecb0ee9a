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

/// An open file, or a header alone. Immutable.
struct safetensors_file {
 public:
  explicit safetensors_file(safetensors::SafeOpen open);
  /// Makes a file from a header alone: its tensors have no bytes.
  safetensors_file(safetensors::Header header, std::uint64_t header_nbytes);
  safetensors_file(const safetensors_file&) = delete;
  safetensors_file& operator=(const safetensors_file&) = delete;
  ~safetensors_file() = default;

  [[nodiscard]] const safetensors::Header& header() const noexcept { return *header_; }
  /// Throws: Error kInvalidArgument unless the data section has the bytes [begin, end).
  void check_range(std::uint64_t begin, std::uint64_t end) const;
  /// Returns the bytes [begin, end) of the data section if the file is mapped or in memory, else
  /// null. Throws: what check_range throws.
  [[nodiscard]] std::span<const std::byte> in_memory(std::uint64_t begin, std::uint64_t end) const;
  /// Returns the open file; nullptr for a header alone.
  [[nodiscard]] const safetensors::SafeOpen* open_file() const noexcept {
    return open_ ? &*open_ : nullptr;
  }
  /// Returns the open file, to read tensors from.
  /// Throws: Error kInvalidArgument for a header alone.
  [[nodiscard]] const safetensors::SafeOpen& readable() const;
  /// Returns the length of the header in bytes.
  [[nodiscard]] std::uint64_t header_nbytes() const noexcept { return header_nbytes_; }

 private:
  std::optional<safetensors::SafeOpen> open_;
  std::optional<safetensors::Header> own_header_;  // of a header alone
  const safetensors::Header* header_;              // open_'s or own_header_
  std::span<const std::byte> data_;                // the data section; null if not in memory
  std::uint64_t header_nbytes_;
  std::uint64_t data_nbytes_;
};

namespace safetensors::c {

/// `begin` of a part whose bytes are not contiguous in the file.
inline constexpr std::uint64_t kScattered = UINT64_MAX;

// A caller passes tensors back that a file returned, and may have changed any of their members. The
// functions that read therefore use the numbers only, and compare them with the file's header. They
// follow none of the pointers.

/// Returns where the bytes of `tensor`, or of a part of a tensor, are in `file`, with the name and
/// dtype of the header's entry and without a shape.
/// Throws: Error kInvalidArgument (NULL, or not within the file) or kUnsupportedDtype.
[[nodiscard]] TensorInfo bytes_of(const safetensors_file& file, const safetensors_tensor* tensor);

/// Returns the header's entry of a whole tensor of `file`.
/// Throws: what bytes_of throws; Error kInvalidTensorInfo for a part of a tensor, or a changed
///   tensor.
[[nodiscard]] const TensorInfo& entry_of(const safetensors_file& file,
                                         const safetensors_tensor* tensor);

/// Returns a tensor of the caller, to be written.
/// Requires: its pointers point to as much memory as its sizes say.
/// Throws: Error kInvalidArgument (NULL) or kUnsupportedDtype.
[[nodiscard]] TensorInfo info_of(const safetensors_tensor* tensor);

}  // namespace safetensors::c
