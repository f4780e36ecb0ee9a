// The header of a file: which tensors the file holds, and where. Pure functions of bytes: no file
// is opened.
//
// The layout of a file, and the two origins from which positions are counted:
//
//     0         8            data_offset                               end of file
//     | length  | JSON header | data section                                    |
//     | 8 bytes | and spaces  | tensor 0      | tensor 1 | tensor 2             |
//                             0               |          |          data_nbytes
//                                             begin      end         (of tensor 1)
//
// TensorInfo::begin and end count from the start of the data section, as the header's
// `data_offsets` do. SafeOpen::position(), data_offset() and ByteSource count from the start of the
// file: position = data_offset + begin.
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
#include "safetensors/temporary.hpp"

namespace safetensors {

/// Size of the length field before the header: a little-endian 64-bit integer.
inline constexpr std::size_t kLengthSize = 8;
/// Longest header that readers accept, in bytes.
inline constexpr std::uint64_t kMaxHeaderSize = 100'000'000;
/// The header key that holds metadata instead of a tensor.
inline constexpr std::string_view kMetadataKey = "__metadata__";

/// One tensor's header entry.
///
/// Lifetime: the views point into the Header that returned it.
struct TensorInfo {
  /// UTF-8, with JSON escapes decoded. A NUL follows it in memory, and may also occur within it.
  std::string_view name;
  std::span<const std::uint64_t> shape;  ///< elements along each axis; empty for a scalar
  std::uint64_t begin = 0;               ///< offset of the first byte in the data section
  std::uint64_t end = 0;                 ///< offset past the last byte
  Dtype dtype = Dtype::kU8;

  [[nodiscard]] std::uint64_t nbytes() const noexcept { return end - begin; }
};

/// A parsed and validated header. Validated means:
///   - the tensors' byte ranges tile the data section: no gap, no overlap, nothing left over;
///   - each range has exactly the bytes that the tensor's shape and dtype require;
///   - no name occurs twice.
///
/// Thread safety: immutable, so any number of threads may use one.
/// Lifetime: TensorInfo pointers and views are valid while the Header lives. Moving it keeps them
///   valid.
class SAFETENSORS_API Header {
 public:
  /// Parses `json`, the header without its 8 length bytes, of a file whose data section has
  /// `data_nbytes` bytes. Keeps no reference to `json`.
  ///
  /// Safe for untrusted input: memory stays within a small multiple of json.size(), and time is
  /// linear in it, apart from sorting the tensors.
  /// Throws: Error, codes kInvalidHeaderUtf8 to kMisalignedSlice. The text names no file.
  [[nodiscard]] static Header parse(std::span<const std::byte> json, std::uint64_t data_nbytes);

  Header(Header&&) noexcept;
  Header& operator=(Header&&) noexcept;
  ~Header();

  /// Returns all tensors, sorted by offset; empty tensors at the same offset keep the order of the
  /// JSON.
  [[nodiscard]] std::span<const TensorInfo> tensors() const noexcept { return tensors_; }
  [[nodiscard]] std::size_t size() const noexcept { return tensors_.size(); }
  /// Returns the entry with this name; nullptr if there is none.
  [[nodiscard]] const TensorInfo* find(std::string_view name) const noexcept;
  /// Returns the tensor with this name.
  ///
  /// Throws: Error kTensorNotFound if there is none. The text suggests similar names.
  [[nodiscard]] const TensorInfo& at(std::string_view name) const;
  /// Returns all entries sorted by name, in byte order.
  [[nodiscard]] std::vector<const TensorInfo*> sorted_by_name() const;

  using MetadataItem = std::pair<std::string_view, std::string_view>;
  /// Returns whether the header has a metadata object, which may be empty.
  [[nodiscard]] bool has_metadata() const noexcept { return has_metadata_; }
  /// Returns the metadata's key and value pairs in the order of the JSON. A NUL follows each string
  /// in memory.
  [[nodiscard]] std::span<const MetadataItem> metadata() const noexcept { return metadata_; }
  /// Returns the value of this metadata key; nothing if there is none.
  [[nodiscard]] std::optional<std::string_view> find_metadata(std::string_view key) const noexcept;

 private:
  friend class HeaderBuilder;
  Header() = default;

  // Vectors, not strings: moving a short string would move its characters, and with them the views.
  std::vector<char> text_;
  std::vector<std::uint64_t> dims_;
  std::vector<TensorInfo> tensors_;
  std::vector<MetadataItem> metadata_;
  std::vector<std::uint32_t> slots_;  // hash table, open addressing: 0 is free, else index + 1
  std::uint64_t seed_ = 0;
  bool has_metadata_ = false;
};

/// Returns the length of a file's header from the file's first bytes: 8, or more if available. For
/// programs that read the header themselves, for example from a network: the header follows these 8
/// bytes, and Header::parse takes it.
///
/// Safe for untrusted input.
/// Throws: Error kHeaderTooSmall, kHeaderTooLarge, or kInvalidHeaderLength.
[[nodiscard]] SAFETENSORS_API std::uint64_t header_length(std::span<const std::byte> start,
                                                          std::uint64_t file_nbytes);

/// A whole file in memory, split into header and data section.
struct ParsedBytes {
  Header header;
  std::span<const std::byte> data;  ///< view of the input

  /// Returns the bytes of a tensor of `header`, as a view of the input. `elements` and
  /// `copy_elements` interpret them.
  [[nodiscard]] std::span<const std::byte> bytes(const TensorInfo& info) const noexcept {
    return data.subspan(static_cast<std::size_t>(info.begin),
                        static_cast<std::size_t>(info.nbytes()));
  }
};

/// Parses a whole file in memory. SafeOpen on a MemorySource does the same, and has all of
/// SafeOpen's functions.
///
/// Safe for untrusted input.
/// Throws: what header_length and Header::parse throw, with texts that begin "Error while
///   deserializing: ".
/// Lifetime: the result's data section is a view of `file`.
[[nodiscard]] SAFETENSORS_API ParsedBytes parse_bytes(std::span<const std::byte> file);
template <Temporary File>
ParsedBytes parse_bytes(File&&) = delete;

}  // namespace safetensors
