// The header of a GGUF file: metadata, and what tensors it holds and where. Pure: needs no file.
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

#include "safetensors/weights/limits.hpp"
#include "safetensors/weights/metadata.hpp"
#include "weights/cursor.hpp"

namespace safetensors::weights {

/// One tensor. The name is a view of the bytes that were parsed.
struct GgufTensor {
  static constexpr std::size_t kMaxDims = 4;

  std::string_view name;  ///< UTF-8, without NUL
  std::array<std::int64_t, kMaxDims> dims{};
  std::uint32_t rank = 0;
  std::uint32_t type = 0;    ///< one that find_ggml_type() knows
  std::uint64_t offset = 0;  ///< of its first byte, in the file
  std::uint64_t nbytes = 0;

  /// Slowest axis first: backwards from the file. Empty for a scalar.
  [[nodiscard]] std::span<const std::int64_t> shape() const noexcept { return {dims.data(), rank}; }
};

/// A header that was parsed and validated: tensors lie inside the file and over no other, take
/// exactly the bytes of their shape and type, and have different names. The product of a shape's
/// axes, those of no length left out, is below 2^63.
struct GgufHeader {
  std::uint32_t version = 0;
  std::uint32_t alignment = 0;
  std::uint64_t data_begin = 0;  ///< in the file; the header's bytes end before
  ModelMetadata metadata;
  std::vector<GgufTensor> tensors;    ///< in the header's order
  std::shared_ptr<const void> owner;  ///< of the bytes that names are views of; may be null
};

/// What a GGUF header is parsed from.
struct GgufInput {
  std::span<const std::byte> available;  ///< the file's first bytes, as many as were read yet
  std::uint64_t file_nbytes = 0;
  std::filesystem::path path;  ///< for error texts
  Limits limits;
  bool allow_gaps = false;  ///< whether tensors may have unused bytes between them
  /// Keeps `available` alive for as long as header and metadata live. Null: the caller does.
  std::shared_ptr<const void> owner;
};

/// The header, or how much more of the file is needed to find its end. What comes out in the end
/// does not depend on how many bytes were at hand before.
/// Throws weights::Error. Time and memory are linear in the bytes at hand, up to sorting.
[[nodiscard]] std::variant<GgufHeader, NeedsMore> parse_gguf_header(const GgufInput& input);

/// Whether a file with these first bytes calls itself GGUF.
[[nodiscard]] bool is_gguf(std::span<const std::byte> start) noexcept;

}  // namespace safetensors::weights
