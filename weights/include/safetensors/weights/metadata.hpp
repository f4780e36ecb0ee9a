// A model's metadata: keys with typed values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "safetensors/export.hpp"

namespace safetensors::weights {

/// Types of metadata values, with their numbers in GGUF files.
enum class MetaType : std::uint8_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};

/// Returns the name of a type: "u8", "bool", "string" ...
[[nodiscard]] SAFETENSORS_API std::string_view name(MetaType type) noexcept;
/// Returns the size of one value in bytes; nothing for strings and arrays, whose values differ in
/// length.
[[nodiscard]] SAFETENSORS_API std::optional<std::size_t> byte_size(MetaType type) noexcept;

class MetaArray;

/// One value: a view of its bytes in the file. Each as_...() returns nothing if the value has
/// another type.
///
/// Thread safety: immutable. Cheap to copy.
/// Lifetime: the value, and every view it returns, is valid while a copy of its ModelMetadata
///   exists.
class SAFETENSORS_API MetaValue {
 public:
  [[nodiscard]] MetaType type() const noexcept { return type_; }
  /// Returns a value of any integer type, not of bool; nothing if it does not fit.
  [[nodiscard]] std::optional<std::int64_t> as_int64() const noexcept;
  [[nodiscard]] std::optional<std::uint64_t> as_uint64() const noexcept;
  /// Returns an F32 or F64, not an integer.
  [[nodiscard]] std::optional<double> as_float() const noexcept;
  [[nodiscard]] std::optional<bool> as_bool() const noexcept;
  /// Returns the bytes of a string, which need not be UTF-8: see is_utf8().
  [[nodiscard]] std::optional<std::string_view> as_string() const noexcept;
  [[nodiscard]] std::optional<MetaArray> as_array() const noexcept;
  /// Returns whether this is a string of valid UTF-8. Reads the whole string.
  [[nodiscard]] bool is_utf8() const noexcept;

  /// Values are equal if their types and bytes are.
  friend bool operator==(const MetaValue& a, const MetaValue& b) noexcept { return a.equals(b); }

 private:
  friend struct MetaAccess;
  MetaValue() = default;
  [[nodiscard]] bool equals(const MetaValue& other) const noexcept;

  const std::byte* data_ = nullptr;  // a number, a string's text, or an array's elements
  std::uint64_t nbytes_ = 0;
  std::uint64_t count_ = 0;  // elements of an array
  MetaType type_ = MetaType::u8;
  MetaType element_type_ = MetaType::u8;
};

/// An array: elements of one type, read from the file's bytes on access. Thread safety and lifetime
/// are those of MetaValue.
class SAFETENSORS_API MetaArray {
 public:
  class iterator;
  [[nodiscard]] MetaType element_type() const noexcept { return element_type_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return count_; }
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] iterator begin() const noexcept;
  [[nodiscard]] iterator end() const noexcept;
  /// Returns the bytes of all elements as stored: little-endian, without gaps, at any address.
  /// Returns nothing for arrays of strings and of arrays.
  [[nodiscard]] std::optional<std::span<const std::byte>> raw() const noexcept;

 private:
  friend class MetaValue;
  MetaArray() = default;

  const std::byte* data_ = nullptr;
  std::uint64_t nbytes_ = 0;
  std::uint64_t count_ = 0;
  MetaType element_type_ = MetaType::u8;
};

/// Forward iterator over the elements of an array. Dereferencing returns a value, not a reference.
class SAFETENSORS_API MetaArray::iterator {
 public:
  using iterator_concept = std::forward_iterator_tag;
  using iterator_category = std::input_iterator_tag;
  using value_type = MetaValue;
  using difference_type = std::ptrdiff_t;
  using pointer = void;
  using reference = MetaValue;

  iterator() = default;
  [[nodiscard]] MetaValue operator*() const noexcept;
  iterator& operator++() noexcept;
  iterator operator++(int) noexcept {
    iterator before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const iterator& a, const iterator& b) noexcept {
    return a.left_ == b.left_;
  }

 private:
  friend class MetaArray;

  const std::byte* at_ = nullptr;
  std::uint64_t left_ = 0;  // elements from here on; empty elements share an address
  MetaType type_ = MetaType::u8;
};

/// The metadata of a model, in the file's order. A handle: copies share one immutable table and the
/// bytes that its values view.
///
/// Thread safety: immutable.
class SAFETENSORS_API ModelMetadata {
 public:
  struct Item {
    std::string_view key;  ///< UTF-8
    MetaValue value;
  };

  /// Makes an empty table.
  ModelMetadata() noexcept;
  /// Makes a table of strings, such as a safetensors file's `__metadata__`. Copies the text. The
  /// first of several equal keys takes precedence.
  [[nodiscard]] static ModelMetadata of_strings(
      std::span<const std::pair<std::string_view, std::string_view>> items);

  ModelMetadata(const ModelMetadata&) noexcept;
  ModelMetadata(ModelMetadata&&) noexcept;
  ModelMetadata& operator=(const ModelMetadata&) noexcept;
  ModelMetadata& operator=(ModelMetadata&&) noexcept;
  ~ModelMetadata();

  [[nodiscard]] std::span<const Item> items() const noexcept;
  [[nodiscard]] std::size_t size() const noexcept { return items().size(); }
  [[nodiscard]] bool empty() const noexcept { return items().empty(); }
  [[nodiscard]] auto begin() const noexcept { return items().begin(); }
  [[nodiscard]] auto end() const noexcept { return items().end(); }
  /// Returns the value of that key; nullptr if there is none. Takes constant time.
  [[nodiscard]] const MetaValue* find(std::string_view key) const noexcept;

 private:
  friend struct MetaAccess;
  struct Table;
  explicit ModelMetadata(std::shared_ptr<const Table> table) noexcept;

  std::shared_ptr<const Table> table_;  // null: empty
};

/// The old name of ModelMetadata. Will be removed in the next version.
using Metadata [[deprecated("use ModelMetadata")]] = ModelMetadata;

}  // namespace safetensors::weights
