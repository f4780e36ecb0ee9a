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
  /// A header alone: its tensors have no bytes.
  safetensors_file(safetensors::Header header, std::uint64_t header_nbytes);
  safetensors_file(const safetensors_file&) = delete;
  safetensors_file& operator=(const safetensors_file&) = delete;
  ~safetensors_file() = default;

  [[nodiscard]] const safetensors::Header& header() const noexcept { return *header_; }
  /// Throws Error kInvalidArgument unless the data section has the bytes [begin, end).
  void check_range(std::uint64_t begin, std::uint64_t end) const;
  /// Returns the bytes [begin, end) of the data section if the file is mapped or in memory, else
  /// null. Throws as check_range does.
  [[nodiscard]] std::span<const std::byte> in_memory(std::uint64_t begin, std::uint64_t end) const;
  /// The open file; nullptr for a header alone.
  [[nodiscard]] const safetensors::SafeOpen* open_file() const noexcept {
    return open_ ? &*open_ : nullptr;
  }
  /// The open file, to read tensors from. Throws Error kInvalidArgument for a header alone.
  [[nodiscard]] const safetensors::SafeOpen& readable() const;
  /// The length of the header in bytes.
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

/// As `begin` of a part whose bytes do not stand together in the file.
inline constexpr std::uint64_t kScattered = UINT64_MAX;

// A caller hands back tensors that the file gave him, and may have changed any of their members. To
// read, the library takes the numbers alone and holds them against the file's header: it follows
// none of the pointers.

/// Where the bytes of `tensor` are in `file`, which may be a part of a tensor; with the name and
/// dtype of the header's entry, and no shape. Throws Error: kInvalidArgument (not within the file,
/// or NULL), kUnsupportedDtype.
[[nodiscard]] TensorInfo bytes_of(const safetensors_file& file, const safetensors_tensor* tensor);

/// The header's entry of a whole tensor of `file`. Throws as bytes_of does, and Error
/// kInvalidTensorInfo for a part of a tensor, or a tensor that was changed.
[[nodiscard]] const TensorInfo& entry_of(const safetensors_file& file,
                                         const safetensors_tensor* tensor);

/// A tensor of the caller's own, to be written. Requires: its pointers lead to what its sizes say.
/// Throws Error: kInvalidArgument (NULL), kUnsupportedDtype.
[[nodiscard]] TensorInfo info_of(const safetensors_tensor* tensor);

}  // namespace safetensors::c
