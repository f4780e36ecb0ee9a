// Parses the header of a GGUF file: metadata, and the names, types, shapes and places of tensors. A
// function of bytes, without files.
//
// Layout (GGUF specification, versions 2 and 3; all numbers little-endian):
//
//     offset 0    4    magic "GGUF"
//            4    4    version
//            8    8    number of tensors
//           16    8    number of metadata items
//           24         metadata items: key (string), type (4 bytes), value
//                      tensor entries: name (string), rank (4), dims (8 each, fastest axis first),
//                                      type (4), offset in the data (8)
//                      padding to a multiple of general.alignment (default 32)
//                      data: each tensor at a multiple of the alignment
//
// A string is its length (8 bytes) and its bytes, without a NUL. An array is the type of its
// elements (4), their number (8), and the elements.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "common/cursor.hpp"
#include "safetensors/weights/limits.hpp"
#include "safetensors/weights/metadata.hpp"

namespace safetensors::weights {

/// One tensor. The name is a view of the parsed bytes.
struct GgufTensor {
  /// ggml has four; image models store the convolutions of videos with five.
  static constexpr std::size_t kMaxDims = 5;

  std::string_view name;  ///< UTF-8, without NUL
  std::array<std::int64_t, kMaxDims> dims{};
  std::uint32_t rank = 0;
  std::uint32_t type = 0;    ///< known to find_ggml_type()
  std::uint64_t offset = 0;  ///< of its first byte, in the file
  std::uint64_t nbytes = 0;

  /// Slowest axis first, the reverse of the file's order. Empty for a scalar.
  [[nodiscard]] std::span<const std::int64_t> shape() const noexcept { return {dims.data(), rank}; }
};

/// A parsed and validated header. Tensors lie inside the file and do not overlap, have exactly the
/// size of their shape and type, and have distinct names. The product of a shape's axes, leaving
/// out those of length 0, is below 2^63.
struct GgufHeader {
  std::uint32_t version = 0;
  std::uint32_t alignment = 0;
  std::uint64_t data_begin = 0;  ///< position in the file; the header ends before it
  ModelMetadata metadata;
  std::vector<GgufTensor> tensors;    ///< in the header's order
  std::shared_ptr<const void> owner;  ///< keeps the bytes of names alive; may be null
};

/// Input of parse_gguf_header().
struct GgufInput {
  std::span<const std::byte> available;  ///< the first bytes of the file, as far as they are read
  std::uint64_t file_nbytes = 0;
  std::filesystem::path path;  ///< for error texts
  Limits limits;
  bool allow_gaps = false;  ///< accept unused bytes between tensors
  /// Keeps `available` alive as long as the header or its metadata exist. If null, the caller must.
  std::shared_ptr<const void> owner;
};

/// Returns the header, or how many bytes are needed to continue. The final result does not depend
/// on how many bytes earlier calls had. Time and memory are linear in `available`, except for a
/// sort.
///
/// Throws: WeightsError for every fault of the header.
/// Safe for untrusted input.
[[nodiscard]] std::variant<GgufHeader, NeedsMore> parse_gguf_header(const GgufInput& input);

/// Returns whether a file that starts with these bytes has GGUF's magic number.
[[nodiscard]] bool is_gguf(std::span<const std::byte> start) noexcept;

}  // namespace safetensors::weights
