// The header of a file: what tensors it holds and where. Pure: needs no file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "safetensors/dtype.hpp"
#include "safetensors/error.hpp"
#include "safetensors/export.hpp"

namespace safetensors {

/// Bytes before the header: its length as a little-endian 64-bit integer.
inline constexpr std::size_t kLengthSize = 8;
/// Longest header that readers accept, in bytes.
inline constexpr std::uint64_t kMaxHeaderSize = 100'000'000;
/// The header key that holds metadata instead of a tensor.
inline constexpr std::string_view kMetadataKey = "__metadata__";

/// One tensor's header entry. The views point into the Header that returned it. (A NUL may also
/// stand within a name.)
struct TensorInfo {
  std::string_view name;                 ///< UTF-8, JSON escapes decoded; a NUL stands after it
  std::span<const std::uint64_t> shape;  ///< elements along each axis; empty for a scalar
  std::uint64_t begin = 0;               ///< first byte, counted from the start of the data
  std::uint64_t end = 0;                 ///< one past the last byte
  Dtype dtype = Dtype::kU8;

  [[nodiscard]] std::uint64_t nbytes() const noexcept { return end - begin; }
};

/// A parsed and validated header. Immutable, so safe to read from many threads. Movable; moving
/// keeps TensorInfo pointers and views valid.
///
/// Validated means: the tensors' byte ranges tile the data section without hole or overlap, each
/// range has exactly the bytes that shape and dtype ask for, and no name stands twice.
class SAFETENSORS_API Header {
 public:
  /// Parses `json` (the header without its 8 length bytes) of a file whose data section has
  /// `data_nbytes` bytes. Keeps no reference to `json`.
  /// Memory stays within a small multiple of json.size(); time is linear in it up to sorting.
  /// Throws Error; the text does not name a file.
  [[nodiscard]] static Header parse(std::span<const std::byte> json, std::uint64_t data_nbytes);

  Header(Header&&) noexcept;
  Header& operator=(Header&&) noexcept;
  ~Header();

  /// All tensors, by offset; tensors of no bytes keep the header's order among equals.
  [[nodiscard]] std::span<const TensorInfo> tensors() const noexcept { return tensors_; }
  [[nodiscard]] std::size_t size() const noexcept { return tensors_.size(); }
  /// The entry of that name; nullptr when there is none.
  [[nodiscard]] const TensorInfo* find(std::string_view name) const noexcept;
  /// All entries by name, in byte order.
  [[nodiscard]] std::vector<const TensorInfo*> sorted_by_name() const;

  using MetadataItem = std::pair<std::string_view, std::string_view>;
  /// Whether the header has a metadata object (it may be empty).
  [[nodiscard]] bool has_metadata() const noexcept { return has_metadata_; }
  /// Key and value pairs, in the header's order; a NUL stands after each text.
  [[nodiscard]] std::span<const MetadataItem> metadata() const noexcept { return metadata_; }
  /// The value of that metadata key; nothing when there is none.
  [[nodiscard]] std::optional<std::string_view> find_metadata(std::string_view key) const noexcept;

 private:
  friend class HeaderBuilder;
  Header() = default;

  // Vectors, not strings: a short string would move its characters, and with them the views.
  std::vector<char> text_;
  std::vector<std::uint64_t> dims_;
  std::vector<TensorInfo> tensors_;
  std::vector<MetadataItem> metadata_;
  std::vector<std::uint32_t> slots_;  // open addressing; 0 is free, else index + 1
  std::uint64_t seed_ = 0;
  bool has_metadata_ = false;
};

/// The length of a file's header, from the file's first bytes: 8, or more if there are more. For
/// those who read the header themselves, as from a network: the header follows these 8 bytes, and
/// Header::parse takes it. Throws Error: kHeaderTooSmall, kHeaderTooLarge, kInvalidHeaderLength.
[[nodiscard]] SAFETENSORS_API std::uint64_t header_length(std::span<const std::byte> start,
                                                          std::uint64_t file_nbytes);

/// A whole file in memory, taken apart: header and data section.
struct ParsedBytes {
  Header header;
  std::span<const std::byte> data;  ///< view of the input

  /// The bytes of a tensor of `header`: a view of the input. `elements` and `copy_elements` give
  /// them a type.
  [[nodiscard]] std::span<const std::byte> bytes(const TensorInfo& info) const noexcept {
    return data.subspan(static_cast<std::size_t>(info.begin),
                        static_cast<std::size_t>(info.nbytes()));
  }
};

/// Parses a whole file held in memory. The result's data section is a view of `file`.
/// Throws Error; texts begin "Error while deserializing: ".
[[nodiscard]] SAFETENSORS_API ParsedBytes parse_bytes(std::span<const std::byte> file);

}  // namespace safetensors
